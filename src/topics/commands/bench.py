"""`topics bench`: how fast a server is, seen from here, through the Python library.

It writes to topics of its own (`bench.` and a number), and deletes them at the end. One process does both sides of
the work that a client does, so that a figure is what a program of one process gets, with the network in between; what
a server can do for many is measured by `make bench` of a checkout.
"""

from __future__ import annotations

import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import msgspec
import typer

from topics.client.client import Client
from topics.client.record import Record
from topics.commands.link import Link, connected
from topics.commands.progress import progress
from topics.commands.spans import size_bytes, span_ms
from topics.commands.table import Json, print_json, print_table
from topics.errors import TopicsError

ROWS: Final = 5
BATCH: Final = 100
CLAIMED: Final = 100
FOLLOWED_MAX: Final = 2_000
FOLLOW_PAUSE_S: Final = 0.002
FOLLOW_WAIT_S: Final = 30.0


class Figure(msgspec.Struct):
    """One row: how many a second, and how long one takes where that is what counts."""

    name: str
    per_s: float
    unit: str
    p50_ms: float | None = None
    p99_ms: float | None = None


class Bench:
    """The rows, each for about the same time, with records of about the same size."""

    def __init__(self, client: Client, name: str, seconds: float, size: int, durability: str) -> None:
        self._client = client
        self._name = name
        self._seconds = seconds
        self._data = {"n": 1, "text": "x" * max(0, size - 18)}
        self._log = client.topic(f"{name}.log")
        self._jobs = client.topic(f"{name}.jobs")
        chosen: Any = {"durability": durability}
        self._log.configure(**chosen)
        self._jobs.configure(type="queue", **chosen)

    def rows(self) -> Iterator[Figure]:
        """Each row when it is measured."""
        for measure in (self._singles, self._producer, self._read, self._follow, self._work):
            yield measure()

    def _repeated(self, call: Callable[[], Any]) -> list[float]:
        """How long each call took, in seconds."""
        took = []
        until = time.perf_counter() + self._seconds
        while (began := time.perf_counter()) < until:
            call()
            took.append(time.perf_counter() - began)
        return took

    def _singles(self) -> Figure:
        took = self._repeated(lambda: self._log.write(self._data))
        return _figure("write one record, wait for the answer", "records", len(took), sum(took), took)

    def _producer(self) -> Figure:
        count = 0
        began = time.perf_counter()
        with self._client.producer(self._log.name) as producer:
            while time.perf_counter() - began < self._seconds:
                for _ in range(BATCH):
                    producer.write(self._data)
                count += BATCH
        return _figure("write with a producer", "records", count, time.perf_counter() - began)

    def _read(self) -> Figure:
        count = 0
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < self._seconds:
            for _ in self._log.read(on_loss="yield"):
                count += 1
                if count % BATCH == 0 and time.perf_counter() - began >= self._seconds:
                    break
        return _figure("read from the beginning", "records", count, elapsed)

    def _follow(self) -> Figure:
        """From the call that writes a record until a follower has it."""
        took: list[float] = []
        follower = self._log.follow(tail=True, on_loss="yield")

        def receive() -> None:
            for record in follower:
                if isinstance(record, Record):
                    took.append(time.perf_counter() - record.data["at"])

        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        written = 0
        began = time.perf_counter()
        while not took or (time.perf_counter() - began < self._seconds and written < FOLLOWED_MAX):
            # Until the first one is there, it is not known whether the follower is at the head yet.
            self._log.write({**self._data, "at": time.perf_counter()})
            written += 1
            time.sleep(FOLLOW_PAUSE_S)
            if time.perf_counter() - began > FOLLOW_WAIT_S:
                break
        elapsed = time.perf_counter() - began
        follower.close()
        thread.join()
        return _figure("follow: from the write to the reader", "records", len(took), elapsed, took)

    def _work(self) -> Figure:
        done = 0
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < self._seconds:
            self._jobs.write_many([self._data] * CLAIMED)
            jobs = self._jobs.claim(CLAIMED)
            done += self._jobs.ack(jobs).acked
        return _figure(f"queue: write, claim and ack, {CLAIMED} at a time", "jobs", done, elapsed)

    def close(self) -> None:
        """Delete what was written."""
        for topic in (self._log, self._jobs):
            topic.delete_topic()


def _figure(name: str, unit: str, count: int, elapsed_s: float, took: list[float] | None = None) -> Figure:
    found = Figure(name, round(count / elapsed_s, 1) if elapsed_s > 0 else 0.0, f"{unit}/s")
    if took:
        took = sorted(took)
        found.p50_ms = round(statistics.median(took) * 1000, 3)
        found.p99_ms = round(took[min(len(took) - 1, int(len(took) * 0.99))] * 1000, 3)
    return found


@connected
def bench(
    link: Link,
    time_each: Annotated[
        int,
        typer.Option(
            "--time",
            "-t",
            parser=span_ms,
            metavar="TIME",
            help="How long to measure each row; by default 2s.",
            show_default=False,
        ),
    ] = 2_000,
    size: Annotated[
        str, typer.Option("--size", "-s", metavar="SIZE", help="Bytes of a record.", show_default=True)
    ] = "150",
    durability: Annotated[str, typer.Option(help="The class: ephemeral, memory, disk or fsync.")] = "disk",
    as_json: Json = False,
) -> None:
    """Measure how fast a server is from here.

    It writes as fast as it can, to topics of its own that it deletes at the end: others on that server will notice.
    """
    bytes_each = size_bytes(size)
    bench = Bench(link.now, f"bench.{secrets.token_hex(4)}", time_each / 1000, bytes_each, durability)
    rows = []
    try:
        with progress("measuring", ROWS, shown=True) as step:
            for number, row in enumerate(bench.rows(), 1):
                rows.append(row)
                step(number)
    finally:
        try:
            bench.close()
        except TopicsError as error:
            typer.echo(f"topics bench: its topics could not be deleted: {error.message}", err=True)
    if as_json:
        for row in rows:
            print_json(row)
        return
    cells = [(f"{row.per_s:,.0f}", row.unit, _ms(row.p50_ms), _ms(row.p99_ms), row.name) for row in rows]
    print_table(("RATE", "", "P50", "P99", f"{bytes_each} BYTES, {durability.upper()}"), cells, left=("",))


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ms"
