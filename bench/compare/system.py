"""System: what can be compared: how it is started, and how each work is done on it."""

from __future__ import annotations

import selectors
import socket
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

from bench.bed import Bench, Process
from topics.testing import ServerProcess

Target = ServerProcess | Process
WORKERS, CLAIM = 50, 8
READ_RECORDS, READ_LIMIT, READERS = 200_000, 1_000, 16


class Sample(NamedTuple):
    """What one round of one work saw."""

    records: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_s: float | None = None
    """Processor time of the server, where it is not simply that of the whole call."""


class Dry(Exception):
    """A claim found no job: the round is over."""


class Line(ABC):
    """The connection of a worker: it claims jobs, acks them, and claims again."""

    def __init__(self, host: str, port: int) -> None:
        self.sock = socket.create_connection((host, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    @abstractmethod
    def claim(self) -> None:
        """Ask for CLAIM jobs."""

    @abstractmethod
    def take(self) -> int:
        """Look at what the buffer has got, and ask on; how many jobs are acked with it. Dry if there are no jobs."""


class Pair(ABC):
    """A writer and a subscriber, each on its own connection."""

    @abstractmethod
    def write(self) -> None:
        """Send one record."""

    @abstractmethod
    def hear(self) -> None:
        """Wait until the subscriber has it."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until the writer has its answer, so that the next write finds nothing on the way."""

    @abstractmethod
    def close(self) -> None:
        """Hang up."""


class System(ABC):
    """One of those that are compared."""

    name: str
    synced: bool
    """Whether it can acknowledge after a sync."""

    @abstractmethod
    def version(self) -> str | None:
        """Its version; None where it is not installed."""

    @abstractmethod
    def serve(self, bench: Bench, data_dir: Path | None = None) -> AbstractContextManager[Target]:
        """Run it on the server's core; at the end it is killed."""

    @abstractmethod
    def serve_synced(self, bench: Bench) -> AbstractContextManager[Target]:
        """The same, so that it acknowledges after a sync."""

    @abstractmethod
    def append(self, target: Target, per_request: int, in_flight: int, seconds: float, synced: bool) -> Sample:
        """Append records, so many a request and so many requests in flight."""

    @abstractmethod
    def fill(self, target: Target, count: int) -> None:
        """Append this many records, as fast as it takes them."""

    @abstractmethod
    def read(self, target: Target, seconds: float) -> Sample:
        """Read what `fill` has left, again and again."""

    @abstractmethod
    def fill_jobs(self, target: Target, count: int) -> None:
        """Make a queue and write jobs to it."""

    @abstractmethod
    def line(self, target: Target, number: int) -> Line:
        """A worker's connection to that queue."""

    @abstractmethod
    def pair(self, target: Target) -> Pair:
        """A writer and its subscriber."""

    @abstractmethod
    def holds(self, target: Target, count: int) -> bool:
        """Whether it answers, and has this many records."""


def work_off(lines: list[Line], seconds: float) -> Sample:
    """Let workers claim and ack for this long, or until no job is left; latency is that of a claim and its acks."""
    selector = selectors.DefaultSelector()
    begin = time.perf_counter()
    since: dict[Line, float] = {}
    for line in lines:
        selector.register(line.sock, selectors.EVENT_READ, line)
        since[line] = time.perf_counter()
        line.claim()
    acked = 0
    latencies_ms: list[float] = []
    with suppress(Dry):
        while (now := time.perf_counter()) < begin + seconds:
            for key, _ in selector.select(1):
                line = key.data
                line.buffer += line.sock.recv(262144)
                done = line.take()
                if done:
                    now = time.perf_counter()
                    latencies_ms.append((now - since[line]) * 1e3)
                    acked += done
                    since[line] = now
    selector.close()
    for line in lines:
        line.sock.close()
    latencies_ms.sort()
    middle, last = latencies_ms[len(latencies_ms) // 2], latencies_ms[int(len(latencies_ms) * 0.99)]
    return Sample(acked, now - begin, middle, last)


def hear(pair: Pair, seconds: float) -> Sample:
    """Write and hear, one record at a time, for this long."""
    latencies_ms: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        sent = time.perf_counter()
        pair.write()
        pair.hear()
        latencies_ms.append((time.perf_counter() - sent) * 1e3)
        pair.settle()
    took = time.perf_counter() - begin
    pair.close()
    latencies_ms.sort()
    return Sample(
        len(latencies_ms), took, latencies_ms[len(latencies_ms) // 2], latencies_ms[int(len(latencies_ms) * 0.99)]
    )
