"""The instruments find what they are for: each of these bugs, planted into the product, is caught.

A sweep, an oracle or a monitor that has gone blind passes everything. So every rule that they hold has a bug here that
breaks it, and a test that fails where the bug is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.machine import small
from tests.harness.oracle import Broken
from tests.harness.sweep import Sweep
from tests.harness.world import World
from topics.engine.log.log import Log
from topics.engine.restart import recovery as recovery_module
from topics.engine.restart.awaiting_caps import AwaitingCaps
from topics.engine.restart.recovery import Recovery
from topics.engine.topic import Topic
from topics.engine.upkeep.upkeep import Upkeep
from topics.engine.write.dedupe import Dedupe
from topics.storage import history, quarantine
from topics.storage.segment.flips import Flips
from topics.storage.snapshot.writer import SnapshotWriter
from topics.storage.wal.shard import Shard
from topics.testing.fake_disk import FakeDisk
from topics.testing.monitor import MonitorViolation


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small():
        yield


def life(monitored: bool = False) -> None:
    """A short life in which every kind of thing happens, swept without the monitor by default."""
    world = World(monitored=monitored)
    with Sweep(world):
        for name, durability in (("kept", "fsync"), ("common", "disk"), ("scratch", "memory")):
            world.put(name, durability=durability)
            for tag in "abc":
                world.write(name, 5, tag=tag, key=tag)
            world.run_until_idle()
        world.checkpoint()
        world.delete("kept", tag="b")
        world.run_until_idle()
        for _ in range(3):
            world.write("kept", 1)
            world.write("common", 1)
            world.turn()
        world.clock.advance(60)
        world.run_until_idle()
        world.checkpoint()
        world.drop("scratch")
        world.run_until_idle()
    world.write("common", 1)
    world.turn()
    world.crash("dropped")
    world.write("kept", 1)
    world.run_until_idle()
    world.crash("kill")


def test_no_bug_no_alarm() -> None:
    """What the planted ones are compared with."""
    life(monitored=True)


def _acks_early(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Shard._commit_written

    def commit(self: Shard, frames: Any, tickets: Any, gates: Any, size: int, started_ns: int) -> None:
        written(self, frames, tickets, [False] * len(gates), size, started_ns)

    monkeypatch.setattr(Shard, "_commit_written", commit)


def _skips_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "_sync", lambda self, files: None)


@pytest.mark.parametrize("bug", [_acks_early, _skips_the_sync])
def test_monitor_sees_an_ack_before_its_sync(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: Any) -> None:
    """PROOF-2: no ack before its sync, seen at the ack itself and without any crash."""
    bug(monkeypatch)
    world = World()
    world.write("t", 1, durability="fsync")
    with pytest.raises(MonitorViolation):
        world.run_until_idle()


def test_monitor_sees_a_rename_before_its_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROOF-2: no rename before its sync."""
    world = World()
    world.write("t", 1)
    sync = FakeDisk.sync
    monkeypatch.setattr(
        FakeDisk, "sync", lambda self, handle: None if "snapshot" in self._handles[handle][0] else sync(self, handle)
    )
    with pytest.raises(MonitorViolation, match="rename"):
        world.checkpoint()


def test_monitor_sees_an_unlink_before_the_replacement_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROOF-2: no unlink before its replacement is durable."""
    world = World()
    world.write("t", 1)
    world.checkpoint()
    world.write("t", 1)
    sync_dir = FakeDisk.sync_dir
    monkeypatch.setattr(
        FakeDisk, "sync_dir", lambda self, path: None if path.endswith("snapshots") else sync_dir(self, path)
    )
    with pytest.raises(MonitorViolation, match="unlink"):
        world.checkpoint()


def _drops_lost_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "_lose", staticmethod(lambda *args: None))
    monkeypatch.setattr(recovery_module.Recovery, "_damage", lambda self, event: None)


def _reuses_seqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history.History, "lost_power", property(lambda self: False))


def _forgets_what_it_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Upkeep, "_log_losses", lambda self, ranges, lost_power: None)
    same = history.History._is_same_boot
    monkeypatch.setattr(
        history.History,
        "lost_power",
        property(lambda self: not same(self, [name for name in self.files if name.generation == self.last_generation])),
    )


def _forgets_deletes_of_sealed_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flips, "_write", lambda self, flips: None)


def _trims_before_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = SnapshotWriter.publish

    def early(self: SnapshotWriter, header: Any) -> None:
        disk: Any = self._disk
        for path in sorted(disk.files()):
            if path.endswith(".wal") and path != max(p for p in disk.files() if p.endswith(".wal")):
                disk.unlink(path)
        disk.sync_dir("data/wal")
        publish(self, header)

    monkeypatch.setattr(SnapshotWriter, "publish", early)


def _forgets_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dedupe, "remember", lambda self, key, producer_id, producer_seq, write: None)


def _serves_what_was_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt = AwaitingCaps.adopt

    def twice(self: AwaitingCaps, topic: Topic, block: Any) -> None:
        adopt(self, topic, block)
        topic.log.head += 1

    monkeypatch.setattr(AwaitingCaps, "adopt", twice)


def _evicts_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt = AwaitingCaps.adopt

    def evicting(self: AwaitingCaps, topic: Topic, block: Any) -> None:
        adopt(self, topic, block)
        if topic.log.count > 1:
            topic.log.evict(topic.log.count - 1, 0)

    monkeypatch.setattr(AwaitingCaps, "adopt", evicting)


def _brings_a_dropped_topic_back(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = recovery_module.Recovery._control

    def control(self: Recovery, event: Any) -> None:
        if event.kind != recovery_module.frames.DROP:
            leave(self, event)

    monkeypatch.setattr(Recovery, "_control", control)


def _changes_bytes_at_every_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clear = history.History._clear_temporary
    starts = iter(range(1_000_000))

    def leave(self: Any) -> None:
        clear(self)
        quarantine.keep(self._disk, self._quarantine, f"start-{next(starts)}", 0, b"x")

    monkeypatch.setattr(history.History, "_clear_temporary", leave)


def _calls_a_crash_corruption(monkeypatch: pytest.MonkeyPatch) -> None:
    damage = Recovery._damage
    monkeypatch.setattr(Recovery, "_damage", lambda self, event: damage(self, event._replace(reason="corrupt")))


def _counts_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = Log.restore

    def off_by_one(self: Log, *args: Any) -> None:
        restore(self, *args)
        self.count += 1

    monkeypatch.setattr(Log, "restore", off_by_one)


BUGS = (
    _acks_early,
    _skips_the_sync,
    _drops_lost_ranges,
    _reuses_seqs,
    _forgets_what_it_gave_up,
    _forgets_deletes_of_sealed_records,
    _trims_before_the_snapshot,
    _forgets_keys,
    _serves_what_was_never_written,
    _evicts_one_too_many,
    _brings_a_dropped_topic_back,
    _changes_bytes_at_every_start,
    _calls_a_crash_corruption,
    _counts_wrongly,
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__.strip("_"))
def test_sweep_finds(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """PROOF-1: for each instrument a planted bug that it catches. The monitor is off: the sweep must find it alone."""
    bug(monkeypatch)
    with pytest.raises(Broken):
        life()
