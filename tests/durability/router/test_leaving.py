"""A source, or what it follows from, changes its durability class while it is forwarded, with several WAL shards.

The invariants, for a destination that keeps what it shows (`disk`, `fsync`):

1. What a reader has seen under a seq is never shown as something else, whichever shards a crash took frames from
   (ROUTER-25).
2. A seq that was seen and is not there any more is reported as lost, and so is everything between (LOSS-1).
3. `fsync` keeps every copy whose source record survives: what it had shown of an `fsync` source is there, under its
   seq (DURABLE-4).

The class of the source goes to and fro between all four, at random moments, under filters and several routers, so that
a source record is none, one or two seqs in the destination.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.harness.machine import small
from tests.harness.story import Story, ignore
from topics.engine import ConfigPatch, Write
from topics.engine.router.router import PutRouter
from topics.errors import TopicsError
from topics.testing.fake_disk import DAMAGES

CLASSES = ("ephemeral", "memory", "disk", "fsync")
WAL_FILE_BYTES = 1 << 15


class Seen(NamedTuple):
    """A record as a reader saw it, and whether nothing may take it away again."""

    data: bytes
    kept: bool


class ChainStory(Story):
    """A chain a -> m -> b over several shards, and a reader of b that forgets nothing."""

    def __init__(self, seed: int, shards: int, dest: str) -> None:
        super().__init__(seed, shards=shards, wal_file_bytes=WAL_FILE_BYTES)
        self.dest = dest
        self.seen: dict[int, Seen] = {}
        # Numbers written to a while it was `fsync`, and m with it: these survive.
        self.safe: set[bytes] = set()
        engine, rng = self.engine, self.rng
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
        self.machine.run_until_idle()
        self.direct = rng.random() < 0.3

    def step(self) -> None:
        engine, rng = self.engine, self.rng
        kind = self.choose(write=10, config=3, job=5, turn=5, look=5, time=1, checkpoint=0.5)
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
                engine.put_topic(rng.choice(self.sources), patch, ignore)
            elif kind == "turn":
                engine.prepare()
                engine.turn()
            elif kind == "look":
                engine.topics["b"].catch_up()
            else:
                self.happen(kind, ())
        except TopicsError:
            pass
        self.look()

    def _write(self, name: str) -> None:
        records = self.numbered((1, 2, 4))
        if all(self.engine.topics[each].config.durability == "fsync" for each in self.sources):
            self.safe |= {bytes(record.data) for record in records}
        self.engine.write(name, Write(records), on_done=ignore)

    def shown(self) -> dict[int, bytes]:
        return {seq: data for seq, (_, data, _, _) in self.machine.visible("b").items()}

    def look(self) -> None:
        """Read b as it is: rules 1 and 2."""
        log, now = self.engine.topics["b"].log, self.shown()
        for seq, data in now.items():
            was = self.seen.setdefault(seq, Seen(data, self.dest == "fsync" and data in self.safe))
            assert was.data == data, f"{seq} was {was.data!r} and is {data!r}"
        silent = [seq for seq in range(1, log.head + 1) if seq not in now and log.lost_at(seq) is None]
        assert not silent, f"{silent} are gone without a word"
        assert not self.seen or log.head >= max(self.seen), "the head has gone back"

    def crash(self, damage: Any) -> None:
        self.machine.crash(damage)
        now = self.shown()
        for seq, was in self.seen.items():
            assert not was.kept or now.get(seq) == was.data, f"{seq} was to be kept: {was.data!r}"
        self.look()


def tell(seed: int, dest: str, damage: Any) -> None:
    with small():
        story = ChainStory(seed, 1 + seed % 3, dest)
        for _ in range(4):
            story.run_until_crash(60, 3, 60)
            story.crash(damage)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("dest", ["disk", "fsync"])
@pytest.mark.parametrize("seed", range(12))
def test_copies_keep_their_seqs_whatever_class_their_source_has_had(seed: int, dest: str, damage: Any) -> None:
    """ROUTER-25: the rules of loss hold through every change of class."""
    tell(seed, dest, damage)


@pytest.mark.parametrize(
    ("seed", "dest", "damage"),
    [
        (1028, "disk", "garbled"),  # a hole in a source, and a filter
        (1035, "disk", "garbled"),
        (1067, "disk", "dropped"),  # a `memory` source between, with direct writes of its own
        (1067, "disk", "torn"),
        (1067, "disk", "garbled"),
        (1071, "disk", "garbled"),
        (2011, "disk", "garbled"),
        (2028, "fsync", "torn"),  # a write that was never shown is lost behind a copy that was
        (2061, "disk", "torn"),  # a direct write is lost between copies
        (2068, "disk", "kill"),  # records of a source that became `ephemeral` a moment ago
        (2082, "disk", "torn"),  # a source that was `ephemeral`, and its lost records
        (2091, "disk", "garbled"),
    ],
)
def test_copies_keep_their_seqs_in_the_stories_that_a_search_found(seed: int, dest: str, damage: Any) -> None:
    """ROUTER-32: no copy is shown under the seq of something else that a loss of power took."""
    tell(seed, dest, damage)
