"""Disk trouble: whatever call fails, in whatever way, nothing acked is lost and nothing unacked is shown."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Iterator

import pytest

from tests.harness.machine import small
from tests.harness.oracle import Broken, read_all
from tests.harness.world import World
from topics.engine import ConfigPatch, Delete, Diff, Write
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.errors import StorageFull, StorageReadOnly, StorageUnreadable
from topics.storage.snapshot.writer import SnapshotWriter
from topics.storage.wal.shard import Shard
from topics.testing.fake_disk import DAMAGES, Damage

CLASSES = ("fsync", "disk", "memory")
TROUBLE = [
    ("write", errno.EIO, 0),
    ("write", errno.ENOSPC, 0),
    ("write", errno.EIO, 104),
    ("sync", errno.EIO, 0),
    ("sync", errno.ENOSPC, 0),
]


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small():
        yield


def furnished() -> World:
    world = World()
    for name in CLASSES:
        world.put(name, durability=name)
        world.write(name, 3, tag="a")
    world.run_until_idle()
    return world


def busy(world: World) -> None:
    """Everything at once: appends of every class, a delete, a config."""
    for name in CLASSES:
        world.write(name, 2, tag="b", key="k")
    world.turn()
    world.delete("fsync", tag="a")
    world.put("disk", ttl_ms=99_000)
    for name in CLASSES:
        world.write(name, 1)
    world.clock.advance(60)
    world.run_until_idle()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize(("operation", "code", "left_bytes"), TROUBLE)
def test_failed_call_poisons_the_shard_and_breaks_no_promise(
    operation: str, code: int, left_bytes: int, nth: int, damage: Damage
) -> None:
    """DURABLE-14: EIO, ENOSPC, a short write, a failed sync: read-only, reads go on, and a restart is consistent."""
    world = furnished()
    world.fault.fail(operation, nth, code, left_bytes=left_bytes)
    busy(world)
    shard = world.store.shards[0]
    if shard.read_only is None:
        assert nth == 3, "the call happened, and was not part of the WAL"
        world.crash(damage)
        return
    with pytest.raises(StorageReadOnly):
        world.engine.write("fsync", Write.of([1]), lambda ticket: None)
    with pytest.raises(StorageReadOnly):
        world.engine.put_topic("new", ConfigPatch(), lambda receipt: None)
    for name in CLASSES:
        instance = world.oracle.instance(world.engine.topics[name])
        shown = set(read_all(world.engine, name)[0])
        assert shown == set(instance.model.live), "readers see what was acked, and nothing else"
    world.crash(damage)
    assert world.store.shards[0].read_only is None
    for name in CLASSES:
        assert world.write(name, 1) is not None
    world.run_until_idle()
    world.crash("dropped")


@pytest.mark.parametrize("turns", range(4))
def test_checkpoint_that_is_under_way_ends_with_the_shard_and_upkeep_goes_on(turns: int) -> None:
    """DURABLE-14: what was not acknowledged never becomes durable, and no turn of the loop fails over it."""
    world = furnished()
    world.upkeep.checkpoint()
    for _ in range(turns):
        world.turn()
    world.fault.fail("write")
    world.write("fsync", 1)
    for _ in range(20):
        world.turn()
    assert world.store.shards[0].read_only is not None
    world.upkeep.checkpoint()
    world.run_until_idle()


@pytest.mark.parametrize("durability", CLASSES)
def test_records_that_a_failed_sync_left_in_memory_only_are_made_safe_by_the_restart(durability: str) -> None:
    """DURABLE-14: what a restart shows survives the next loss of power, also where the kernel has given it up."""
    world = World(wal_file_bytes=1 << 16)
    world.put("t", durability=durability)
    world.write("t", 3)
    for _ in range(2):
        world.run_until_idle()
        world.clock.advance(60)
    world.run_until_idle()
    world.fault.fail("sync")
    world.write("t", 4)
    for _ in range(2):
        world.run_until_idle()
        world.clock.advance(60)
    world.run_until_idle()
    assert world.store.shards[0].read_only is not None
    world.crash("kill")
    shown = read_all(world.engine, "t")[0]
    assert len(shown) == 7, "the kernel still had it"
    world.disk.crash("dropped", random.Random(1))
    world.start()
    assert read_all(world.engine, "t")[0] == shown
    assert not [name for name in world.disk.list("data/wal") if name == "SUSPECT"]


@pytest.mark.parametrize("operation", ["create", "allocate", "write", "sync", "rename", "sync_dir"])
@pytest.mark.parametrize("nth", [1, 2])
def test_failure_of_background_work_costs_nothing_and_is_tried_again(operation: str, nth: int) -> None:
    """DURABLE-16: a seal, a checkpoint or a relocation that fails leaves everything as it was."""
    # Without a cold tier where directories fail: its half-done move would be in the way of the monitor's second rule.
    world = World(cold_directory=None if operation == "sync_dir" else "cold")
    world.put("t", durability="fsync")
    for _ in range(4):
        world.write("t", 7, tag="a")
        world.run_until_idle()
    shown = read_all(world.engine, "t")
    world.upkeep.checkpoint()
    world.fault.fail(operation, nth)
    world.clock.advance(6000)
    world.run_until_idle()
    assert read_all(world.engine, "t") == shown
    world.crash("dropped")
    assert read_all(world.engine, "t") == shown
    world.checkpoint()
    world.crash("dropped")
    assert read_all(world.engine, "t") == shown


def test_low_space_refuses_what_grows_and_nothing_else() -> None:
    """DURABLE-15: low space is refused early with a clear 503; deletes and reads go on, and room brings writes back."""
    world = World(min_free_bytes=1000)
    world.put("t", durability="fsync")
    world.write("t", 3)
    world.run_until_idle()
    world.disk.free = 10
    world.clock.advance(2000)
    world.turn()
    with pytest.raises(StorageFull):
        world.engine.write("t", Write.of([1]), lambda ticket: None)
    with pytest.raises(StorageFull):
        world.engine.put_topic("new", ConfigPatch(), lambda receipt: None)
    assert world.engine.delete("t", Delete(before_seq=2)).result.deleted == 1
    assert sorted(read_all(world.engine, "t")[0]) == [2, 3]
    world.disk.free = 1 << 40
    world.clock.advance(2000)
    world.turn()
    assert world.engine.write("t", Write.of([1])).first_seq == 4
    world.disk.crash("dropped", random.Random(1))
    world.start()
    assert sorted(read_all(world.engine, "t")[0]) == [2, 3, 4]


def _acks_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def swallow(self: Shard, error: BaseException) -> None:
        for waiter, _, _ in self._syncing or ():
            waiter.commit(0, 0)
        self._syncing = None
        self._waiting_bytes = 0

    monkeypatch.setattr(Shard, "sync_failed", swallow)


def test_trouble_finds_an_ack_of_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROOF-1: for each instrument a planted bug that it catches."""
    world = World(monitored=False)
    world.put("fsync", durability="fsync")
    world.run_until_idle()
    _acks_what_failed(monkeypatch)
    world.fault.fail("sync")
    world.write("fsync", 2)
    world.run_until_idle()
    with pytest.raises(Broken):
        world.crash("dropped")


