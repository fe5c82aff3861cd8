"""The crash sweep of the engine: the world ends after every call that changes the disk, and no promise breaks.

First each operation by itself, so that a failure names it; then whole lives by dice, with everything in flight at once
and real crashes in between. Together more than 10,000 crash points; `make crash-sweep` goes on to a million. What must
hold is in tests.harness.oracle (the DURABLE rules).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.harness.machine import HastyClock, small
from tests.harness.sweep import Sweep, live
from tests.harness.world import World

POINTS_PER_PART = int(os.environ.get("TOPICS_SWEEP_POINTS", "5600")) // 4


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small():
        yield


def furnished(seed: int = 0, **options: object) -> World:
    """A world with topics of every class, sealed segments, a checkpoint, and something after it."""
    world = World(seed, **options)
    for name, durability in (("kept", "fsync"), ("common", "disk"), ("scratch", "memory"), ("passing", "ephemeral")):
        world.put(name, durability=durability)
        for i in range(5):
            world.write(name, 3, tag=f"tag:{i}", key=f"key{i}")
            world.run_until_idle()
    world.checkpoint()
    for name in ("kept", "common", "scratch", "passing"):
        world.write(name, 2, tag="tail")
    world.run_until_idle()
    return world


def swept(world: World, act: Callable[[], None], points_min: int, nested_every: int = 97) -> Sweep:
    with Sweep(world, nested_every=nested_every) as sweep:
        act()
    assert sweep.points >= points_min, "the operation does not do what this test believes it does"
    return sweep


@pytest.mark.parametrize(
    ("name", "shards"), [("kept", 1), ("kept", 2), ("common", 1), ("common", 2), ("scratch", 1), ("passing", 1)]
)
def test_crash_anywhere_in_an_append(name: str, shards: int) -> None:
    """DURABLE-13: a batch is there as its class promises, and whole or not at all."""
    world = furnished(shards=shards)

    def act() -> None:
        for n in (1, 4):
            world.write(name, n, size=300)
            world.write("kept", 1)
            world.turn()
        world.clock.advance(60)
        world.run_until_idle()

    swept(world, act, points_min=16)
    whole = {write.first_seq: len(write.records) for write in world.oracle.instance(world.engine.topics[name]).writes}
    assert whole


@pytest.mark.parametrize("name", ["kept", "common", "scratch"])
def test_crash_anywhere_in_a_delete(name: str) -> None:
    """DURABLE-12: deletes of sealed records and of others, by seq and by tag, their flags written or not."""
    world = furnished()
    assert world.engine.topics[name].archive.segments

    def act() -> None:
        world.delete(name, before_seq=3)
        world.delete(name, tag="tag:2")
        world.run_until_idle()
        world.clock.advance(60)
        world.run_until_idle()
        world.delete(name, tag="t", glob=True)
        world.run_until_idle()
        world.checkpoint()

    swept(world, act, points_min=60)
    assert world.done["flip"]


@pytest.mark.parametrize("name", ["kept", "common", "scratch"])
def test_crash_anywhere_in_a_sliced_delete(name: str) -> None:
    """DELETE-10: turns, writes, a seal, a checkpoint and another delete come between the pieces of a delete."""
    world = furnished(clock=HastyClock())
    assert world.engine.topics[name].archive.segments
    between = 0

    def act() -> None:
        nonlocal between
        for _ in range(6):
            world.write(name, 2, tag="tag:new")
        world.delete(name, tag="t", glob=True)
        world.delete(name, tag="tag:2")
        while world.engine.slices.active:
            between += 1
            if between % 4 == 1:
                world.write(name, 1, tag="tag:2")
            world.turn()
            world.run_job()
            world.finish_job()
            if between == 3:
                world.upkeep.checkpoint()
        world.run_until_idle()
        world.checkpoint()

    swept(world, act, points_min=60, nested_every=499)
    assert between >= 4, "nothing came between the pieces"
    # Where everything in a segment is deleted, it is dropped, and nothing is left to be flipped.
    assert world.done["flip"] or name != "kept"


@pytest.mark.parametrize("name", ["kept", "common", "scratch"])
def test_crash_anywhere_in_a_seal(name: str) -> None:
    """DURABLE-13: sealing moves records, and loses and repeats none."""
    world = furnished()
    sealed = world.done["seal"]

    def act() -> None:
        for _ in range(5):
            world.write(name, 3, tag="new")
        world.run_until_idle()
        world.delete(name, tag="new")
        world.run_until_idle()
        world.checkpoint()

    swept(world, act, points_min=60)
    assert world.done["seal"] > sealed


def test_crash_anywhere_in_a_seal_of_several_topics() -> None:
    """DURABLE-13, STORE-17: larger segments, and one sync of the directory after the names of all of them."""
    world = furnished()
    sealed = world.done["seal"]

    def act() -> None:
        for _ in range(6):
            for name in ("kept", "common", "scratch"):
                world.write(name, 6, tag=None if name == "kept" else "new")
        world.engine.run_until_idle()
        world.turn()
        world.delete("common", tag="new")
        world.drop("scratch")
        world.run_until_idle()
        world.checkpoint()

    swept(world, act, points_min=60)
    assert max(segment.records for segment in world.engine.topics["kept"].archive.segments) > 12
    assert world.done["seal"] - sealed < 3 * 3


@pytest.mark.parametrize("large_bytes", [64, 1 << 20])
def test_crash_anywhere_in_a_checkpoint_that_is_written_in_parts(
    large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DURABLE-13, STORE-18: topics change between the steps of its capture, and segments that it lists are dropped."""
    monkeypatch.setattr("topics.engine.restart.checkpoint.SLICE_TOPICS", 1)
    monkeypatch.setattr("topics.engine.restart.checkpoint.LARGE_BYTES", large_bytes)
    monkeypatch.setattr("topics.storage.snapshot.writer.WRITE_BYTES", 64)
    monkeypatch.setattr("topics.storage.snapshot.writer.UNWRITTEN_BYTES_MAX", 256)
    world = furnished()

    def act() -> None:
        for before_seq in (2, 40):
            world.upkeep.checkpoint()
            for _ in range(8):
                world.turn()
                world.run_job()
                world.finish_job()
                for name in ("kept", "common", "scratch"):
                    world.write(name, 1)
                    world.delete(name, before_seq)
            world.put("common", cap_records=20)
            world.run_until_idle()
        world.checkpoint()

    parts = world.done["snapshot"]
    swept(world, act, points_min=200)
    assert world.done["snapshot"] > parts + 3


