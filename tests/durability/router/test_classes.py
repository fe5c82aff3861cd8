"""Routers and dead letters between topics of every durability class, through crashes of every kind.

What a reader has seen under a seq is never shown as something else (ROUTER-22), nothing
disappears in silence (LOSS-1), and `fsync` keeps what it has shown (DURABLE-4), copies and dead letters included.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.durability.engine.test_restart import Machine
from tests.harness.crash import small
from topics.engine import ConfigPatch, Delete, RecordIn, Write
from topics.engine.queue.requests import ClaimJobs
from topics.engine.router.router import PutRouter
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.errors import TopicsError
from topics.storage.job import run_inline
from topics.storage.segment.segment import Miss
from topics.testing.disk import DAMAGES

CLASSES = ("ephemeral", "memory", "disk", "fsync")
TOPICS = ("a", "b", "c", "q", "dlq")
EDGES = (("a", "b"), ("b", "c"), ("a", "q"), ("c", "q"), ("dlq", "c"))
SETTINGS = UpkeepSettings(segment_max_events=20, checkpoint_wal_bytes=1 << 40)

Record = tuple[int, bytes, bytes | None, bytes | None]


class World:
    """An engine on a fake disk, driven at random, and a reader who remembers everything that it was shown."""

    def __init__(self, seed: int, shards: int) -> None:
        self.rng = random.Random(seed)
        self.machine = Machine(SETTINGS, shards=shards)
        self.serial = 0
        self.seen: dict[str, dict[int, Record]] = {name: {} for name in TOPICS}
        # Deleted or moved to the dead letters; and those of them whose delete was acked.
        self.deleted: dict[str, set[int]] = {name: set() for name in TOPICS}
        self.gone: dict[str, set[int]] = {name: set() for name in TOPICS}
        self.since = dict.fromkeys(TOPICS, 1)
        # Topics that hold, or held, copies of what only memory had.
        self.forgetful: set[str] = set()
        self.classes: dict[str, set[str]] = {name: set() for name in TOPICS}
        for name in TOPICS:
            fields: dict[str, Any] = {"durability": self.rng.choice(CLASSES)}
            if name == "q":
                fields |= {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq", "lease_ms": 100}
            self.machine.engine.put_topic(name, ConfigPatch(**fields))

    def durability(self, name: str) -> str:
        return self.machine.engine.topics[name].config.durability

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
            ("write", "delete", "claim", "put", "move", "drop", "config", "checkpoint", "job", "settle", "time"),
            (40, 5, 12, 8, 3, 2, 3, 3, 12, 4, 6),
        )[0]
        try:
            if kind == "write":
                records = []
                for _ in range(rng.choice((1, 1, 2, 5))):
                    self.serial += 1
                    records.append(RecordIn(msgspec.Raw(b"%d" % self.serial), tag=rng.choice((None, "x", "y"))))
                engine.write(topic, Write(records), on_done=lambda ticket: None)
            elif kind == "delete":
                match = rng.choice(("x", "y"))
                self.patiently(lambda: engine.catch_up(engine.topics[topic]))
                before = set(self.image(topic))

                def deleted(receipt: Any) -> None:
                    self.gone[topic] |= self.deleted[topic] & before

                self.patiently(lambda: engine.delete(topic, Delete(match=match), deleted))
                self.deleted[topic] |= before - set(self.image(topic))
            elif kind == "claim":
                self.patiently(lambda: engine.catch_up(engine.topics["q"]))
                before = set(self.image("q"))
                self.patiently(lambda: engine.queues.claim("q", ClaimJobs("w", 3), on_done=lambda claim: None))
                self.deleted["q"] |= before - set(self.image("q"))
            elif kind == "put":
                source, dest = rng.choice(EDGES)
                put = PutRouter(source, dest, filter=rng.choice((None, None, "x")))
                name = f"{source}->{dest}"
                self.patiently(lambda: engine.routers.put(name, put, lambda receipt: None))
            elif kind == "move" and engine.routers.by_name:
                name, put = rng.choice(sorted(engine.routers.by_name)), PutRouter(*rng.choice(EDGES))
                self.patiently(lambda: engine.routers.put(name, put, lambda receipt: None))
            elif kind == "drop" and engine.routers.by_name:
                name = rng.choice(sorted(engine.routers.by_name))
                self.patiently(lambda: engine.routers.delete(name, lambda receipt: None))
            elif kind == "config":
                patch = rng.choice(
                    (
                        ConfigPatch(durability=rng.choice(CLASSES)),  # type: ignore[arg-type]
                        ConfigPatch(cap_records=rng.choice((0, 5, 20)), discard=rng.choice(("old", "reject"))),
                    )
                )
                self.patiently(lambda: engine.put_topic(topic, patch, lambda receipt: None))
            elif kind == "checkpoint":
                self.machine.checkpoint()
            elif kind == "time":
                self.machine.clock.advance(rng.choice((1, 50, 1500)))
            elif kind == "job":
                run_inline(self.machine.store.jobs())
            else:
                self.machine.settle()
        except TopicsError:
            pass
        if rng.random() < 0.6:
            engine.turn()
        self.look()

    def image(self, name: str) -> dict[int, Record]:
        """The visible records of a topic. Nothing is caught up by looking."""
        log = self.machine.engine.topics[name].log
        records: dict[int, Record] = {}
        for entry in log.retained():
            block = self.patiently(entry.block)
            for i, j in entry.live_runs(max(0, log.start - entry.first_seq), entry.n):
                for k in range(i, j):
                    records[entry.first_seq + k] = (block.columns.ts[k], block.data(k), block.tag(k), block.meta(k))
        return records

    def look(self) -> None:
        """Read everything: nothing has another content than before, and nothing has gone without a word."""
        for name in TOPICS:
            self.classes[name].add(self.durability(name))
            if self.forgets(name):
                self.forgetful.add(name)
            log, seen, now = self.machine.engine.topics[name].log, self.seen[name], self.image(name)
            for seq, record in now.items():
                assert seen.setdefault(seq, record) == record, f"{name} {seq} was {seen[seq]}"
                assert seq not in self.deleted[name], f"{name} {seq} was deleted"
            silent = [
                seq
                for seq in range(max(self.since[name], log.evict_floor), log.head + 1)
                if seq not in now and seq not in self.deleted[name] and log.lost_at(seq) is None
            ]
            assert not silent, f"{name} lost {silent} without a word"

    def crash(self, damage: str) -> None:
        """End, and hold the next start to what each class promises."""
        machine = self.machine
        before = {name: self.image(name) for name in TOPICS}
        machine.crash(damage)
        for name in TOPICS:
            classes = self.classes[name]
            forgetful = "ephemeral" in classes or ("memory" in classes and (damage != "kill" or name in self.forgetful))
            now = self.image(name)
            if forgetful:
                # Its head may have gone back: what comes now is a log of its own.
                self.seen[name], self.deleted[name], self.gone[name] = {}, set(), set()
                self.since[name] = machine.engine.topics[name].log.head + 1
                continue
            if damage == "kill" or classes == {"fsync"}:
                assert not self.gone[name] & now.keys(), f"{name}: deleted records came back"
                floor = machine.engine.topics[name].log.evict_floor
                missing = [seq for seq in before[name] if seq not in now and seq >= floor]
                assert not missing or name in self.forgetful, f"{name} has lost {missing}"
            # A delete that was not acked may be lost.
            self.deleted[name] -= now.keys()
            self.gone[name] -= now.keys()
        self.look()

    def forgets(self, name: str) -> bool:
        """Whether some of a topic's records follow from what only memory held."""
        topics, found = self.machine.engine.topics, [name]
        for each in found:
            inbound = topics[each].inbound
            if inbound is not None and inbound.source.name not in found:
                found.append(inbound.source.name)
        return any(topics[each].config.durability == "ephemeral" for each in found[1:])


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_no_seq_is_used_again_for_what_a_reader_has_seen(seed: int, shards: int, damage: str) -> None:
    """ROUTER-22: seqs are never reused across restarts, those of copies and letters included."""
    with small():
        world = World(seed, shards)
        for _ in range(3):
            for _ in range(world.rng.randrange(5, 40)):
                world.step()
            world.crash(damage)
