"""Crash sweep: the world ends after every mutating call, in each kind of damage, and nothing promised is lost.

Each scenario runs once on a FakeDisk. After every mutating call the disk is forked together with what had been
acknowledged by then; each fork suffers each kind of damage and is recovered, twice. What must hold (DURABLE-13):

- every gated record that was acknowledged is there;
- after a kill, every acknowledged record is there;
- nothing is there that was not written, and no seq holds another record's bytes;
- a record that is missing below one that is there is reported: it is named, or shows as a jump of seqs;
- the second recovery gives the same and changes no byte.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.harness.storage import DIRECTORY, Mini, Ticket, Writer, open_store, recover
from topics.errors import ColdUnavailable
from topics.storage import block
from topics.storage.damage import Unusable
from topics.storage.snapshot.snapshot import Header
from topics.storage.snapshot.writer import SnapshotWriter
from topics.storage.wal import frame
from topics.testing.fake_disk import DAMAGES, Damage, FakeDisk
from topics.testing.monitor import MonitorViolation

# A life of 45 steps has about 220 calls, each a crash point in four kinds; `make crash-sweep` asks for more lives.
SEEDS = int(os.environ.get("TOPICS_SWEEP_SEEDS", "8"))


class Fork(NamedTuple):
    """The disk after one call, and what had been acknowledged by then."""

    disk: FakeDisk
    call: str
    gated: dict[tuple[int, int], bytes]
    ungated: dict[tuple[int, int], bytes]
    tried: dict[tuple[int, int], bytes]


class StoreSweep:
    """Runs a scenario and keeps a fork after every call."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        self.forks: list[Fork] = []
        self.writer: Writer | None = None
        self._earlier: tuple[dict[Any, bytes], dict[Any, bytes], dict[Any, bytes]] = ({}, {}, {})
        self.disk.after_call = self._fork

    def open(self, **options: Any) -> Writer:
        """Start a store, as the next process; acknowledgements add up over processes."""
        if self.writer is not None:
            self._earlier = self._acked()
            self.writer = None
        store, recovered = open_store(self.disk, **options)
        self.writer = Writer(store)
        self.writer.heads = dict(recovered.heads)
        return self.writer

    def _acked(self) -> tuple[dict[Any, bytes], dict[Any, bytes], dict[Any, bytes]]:
        gated, ungated, tried = self._earlier
        if self.writer is None:
            return gated, ungated, tried
        return (
            {**gated, **self.writer.acked(gated=True)},
            {**ungated, **self.writer.acked(gated=False)},
            {**tried, **self.writer.tried},
        )

    def _fork(self, number: int, operation: str, path: str) -> None:
        gated, ungated, tried = self._acked()
        self.forks.append(Fork(self.disk.clone(), f"{number} {operation} {path}", gated, ungated, tried))


def check(fork: Fork, damage: Damage, seed: int) -> None:
    disk = fork.disk.clone()
    disk.crash(damage, random.Random(seed))
    first = recover(disk)
    there = {(topic_id, seq): data for topic_id, records in first.records.items() for seq, data in records.items()}
    promised = {**fork.gated, **(fork.ungated if damage == "kill" else {})}
    where = f"{damage} {seed} after {fork.call}"
    missing = {key for key in promised if key not in there}
    assert not missing, f"lost after {where}: {sorted(missing)}"
    for key, data in there.items():
        assert fork.tried.get(key) == data, f"invented after {where}: {key}"
    gaps = {(topic_id, seq) for topic_id, low, high in first.gaps for seq in range(low, high + 1)}
    for topic_id, seq in fork.tried:
        if seq < max(first.records.get(topic_id, {0: b""})) and (topic_id, seq) not in there:
            assert (topic_id, seq) in gaps | first.lost, f"silent loss after {where}: {(topic_id, seq)}"
    assert not [event for event in first.damaged if event.reason == "corrupt"], f"no medium failed: {where}"
    before = disk.files()
    second = recover(disk)
    assert second.records == first.records, f"second recovery differs after {where}"
    assert disk.files() == before, f"second recovery changed bytes after {where}"


def _keep(again: list[Fork], disk: FakeDisk, fork: Fork, count: int, operation: str, path: str) -> None:
    # The first loss of power has taken what was only written: nothing of that is promised any more.
    call = f"{fork.call}, then {count} {operation} {path}"
    again.append(fork._replace(disk=disk.clone(), call=call, ungated={}))