def test_crash_anywhere_in_a_relocation() -> None:
    """DURABLE-13: copy, sync, flip, delete; idempotent at every crash point."""
    world = furnished()
    for _ in range(2):
        world.write("kept", 13, tag="more")
        world.run_until_idle()

    def act() -> None:
        world.clock.advance(6000)
        world.turn()
        world.delete("kept", tag="tag:1")
        world.run_until_idle()
        world.checkpoint()
        world.delete("kept", tag="tag:3")
        world.run_until_idle()

    swept(world, act, points_min=100)
    assert world.done["relocate"] >= 2


def test_crash_anywhere_in_a_checkpoint() -> None:
    """DURABLE-13: a checkpoint is atomic, the one before it is kept until then, and the WAL is trimmed after it."""
    world = furnished()
    world.write("kept", 1, key="pending")
    world.delete("common", tag="tag:1")

    def act() -> None:
        world.upkeep.checkpoint()
        for _ in range(4):
            world.turn()
            world.write("kept", 1)
            world.write("common", 1)
        world.checkpoint()

    swept(world, act, points_min=60)
    assert world.done["checkpoint"] >= 2


def test_crash_anywhere_in_a_rotation_of_the_wal() -> None:
    """DURABLE-13: a shard's files follow each other, also for frames larger than a file."""
    world = furnished()
    rotations = world.store.shards[0].rotations_total

    def act() -> None:
        for size in (1500, 2500, 6000, 100):
            world.write("kept", 1, size=size)
            world.write("common", 1, size=size)
            world.turn()
        world.run_until_idle()

    swept(world, act, points_min=60)
    assert world.store.shards[0].rotations_total > rotations + 2


