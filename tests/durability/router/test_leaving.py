"""A source, or what it follows from, changes its durability class while it is forwarded, with several WAL shards.

The invariants, for a destination that keeps what it shows (`disk`, `fsync`):

1. What a reader has seen under a seq is never shown as something else, whichever shards a crash took frames from
   (ROUTER-25).
2. A seq that was seen and is not there any more is told as lost, and so is everything between (LOSS-1).
3. `fsync` keeps every copy whose source record survives: what it had shown of an `fsync` source is there, under its
   seq (DURABLE-4).

The class of the source goes to and fro between all four, at random moments, under filters and several routers, so that
a source record is none, one or two seqs in the destination.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.durability.engine.test_restart import Machine
from tests.harness.crash import small
from topics.engine import ConfigPatch, RecordIn, Write
from topics.engine.router.router import PutRouter
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.errors import TopicsError
from topics.storage.job import run_inline
from topics.testing.disk import DAMAGES, Crashed

CLASSES = ("ephemeral", "memory", "disk", "fsync")
SETTINGS = UpkeepSettings(segment_max_events=20, checkpoint_wal_bytes=1 << 40)
WAL_FILE_BYTES = 1 << 15


class Seen(NamedTuple):
    """A record as a reader saw it, and whether nothing may take it away again."""

    data: bytes
    kept: bool


class World:
    """A chain a -> m -> b over several shards, and a reader of b who forgets nothing."""

    def __init__(self, seed: int, shards: int, dest: str) -> None:
        self.rng = rng = random.Random(seed)
        self.machine = Machine(SETTINGS, shards=shards, wal_file_bytes=WAL_FILE_BYTES)
        self.dest = dest
        self.serial = 0
        self.seen: dict[int, Seen] = {}
        # Numbers written to a while it was `fsync`, and m with it: these survive.
        self.safe: set[bytes] = set()
        engine = self.machine.engine
        for i in range(rng.randrange(3)):
            engine.put_topic(f"other{i}", ConfigPatch())
        chain = rng.random() < 0.5
        self.sources = ("a", "m") if chain else ("a",)
        for name in self.sources:
            engine.put_topic(name, ConfigPatch(durability=rng.choice(CLASSES)))  # type: ignore[arg-type]
        engine.put_topic("b", ConfigPatch(durability=dest))  # type: ignore[arg-type]
        if chain:
            engine.routers.put("a->m", PutRouter("a", "m", filter=rng.choice((None, "x"))))
        for i in range(rng.choice((1, 1, 2))):
            engine.routers.put(f"b{i}", PutRouter(self.sources[-1], "b", filter=rng.choice((None, "x", "y"))))
        self.machine.settle()
        self.direct = rng.random() < 0.3

    def step(self) -> None:
        engine, rng = self.machine.engine, self.rng
        kind = rng.choices(("write", "config", "job", "turn", "look", "time", "checkpoint"), (10, 3, 5, 5, 5, 1, 0.5))[
            0
        ]
        try:
            if kind == "write":
                name = rng.choice((*self.sources, *(("b",) if self.direct else ())))
                self._write(name)
            elif kind == "config":
                durability = rng.choice(CLASSES)
                if durability == "ephemeral":
                    # What was not copied by now is not kept any more.
                    self.safe &= {seen.data for seen in self.seen.values()}
                patch = ConfigPatch(durability=durability)  # type: ignore[arg-type]
                engine.put_topic(rng.choice(self.sources), patch, lambda receipt: None)
            elif kind == "job":
                run_inline(self.machine.store.jobs())
            elif kind == "turn":
                engine.turn()
            elif kind == "look":
                engine.catch_up(engine.topics["b"])
            elif kind == "time":
                self.machine.clock.advance(rng.choice((1, 50, 1500)))
            else:
                self.machine.checkpoint()
        except TopicsError:
            pass
        self.look()

    def _write(self, name: str) -> None:
        records = []
        for _ in range(self.rng.choice((1, 2, 4))):
            self.serial += 1
            data = b"%d" % self.serial
            records.append(RecordIn(msgspec.Raw(data), tag=self.rng.choice((None, "x", "y"))))
            if all(self.machine.engine.topics[each].config.durability == "fsync" for each in self.sources):
                self.safe.add(data)
        self.machine.engine.write(name, Write(records), on_done=lambda ticket: None)

    def image(self) -> dict[int, bytes]:
        log = self.machine.engine.topics["b"].log
        records: dict[int, bytes] = {}
        for entry in log.retained():
            block = entry.block()
            for i, j in entry.live_runs(max(0, log.start - entry.first_seq), entry.n):
                records |= {entry.first_seq + k: block.data(k) for k in range(i, j)}
        return records

    def look(self) -> None:
        """Read b as it stands: rules 1 and 2."""
        log, now = self.machine.engine.topics["b"].log, self.image()
        for seq, data in now.items():
            was = self.seen.setdefault(seq, Seen(data, self.dest == "fsync" and data in self.safe))
            assert was.data == data, f"{seq} was {was.data!r} and is {data!r}"
        silent = [seq for seq in range(1, log.head + 1) if seq not in now and log.lost_at(seq) is None]
        assert not silent, f"{silent} are gone without a word"
        assert not self.seen or log.head >= max(self.seen), "the head has gone back"

    def crash(self, damage: Any) -> None:
        self.machine.crash(damage)
        now = self.image()
        for seq, was in self.seen.items():
            assert not was.kept or now.get(seq) == was.data, f"{seq} was to be kept: {was.data!r}"
        self.look()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("dest", ["disk", "fsync"])
@pytest.mark.parametrize("seed", range(12))
def test_copies_keep_their_seqs_whatever_class_their_source_has_had(seed: int, dest: str, damage: Any) -> None:
    """ROUTER-25: the rules of loss hold through every change of class."""
    with small():
        world = World(seed, 1 + seed % 3, dest)
        for _ in range(4):
            disk = world.machine.disk
            disk.crash_at = disk.calls + world.rng.randrange(3, 60)
            try:
                for _ in range(60):
                    world.step()
            except Crashed:
                pass
            world.crash(damage)
