"""Crash sweep: the world ends after every mutating call, in each kind of damage, and nothing promised is lost.

Each scenario runs once on a FakeDisk. After every mutating call the disk is forked together with what had been
acknowledged by then; each fork suffers each kind of damage and is recovered, twice. What must hold (DESIGN §2.2, §9):

- every gated record that was acknowledged is there;
- after a kill, every acknowledged record is there;
- nothing is there that was not written, and no seq holds another record's bytes;
- a record that is missing below one that is there is said to be missing: it is named, or shows as a jump of seqs;
- the second recovery gives the same and changes no byte.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.storage import DIRECTORY, Recovered, Writer, open_store
from topics.storage import snapshot
from topics.storage.job import run_inline
from topics.storage.store import Store
from topics.testing.clock import ManualClock
from topics.testing.disk import DAMAGES, Damage, FakeDisk, MonitorViolation


class Fork(NamedTuple):
    """The disk after one call, and what had been acknowledged by then."""

    disk: FakeDisk
    call: str
    gated: dict[tuple[int, int], bytes]
    ungated: dict[tuple[int, int], bytes]
    tried: dict[tuple[int, int], bytes]


class Sweep:
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


def recover(disk: FakeDisk) -> Recovered:
    store = Store(DIRECTORY, disk=disk, clock=ManualClock())
    store.open()
    recovered = Recovered(store.recover())
    store.close()
    return recovered


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


def check_all(sweep: Sweep, damage: Damage) -> None:
    for fork in sweep.forks:
        check(fork, damage, 1)


def appends(sweep: Sweep) -> None:
    writer = sweep.open()
    for i in range(25):
        writer.append(1 + i % 3, [b'"%d-%d"' % (i, k) for k in range(1 + i % 4)], gated=i % 3 == 0)
        writer.append(2, [b'"%s"' % (b"y" * 100)], gated=i % 5 == 0)
        writer.turn()


def rotation(sweep: Sweep) -> None:
    writer = sweep.open(wal_file_bytes=2048, shards=2)
    for i in range(60):
        writer.append(1 + i % 4, [b'"%s"' % (b"z" * (i * 13 % 300))], gated=i % 2 == 0)
        if i % 3 == 0:
            writer.turn()
    writer.turn()


def checkpoint(writer: Writer, *, clean: bool = False) -> None:
    """The whole state of a writer's topics as one checkpoint, with all records in the tails."""
    store = writer.store
    store.settle()
    sections: list[bytes] = []
    essential: list[int] = []
    lsn = store.last_lsn
    for topic_id, head in sorted(writer.heads.items()):
        essential.append(len(sections))
        state = snapshot.TopicState(topic_id, f"t{topic_id}", b"{}", lsn, head_seq=head)
        sections.append(snapshot.topic_section(state))
        sections += writer.blocks(topic_id, lsn)
    job = store.checkpoint(sections, essential, lsn=lsn, next_topic_id=9, clean=clean)
    assert job is not None
    run_inline([job])


def checkpoints(sweep: Sweep) -> None:
    writer = sweep.open(wal_file_bytes=2048)
    for i in range(40):
        writer.append(1 + i % 3, [b'"%s"' % (b"s" * 60)], gated=i % 2 == 0)
        writer.turn()
        if i % 10 == 9:
            checkpoint(writer)


def restarts(sweep: Sweep) -> None:
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


SCENARIOS: dict[str, Callable[[Sweep], None]] = {
    "appends": appends,
    "rotation": rotation,
    "checkpoints": checkpoints,
    "restarts": restarts,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_crash_point_loses_what_was_promised(name: str) -> None:
    """Issue 3, proof: crash after every mutating call, four kinds of end, recovery twice."""
    sweep = Sweep()
    SCENARIOS[name](sweep)
    assert len(sweep.forks) > 50
    for number, fork in enumerate(sweep.forks):
        for damage in DAMAGES:
            check(fork, damage, number)


def test_sweep_catches_an_ack_before_its_sync() -> None:
    """The planted bug: gated tickets commit when written. The monitor is off, so that the sweep must see it."""
    sweep = Sweep()
    store, _ = open_store(sweep.disk)
    shard = store.shard_of(1)
    commit_written = type(shard)._commit_written

    def early(frames: Any, tickets: Any, gates: Any, size: int, started_ns: int) -> None:
        watched = [getattr(ticket, "_ticket", ticket) for ticket in tickets]
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
    sweep = Sweep()
    writer = sweep.open(wal_file_bytes=2048)
    sync = sweep.disk.sync
    sweep.disk.monitor.renaming = lambda source, inode: None  # type: ignore[method-assign]

    def lazy(handle: int) -> None:
        if not sweep.disk._handles[handle][0].endswith(".snap.tmp"):
            sync(handle)

    sweep.disk.sync = lazy  # type: ignore[method-assign]
    for _ in range(40):
        writer.append(1, [b'"%s"' % (b"s" * 60)], gated=True)
        writer.turn()
    checkpoint(writer)
    with pytest.raises(AssertionError, match="dropped 1 after"):
        check_all(sweep, "dropped")


def test_monitor_catches_a_rename_before_its_sync() -> None:
    """The planted bug: a snapshot gets its name while its bytes are still in the kernel."""
    disk = FakeDisk()
    store, _ = open_store(disk)
    writer = Writer(store)
    writer.append(1, [b"1"])
    disk.sync = lambda handle: None  # type: ignore[method-assign]
    with pytest.raises(MonitorViolation, match="before its sync"):
        snapshot.write(disk, f"{DIRECTORY}/snapshots", snapshot.Header(1, 1, bytes(16), 2, False), [], [])


def test_monitor_catches_an_unlink_before_the_replacement_is_durable() -> None:
    """The planted bug: the old snapshot goes before the directory that names the new one is synced."""
    disk = FakeDisk()
    store, _ = open_store(disk, wal_file_bytes=2048)
    writer = Writer(store)
    writer.append(1, [b"1"])
    checkpoint(writer)
    disk.sync_dir = lambda path: None  # type: ignore[method-assign]
    job = store.checkpoint([], [], lsn=store.last_lsn, next_topic_id=1)
    assert job is not None
    with pytest.raises(MonitorViolation, match="is not durable"):
        job.run()
