"""Frames: the bytes of events and messages, and the socket they leave by (WATCH-21, WATCH-22, WATCH-26, CONN-14)."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from topics.server.delivery import notice as notices
from topics.server.delivery.event_stream import UNACKED_MS_MAX, error_event, heartbeat, tune


def parse(raw: bytes) -> list[dict[str, str]]:
    """What an EventSource makes of the bytes: WHATWG, "interpreting an event stream"."""
    events, fields = [], {"event": "", "data": "", "id": ""}
    for line in re.split(r"\r\n|\r|\n", raw.decode()):
        if line == "":
            if fields["data"]:
                events.append({**fields, "data": fields["data"][:-1]})
            fields = {"event": "", "data": "", "id": fields["id"]}
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            fields["data"] += value + "\n"
        elif name in fields:
            fields[name] = value
    return events


gaps = st.text(alphabet=" \t\r\n", max_size=6)


@given(gaps, gaps, gaps, st.text(max_size=20))
def test_no_line_break_in_data_can_end_an_event(a: str, b: str, c: str, text: str) -> None:
    """WATCH-22: blank lines, CR, CRLF inside `data` become further data lines; the JSON stays the same."""
    json_text = f'{{"records":[{a}{{{b}"x":{c}{json.dumps(text)}}}]}}'
    raw = notices.event(b"record", json_text.encode())
    (event,) = parse(raw)
    assert event["event"] == "record"
    assert json.loads(event["data"]) == {"records": [{"x": text}]}


def test_events_begin_with_their_kind_and_end_with_a_blank_line() -> None:
    """WATCH-21."""
    assert notices.event(b"caught-up", b"{}") == b"event: caught-up\ndata: {}\n\n"


def test_heartbeat_is_a_comment_with_the_time() -> None:
    """WATCH-26."""
    assert heartbeat(1748467205000) == b": hb 1748467205000\n\n"
    assert parse(heartbeat(5)) == []


def test_error_events_have_no_id() -> None:
    """WATCH-28: code, error, and for 429 retry_after_ms and the topics."""
    raw = error_event(429, "watch throttled under CPU pressure", retry_after_ms=1500, topics=["events"])
    assert b"id:" not in raw
    (event,) = parse(raw)
    assert json.loads(event["data"]) == {
        "code": 429,
        "error": "watch throttled under CPU pressure",
        "retry_after_ms": 1500,
        "topics": ["events"],
    }


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_messages_are_single_unmasked_text_frames(size: int) -> None:
    """WS-9, RFC 6455 §5.2."""
    payload = b"x" * size
    frame = notices.text_frame(payload)
    assert frame == Frame(Opcode.TEXT, payload).serialize(mask=False)
    assert frame[0] == 0x81
    assert frame[1] & 0x80 == 0
    assert frame.endswith(payload)
    assert len(frame) - size == (2 if size < 126 else 4 if size < 65_536 else 10)


def test_streams_send_at_once_and_notice_the_dead() -> None:
    """CONN-14, WATCH-14: TCP_NODELAY; and a client that acknowledges nothing is ended by the kernel."""

    class Transport:
        def __init__(self, sock: socket.socket) -> None:
            self.sock = sock

        def get_extra_info(self, name: str) -> Any:
            return self.sock if name == "socket" else None

    with socket.socket() as sock:
        tune(Transport(sock))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNACKED_MS_MAX
    tune(None)
