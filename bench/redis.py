"""Redis on the same core with the same records: XADD as the write, XRANGE as the read, by redis-benchmark."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

from bench import records
from bench.bed import Bench, Process, cpu_s
from bench.row import Row

ROWS = ("redis-xadd", "redis-xadd-always", "redis-xadd-pipelined", "redis-xrange-1000")
FIRST_REQUESTS = 20_000
STORED = 200_000


def measure(bench: Bench) -> Iterator[Row]:
    """The rows of Redis."""
    if not bench.wants(*ROWS):
        return
    if shutil.which("redis-server") is None or shutil.which("redis-benchmark") is None:
        print("redis: not measured, redis-server and redis-benchmark are not installed")
        return
    xadd = ("XADD", "bench", "*", "data", records.DATA.decode())
    for name, policy, pipelined, connections, title in (
        ("redis-xadd", "everysec", 1, 64, "Redis XADD, appendfsync everysec, 64 connections"),
        ("redis-xadd-always", "always", 1, 64, "Redis XADD, appendfsync always, 64 connections"),
        ("redis-xadd-pipelined", "everysec", 16, 16, "Redis XADD, pipelined by 16, 16 connections"),
    ):
        if bench.wants(name):
            with bench.peer(*command(policy)) as process:
                yield _rounds(bench, name, title, process, xadd, connections, pipelined)
    if bench.wants("redis-xrange-1000"):
        with bench.peer(*command("no")) as process:
            store(process, STORED)
            xrange = ("XRANGE", "bench", "0-__rand_int__", "+", "COUNT", "1000")
            yield _rounds(
                bench, "redis-xrange-1000", "Redis XRANGE of 1,000, distinct cursors", process, xrange, 16, 1, 1000
            )


def command(policy: str) -> list[str]:
    """How to start Redis with a policy of `appendfsync`, or with `no` file at all."""
    return [
        "redis-server", "--port", "{port}", "--bind", "127.0.0.1", "--dir", "{dir}", "--save", "", "--appendonly",
        "no" if policy == "no" else "yes", "--appendfsync", policy, "--auto-aof-rewrite-percentage", "0",
    ]  # fmt: skip


def store(process: Process, count: int) -> None:
    """Append records 0-1, 0-2, ..., so that any cursor can be named by its number."""
    with socket.create_connection((process.host, process.port)) as sock:
        for first in range(1, count + 1, 1000):
            ids = [b"0-%d" % n for n in range(first, first + 1000)]
            sock.sendall(
                b"".join(
                    b"*5\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$%d\r\n%b\r\n$4\r\ndata\r\n$%d\r\n%b\r\n"
                    % (len(id), id, len(records.DATA), records.DATA)
                    for id in ids
                )
            )
            left = 1000 * 2
            while left > 0:
                left -= sock.recv(1 << 20).count(b"\n")


def _rounds(
    bench: Bench,
    name: str,
    title: str,
    process: Process,
    command: tuple[str, ...],
    connections: int,
    pipelined: int,
    per_request: int = 1,
) -> Row:
    _, first = benchmark(process, command, connections, pipelined, FIRST_REQUESTS // per_request)
    count = max(1000, int(float(first["rps"]) * bench.seconds))
    rounds = []
    for _ in range(bench.rounds):
        used, begin = cpu_s(process.pid), time.monotonic()
        seconds, seen = benchmark(process, command, connections, pipelined, count)
        used = cpu_s(process.pid) - used
        rounds.append((float(seen["rps"]), seen, used, min(seconds, time.monotonic() - begin)))
    rate, seen, used, seconds = sorted(rounds, key=lambda found: found[0])[len(rounds) // 2]
    return Row(
        name,
        title,
        requests_s=rate,
        records_s=rate * per_request,
        p50_ms=float(seen["p50_latency_ms"]),
        p99_ms=float(seen["p99_latency_ms"]),
        cpu_us=used / count * 1e6,
        core=used / seconds,
    )


def benchmark(
    process: Process, command: tuple[str, ...], connections: int, pipelined: int, count: int
) -> tuple[float, dict[str, str]]:
    """Send a command this often; the seconds it took, and what redis-benchmark says about it."""
    begin = time.monotonic()
    done = subprocess.run(
        ["redis-benchmark", "-p", str(process.port), "-c", str(connections), "-n", str(count), "-P", str(pipelined),
         "-r", str(STORED - 1000), "--csv", *command],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return time.monotonic() - begin, _last_fields(done.stdout)


def _last_fields(text: str) -> dict[str, str]:
    """The figures of the last line by the names of the first; they come after a command full of quotes."""
    names, *_, values = (re.findall(r'"([^",]*)"', line) for line in text.splitlines())
    return dict(zip(reversed(names), reversed(values), strict=False))
