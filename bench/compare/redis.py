"""Redis Streams: redis-benchmark sends what is many requests, Python what is a conversation.

A queue is a consumer group; an ack is XACK and XDEL, because an ack of topics and of a work queue of NATS removes the
job as well. The file is appended to, `everysec` or `always`; it is never rewritten during a round.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

from bench import records, redis
from bench.bed import Bench, Process, cpu_s
from bench.compare.system import CLAIM, READ_LIMIT, READERS, Dry, Line, Pair, Sample, System, Target

_IDS = re.compile(rb"\r\n(\d+-\d+)\r\n")
FIRST = 20_000


class Redis(System):
    """A stream `bench`."""

    name = "Redis Streams"
    synced = True

    def version(self) -> str | None:
        if shutil.which("redis-server") is None or shutil.which("redis-benchmark") is None:
            return None
        shown = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        return shown.partition("v=")[2].split()[0]

    def serve(self, bench: Bench, data_dir: Path | None = None) -> AbstractContextManager[Target]:
        return bench.peer(*redis.command("everysec"), data_dir=data_dir)

    def serve_synced(self, bench: Bench) -> AbstractContextManager[Target]:
        return bench.peer(*redis.command("always"))

    def append(self, target: Target, per_request: int, in_flight: int, seconds: float, synced: bool) -> Sample:
        xadd = ("XADD", "bench", "*", "data", records.DATA.decode())
        return _benchmark(target, xadd, in_flight, per_request, seconds, 1)

    def fill(self, target: Target, count: int) -> None:
        redis.store(_process(target), count)

    def read(self, target: Target, seconds: float) -> Sample:
        xrange = ("XRANGE", "bench", "0-__rand_int__", "+", "COUNT", str(READ_LIMIT))
        return _benchmark(target, xrange, READERS, 1, seconds, READ_LIMIT)

    def fill_jobs(self, target: Target, count: int) -> None:
        redis.store(_process(target), count)
        with socket.create_connection((target.host, target.port)) as sock:
            sock.sendall(_command(b"XGROUP", b"CREATE", b"bench", b"g", b"0"))
            assert sock.recv(100) == b"+OK\r\n"

    def line(self, target: Target, number: int) -> Line:
        return _Worker(target.host, target.port, number)

    def pair(self, target: Target) -> Pair:
        return _Pair(target.host, target.port)

    def holds(self, target: Target, count: int) -> bool:
        with socket.create_connection((target.host, target.port)) as sock:
            sock.sendall(_command(b"XLEN", b"bench"))
            return sock.recv(1000) == b":%d\r\n" % count


def _process(target: Target) -> Process:
    assert isinstance(target, Process)
    return target


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _benchmark(
    target: Target, command: tuple[str, ...], connections: int, pipelined: int, seconds: float, per_request: int
) -> Sample:
    """As many requests as fit into this time, by the rate of a first few."""
    process = _process(target)
    _, first = redis.benchmark(process, command, connections, pipelined, FIRST // per_request)
    count = max(1000, int(float(first["rps"]) * seconds))
    used = cpu_s(process.pid)
    _, seen = redis.benchmark(process, command, connections, pipelined, count)
    used = cpu_s(process.pid) - used
    p50_ms, p99_ms = float(seen["p50_latency_ms"]), float(seen["p99_latency_ms"])
    return Sample(count * per_request, count / float(seen["rps"]), p50_ms, p99_ms, used)


class _Worker(Line):
    def __init__(self, host: str, port: int, number: int) -> None:
        super().__init__(host, port)
        node = b"w%d" % number
        words = (b"XREADGROUP", b"GROUP", b"g", node, b"COUNT", b"%d" % CLAIM, b"STREAMS", b"bench", b">")
        self._claim = _command(*words)
        self._held = 0

    def claim(self) -> None:
        self._held = 0
        self.sock.sendall(self._claim)

    def take(self) -> int:
        if self._held:
            if self.buffer.count(b"\r\n") < 2:
                return 0
            assert self.buffer == b":%d\r\n" % self._held * 2, self.buffer
            done, self.buffer = self._held, b""
            self.claim()
            return done
        if self.buffer.startswith((b"*-1", b"$-1", b"_")):
            raise Dry
        if self.buffer.count(records.DATA + b"\r\n") < CLAIM:
            return 0
        ids = _IDS.findall(self.buffer)
        self.buffer, self._held = b"", len(ids)
        self.sock.sendall(_command(b"XACK", b"bench", b"g", *ids) + _command(b"XDEL", b"bench", *ids))
        return 0


class _Pair(Pair):
    def __init__(self, host: str, port: int) -> None:
        self._writer = socket.create_connection((host, port))
        self._reader = socket.create_connection((host, port))
        for sock in (self._writer, self._reader):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = _command(b"XADD", b"bench", b"*", b"data", records.DATA)
        self._listen(b"0-0")

    def _listen(self, after: bytes) -> None:
        self._reader.sendall(_command(b"XREAD", b"BLOCK", b"0", b"STREAMS", b"bench", after))

    def write(self) -> None:
        self._writer.sendall(self._request)

    def hear(self) -> None:
        seen = b""
        while records.DATA + b"\r\n" not in seen:
            seen += self._reader.recv(65536)
        self._last = _IDS.findall(seen)[-1]

    def settle(self) -> None:
        seen = b""
        while seen.count(b"\r\n") < 2:
            seen += self._writer.recv(65536)
        self._listen(self._last)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
