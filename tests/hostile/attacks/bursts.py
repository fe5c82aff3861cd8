"""Attacks by the moment: requests on many connections, all but their last byte, and then the last bytes of all of them.

The loop finds all of them complete in one turn. Each is honest by itself, and cannot be told from one of a slow client.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time

from hpack import Encoder

from tests.hostile.attack import Target, attack
from tests.hostile.attacks.commands import scaled
from tests.hostile.attacks.crowds import connections, message, request_text, reset
from tests.hostile.attacks.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, WINDOW_UPDATE, Road, frame
from tests.hostile.attacks.streams import JSON, raise_files, websocket

LARGE = [f"{i:04}" + "n" * 1000 for i in range(990)]
SMALLER = [f"{i:04}" + "n" * 236 for i in range(990)]
STREAMS = 20
SETTLED_S = 0.5


def end_together(target: Target, opened: list[socket.socket], last: bytes) -> None:
    """Send these last bytes on all connections in one moment, wait for an answer on each, and end all of them."""
    time.sleep(SETTLED_S)
    for connection in opened:
        # One whose body there was no room for is closed already.
        with contextlib.suppress(OSError):
            connection.sendall(last)
    for connection in opened:
        with contextlib.suppress(OSError):
            connection.recv(1 << 16)
    reset(opened)


def burst(target: Target, count: int, path: str, body: dict[str, object]) -> None:
    """One such moment after the other, of so many requests."""
    target.request("POST", "/v0/topics/burst", {"records": [{"data": 1}]}, JSON)
    request = request_text("POST", path, json.dumps(body).encode())
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        end_together(target, connections(target, scaled(count, target), request[:-1]), request[-1:])


@attack("reads-end-together")
def reads_end_together(target: Target) -> None:
    """Ends 200 reads with filters of almost a megabyte in one moment, again and again."""
    burst(target, 200, "/v0/topics/burst/diff", {"from_seq": 0, "node": LARGE})


@attack("smaller-reads-end-together", in_slice=False)
def smaller_reads_end_together(target: Target) -> None:
    """Ends 900 reads with filters of 240 KB in one moment, again and again."""
    burst(target, 900, "/v0/topics/burst/diff", {"from_seq": 0, "node": SMALLER})


@attack("writes-end-together", in_slice=False)
def writes_end_together(target: Target) -> None:
    """Ends 900 writes of 1,000 records in one moment, again and again."""
    burst(target, 900, "/v0/topics/burst", {"records": [{"data": {"n": i, "text": "x" * 200}} for i in range(1000)]})


@attack("sessions-end-together", in_slice=False)
def sessions_end_together(target: Target) -> None:
    """Ends 900 requests for sessions over 1,000 topics in one moment, again and again."""
    burst(target, 900, "/v0/watch", {"topics": {f"burst{i:04}" + "n" * 180: {} for i in range(990)}})


@attack("websocket-commands-end-together", in_slice=False)
def websocket_commands_end_together(target: Target) -> None:
    """Ends commands of almost a megabyte on 200 WebSockets in one moment, again and again."""
    raise_files()
    target.request("POST", "/v0/topics/burst", {"records": [{"data": 1}]}, JSON)
    text = message(json.dumps({"op": "subscribe", "topic": "burst", "node": LARGE}).encode())
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        opened = [websocket(target) for _ in range(scaled(200, target))]
        for connection in opened:
            connection.sendall(text[:-1])
        end_together(target, opened, text[-1:])


@attack("http2-reads-end-together")
def http2_reads_end_together(target: Target) -> None:
    """Ends reads with filters of almost a megabyte on 20 streams of each of 5 connections, again and again."""
    target.request("POST", "/v0/topics/burst", {"records": [{"data": 1}]}, JSON)
    body = json.dumps({"from_seq": 0, "node": LARGE}).encode()
    fields = [(":method", "POST"), (":path", "/v0/topics/burst/diff"), (":scheme", "http")]
    fields += [(":authority", "localhost"), ("content-type", "application/json")]
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        roads = [Road(target) for _ in range(5)]
        streams = range(1, 2 * STREAMS, 2)
        for road in roads:
            encoder = Encoder()
            road.send(frame(WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4)))
            for stream in streams:
                road.send(frame(HEADERS, END_HEADERS, stream, encoder.encode(fields)))
            for stream in streams:
                for at in range(0, len(body), 16_000):
                    road.send(frame(DATA, 0, stream, body[at : at + 16_000]))
        time.sleep(SETTLED_S)
        for road in roads:
            road.send(b"".join(frame(DATA, END_STREAM, stream) for stream in streams))
        time.sleep(SETTLED_S)
        for road in roads:
            road.close()
