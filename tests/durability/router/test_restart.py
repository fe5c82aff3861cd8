"""Routers across restarts: after any sequence of operations and a kill, every topic reads as it did before.

ROUTER-15: seqs and content of the copies are the same, also with direct writes and deletes in between, with
checkpoints, chains, filters, caps and backpressure.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.durability.engine.test_restart import Machine
from topics.engine import ConfigPatch, Delete, Diff, RecordIn, Write
from topics.engine.router.router import PutRouter
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.errors import TopicsError
from topics.storage.job import run_inline
from topics.storage.segment.segment import Miss

TOPICS = ("a", "b", "c", "d")
EDGES = (("a", "b"), ("b", "c"), ("a", "d"), ("c", "d"))
SETTINGS = UpkeepSettings(segment_max_events=20, checkpoint_wal_bytes=1 << 40)


class Image(NamedTuple):
    """A topic at one moment: visible records and lost seqs by seq, the floors, and how far its router was."""

    records: dict[int, Any]
    lost: dict[int, str]
    head: int
    start: int
    evict_floor: int
    cursor: int


class World:
    """An engine on a fake disk, driven at random."""

    def __init__(self, seed: int, shards: int) -> None:
        self.rng = random.Random(seed)
        self.machine = Machine(SETTINGS, shards=shards)
        self.serial = 0
        for name in TOPICS:
            self.machine.engine.put_topic(name, ConfigPatch())

    def patiently(self, command: Any) -> Any:
        while True:
            try:
                return command()
            except Miss as miss:
                run_inline([miss.job])

    def step(self) -> None:
        engine, rng = self.machine.engine, self.rng
        topic = rng.choice(TOPICS)
        kind = rng.choices(
            ("write", "delete", "trim", "put", "move", "drop", "config", "vanish", "checkpoint", "settle", "time"),
            (40, 6, 4, 8, 4, 3, 4, 1, 3, 15, 6),
        )[0]
        try:
            if kind == "write":
                records = []
                for _ in range(rng.choice((1, 1, 2, 5))):
                    self.serial += 1
                    tag = rng.choice((None, "x", "y"))
                    records.append(RecordIn(msgspec.Raw(b"%d" % self.serial), tag=tag))
                engine.write(topic, Write(records), on_done=lambda ticket: None)
            elif kind == "delete":
                self.patiently(lambda: engine.delete(topic, Delete(match=rng.choice("xy")), lambda receipt: None))
            elif kind == "trim":
                before = max(1, engine.topics[topic].log.head - rng.randrange(6))
                self.patiently(lambda: engine.delete(topic, Delete(before_seq=before), lambda receipt: None))
            elif kind == "put":
                source, dest = rng.choice(EDGES)
                rule: dict[str, Any] = {"filter": rng.choice((None, None, "x"))}
                rule["guarantee"] = rng.choice(("at_least_once", "exactly_once"))
                name = f"{source}->{dest}{rng.choice(('', '2'))}"
                self.patiently(lambda: engine.routers.put(name, PutRouter(source, dest, **rule), lambda receipt: None))
            elif kind == "move" and engine.routers.by_name:
                name, put = rng.choice(sorted(engine.routers.by_name)), PutRouter(*rng.choice(EDGES))
                self.patiently(lambda: engine.routers.put(name, put, lambda receipt: None))
            elif kind == "drop" and engine.routers.by_name:
                name = rng.choice(sorted(engine.routers.by_name))
                self.patiently(lambda: engine.routers.delete(name, lambda receipt: None))
            elif kind == "config":
                patch = rng.choice(
                    (
                        ConfigPatch(cap_records=0),
                        ConfigPatch(cap_records=rng.randrange(3, 30)),
                        ConfigPatch(cap_records=rng.randrange(3, 30), discard="reject"),
                        ConfigPatch(cap_bytes=rng.choice((0, 100, 400)), discard=rng.choice(("old", "reject"))),
                        ConfigPatch(ttl_ms=rng.choice((0, 0, 1000))),
                        ConfigPatch(discard="old"),
                    )
                )
                self.patiently(lambda: engine.put_topic(topic, patch, lambda receipt: None))
            elif kind == "vanish":
                self.patiently(lambda: engine.delete_topic(topic, on_done=lambda receipt: None))
                engine.put_topic(topic, ConfigPatch(), lambda receipt: None)
            elif kind == "checkpoint":
                self.machine.checkpoint()
            elif kind == "time":
                self.machine.clock.advance(rng.choice((1, 50, 1500)))
            else:
                self.machine.settle()
        except TopicsError:
            pass
        if rng.random() < 0.5:
            engine.turn()

    def image(self, name: str) -> Image:
        """What a reader of a topic may see. Nothing is caught up by looking."""
        log = self.machine.engine.topics[name].log
        records: dict[int, Any] = {}
        for entry in log.retained():
            block = self.patiently(entry.block)
            start = max(0, log.start - entry.first_seq)
            for i, j in entry.live_runs(start, entry.n):
                for k in range(i, j):
                    seq = entry.first_seq + k
                    records[seq] = (block.columns.ts[k], block.data(k), block.tag(k), block.meta(k))
        lost = {seq: each.reason for each in log.lost for seq in range(each.first, each.last + 1)}
        inbound = self.machine.engine.topics[name].inbound
        return Image(records, lost, log.head, log.start, log.evict_floor, inbound.cursor if inbound else 0)

    def restart(self) -> None:
        machine = self.machine
        machine.engine.turn()
        run_inline(machine.store.jobs())
        machine.engine.store.write()
        machine.engine.expire_all(machine.clock.now_ms())
        before = {name: self.image(name) for name in TOPICS}
        machine.crash("kill")
        for name in TOPICS:
            self.compare(name, before[name], self.image(name))

    def compare(self, name: str, then: Image, now: Image) -> None:
        """After a kill a topic is what it was; copies that were due may have come, and what a cap took for them."""
        assert now.head >= then.head, name
        due = now.head > then.head
        assert now.start == then.start or (due and now.start > then.start), name
        assert now.evict_floor == then.evict_floor or (due and now.evict_floor > then.evict_floor), name
        visible = {seq: record for seq, record in now.records.items() if seq <= then.head}
        assert visible == {seq: record for seq, record in then.records.items() if seq >= now.start}, name
        told = {seq: reason for seq, reason in now.lost.items() if seq <= then.head}
        assert told == {seq: reason for seq, reason in then.lost.items() if seq in told or seq >= now.evict_floor}, name
        trimmed = [seq for seq in now.lost if seq > then.head]
        if trimmed:
            inbound = self.machine.engine.topics[name].inbound
            assert inbound is not None, name
            source = inbound.source.log
            gone = max(0, source.evict_floor - 1 - then.cursor)
            gone += sum(max(0, lost.last - max(lost.first - 1, then.cursor)) for lost in source.lost)
            assert len(trimmed) <= gone * len(inbound.routers), f"{name}: the source has not lost {trimmed}"


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("seed", [*range(40), 93, 235, 491, 508])
def test_topics_read_the_same_after_a_kill(seed: int, shards: int) -> None:
    """ROUTER-15: after a restart copies and direct writes interleave exactly as readers saw them."""
    world = World(seed, shards)
    for _ in range(4):
        for _ in range(world.rng.randrange(5, 40)):
            world.step()
        world.restart()
    world.machine.settle()
    for name in TOPICS:
        world.patiently(lambda name=name: world.machine.engine.diff(name, Diff(limit=1000)))
