"""Spans, times and sizes as people write them: `90s`, `10m`, `7d`; `2026-01-31 12:00`; `10MB`, `1GiB`.

A number without a unit is what the API takes: milliseconds and bytes. A time may be a span, and means that long ago.
"""

from __future__ import annotations

import functools
import re
import time
from datetime import datetime
from typing import Final

import typer

_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|)")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(|b|[kmgt]i?b)", re.IGNORECASE)
_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_BYTES: Final = {"": 1, "b": 1} | {
    f"{letter}{infix}b": base**power
    for power, letter in enumerate("kmgt", 1)
    for infix, base in (("", 1_000), ("i", 1_024))
}
_SHOWN: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def span_ms(text: str | int) -> int:
    """A span of time in milliseconds; the default of an option may be that already."""
    if isinstance(text, int):
        return text
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f'"{text}" is not a span of time: it must be like 500ms, 30s, 10m, 2h or 7d')
    return int(float(found[1]) * _MS[found[2]])


def size_bytes(text: str) -> int:
    """A size in bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f'"{text}" is not a size: it must be like 1000, 64kB, 10MB or 2GiB')
    return int(float(found[1]) * _BYTES[found[2].lower()])


def time_ms(text: str, now_ms: int | None = None) -> int:
    """A time in milliseconds since the epoch: a span ago, or a date of this machine's time zone unless it names one."""
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    text = text.strip()
    if _SPAN.fullmatch(text) and not text.isdigit():
        return max(0, now_ms - span_ms(text))
    if text.isdigit() and len(text) >= 11:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f'"{text}" is not a time: it must be a span ago such as 10m or 2d, or a date such as 2026-01-31,'
            " 2026-01-31T12:00 or 2026-01-31T12:00:00Z"
        ) from None


def local_time(ts: int) -> str:
    """A time in the time zone of this machine."""
    seconds, millis = divmod(ts, 1000)
    return f"{_local_second(seconds)}.{millis:03}"


@functools.lru_cache(maxsize=1_024)
def _local_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def shown_span(ms: float) -> str:
    """A span for people, in its two largest units."""
    if ms < 1_000:
        return f"{ms:.0f}ms"
    if ms < 60_000:
        return f"{ms / 1_000:.1f}s".replace(".0s", "s")
    parts = []
    rest = int(ms)
    for unit_ms, name in _SHOWN:
        count, rest = divmod(rest, unit_ms)
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts[:2])


def shown_size(size: float) -> str:
    """A size for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1_000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1_000
    return f"{size:,.1f} TB"
