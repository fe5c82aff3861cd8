"""topics, over HTTP: wrk sends what is many requests, Python what is a conversation."""

from __future__ import annotations

import json
import re
import socket
from contextlib import AbstractContextManager
from pathlib import Path

from bench import load, records
from bench.bed import Bench
from bench.compare.system import CLAIM, READ_LIMIT, READ_RECORDS, READERS, Dry, Line, Pair, Sample, System, Target
from bench.load import Figures, Traffic
from topics import __version__
from topics.testing import ServerProcess

_SEQS = re.compile(rb'"\$seq":(\d+)')


class Topics(System):
    """A topic `bench`, or a queue of that name."""

    name = "topics"
    synced = True

    def version(self) -> str | None:
        return __version__

    def serve(self, bench: Bench, data_dir: Path | None = None) -> AbstractContextManager[Target]:
        return bench.server(data_dir)

    def serve_synced(self, bench: Bench) -> AbstractContextManager[Target]:
        return bench.server()

    def append(self, target: Target, per_request: int, in_flight: int, seconds: float, synced: bool) -> Sample:
        records.create(_server(target), "bench", durability="fsync" if synced else "disk")
        sent = load.run(records.post("bench", per_request, in_flight), target.host, target.port, seconds)
        return _sample(sent, per_request)

    def fill(self, target: Target, count: int) -> None:
        records.fill(_server(target), "bench", count, 100)

    def read(self, target: Target, seconds: float) -> Sample:
        traffic = Traffic(
            "POST",
            "/v0/topics/bench/diff",
            b'{"from_seq":{n},"limit":%d}' % READ_LIMIT,
            READERS,
            step=7919,
            span=READ_RECORDS - READ_LIMIT,
        )
        return _sample(load.run(traffic, target.host, target.port, seconds), READ_LIMIT)

    def fill_jobs(self, target: Target, count: int) -> None:
        records.create(_server(target), "bench", type="queue")
        records.fill(_server(target), "bench", count, 100)

    def line(self, target: Target, number: int) -> Line:
        return _Worker(target.host, target.port, number)

    def pair(self, target: Target) -> Pair:
        return _Pair(_server(target))

    def holds(self, target: Target, count: int) -> bool:
        return _server(target).request("GET", "/v0/topics/bench").json.get("count") == count


def _server(target: Target) -> ServerProcess:
    assert isinstance(target, ServerProcess)
    return target


def _sample(sent: Figures, per_request: int) -> Sample:
    assert not sent.refused, sent
    return Sample(sent.requests * per_request, sent.seconds, sent.p50_ms, sent.p99_ms)


class _Worker(Line):
    def __init__(self, host: str, port: int, number: int) -> None:
        super().__init__(host, port)
        self._node = b"w%d" % number
        self._claim = load.request("POST", b"/v0/topics/bench/claim", b'{"node":"%b","max":%d}' % (self._node, CLAIM))
        self._held = 0

    def claim(self) -> None:
        self._held = 0
        self.sock.sendall(self._claim)

    def take(self) -> int:
        at = self.buffer.find(b"\r\n\r\n")
        if at < 0 or len(self.buffer) < at + 4 + load.content_length(self.buffer[:at]):
            return 0
        answer, self.buffer = self.buffer, b""
        assert answer[9:12] == b"200", answer
        if self._held:
            done = self._held
            self.claim()
            return done
        seqs = _SEQS.findall(answer)
        if not seqs:
            raise Dry
        self._held = len(seqs)
        body = b'{"node":"%b","seqs":[%b]}' % (self._node, b",".join(seqs))
        self.sock.sendall(load.request("POST", b"/v0/topics/bench/ack", body))
        return 0


class _Pair(Pair):
    def __init__(self, server: ServerProcess) -> None:
        records.create(server, "bench")
        session = server.request("POST", "/v0/watch", json={"topics": {"bench": {"tail": True}}}).json
        self._writer = socket.create_connection((server.host, server.port))
        self._reader = socket.create_connection((server.host, server.port))
        for sock in (self._writer, self._reader):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"GET {session['stream_url']} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        self._reader.sendall(head.encode())
        seen = b""
        while b"caught-up" not in seen:
            seen += self._reader.recv(65536)
        data = json.dumps({"records": [{"data": json.loads(records.DATA)}]}).encode()
        self._request = load.request("POST", b"/v0/topics/bench?return_seqs=false", data)

    def write(self) -> None:
        self._writer.sendall(self._request)

    def hear(self) -> None:
        seen = b""
        while b'"$seq":' not in seen:
            seen += self._reader.recv(65536)

    def settle(self) -> None:
        seen = b""
        while b'"performance"' not in seen:
            seen += self._writer.recv(65536)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
