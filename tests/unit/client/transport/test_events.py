"""Server-sent events out of bytes."""

from __future__ import annotations

import pytest

from topics.client.transport import events
from topics.client.transport.answer import Malformed
from topics.client.transport.events import Event, EventParser

STREAM = (
    b"retry: 2000\n\n"
    b": hb 17\n\n"
    b'event: record\ndata: {"a":\ndata: 1}\nid: abc\n\n'
    b"data:plain\r\ndata\r\n\r\n"
    b"event: lonely\n\n"
    b"id: no\0t\nunknown: x\ndata: last\n\n"
)
EVENTS = [
    Event(b"record", b'{"a":\n1}', b"abc"),
    Event(b"message", b"plain\n", b"abc"),
    Event(b"message", b"last", b"abc"),
]


def test_events_are_the_same_wherever_their_bytes_are_cut() -> None:
    """CLIENT-1."""
    cut = [[STREAM[:at], STREAM[at:]] for at in range(len(STREAM))]
    for pieces in [*cut, [bytes((byte,)) for byte in STREAM]]:
        parser = EventParser()
        assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


def test_an_event_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVENT_BYTES_MAX", 1_000)
    parser = EventParser()
    for _ in range(99):
        parser.feed(b"data: 0123456789\n")
    with pytest.raises(Malformed, match="larger than 1,000 bytes"):
        parser.feed(b"data: 0123456789\ndata: 0123456789\n")