@pytest.mark.parametrize("operation", ["read_now", "open"])
def test_sealed_records_that_cannot_be_read_are_a_503_that_names_them(operation: str) -> None:
    """DURABLE-23: 500 means a bug of ours, and a failing disk is none. What cannot be read today is not lost."""
    world = World(cold_directory=None)
    world.write("kept", 12, durability="fsync")
    world.checkpoint()
    world.disk.crash("kill", random.Random(0))
    world.start()
    world.fault.fail(operation, 1, errno.EIO)
    with pytest.raises(StorageUnreadable) as caught:
        world.engine.diff("kept", Diff(limit=100))
    assert (caught.value.status, caught.value.code) == (503, "storage_unreadable")
    assert caught.value.detail == {"first_seq": 1, "last_seq": 12}
    assert "restore the file from a copy" in caught.value.message
    assert len(read_all(world.engine, "kept")[0]) == 12
    assert world.engine.totals.corruption_total == 0


def test_checkpoint_that_fails_is_reported_and_tried_again_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DURABLE-16: nothing is lost by it, but the log grows, so the operator must know."""
    world = World(settings=UpkeepSettings(segment_max_events=12, checkpoint_wal_bytes=100))
    logging.disable(logging.NOTSET)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(SnapshotWriter, "publish", full)
        world.write("kept", 2, durability="fsync")
        world.clock.advance(60)
        world.run_until_idle()
    assert [record.message for record in caplog.records if "a checkpoint could not be written" in record.message]
    assert world.store.checkpoints_total == 0
    world.clock.advance(6000)
    world.run_until_idle()
    assert world.store.checkpoints_total == 1


def test_start_on_a_disk_that_is_nearly_full_serves_what_there_is() -> None:
    """DURABLE-15: low space refuses growth; a start needs none of it to show what is there."""
    world = World()
    world.write("kept", 3, durability="fsync")
    world.run_until_idle()
    world.disk.crash("kill", random.Random(0))
    world.options["min_free_bytes"] = 1 << 60
    world.start()
    assert len(read_all(world.engine, "kept")[0]) == 3
    with pytest.raises(StorageFull):
        world.engine.write("kept", Write.of([1]), lambda ticket: None)
