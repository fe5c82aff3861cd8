"""The credit of an HTTP/2 client: floods are closed, honest clients never."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.server.http.credit import (
    ANSWER_EARNS,
    CONTINUATION,
    CREDIT_MAX,
    DATA,
    EARNED_PER_S,
    HEADERS,
    PIECE_FRAMES,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Credit,
    FrameMeter,
    Overdrawn,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BLOCK_MAX = 32 * 1024


def frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + (1).to_bytes(4) + payload


def meter(now_ns: int = 0) -> tuple[Credit, FrameMeter]:
    credit = Credit(lambda: now_ns)
    found = FrameMeter(credit, BLOCK_MAX)
    assert found.piece(PREFACE, 0) == len(PREFACE)
    return credit, found


def feed(found: FrameMeter, data: bytes) -> int:
    at = pieces = 0
    while at < len(data):
        at = found.piece(data, at)
        pieces += 1
    return pieces


@pytest.mark.parametrize("kind", [SETTINGS, PING, PRIORITY, WINDOW_UPDATE, DATA, RST_STREAM, HEADERS, 99])
def test_a_flood_of_frames_that_carry_nothing_overdraws(kind: int) -> None:
    """FAIR-2."""
    _, found = meter()
    with pytest.raises(Overdrawn):
        feed(found, frame(kind) * (CREDIT_MAX + 1))


def test_bodies_cost_nothing() -> None:
    """FAIR-2: an upload is no flood."""
    credit, found = meter()
    feed(found, frame(DATA, b"x" * 100) * 10_000)
    assert credit.left == CREDIT_MAX


def test_requests_that_are_answered_pay_for_what_belongs_to_them() -> None:
    """FAIR-2: an honest client is never closed."""
    credit, found = meter()
    for _ in range(10_000):
        feed(found, frame(PRIORITY) + frame(HEADERS, b"x" * 40) + frame(DATA, b"", 1) + frame(WINDOW_UPDATE) * 2)
        credit.earn(ANSWER_EARNS)


def test_a_block_of_header_fields_is_bounded_before_it_is_decoded() -> None:
    """FAIR-2."""
    _, found = meter()
    feed(found, frame(HEADERS, b"x" * (BLOCK_MAX - 16_000)) + frame(CONTINUATION, b"x" * 16_000))
    feed(found, frame(HEADERS, b"x" * 16_000))
    with pytest.raises(Overdrawn):
        feed(found, frame(CONTINUATION, b"x" * 16_000) * 2)


def test_time_earns_credit() -> None:
    now_ns = 0
    credit = Credit(lambda: now_ns)
    credit.spend(CREDIT_MAX)
    with pytest.raises(Overdrawn):
        credit.spend(1)
    now_ns = 1_000_000_000
    credit.spend(EARNED_PER_S - 1)
    with pytest.raises(Overdrawn):
        credit.spend(2)


@given(st.lists(st.integers(1, 50), max_size=40), st.lists(st.integers(0, 60), min_size=1, max_size=30))
def test_how_the_bytes_are_split_into_reads_changes_nothing(cuts: list[int], sizes: list[int]) -> None:
    stream = b"".join(frame(PING, b"x" * size) for size in sizes)
    credit, found = meter()
    at = 0
    for cut in [*cuts, len(stream)]:
        feed(found, stream[at : at + cut])
        at += cut
    assert CREDIT_MAX - credit.left == len(sizes)


def test_a_piece_holds_few_frames_and_ends_between_two() -> None:
    _, found = meter()
    data = frame(PING, b"12345678") * 100
    assert found.piece(data, 0) == PIECE_FRAMES * 17
