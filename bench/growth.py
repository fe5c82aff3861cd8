"""Growth: what a write costs does not depend on how many topics there are, nor on how much they retain.

The figure that counts is processor time per write; the smallest size is the yardstick for the others. With 10 million
records (`--full`) the memory of the server is a row of its own: after writing them, and after reading all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench import records
from bench.bed import Bench, anon_mib, await_calm
from bench.load import Traffic
from bench.reads import SEGMENT_RECORDS, await_sealed
from bench.row import Row, at_most

if TYPE_CHECKING:
    from topics.testing import ServerProcess

TOPICS = (10, 1_000, 100_000)
RETAINED = (10**4, 10**5, 10**6, 10**7)
TOPIC_ROWS = tuple(f"topics-{n}{kind}" for n in TOPICS for kind in ("", "-spread"))
RETAINED_ROWS = tuple(f"retained-{n}" for n in RETAINED)
ROWS = (*TOPIC_ROWS, *RETAINED_ROWS, "memory-10m", "memory-10m-read")
FLAT = 1.25
"""Over four orders of magnitude, less than this is noise."""
MEMORY = at_most(400, "mib")


def measure(bench: Bench) -> Iterator[Row]:
    """Writes while topics and records grow."""
    if bench.wants(*TOPIC_ROWS):
        yield from _topics(bench)
    big = bench.full and bench.wants("memory-10m", "memory-10m-read")
    if bench.wants(*RETAINED_ROWS) or big:
        yield from _retained(bench)


def _topics(bench: Bench) -> Iterator[Row]:
    with bench.server(max_topics=0) as server:
        yardsticks: dict[str, float] = {}
        there = 0
        for count in TOPICS:
            records.fill_topics(server, there, count - there)
            await_calm(server.pid)
            there = count
            spread = Traffic("POST", "/v0/topics/t{n}?return_seqs=false", records.batch(1), step=7, span=count)
            for kind, title, traffic in (
                ("", f"POST one record to one of {count:,} topics", records.post("t3")),
                ("-spread", f"POST one record to each of {count:,} topics in turn", spread),
            ):
                row = bench.measure(f"topics-{count}{kind}", title, server, traffic)
                yield _judged(row, yardsticks, kind)


def _retained(bench: Bench) -> Iterator[Row]:
    with bench.server(segment_max_events=SEGMENT_RECORDS) as server:
        yardsticks: dict[str, float] = {}
        records.create(server, "one", durability="disk")
        for count in RETAINED:
            if count == 10**7 and not bench.full:
                continue
            records.fill(server, "one", max(0, count - records.head_seq(server, "one")))
            await_sealed(server.data_dir)
            row = bench.measure(
                f"retained-{count}", f"POST one record to a topic of {count:,}", server, records.post("one")
            )
            yield _judged(row, yardsticks, "")
        if bench.full:
            yield from _memory(server)


def _judged(row: Row, yardsticks: dict[str, float], kind: str) -> Row:
    assert row.cpu_us is not None
    yardstick = yardsticks.setdefault(kind, row.cpu_us)
    if yardstick != row.cpu_us:
        row.ratio = row.cpu_us / yardstick
        row.target = at_most(FLAT, "ratio")
        row.add_note("CPU against the smallest")
    return row


def _memory(server: ServerProcess) -> Iterator[Row]:
    head = records.head_seq(server, "one")
    yield Row("memory-10m", f"RssAnon with {head:,} records retained", mib=anon_mib(server.pid), target=MEMORY)
    for from_seq in range(0, head, 1000):
        server.request("POST", "/v0/topics/one/diff", json={"from_seq": from_seq, "limit": 1000})
    yield Row("memory-10m-read", "RssAnon after all of them were read", mib=anon_mib(server.pid), target=MEMORY)
