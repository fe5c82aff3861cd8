"""Live delivery: how fast, at what cost, and what it does to everybody else.

The generator runs on one core, the server on the other where there are two. Latency is from just before the write is
sent until a stream's bytes are read here, so the generator's own time to read a thousand sockets is part of it.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import selectors
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from topics.testing import ServerProcess

ROUNDS = 60
PAYLOAD = "x" * 90
SEQ = b'"$seq":'
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def anon_kib(pid: int) -> int:
    """Anonymous memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon")


@contextlib.contextmanager
def pinned(**settings: object) -> Iterator[ServerProcess]:
    """A server on the first core, with the generator on the last."""
    cores = sorted(os.sched_getaffinity(0))
    with ServerProcess(max_sse_connections=0, max_watch_sessions=0, max_connections=0, **settings) as server:
        if len(cores) > 1:
            for task in Path(f"/proc/{server.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {cores[0]})
            os.sched_setaffinity(0, {cores[-1]})
        try:
            yield server
        finally:
            os.sched_setaffinity(0, set(cores))


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
        sock.sendall(f"GET {url} HTTP/1.1\r\nHost: b\r\nAccept: text/event-stream\r\n\r\n".encode())
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


_tails: dict[int, bytes] = {}


def read_on(key: selectors.SelectorKey) -> bytes:
    """What a socket has, behind the end of what it had before: a seq may be cut between two reads."""
    data = _tails.get(key.fd, b"") + key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
    _tails[key.fd] = data[1 - len(SEQ) :]
    return data


def show(name: str, latencies_ns: list[int], extra: str = "") -> None:
    """Print one line."""
    latencies_ns.sort()
    p50 = statistics.median(latencies_ns) / 1e6
    p99 = latencies_ns[int(len(latencies_ns) * 0.99) - 1] / 1e6
    print(f"{name:<62} p50 {p50:7.2f} ms  p99 {p99:7.2f} ms  {extra}", flush=True)


def fan_out(count: int, topic_count: int) -> None:
    """Write-to-deliver over `count` streams, each on one of `topic_count` topics."""
    with pinned() as server:
        writer = Writer(server)
        topics = [f"fan{i}" for i in range(topic_count)]
        for topic in topics:
            writer.write(topic, 0)
        streams = Streams(server, writer)
        for i in range(count):
            streams.open([topics[i % topic_count]])
        latencies: list[int] = []
        per_topic = count // topic_count
        before, rounds = cpu_s(server.pid), ROUNDS if count >= 100 else 500
        frames = 0
        for i in range(rounds):
            topic = topics[i % topic_count]
            sent = time.perf_counter_ns()

            def note(data: bytes, now: int, sent: int = sent) -> int:
                found = data.count(SEQ)
                latencies.extend([now - sent] * found)
                return found

            writer.write(topic, {"at": sent, "payload": PAYLOAD})
            frames += streams.read_records(per_topic, 10, note)
        used = cpu_s(server.pid) - before
        cost = f"{used / frames * 1e6:6.1f} us CPU per delivered frame" if frames > 5_000 else ""
        show(f"SSE, one record, {count} streams over {topic_count} topics", latencies, cost)
        streams.close()


def sustained(count: int, rate: int, seconds: float) -> None:
    """POST latency while `count` streams are fed at `rate` records/s."""
    with pinned() as server:
        writer = Writer(server)
        writer.write("fed", 0)
        streams = Streams(server, writer)
        for _ in range(count):
            streams.open(["fed"])
        reader = os.fork()
        if reader == 0:
            drain(streams, count * int(rate * seconds), seconds + 30)
        latencies = []
        begin, used = time.perf_counter(), cpu_s(server.pid)
        for i in range(int(rate * seconds)):
            due = begin + i / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            start = time.perf_counter_ns()
            writer.write("fed", {"i": i, "payload": PAYLOAD})
            latencies.append(time.perf_counter_ns() - start)
        took = time.perf_counter() - begin
        used = cpu_s(server.pid) - used
        _, status = os.waitpid(reader, 0)
        assert status == 0, "the streams did not get every record"
        show(
            f"POST while {count} streams are fed {rate} records/s", latencies, f"server at {used / took:.0%} of a core"
        )
        streams.close()


def drain(streams: Streams, want: int, deadline_s: float) -> None:
    """In a process of its own: read until every stream has everything, then exit."""
    try:
        streams.read_records(want, deadline_s, lambda data, now: data.count(SEQ))
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(1)
    os._exit(0)


def idle_memory(count: int) -> None:
    """Memory of streams to which nothing happens."""
    with pinned() as server:
        writer = Writer(server)
        writer.write("idle", 0)
        streams = Streams(server, writer)
        streams.open(["idle"])
        before = anon_kib(server.pid)
        for _ in range(count):
            streams.open(["idle"])
        each = (anon_kib(server.pid) - before) / count
        total = anon_kib(server.pid) // 1024
        print(f"memory per idle SSE stream, {count} open{'':<22} {each:7.1f} KiB  server {total} MiB")
        streams.close()


def room(talkers: int, rate: int, seconds: float) -> None:
    """A WebSocket room: everybody hears everybody else, nothing is lost."""
    with pinned() as server:
        writer = Writer(server)
        connection = writer.connection
        connection.request(
            "PUT", "/v0/topics/room", b'{"durability":"ephemeral"}', {"Content-Type": "application/json"}
        )
        connection.getresponse().read()
        sockets = [join(server, f"u{i:03}") for i in range(talkers)]
        total = int(talkers * rate * seconds)
        expected = total // talkers * (talkers - 1) * talkers
        reader = os.fork()
        if reader == 0:
            selector = selectors.EpollSelector()
            for sock in sockets:
                sock.setblocking(False)
                selector.register(sock, selectors.EVENT_READ)
            got, end = 0, time.monotonic() + seconds + 60
            while got < expected and time.monotonic() < end:
                for key, _ in selector.select(1):
                    got += read_on(key).count(SEQ)
            os._exit(0 if got == expected else 1)
        frames = [
            client_frame(json.dumps({"op": "publish", "topic": "room", "return_seqs": False,
                                     "records": [{"node": f"u{i:03}", "data": {"packet": PAYLOAD}}]}))
            for i in range(talkers)
        ]  # fmt: skip
        begin, used = time.perf_counter(), cpu_s(server.pid)
        for n in range(total):
            if n % talkers == 0:
                time.sleep(max(0.0, begin + n / (talkers * rate) - time.perf_counter()))
            sockets[n % talkers].setblocking(True)
            sockets[n % talkers].sendall(frames[n % talkers])
        sent_s = time.perf_counter() - begin
        _, status = os.waitpid(reader, 0)
        took = time.perf_counter() - begin
        used = cpu_s(server.pid) - used
        loss = "loss 0" if status == 0 else "RECORDS WERE LOST"
        print(
            f"WebSocket room, {talkers} talkers at {rate} messages/s: {expected / took:,.0f} records/s delivered, "
            f"{loss}, sent in {sent_s:.1f} s, delivered in {took:.1f} s, server at {used / took:.0%} of a core"
        )


def join(server: ServerProcess, node: str) -> socket.socket:
    """A WebSocket that follows the room."""
    sock = socket.create_connection((server.host, server.port))
    key = base64.b64encode(os.urandom(16)).decode()
    sock.sendall(
        f"GET /v0/ws HTTP/1.1\r\nHost: b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    command = {
        "op": "subscribe",
        "topic": "room",
        "tail": True,
        "node": node,
        "limit": 1000,
        "max_batch_bytes": 8 << 20,
    }
    sock.sendall(client_frame(json.dumps(command)))
    seen = b""
    while b"caught_up" not in seen:
        seen += sock.recv(65536)
    return sock


def client_frame(text: str) -> bytes:
    """A masked text frame; the mask of zeros leaves the payload as it is."""
    payload = text.encode()
    length = len(payload)
    head = struct.pack("!BB", 0x81, 0x80 | length) if length < 126 else struct.pack("!BBH", 0x81, 0x80 | 126, length)
    return head + b"\0\0\0\0" + payload


def main() -> None:
    """Print every figure."""
    for count in (1, 10, 100, 1000):
        fan_out(count, 1)
    fan_out(1000, 100)
    sustained(1000, 100, 5)
    idle_memory(2_000)
    room(100, 50, 5)


if __name__ == "__main__":
    main()