@pytest.mark.parametrize("damage", ["torn", "garbled"])
def test_recovery_itself_may_be_cut_short(damage: Damage) -> None:
    """The power goes, and goes again after every call of the recovery: torn ends, holes and quarantine included."""
    sweep = StoreSweep()
    unsynced(sweep)
    tears = holes = points = 0
    for number, fork in enumerate(sweep.forks):
        disk = fork.disk.clone()
        disk.crash(damage, random.Random(number))
        twin = disk.clone()
        again: list[Fork] = []

        twin.after_call = functools.partial(_keep, again, twin, fork)
        recovered = recover(twin)
        tears += any(event.reason == "torn" for event in recovered.damaged)
        holes += any(bytes([frame.VOID, 0, 0, 0]) in data for data in twin.files().values())
        for inner in again:
            points += 1
            check(inner, ("kill", "dropped", "torn")[points % 3], points)
    assert min(tears, holes, points // 10) > 10, "the sweep must meet what it is about"


def check_all(sweep: StoreSweep, damage: Damage) -> None:
    for fork in sweep.forks:
        check(fork, damage, 1)


def appends(sweep: StoreSweep) -> None:
    writer = sweep.open()
    for i in range(25):
        writer.append(1 + i % 3, [b'"%d-%d"' % (i, k) for k in range(1 + i % 4)], gated=i % 3 == 0)
        writer.append(2, [b'"%s"' % (b"y" * 100)], gated=i % 5 == 0)
        writer.turn()


def rotation(sweep: StoreSweep) -> None:
    writer = sweep.open(wal_file_bytes=2048, shards=2)
    for i in range(60):
        writer.append(1 + i % 4, [b'"%s"' % (b"z" * (i * 13 % 300))], gated=i % 2 == 0)
        if i % 3 == 0:
            writer.turn()
    writer.turn()


def unsynced(sweep: StoreSweep) -> None:
    """Long runs without a sync, over several sectors and files, for tears in the middle."""
    writer = sweep.open(wal_file_bytes=8192)
    for i in range(120):
        writer.append(1 + i % 3, [b'"%s"' % (b"u" * (i * 37 % 400))])
        if i % 4 == 0:
            writer.store.write()
        if i % 40 == 39:
            writer.append(2, [b'"sync"'], gated=True)
            writer.turn()


def checkpoints(sweep: StoreSweep) -> None:
    writer = sweep.open(wal_file_bytes=2048)
    for i in range(40):
        writer.append(1 + i % 3, [b'"%s"' % (b"s" * 60)], gated=i % 2 == 0)
        writer.turn()
        if i % 10 == 9:
            writer.checkpoint()


def restarts(sweep: StoreSweep) -> None:
    """Recovery itself is part of what may be cut short."""
    rng = random.Random(3)
    for round in range(5):
        writer = sweep.open(wal_file_bytes=2048, shards=1 + round % 3)
        for i in range(6):
            writer.append(1 + i % 2, [b'"%d %d"' % (round, i)], gated=True)
            writer.append(3, [b'"%s"' % (b"w" * 200)])
            writer.turn()
        # Kills only: what a loss of power takes is this test's to find out at the forks.
        sweep.disk.crash("kill", rng)
        sweep.disk.after_call = sweep._fork


SCENARIOS: dict[str, Callable[[StoreSweep], None]] = {
    "appends": appends,
    "rotation": rotation,
    "unsynced": unsynced,
    "checkpoints": checkpoints,
    "restarts": restarts,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_crash_point_loses_what_was_promised(name: str) -> None:
    """DURABLE-13: crash after every mutating call, four kinds of end, recovery twice."""
    sweep = StoreSweep()
    SCENARIOS[name](sweep)
    assert len(sweep.forks) > 50
    for number, fork in enumerate(sweep.forks):
        for damage in DAMAGES:
            check(fork, damage, number)


def test_sweep_catches_an_ack_before_its_sync() -> None:
    """The planted bug: gated tickets commit when written. The monitor is off, so that the sweep must see it."""
    sweep = StoreSweep()
    store, _ = open_store(sweep.disk)
    shard = store.shard_of(1)
    commit_written = type(shard)._commit_written

    def early(frames: Any, tickets: Any, gates: Any, size: int, started_ns: int) -> None:
        watched = [getattr(ticket, "_waiter", ticket) for ticket in tickets]
        commit_written(shard, frames, watched, [False] * len(gates), size, started_ns)

    shard._commit_written = early  # type: ignore[method-assign]
    sweep.writer = Writer(store)
    for i in range(3):
        sweep.writer.append(1, [b"%d" % i], gated=True)
        sweep.writer.turn()
    with pytest.raises(AssertionError, match="lost after dropped"):
        check_all(sweep, "dropped")


def test_sweep_catches_a_trim_before_the_snapshot_is_durable() -> None:
    """The planted bug: the WAL is trimmed although the snapshot's bytes were never synced."""
    sweep = StoreSweep()
    writer = sweep.open(wal_file_bytes=2048)
    sync = sweep.disk.sync
    sweep.disk.monitor.renaming = lambda source, unsynced: None  # type: ignore[method-assign]

    def lazy(handle: int) -> None:
        if not sweep.disk._handles[handle][0].endswith(".snap.tmp"):
            sync(handle)

    sweep.disk.sync = lazy  # type: ignore[method-assign]
    for _ in range(40):
        writer.append(1, [b'"%s"' % (b"s" * 60)], gated=True)
        writer.turn()
    writer.checkpoint()
    with pytest.raises(Unusable):
        check_all(sweep, "dropped")


def test_monitor_catches_a_rename_before_its_sync() -> None:
    """The planted bug: a snapshot gets its name while its bytes are still in the kernel."""
    disk = FakeDisk()
    store, _ = open_store(disk)
    writer = Writer(store)
    writer.append(1, [b"1"])
    disk.sync = lambda handle: None  # type: ignore[method-assign]
    with pytest.raises(MonitorViolation, match="before its sync"):
        SnapshotWriter(disk, f"{DIRECTORY}/snapshots", 1).publish(Header(1, 1, bytes(16), 2, False))


def test_monitor_catches_an_unlink_before_the_replacement_is_durable() -> None:
    """The planted bug: the old snapshot goes before the directory that names the new one is synced."""
    disk = FakeDisk()
    store, _ = open_store(disk, wal_file_bytes=2048)
    writer = Writer(store)
    writer.append(1, [b"1"])
    writer.checkpoint()
    disk.sync_dir = lambda path: None  # type: ignore[method-assign]
    job = store.checkpoint([], [], lsn=store.last_lsn, next_topic_id=1)
    assert job is not None
    with pytest.raises(MonitorViolation, match="is not durable"):
        job.run()


class MiniFork(NamedTuple):
    """The disk after one call, with what may, must and must not be there."""

    disk: FakeDisk
    call: str
    must: dict[tuple[int, int], bytes]
    may: dict[tuple[int, int], bytes]


class MiniSweep:
    """A life of seals, deletes, checkpoints, moves and drops, forked after every call."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = FakeDisk()
        self.forks: list[MiniFork] = []
        self.tried: dict[tuple[int, int], bytes] = {}
        self.appends: list[tuple[Ticket, list[tuple[int, int]]]] = []
        self.deletes: list[tuple[Ticket | None, list[tuple[int, int]]]] = []
        self.disk.after_call = self._fork
        self.mini = Mini(self.disk, wal_file_bytes=2048)

    def _fork(self, number: int, operation: str, path: str) -> None:
        acked = {key for ticket, keys in self.appends if ticket.committed is not None for key in keys}
        touched = {key for _, keys in self.deletes for key in keys}
        gone = {
            key for ticket, keys in self.deletes if ticket is not None and ticket.committed is not None for key in keys
        }
        must = {key: self.tried[key] for key in acked - touched}
        may = {key: data for key, data in self.tried.items() if key not in gone}
        self.forks.append(MiniFork(self.disk.clone(), f"{number} {operation} {path}", must, may))

    def step(self) -> None:
        """One random thing that an engine does."""
        rng, mini = self.rng, self.mini
        topic_id = rng.randint(1, 2)
        choice = rng.random()
        head = mini.heads.get(topic_id, 0)
        if choice < 0.5 or head == 0:
            datas = [b'"%d-%d"' % (topic_id, rng.randrange(10**6)) for _ in range(rng.randint(1, 5))]
            keys = [(topic_id, head + 1 + i) for i in range(len(datas))]
            self.tried.update(zip(keys, datas, strict=True))
            self.appends.append((mini.append(topic_id, datas), keys))
        elif choice < 0.65:
            first = rng.randint(1, head)
            last = min(head, first + rng.randint(0, 3))
            keys = [(topic_id, seq) for seq in range(first, last + 1)]
            # It may take hold before it is acknowledged, so it is noted as tried first.
            self.deletes.append((None, keys))
            self.deletes.append((mini.delete(topic_id, first, last), keys))
        elif choice < 0.8 and any(isinstance(extent, block.Block) for extent in mini.extents[topic_id]):
            mini.store.run_until_idle()
            mini.seal(topic_id)
        elif choice < 0.88:
            mini.checkpoint()
        elif choice < 0.95 and any(not found.is_cold for found in mini.segments.get(topic_id, [])):
            mini.relocate(topic_id)
        elif mini.segments.get(topic_id):
            found = mini.segments[topic_id][0]
            self.deletes.append((None, [(topic_id, seq) for seq in range(found.first_seq, found.last_seq + 1)]))
            mini.drop(topic_id)
        mini.turn()


def check_mini(fork: MiniFork, damage: Damage, seed: int) -> None:
    disk = fork.disk.clone()
    disk.crash(damage, random.Random(seed))
    where = f"{damage} {seed} after {fork.call}"
    mini = Mini(disk)
    there = mini.records()
    assert there.keys() >= fork.must.keys(), f"lost after {where}: {sorted(fork.must.keys() - there.keys())}"
    for key, data in there.items():
        assert fork.may.get(key) == data, f"resurrected or invented after {where}: {key}"
    for topic_id, head in mini.heads.items():
        assert all(seq <= head for topic, seq in there if topic == topic_id)
    assert not [event for event in mini.damage if getattr(event, "reason", "") == "corrupt"], where
    disk.crash("kill", random.Random(seed))
    assert Mini(disk).records() == there, f"second recovery differs after {where}"


def check_all_mini(forks: list[MiniFork], damage: Damage) -> None:
    for fork in forks:
        check_mini(fork, damage, 1)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_crash_point_loses_or_resurrects_sealed_records(seed: int) -> None:
    """DURABLE-13: delete, seal, relocate, snapshot, drop and recovery, cut at every call."""
    sweep = MiniSweep(seed)
    for _ in range(45):
        sweep.step()
    assert {"sync", "rename", "unlink", "truncate"} - {fork.call.split()[1] for fork in sweep.forks} <= {"truncate"}
    for number, fork in enumerate(sweep.forks):
        for damage in DAMAGES:
            check_mini(fork, damage, number)


def test_sweep_catches_a_segment_that_goes_before_the_checkpoint() -> None:
    """The planted bug: the hot records of a moved segment are removed before the cold ones have a durable name."""
    sweep = MiniSweep(1)
    mini = sweep.mini
    for i in range(10):
        keys = [(1, i + 1)]
        sweep.tried[1, i + 1] = b"%d" % i
        sweep.appends.append((mini.append(1, [b"%d" % i]), keys))
        mini.turn()
    mini.seal(1)
    mini.checkpoint()
    segments = mini.store.segments
    assert segments.tiers.cold is not None
    sync_dir = sweep.disk.sync_dir
    sweep.disk.sync_dir = lambda path: None if path == "/cold" else sync_dir(path)  # type: ignore[method-assign]
    sweep.disk.monitor.unlinking = lambda path, renamed: None  # type: ignore[method-assign]
    mini.relocate(1)
    mini.checkpoint()
    with pytest.raises(ColdUnavailable):
        check_all_mini(sweep.forks, "dropped")


def test_sweep_catches_a_checkpoint_that_forgets_the_flips() -> None:
    """The planted bug: the DELETE frame is trimmed although the flag was never written."""
    sweep = MiniSweep(1)
    mini = sweep.mini
    for i in range(30):
        sweep.tried[1, i + 1] = b'"%d"' % i
        sweep.appends.append((mini.append(1, [b'"%d"' % i]), [(1, i + 1)]))
        mini.turn()
    mini.seal(1)
    mini.checkpoint()
    mini.store.segments.flips.job = lambda: None  # type: ignore[method-assign]
    mini.store.segments.flips.checkpoint = lambda: (lambda: None, lambda error: None)  # type: ignore[method-assign]
    sweep.deletes.append((mini.delete(1, 3, 3), [(1, 3)]))
    for i in range(30, 60):
        sweep.tried[1, i + 1] = b'"%d"' % i
        sweep.appends.append((mini.append(1, [b'"%d"' % i]), [(1, i + 1)]))
        mini.turn()
    mini.checkpoint()
    with pytest.raises(AssertionError, match="resurrected"):
        check_all_mini(sweep.forks[-20:], "kill")
