"""Queues and routers: jobs per second, what a long queue costs a claim, and what forwarding adds.

Fifty workers each claim 8 jobs, ack them, and claim again, over fifty connections; the queue is filled before.
`records/s` are jobs that were acked, and latency is that of claims and acks together. `claim-1m` is the claim alone:
its figure is the ratio between the p50 with a million jobs waiting and with ten thousand. `router-latency` is the time
by which a stream on the destination is later than one on the source, for the same write.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from bench import load, records
from bench.bed import BUSY, Bench, await_calm, await_true, cpu_s
from bench.delivery import SEQ, Streams, Writer
from bench.load import Figures, quantiles
from bench.row import Row, Target, at_least, at_most
from topics.testing import ServerProcess

ROWS = (
    "queue-disk", "queue-fsync", "queue-produce", "claim-1m",
    "router-forward", "router-fan-10", "router-latency", "router-idle",
)  # fmt: skip
SCRIPT = Path(__file__).with_name("jobs.lua")
WORKERS, CLAIM = 50, 8
IDLE_ROUTERS = 10_000
COUNTED = "/v0/topics/q?touch=false"
_SEQS = re.compile(rb'"\$seq":(\d+)')


def measure(bench: Bench) -> Iterator[Row]:
    """Every row of queues and routers."""
    if bench.wants("queue-disk"):
        yield _work(bench, "queue-disk", "disk", at_least(60_000, "records_s"))
    if bench.wants("queue-fsync"):
        yield _work(bench, "queue-fsync", "fsync", at_least(15_000, "records_s"))
    if bench.wants("queue-produce"):
        with bench.server() as server:
            records.create(server, "q", type="queue")
            yield bench.measure("queue-produce", "POST one job, 64 connections", server, records.post("q"))
    if bench.wants("claim-1m"):
        yield _long_queue(bench)
    if bench.wants("router-forward"):
        yield _forward(bench, "router-forward", 1)
    if bench.wants("router-fan-10"):
        yield _forward(bench, "router-fan-10", 10)
    if bench.wants("router-latency"):
        yield _latency(bench)
    if bench.wants("router-idle"):
        yield _idle(bench)


class Crew:
    """Workers in a closed loop: claim, ack, claim. One connection each, one loop for all."""

    def __init__(self, server: ServerProcess, workers: int, claim: int) -> None:
        self._selector = selectors.EpollSelector()
        self._claims = [
            load.request("POST", b"/v0/topics/q/claim", b'{"node":"w%d","max":%d}' % (i, claim)) for i in range(workers)
        ]
        self._sockets = []
        self.acked = 0
        self.claims_ns: list[int] = []
        for i in range(workers):
            sock = socket.create_connection((server.host, server.port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(sock)
            self._selector.register(sock, selectors.EVENT_READ, [i, True, b"", 0])

    def run(self, seconds: float, ack: bool = True) -> float:
        """Work for this long; the seconds it took."""
        begin = time.perf_counter_ns()
        end = begin + int(seconds * 1e9)
        self.acked = 0
        self.claims_ns = []
        for key in list(self._selector.get_map().values()):
            self._claim(key.fileobj, key.data)
        busy = len(self._sockets)
        while busy:
            for key, _ in self._selector.select():
                busy -= not self._read(key.fileobj, key.data, end, ack)
        return (time.perf_counter_ns() - begin) / 1e9

    def _claim(self, sock: socket.socket, state: list[Any]) -> None:
        state[1] = True
        state[3] = time.perf_counter_ns()
        sock.send(self._claims[state[0]])

    def _read(self, sock: socket.socket, state: list[Any], end: int, ack: bool) -> bool:
        """Take an answer and send the next request; whether there was one to send."""
        buffer = state[2] = state[2] + sock.recv(262144)
        at = buffer.find(b"\r\n\r\n")
        if at < 0 or len(buffer) < at + 4 + load.content_length(buffer[:at]):
            return True
        assert buffer[9:12] == b"200", buffer
        state[2] = b""
        now = time.perf_counter_ns()
        if state[1]:
            self.claims_ns.append(now - state[3])
            seqs = _SEQS.findall(buffer)
            if not seqs:
                return False
            if ack:
                state[1] = False
                self.acked += len(seqs)
                body = b'{"node":"w%d","seqs":[%b]}' % (state[0], b",".join(seqs))
                sock.send(load.request("POST", b"/v0/topics/q/ack", body))
                return True
        if now >= end:
            return False
        self._claim(sock, state)
        return True

    def close(self) -> None:
        """Close every connection."""
        self._selector.close()
        for sock in self._sockets:
            sock.close()


def _work(bench: Bench, name: str, durability: str, target: Target) -> Row:
    rows = []
    for _ in range(bench.rounds):
        with bench.server() as server:
            records.create(server, "q", type="queue", durability=durability)
            records.fill(server, "q", int(200_000 * bench.seconds))
            await_calm(server.pid)
            before = server.request("GET", COUNTED).json["count"]
            used = cpu_s(server.pid)
            figures = load.added([_crew(server, seconds) for seconds in bench.slices()])
            used = cpu_s(server.pid) - used
            acked = before - server.request("GET", COUNTED).json["count"]
        row = Row(name, f"50 workers, claim 8 and ack 8, {durability}", target=target)
        row.requests_s, row.records_s = figures.requests / figures.seconds, acked / figures.seconds
        row.p50_ms, row.p99_ms = figures.p50_ms, figures.p99_ms
        row.cpu_us, row.core = used / figures.requests * 1e6, used / figures.seconds
        row.note = "" if row.core > BUSY else f"one core alone: {acked / used:,.0f} jobs/s"
        if figures.refused or figures.broken:
            row.note = f"{figures.refused} REFUSED, {figures.broken} BROKEN"
        rows.append(row)
    return sorted(rows, key=lambda each: each.records_s or 0)[len(rows) // 2]


def _crew(server: ServerProcess, seconds: float) -> Figures:
    """The workers: wrk where it is, otherwise a loop in Python, which cannot keep the server busy."""
    if load.has_wrk():
        return load.wrk(SCRIPT, WORKERS, server.host, server.port, seconds, dict(os.environ))
    with closing(Crew(server, WORKERS, CLAIM)) as crew:
        took = crew.run(seconds)
    p50_ms, p99_ms = quantiles(crew.claims_ns, 1e6)
    return Figures(2 * len(crew.claims_ns), took, 0, 0, 0, p50_ms, p99_ms, max(crew.claims_ns) / 1e6)


def _long_queue(bench: Bench) -> Row:
    medians_ms = []
    for count in (10_000, 1_000_000):
        with bench.server() as server:
            records.create(server, "q", type="queue")
            records.fill(server, "q", count)
            await_calm(server.pid)
            with closing(Crew(server, 1, CLAIM)) as crew:
                crew.run(min(bench.seconds, 0.5), ack=False)
            p50_ms, p99_ms = quantiles(crew.claims_ns, 1e6)
            medians_ms.append(p50_ms)
    row = Row("claim-1m", "claim 8, one worker, a million jobs waiting", target=at_most(1.5, "ratio"))
    row.p50_ms, row.p99_ms, row.ratio = p50_ms, p99_ms, medians_ms[1] / medians_ms[0]
    return row


def _route(server: ServerProcess, name: str, source: str, dest: str) -> None:
    answer = server.request("PUT", f"/v0/routers/{name}", json={"source": source, "dest": dest})
    assert answer.status == 201, answer.body


def _forward(bench: Bench, name: str, fan_out: int) -> Row:
    """Batches of 100 into a source; what counts are the copies."""
    with bench.server() as server:
        records.create(server, "s")
        for i in range(fan_out):
            _route(server, f"r{i}", "s", f"d{i}")
        row = bench.measure(
            name,
            f"POST batches of 100 into a source with {fan_out} routers",
            server,
            records.post("s", 100, 16),
            records=100,
        )
        written = records.head_seq(server, "s")
        # More may have arrived since: what the generator had sent when it stopped.
        await_true(lambda: records.head_seq(server, f"d{fan_out - 1}") >= written, "everything is forwarded")
    copied = (row.records_s or 0) * fan_out
    row.note = f"{copied:,.0f} copies/s" + (f"; {row.note}" if row.note else "")
    row.target = at_least(300_000, "records_s") if fan_out == 1 else None
    return row


def _latency(bench: Bench) -> Row:
    """Both streams see the same write; how much later the one on the destination does."""
    delays: list[int] = []
    with bench.server() as server, closing(Writer(server)) as writer:
        writer.write("s", 0)
        _route(server, "r", "s", "d")
        with closing(Streams(server, writer)) as at_source, closing(Streams(server, writer)) as at_dest:
            at_source.open(["s"])
            at_dest.open(["d"])
            for _ in bench.ticks():
                seen: list[int] = []

                def note(data: bytes, now: int, seen: list[int] = seen) -> int:
                    seen.append(now)
                    return data.count(SEQ)

                writer.write("s", {"payload": "x" * 90})
                at_source.read_records(1, 5, note)
                at_dest.read_records(1, 5, note)
                delays.append(seen[-1] - seen[0])
    row = Row("router-latency", "stream on a destination after one on its source", target=at_most(1.0, "p50_ms"))
    row.p50_ms, row.p99_ms = quantiles(delays, 1e6)
    row.requests_s = len(delays) / bench.seconds
    return row


def _idle(bench: Bench) -> Row:
    """One-record writes elsewhere, with and without ten thousand routers that have nothing to do.

    Two servers take turns, so that whatever else the machine does weighs on both: the ratio is that of the cheapest
    rounds.
    """
    title = "POST one record beside 10,000 idle routers"
    with bench.server(max_routers=0) as alone, bench.server(max_routers=0) as beside:
        for server, routers in ((alone, 0), (beside, IDLE_ROUTERS)):
            records.create(server, "elsewhere")
            bodies = (b'{"source":"s%d","dest":"d%d"}' % (i % 100, i) for i in range(routers))
            puts = (load.request("PUT", b"/v0/routers/r%d" % i, body) for i, body in enumerate(bodies))
            load.fill(server.host, server.port, puts)
        costs: list[list[float]] = [[], []]
        for _ in range(2 * bench.rounds):
            for server, cost in zip((alone, beside), costs, strict=True):
                row = bench.measure("router-idle", title, server, records.post("elsewhere"))
                cost.append(row.cpu_us or 0)
    row.ratio = min(costs[1]) / min(costs[0])
    row.target = at_most(1.05, "ratio")
    return row
