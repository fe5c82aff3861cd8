"""What a tombstone says after a kill is what it said before: the same range, and the same reason (DURABLE-9, LOSS-8).

Cap and TTL take records at different moments, and none of these is logged. A restart has to find from the records
alone which of the two came first.
"""

from __future__ import annotations

import random

import pytest

from tests.harness.machine import Machine, numbers
from tests.harness.story import Story
from topics.engine import ConfigPatch, Delete, Diff, Write
from topics.storage.job import run_inline

BOUNDS = (
    {"cap_records": 5, "ttl_ms": 1000},
    {"cap_records": 12, "ttl_ms": 400},
    {"cap_bytes": 300, "ttl_ms": 1000},
    {"cap_records": 7, "cap_bytes": 500, "ttl_ms": 700},
    {"cap_records": 5, "ttl_ms": 0},
    {"cap_records": 0, "cap_bytes": 0, "ttl_ms": 500},
)
CLASSES = ("memory", "disk", "fsync")


def tombstones(machine: Machine, name: str) -> list[tuple[int, int, str] | None]:
    """What the cursor at each seq is told."""
    told = []
    for cursor in range(machine.engine.topics[name].log.head + 1):
        found = machine.engine.diff(name, Diff(from_seq=cursor, limit=1)).tombstone
        told.append(None if found is None else (found.gap_from, found.gap_to, found.reason))
    return told


def test_records_that_a_cap_took_stay_evicted_where_a_ttl_would_have_taken_them_since() -> None:
    """LOSS-8: the first three fell to the cap, long before they would have expired."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(cap_records=2, ttl_ms=1000))
    for number in range(5):
        machine.engine.write("t", numbers(number, number))
        machine.clock.advance(10)
    machine.clock.advance(5000)
    machine.engine.write("t", numbers(9, 9))
    machine.run_until_idle()
    before = tombstones(machine, "t")
    assert [told and told[2] for told in before] == ["mixed"] * 3 + ["ttl"] * 2 + [None, None]
    machine.crash("kill")
    assert tombstones(machine, "t") == before


class ReasonStory(Story):
    """Topics with bounds that come and go, written to in large and small pieces."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, shards=1 + seed % 2, wal_file_bytes=1 << 15)
        for name in CLASSES:
            self.engine.put_topic(name, ConfigPatch(durability=name, **self.rng.choice(BOUNDS)))  # type: ignore[arg-type]
        self.machine.run_until_idle()

    def step(self) -> None:
        engine, rng, name = self.engine, self.rng, self.rng.choice(CLASSES)
        kind = self.choose(write=40, delete=4, trim=2, config=3, read=5, time=14, checkpoint=1, job=8, turn=20, idle=3)
        if kind == "write":
            engine.write(name, Write(self.numbered((1, 1, 1, 2, 8))))
        elif kind == "delete":
            engine.delete(name, Delete(match=rng.choice("xy")), lambda receipt: None)
        elif kind == "trim":
            engine.delete(name, Delete(before_seq=max(1, engine.topics[name].log.head - 2)), lambda receipt: None)
        elif kind == "config":
            engine.put_topic(name, ConfigPatch(**rng.choice(BOUNDS)), lambda receipt: None)
        elif kind == "read":
            engine.diff(name, Diff(from_seq=0, limit=1))
        elif kind == "turn":
            engine.prepare()
            engine.turn()
        elif kind == "time":
            self.machine.clock.advance(rng.choice((1, 20, 150, 600)))
        elif kind == "job":
            run_inline(self.machine.store.jobs())
        else:
            self.happen(kind, ())


@pytest.mark.parametrize("seed", range(40))
def test_a_kill_changes_no_reason(seed: int) -> None:
    """DURABLE-9, LOSS-8: whatever caps, TTLs and deletes did, and in whatever order."""
    story = ReasonStory(seed)
    for _ in range(3):
        for _ in range(random.Random(seed).randrange(20, 80)):
            story.step()
        story.machine.run_until_idle()
        before = {name: tombstones(story.machine, name) for name in CLASSES}
        story.machine.crash("kill")
        assert {name: tombstones(story.machine, name) for name in CLASSES} == before
