"""Spans, times and sizes as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import typer

from topics.commands.spans import shown_size, shown_span, size_bytes, span_ms, time_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250", 250), ("250ms", 250), ("1.5s", 1_500), ("10m", 600_000), ("2h", 7_200_000), ("7d", 604_800_000),
     ("1w", 604_800_000), (" 3 s ", 3_000), ("0s", 0)],
)  # fmt: skip
def test_spans(text: str, ms: int) -> None:
    """CLI-15."""
    assert span_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "-1s", "1y", "1s2", "ten", "1e3s"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a span of time: it must be like"):
        span_ms(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1_000), ("64kB", 64_000), ("64KB", 64_000), ("1KiB", 1_024), ("1.5MB", 1_500_000), ("2GiB", 2 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "1 PB", "-1", "1M"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a size"):
        size_bytes(text)


def test_a_time_is_a_span_ago_or_a_date() -> None:
    """CLI-15."""
    now = 1_790_000_000_000
    assert time_ms("10m", now) == now - 600_000
    assert time_ms("1790000000001", now) == 1_790_000_000_001
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert time_ms("2026-01-31T12:00:00Z") == int(noon.timestamp() * 1000)
    assert time_ms("2026-01-31T13:00+01:00") == int(noon.timestamp() * 1000)
    assert time_ms("2026-01-31") == int(datetime(2026, 1, 31).astimezone().timestamp() * 1000)
    for text in ("yesterday", "10", "2026-13-01", ""):
        with pytest.raises(typer.BadParameter, match="is not a time"):
            time_ms(text)


def test_spans_and_sizes_are_shown_in_units() -> None:
    spans = (5, 999, 1_000, 1_500, 61_000, 3_600_000, 90_061_000)
    assert [shown_span(ms) for ms in spans] == ["5ms", "999ms", "1s", "1.5s", "1m1s", "1h", "1d1h"]
    sizes = (0, 999, 1_000, 150_000, 1_500_000_000, 2_500_000_000_000)
    assert [shown_size(size) for size in sizes] == ["0 B", "999 B", "1.0 kB", "150 kB", "1.5 GB", "2.5 TB"]
