"""Live delivery: how fast, at what cost, and what it costs other requests.

Latency is from just before the write is sent until a stream's bytes are read here, so the generator's own time to read
a thousand sockets is part of it. `CPU us` is the server's processor time per frame that reached a stream. A room is a
WebSocket topic in which each client hears all others; what does not arrive is counted as lost.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from bench import records
from bench.bed import Bench, anon_mib, cpu_s
from bench.load import quantiles
from bench.row import Row, at_most
from topics.testing import ServerProcess

FAN_OUTS = ((1, 1), (10, 1), (100, 1), (1000, 1), (1000, 100))
ROWS = (
    *(f"sse-{count}-streams" + (f"-{topics}-topics" if topics > 1 else "") for count, topics in FAN_OUTS),
    "sse-post-1000-streams",
    "sse-idle",
    "ws-room-100",
)
FED_RATE = 100
IDLE_STREAMS = 2_000
TALKERS, TALK_RATE = 100, 50
PAYLOAD = "x" * 90
SEQ = b'"$seq":'


def measure(bench: Bench) -> Iterator[Row]:
    """Every row of live delivery."""
    for name, (count, topics) in zip(ROWS, FAN_OUTS, strict=False):
        if bench.wants(name):
            yield _fan_out(bench, name, count, topics)
    if bench.wants("sse-post-1000-streams"):
        yield _fed(bench, "sse-post-1000-streams", 1000)
    if bench.wants("sse-idle"):
        yield _idle(bench, "sse-idle", 9_900 if bench.full else IDLE_STREAMS)
    if bench.wants("ws-room-100"):
        yield _room(bench, "ws-room-100")


def _serve(bench: Bench) -> Any:
    return bench.server(max_sse_connections=0, max_watch_sessions=0, max_connections=0)


def _fan_out(bench: Bench, name: str, count: int, topic_count: int) -> Row:
    """Write-to-deliver over streams that each follow one of the topics."""
    topics = [f"fan{i}" for i in range(topic_count)]
    latencies: list[int] = []
    with _serve(bench) as server, closing(Writer(server)) as writer, closing(Streams(server, writer)) as streams:
        for topic in topics:
            writer.write(topic, 0)
        for i in range(count):
            streams.open([topics[i % topic_count]])
        frames, writes, took, used = 0, 0, 0.0, cpu_s(server.pid)
        for _ in bench.ticks():
            sent = time.perf_counter_ns()

            def note(data: bytes, now: int, sent: int = sent) -> int:
                found = data.count(SEQ)
                latencies.extend([now - sent] * found)
                return found

            writer.write(topics[writes % topic_count], {"at": sent, "payload": PAYLOAD})
            frames += streams.read_records(count // topic_count, 10, note)
            writes += 1
            took += (time.perf_counter_ns() - sent) / 1e9
        used = cpu_s(server.pid) - used
    title = f"one record to {count} SSE streams over {topic_count} topics"
    row = Row(name, title, requests_s=writes / took, records_s=frames / took, core=used / took)
    row.p50_ms, row.p99_ms = quantiles(latencies, 1e6)
    row.cpu_us = used / frames * 1e6
    if count == 1000 and topic_count == 1:
        row.target = at_most(15, "cpu_us")
        row.note = "p99 should be under 20 ms on a machine that is not shared"
    return row


def _fed(bench: Bench, name: str, count: int) -> Row:
    """POST latency while streams are fed."""
    with _serve(bench) as server, closing(Writer(server)) as writer, closing(Streams(server, writer)) as streams:
        writer.write("fed", 0)
        for _ in range(count):
            streams.open(["fed"])
        writes = int(FED_RATE * bench.seconds)
        reader = os.fork()
        if reader == 0:
            read_all(streams, count * writes, bench.seconds + 30)
        latencies = []
        begin, used = time.perf_counter(), cpu_s(server.pid)
        for i in range(writes):
            time.sleep(max(0.0, begin + i / FED_RATE - time.perf_counter()))
            start = time.perf_counter_ns()
            writer.write("fed", {"i": i, "payload": PAYLOAD})
            latencies.append(time.perf_counter_ns() - start)
        took, used = time.perf_counter() - begin, cpu_s(server.pid) - used
        _, status = os.waitpid(reader, 0)
    row = Row(name, f"POST while {count} streams are fed {FED_RATE} records/s", requests_s=writes / took)
    row.p50_ms, row.p99_ms = quantiles(latencies, 1e6)
    row.core, row.target = used / took, at_most(20, "p99_ms")
    row.note = "every stream got every record" if status == 0 else "RECORDS WERE LOST"
    return row


def _idle(bench: Bench, name: str, count: int) -> Row:
    """Memory of streams to which nothing happens."""
    with _serve(bench) as server, closing(Writer(server)) as writer, closing(Streams(server, writer)) as streams:
        writer.write("idle", 0)
        streams.open(["idle"])
        before = anon_mib(server.pid)
        for _ in range(count):
            streams.open(["idle"])
        after = anon_mib(server.pid)
    note = f"{(after - before) * 1024 / count:.1f} KiB per stream, should be under 20"
    bound = at_most(before + count * 20 / 1024, "mib")
    return Row(name, f"server with {count} idle SSE streams", mib=after, target=bound, note=note)


def _room(bench: Bench, name: str) -> Row:
    """A WebSocket room: each client hears all others, nothing is lost."""
    with _serve(bench) as server:
        records.create(server, "room", durability="ephemeral")
        sockets = [join(server, f"u{i:03}") for i in range(TALKERS)]
        each = int(TALK_RATE * bench.seconds)
        expected = each * TALKERS * (TALKERS - 1)
        reader = os.fork()
        if reader == 0:
            listen(sockets, expected, bench.seconds + 60)
        frames = [
            client_frame({"op": "publish", "topic": "room", "return_seqs": False,
                          "records": [{"node": f"u{i:03}", "data": {"packet": PAYLOAD}}]})
            for i in range(TALKERS)
        ]  # fmt: skip
        begin, used = time.perf_counter(), cpu_s(server.pid)
        for turn in range(each):
            time.sleep(max(0.0, begin + turn / TALK_RATE - time.perf_counter()))
            for sock, frame in zip(sockets, frames, strict=True):
                sock.setblocking(True)
                sock.sendall(frame)
        _, status = os.waitpid(reader, 0)
        took, used = time.perf_counter() - begin, cpu_s(server.pid) - used
        for sock in sockets:
            sock.close()
    row = Row(name, f"WebSocket room of {TALKERS} talkers at {TALK_RATE} messages/s, ephemeral")
    row.requests_s, row.records_s = each * TALKERS / took, expected / took
    row.core, row.cpu_us = used / took, used / (each * TALKERS) * 1e6
    row.note = ("loss 0" if status == 0 else "RECORDS WERE LOST") + f"; {bench.seconds:g} s of talk took {took:.1f} s"
    return row


_tails: dict[int, bytes] = {}


def read_on(key: selectors.SelectorKey) -> bytes:
    """What a socket has, after the end of what it had before: a seq may be cut between two reads."""
    data = _tails.get(key.fd, b"") + key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
    _tails[key.fd] = data[1 - len(SEQ) :]
    return data


class Writer:
    """One kept-alive connection that writes."""

    def __init__(self, server: ServerProcess) -> None:
        self.connection = http.client.HTTPConnection(server.host, server.port)

    def post(self, path: str, body: Any) -> dict[str, Any]:
        """POST and read the answer."""
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        content = answer.read()
        assert answer.status in (200, 201), content
        return json.loads(content)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def write(self, topic: str, data: Any) -> None:
        """Append one record."""
        self.post(f"/v0/topics/{topic}?return_seqs=false", {"records": [{"data": data}]})


class Streams:
    """Many open SSE streams, read by one selector."""

    def __init__(self, server: ServerProcess, writer: Writer) -> None:
        self.server = server
        self.writer = writer
        self.selector = selectors.EpollSelector()
        self.sockets: list[socket.socket] = []

    def open(self, topics: list[str]) -> None:
        """Open one stream that tails these topics."""
        body = {"topics": {topic: {"tail": True} for topic in topics}, "heartbeat_ms": 60_000}
        url = self.writer.post("/v0/watch", body)["stream_url"]
        sock = socket.create_connection((self.server.host, self.server.port))
        sock.sendall(f"GET {url} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        self.sockets.append(sock)
        want = len(topics)
        seen = b""
        while seen.count(b"event: caught-up") < want:
            seen += sock.recv(65536)
        sock.setblocking(False)
        _tails.pop(sock.fileno(), None)
        self.selector.register(sock, selectors.EVENT_READ)

    def read_records(self, want: int, deadline_s: float, on_read: Callable[[bytes, int], int]) -> int:
        """Read until `want` records were counted by `on_read`."""
        got = 0
        end = time.monotonic() + deadline_s
        while got < want:
            left = end - time.monotonic()
            assert left > 0, f"only {got} of {want} records came"
            for key, _ in self.selector.select(left):
                got += on_read(read_on(key), time.perf_counter_ns())
        return got

    def close(self) -> None:
        """Close everything."""
        for sock in self.sockets:
            sock.close()
        self.selector.close()


def read_all(streams: Streams, want: int, deadline_s: float) -> None:
    """In a process of its own: read until every stream has everything, then exit."""
    try:
        streams.read_records(want, deadline_s, lambda data, now: data.count(SEQ))
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(1)
    os._exit(0)


def listen(sockets: list[socket.socket], expected: int, deadline_s: float) -> None:
    """In a process of its own: count what the room hears, then exit."""
    selector = selectors.EpollSelector()
    _tails.clear()
    for sock in sockets:
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ)
    got, end = 0, time.monotonic() + deadline_s
    while got < expected and time.monotonic() < end:
        got += sum(read_on(key).count(SEQ) for key, _ in selector.select(1))
    os._exit(0 if got == expected else 1)


def join(server: ServerProcess, node: str) -> socket.socket:
    """A WebSocket that follows the room."""
    sock = socket.create_connection((server.host, server.port))
    key = base64.b64encode(os.urandom(16)).decode()
    sock.sendall(
        f"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    command = {"op": "subscribe", "topic": "room", "tail": True, "node": node}
    sock.sendall(client_frame(command | {"limit": 1000, "max_batch_bytes": 8 << 20}))
    seen = b""
    while b"caught_up" not in seen:
        seen += sock.recv(65536)
    return sock


def client_frame(command: Any) -> bytes:
    """A masked text frame; the mask of zeros leaves the payload as it is."""
    payload = json.dumps(command).encode()
    length = len(payload)
    head = struct.pack("!BB", 0x81, 0x80 | length) if length < 126 else struct.pack("!BBH", 0x81, 0x80 | 126, length)
    return head + b"\0\0\0\0" + payload
