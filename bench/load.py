"""Load: streams of requests, and the generators that send them in a closed loop over a number of connections.

`wrk` is the generator. Without it a small one in Python takes its place: it cannot keep a server busy, and its
figures are marked `generator-bound`. `fill` sends an exact number of requests, pipelined, to prepare what is measured.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

SCRIPT = Path(__file__).with_name("traffic.lua")
PIPELINED = 16
_CRLF2 = b"\r\n\r\n"


def request(method: str, path: bytes, body: bytes, host: str = "localhost") -> bytes:
    """A request with a JSON body, as bytes."""
    head = b"%b %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    return head % (method.encode(), path, host.encode(), len(body), body)


def quantiles(times: list[int] | list[float], per_ms: float) -> tuple[float, float]:
    """The median and the 99th percentile in milliseconds, of times of which `per_ms` are a millisecond."""
    ordered = sorted(times)
    return ordered[len(ordered) // 2] / per_ms, ordered[int(len(ordered) * 0.99)] / per_ms


@dataclass(frozen=True)
class Traffic:
    """Requests that are all the same, or differ in a number: `{n}` in path or body is first + (i * step) % span."""

    method: str
    path: str
    body: bytes = b""
    connections: int = 64
    first: int = 0
    step: int = 1
    span: int = 0
    done: int = 0
    """How many of them were sent before: the first one is the next after those."""

    def after(self, requests: int) -> Traffic:
        """The requests that follow so many of these."""
        return replace(self, done=self.done + requests)

    def request(self, i: int, host: str) -> bytes:
        """The i-th request as bytes."""
        path, body = self.path.encode(), self.body
        if self.span:
            number = b"%d" % (self.first + (self.done + i) * self.step % self.span)
            path, body = path.replace(b"{n}", number), body.replace(b"{n}", number)
        return request(self.method, path, body, host)


@dataclass(frozen=True)
class Figures:
    """What a generator saw."""

    requests: int
    seconds: float
    bytes: int
    refused: int
    broken: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    generator_core: float = 0.0
    """Share of its core that the generator used."""


def added(parts: list[Figures]) -> Figures:
    """Several measurements as one: the sum of what was counted, the median of what was timed."""
    if len(parts) == 1:
        return parts[0]
    seconds = sum(part.seconds for part in parts)
    return Figures(
        requests=sum(part.requests for part in parts),
        seconds=seconds,
        bytes=sum(part.bytes for part in parts),
        refused=sum(part.refused for part in parts),
        broken=sum(part.broken for part in parts),
        p50_ms=statistics.median(part.p50_ms for part in parts),
        p99_ms=statistics.median(part.p99_ms for part in parts),
        max_ms=max(part.max_ms for part in parts),
        generator_core=sum(part.generator_core * part.seconds for part in parts) / seconds,
    )


def has_wrk() -> bool:
    """Whether the real generator is installed."""
    return shutil.which("wrk") is not None


def run(traffic: Traffic, host: str, port: int, seconds: float) -> Figures:
    """Send the traffic for this long."""
    return _wrk(traffic, host, port, seconds) if has_wrk() else _python(traffic, host, port, seconds)


def _wrk(traffic: Traffic, host: str, port: int, seconds: float) -> Figures:
    with tempfile.NamedTemporaryFile(prefix="topics-bench-") as body:
        body.write(traffic.body)
        body.flush()
        environ = os.environ | {
            "BENCH_METHOD": traffic.method,
            "BENCH_PATH": traffic.path,
            "BENCH_BODY": body.name,
            "BENCH_FIRST": str(traffic.first),
            "BENCH_DONE": str(traffic.done),
            "BENCH_STEP": str(traffic.step),
            "BENCH_SPAN": str(traffic.span),
        }
        return wrk(SCRIPT, traffic.connections, host, port, seconds, environ)


def wrk(script: Path, connections: int, host: str, port: int, seconds: float, environ: dict[str, str]) -> Figures:
    """Run wrk with a script that prints its figures as `BENCH` and JSON."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s",
         "-s", str(script), f"http://{host}:{port}"],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    for line in done.stdout.splitlines():
        if line.startswith("BENCH "):
            seen = json.loads(line[6:])
            return Figures(**seen, generator_core=used / seen["seconds"])
    raise AssertionError(f"wrk failed:\n{done.stdout}\n{done.stderr}")


def _python(traffic: Traffic, host: str, port: int, seconds: float) -> Figures:
    """One selector over all connections, one request in flight on each."""
    poll = select.epoll()
    lines: dict[int, _Line] = {}
    count = 0
    for _ in range(traffic.connections):
        line = _Line(host, port)
        lines[line.sock.fileno()] = line
        poll.register(line.sock, select.EPOLLIN)
    begin = time.perf_counter()
    end = begin + seconds
    for line in lines.values():
        line.send(traffic.request(count, host))
        count += 1
    latencies: list[float] = []
    refused = received = 0
    while (now := time.perf_counter()) < end:
        for handle, _ in poll.poll(0.1):
            line = lines[handle]
            status = line.receive()
            if status:
                latencies.append(time.perf_counter() - line.sent)
                refused += status >= 400
                received += line.size
                line.send(traffic.request(count, host))
                count += 1
    for line in lines.values():
        line.sock.close()
    p50_ms, p99_ms = quantiles(latencies, 1e-3)
    return Figures(len(latencies), now - begin, received, refused, 0, p50_ms, p99_ms, max(latencies) * 1e3, 1.0)


class _Line:
    """One connection of the Python generator."""

    def __init__(self, host: str, port: int) -> None:
        self.sock = socket.create_connection((host, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = 0.0
        self.size = 0
        self._head = b""
        self._missing = -1

    def send(self, request: bytes) -> None:
        self._head, self._missing, self.size = b"", -1, 0
        self.sent = time.perf_counter()
        self.sock.sendall(request)

    def receive(self) -> int:
        """Read what there is; the status once the response is complete, else 0."""
        data = self.sock.recv(1 << 20)
        assert data, "the server closed the connection"
        self.size += len(data)
        if self._missing < 0:
            self._head += data
            end = self._head.find(_CRLF2)
            if end < 0:
                return 0
            self._missing = end + 4 + content_length(self._head[:end]) - len(self._head)
        else:
            self._missing -= len(data)
        return int(self._head[9:12]) if self._missing == 0 else 0


def content_length(head: bytes) -> int:
    """The length that a response head names."""
    at = head.lower().index(b"\r\ncontent-length:") + 17
    return int(head[at:].split(b"\r\n", 1)[0])


def fill(host: str, port: int, requests: Iterable[bytes]) -> None:
    """Send these requests on one connection, PIPELINED at a time, and insist on 2xx for each."""
    with socket.create_connection((host, port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        group: list[bytes] = []
        for request in requests:
            group.append(request)
            if len(group) == PIPELINED:
                _exchange(sock, group)
                group = []
        if group:
            _exchange(sock, group)


def _exchange(sock: socket.socket, group: list[bytes]) -> None:
    sock.sendall(b"".join(group))
    buffer = b""
    for _ in group:
        while (end := buffer.find(_CRLF2)) < 0:
            buffer += _more(sock)
        stop = end + 4 + content_length(buffer[:end])
        while len(buffer) < stop:
            buffer += _more(sock)
        assert buffer[9:10] == b"2", buffer[:stop].decode(errors="replace")
        buffer = buffer[stop:]


def _more(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 20)
    assert data, "the server closed the connection"
    return data
