"""NATS JetStream on the same core with the same records, 64 publishes in flight on one connection.

There is no client in the distribution, so this one speaks the protocol as far as it has to. It is Python, and its
figures are those of the generator rather than of the server.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Iterator

from bench import records
from bench.bed import Bench, cpu_s
from bench.load import quantiles
from bench.row import Row

ROWS = ("nats-publish",)
IN_FLIGHT = 64
COMMAND = ("nats-server", "-a", "127.0.0.1", "-p", "{port}", "-js", "-sd", "{dir}")


def measure(bench: Bench) -> Iterator[Row]:
    """The row of NATS JetStream."""
    if not bench.wants(*ROWS):
        return
    if shutil.which("nats-server") is None:
        print("nats: not measured, nats-server is not installed")
        return
    with bench.peer(*COMMAND) as process, socket.create_connection((process.host, process.port)) as sock:
        create_stream(sock)
        used, begin = cpu_s(process.pid), time.monotonic()
        latencies_ms = publish(sock, bench.seconds, IN_FLIGHT)
        used, took = cpu_s(process.pid) - used, time.monotonic() - begin
    count = len(latencies_ms)
    p50_ms, p99_ms = quantiles(latencies_ms, 1)
    yield Row(
        "nats-publish",
        f"NATS JetStream publish, file storage, {IN_FLIGHT} in flight",
        requests_s=count / took,
        records_s=count / took,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        cpu_us=used / count * 1e6,
        core=used / took,
        note="generator-bound (Python)",
    )


def create_stream(sock: socket.socket, retention: str = "limits") -> None:
    """Greet the server on a new connection, and create the stream `bench` in files."""
    config = {"name": "bench", "subjects": ["bench"], "storage": "file", "retention": retention, "num_replicas": 1}
    sock.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB inbox 1\r\n')
    ask(sock, "STREAM.CREATE.bench", config)


def ask(sock: socket.socket, subject: str, body: object = None) -> bytes:
    """A request to the API of JetStream, on a connection that listens to `inbox`; the answer must not be an error."""
    text = b"" if body is None else json.dumps(body).encode()
    sock.sendall(b"PUB $JS.API.%b inbox %d\r\n%b\r\n" % (subject.encode(), len(text), text))
    seen = b""
    while b"MSG inbox" not in seen or not seen.rstrip().endswith(b"}"):
        seen += sock.recv(65536)
    assert b'"error"' not in seen, seen
    return seen


def publish(sock: socket.socket, seconds: float, in_flight: int, count_max: int = sys.maxsize) -> list[float]:
    """Keep this many publishes without an answer, for this long or until so many are answered; the latency of each."""
    request = b"PUB bench inbox %d\r\n%b\r\n" % (len(records.DATA), records.DATA)
    left = count_max - in_flight
    sock.sendall(request * in_flight)
    sent = [time.perf_counter()] * in_flight
    latencies_ms: list[float] = []
    end = time.perf_counter() + seconds
    rest = b""
    while True:
        data = rest + sock.recv(1 << 18)
        cut = data.rfind(b"\r\n") + 2
        whole, rest = data[:cut], data[cut:]
        if b"PING\r\n" in whole:
            sock.sendall(b"PONG\r\n")
        acks = whole.count(b'"seq":')
        now = time.perf_counter()
        latencies_ms += [(now - at) * 1e3 for at in sent[:acks]]
        del sent[:acks]
        if now > end or (not sent and left <= 0):
            return latencies_ms
        more = min(acks, left)
        if more > 0:
            sock.sendall(request * more)
            sent += [now] * more
            left -= more
