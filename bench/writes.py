"""Writes: one record and a batch of 100, by durability class, and what the record or the client may add to the cost."""

from __future__ import annotations

from collections.abc import Iterator

from bench import records
from bench.bed import Bench
from bench.load import Traffic
from bench.row import Row, Target, at_least

ROWS = (
    "post-ephemeral", "post-disk", "post-fsync", "post-varied", "post-tagged",
    "batch-ephemeral", "batch-disk", "batch-fsync", "batch-tagged", "state",
)  # fmt: skip
FULL_FIELDS = b',"tag":"tenant42:job-9001","node":"worker-7","meta":{"trace":"4f2a9c"}'


def measure(bench: Bench) -> Iterator[Row]:
    """The write path."""
    yield from _posts(bench)
    yield from _batches(bench)
    if bench.wants("post-varied"):
        with bench.server() as server:
            for i in range(50):
                records.create(server, f"varied{i}")
            traffic = Traffic(
                "POST",
                "/v0/topics/varied{n}?return_seqs=false",
                records.batch(1).replace(b"42.png", b"{n}.png"),
                span=50,
            )
            yield bench.measure("post-varied", "POST one record to 50 topics in turn, lengths differ", server, traffic)
    if bench.wants("post-tagged"):
        with bench.server() as server:
            traffic = records.post("tagged", fields=FULL_FIELDS)
            yield bench.measure("post-tagged", "POST one record with tag, node and meta, disk", server, traffic)
    if bench.wants("state"):
        with bench.server() as server:
            records.fill(server, "state", 10_000)
            yield bench.measure(
                "state",
                "GET the state of a topic, 64 connections",
                server,
                Traffic("GET", "/v0/topics/state"),
                records=0,
            )


def _posts(bench: Bench) -> Iterator[Row]:
    rows: tuple[tuple[str, Target, str | None], ...] = (
        ("ephemeral", at_least(35_000), None),
        ("disk", at_least(35_000), "redis-xadd"),
        ("fsync", at_least(25_000), "redis-xadd-always"),
    )
    for durability, target, peer in rows:
        name = f"post-{durability}"
        if bench.wants(name):
            with bench.server() as server:
                records.create(server, "one", durability=durability)
                yield bench.measure(
                    name,
                    f"POST one record, {durability}, 64 connections",
                    server,
                    records.post("one"),
                    rounds=bench.rounds,
                    target=target,
                    peer=peer,
                )


def _batches(bench: Bench) -> Iterator[Row]:
    wanted = at_least(600_000, "records_s")
    rows: tuple[tuple[str, str, bytes, int, Target | None], ...] = (
        ("batch-ephemeral", "ephemeral", b"", bench.rounds, wanted),
        ("batch-disk", "disk", b"", bench.rounds, wanted),
        ("batch-fsync", "fsync", b"", 1, None),
        ("batch-tagged", "disk", FULL_FIELDS, 1, None),
    )
    for name, durability, fields, rounds, target in rows:
        if not bench.wants(name):
            continue
        with bench.server() as server:

            def traffic(i: int) -> Traffic:
                # A topic per round bounds what is kept in memory without a disk to seal it to.
                server.request("DELETE", f"/v0/topics/batch{i - 1}")
                records.create(server, f"batch{i}", durability=durability)  # noqa: B023
                return records.post(f"batch{i}", 100, 16, fields)  # noqa: B023

            yield bench.measure(
                name,
                f"POST a batch of 100, {durability}{' with tag, node, meta' if fields else ''}, 16 connections",
                server,
                traffic,
                records=100,
                rounds=rounds,
                target=target,
                peer="redis-xadd-pipelined" if durability == "disk" else None,
            )