def test_crash_anywhere_in_the_deletion_and_new_creation_of_a_topic() -> None:
    """DURABLE-11: a topic of the same name is another one; what the old one held never comes back."""
    world = furnished()

    def act() -> None:
        for name in ("kept", "common", "scratch", "passing"):
            world.drop(name)
        world.turn()
        world.write("kept", 3, durability="fsync")
        world.write("common", 3, durability="disk")
        world.run_until_idle()
        world.checkpoint()

    swept(world, act, points_min=80)
    assert world.done["drop"] == 4


def test_crash_anywhere_in_a_change_of_config() -> None:
    """DURABLE-2: config always survives once acked, and a class applies to what comes after it."""
    world = furnished()

    def act() -> None:
        world.put("common", durability="fsync")
        world.write("common", 2)
        world.put("kept", durability="disk", cap_records=6)
        world.write("kept", 2)
        world.turn()
        world.put("scratch", durability="disk", ttl_ms=9000)
        world.write("scratch", 2)
        world.clock.advance(60)
        world.run_until_idle()
        world.put("kept", durability="memory", cap_records=0)
        world.write("kept", 2)
        world.run_until_idle()

    swept(world, act, points_min=40)


def test_crash_anywhere_in_a_recovery() -> None:
    """DURABLE-13: recovery is swept itself, at each of its calls, and a second one finds what the first one left."""
    world = furnished()
    world.write("kept", 3)
    world.write("common", 3, size=900)
    world.delete("scratch", tag="tag:1")

    def act() -> None:
        world.turn()
        world.clock.advance(60)
        world.run_until_idle()

    sweep = swept(world, act, points_min=200, nested_every=3)
    assert sweep.nested_points > 200


def test_crash_anywhere_in_an_orderly_stop() -> None:
    """DURABLE-7: a clean stop says so only once everything is safe."""
    world = furnished()
    world.write("common", 2)
    world.write("passing", 2)
    swept(world, world.stop, points_min=20)
    assert world.done["stop"] == 1


EVERYTHING = {"write", "delete", "drop", "config", "sync", "seal", "checkpoint", "relocate"}


@pytest.mark.parametrize("part", range(4))
def test_crash_anywhere_in_lives_by_dice(part: int) -> None:
    """DURABLE-13: at least 10,000 crash points, everything in flight at once, each in every kind of damage."""
    done: Counter[str] = Counter()
    points = 0
    seed = part * 1000
    while points < POINTS_PER_PART or not set(done) >= EVERYTHING:
        seed += 1
        world, sweep = live(seed, steps=400, share=0.12)
        points += sweep.points
        done += world.done


@pytest.mark.parametrize("name", ["kept", "common", "scratch"])
def test_crash_anywhere_in_a_merge(name: str) -> None:
    """SPACE-1: segments of both tiers become one, with deletes before, during and after: nothing is lost."""
    world = furnished()
    for i in range(4):
        world.write(name, 13, tag=f"more:{i}")
        world.run_until_idle()
    world.checkpoint()
    merged = world.done["rewrite"]

    def act() -> None:
        world.delete(name, tag="more:1")
        world.clock.advance(6000)
        for i in range(30):
            world.turn()
            world.run_job()
            world.finish_job()
            if i % 8 == 3:
                world.delete(name, tag=f"tag:{i // 8}")
                world.write(name, 2)
        world.run_until_idle()
        world.checkpoint()
        world.delete(name, tag="more:2")
        world.run_until_idle()

    swept(world, act, points_min=150)
    assert world.done["rewrite"] > merged + 3


def test_crash_anywhere_in_an_erasing_checkpoint() -> None:
    """SPACE-5: the tail, the segments and the WAL are replaced, and what is live stays."""
    world = furnished()
    checkpoints = world.done["checkpoint"]

    def act() -> None:
        for name in ("kept", "common", "scratch"):
            world.delete(name, tag="tag:2")
            world.delete(name, tag="tail")
            world.write(name, 1)
        for _ in range(6):
            world.clock.advance(3000)
            world.run_until_idle()

    swept(world, act, points_min=150)
    assert world.done["checkpoint"] > checkpoints
    for name in ("kept", "common", "scratch"):
        assert world.engine.state(name).erased_before_ts > world.clock.now_ms() - 10_000
