"""The WAL shard: order, group commit, gates, rotation, bounds and poisoning (DURABLE-8, DURABLE-14, STORE-10)."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.harness.storage import DIRECTORY, Recovered, Ticket, Writer, open_store
from topics.errors import StorageFull, StorageReadOnly
from topics.storage import block
from topics.storage.damage import UnknownFormat
from topics.storage.disk import Locked
from topics.storage.job import Job, run_inline
from topics.storage.memory import MemoryStore
from topics.storage.store import Store, shard_index
from topics.storage.wal import file as walfile
from topics.storage.wal import frame
from topics.storage.wal import shard as wal
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_disk import FaultDisk
from topics.testing.monitor import MonitorViolation


def reopen(disk: FakeDisk, damage: Any = "kill", **options: Any) -> tuple[Store, Recovered]:
    disk.crash(damage, random.Random(1))
    return open_store(disk, **options)


def test_ungated_ticket_commits_at_write_and_gated_at_sync() -> None:
    """DURABLE-1, DURABLE-4: `disk` is acknowledged once written, `fsync` once synced."""
    store, _ = open_store(FakeDisk())
    writer = Writer(store)
    fast, safe = writer.append(1, [b"1"]), writer.append(1, [b"2"], gated=True)
    assert store.pending
    assert fast.committed is None
    store.write()
    assert not store.pending
    assert fast.committed is not None
    assert safe.committed is None
    run_inline(store.jobs())
    assert safe.committed is not None
    assert store.shard_of(1).synced_lsn == store.last_lsn


@pytest.mark.parametrize("gated", [False, True])
def test_a_waiter_that_fails_keeps_nothing_from_the_others(gated: bool) -> None:
    """DURABLE-8: all of a commit are told, and the fault is not hidden."""

    class Broken(Ticket):
        def commit(self, write_ns: int, sync_ns: int) -> None:
            raise RuntimeError("broken")

    store, _ = open_store(FakeDisk())
    shard, after = store.shard_of(1), Ticket()
    for seq, waiter in enumerate((Broken(), after), 1):
        made = block.encode(1, seq, 1, [b"1"])
        shard.submit(frame.append(store.next_lsn(), 1, seq, 1, made.raw), gated, waiter)

    def commit() -> None:
        store.write()
        run_inline(store.jobs())

    with pytest.raises(RuntimeError, match="broken"):
        commit()
    assert after.committed is not None


def test_frames_that_arrive_during_a_sync_form_the_next_group() -> None:
    """DURABLE-8: a ticket never rides on a sync that began before its write."""
    store, _ = open_store(FakeDisk())
    writer = Writer(store)
    first = writer.append(1, [b"1"], gated=True)
    store.write()
    (sync,) = (job for job in store.jobs() if job.name == "sync")
    later = [writer.append(1, [b"2"], gated=True), writer.append(1, [b"3"], gated=True)]
    store.write()
    assert [job.name for job in store.jobs()] == [], "one sync at a time"
    sync.run()
    sync.done(None)
    assert first.committed is not None
    assert [ticket.committed for ticket in later] == [None, None]
    fsyncs = store.shard_of(1).fsyncs_total
    run_inline(store.jobs())
    assert all(ticket.committed is not None for ticket in later)
    assert store.shard_of(1).fsyncs_total == fsyncs + 1, "both share one sync"


def test_waiter_without_a_frame_waits_for_frames_that_are_queued() -> None:
    """ROUTER-32: everything that was submitted before it is durable, written or not."""
    store, _ = open_store(FakeDisk())
    shard, writer = store.shard_of(1), Writer(store)
    queued = writer.append(1, [b"1"])
    waiter = type(queued)()
    shard.after_sync(waiter)
    assert waiter.committed is None
    store.write()
    assert queued.committed is not None
    assert waiter.committed is None
    run_inline(store.jobs())
    assert waiter.committed is not None


def test_each_sync_is_reported_once_its_tickets_are_committed() -> None:
    """What waits for durable records is woken by the sync instead of asking again and again."""
    seen: list[tuple[bool, int]] = []
    store, _ = open_store(FakeDisk(), on_synced=lambda: seen.append((safe.committed is not None, shard.synced_lsn)))
    shard = store.shard_of(1)
    safe = Writer(store).append(1, [b"1"], gated=True)
    store.write()
    assert seen == []
    run_inline(store.jobs())
    assert seen == [(True, store.last_lsn)]


def test_one_write_call_carries_all_frames_of_a_turn() -> None:
    disk = FakeDisk()
    store, _ = open_store(disk, wal_file_bytes=1 << 16)
    writer = Writer(store)
    for i in range(100):
        writer.append(1, [b"%d" % i])
    calls = disk.calls
    store.write()
    assert disk.calls == calls + 1
    shard = store.shard_of(1)
    assert (shard.frames_total, shard.batches_total, shard.queue_depth, shard.queue_depth_peak) == (100, 1, 0, 100)


def test_written_bytes_are_synced_in_the_background_after_the_interval() -> None:
    """DURABLE-8: the shard syncs `disk` frames shortly after, although nothing waits for it."""
    clock = ManualClock()
    store, _ = open_store(FakeDisk(), clock)
    run_inline(store.jobs())
    Writer(store).append(1, [b"1"])
    store.write()
    assert store.jobs() == []
    assert store.next_due_ns() == clock.elapsed_ns() + wal.SYNC_INTERVAL_NS
    clock.advance(50)
    jobs = store.jobs()
    assert [job.name for job in jobs] == ["sync"]
    run_inline(jobs)
    assert store.next_due_ns() is None
    assert store.shard_of(1).synced_lsn == 1


def test_records_survive_rotation_in_order() -> None:
    disk = FakeDisk()
    store, _ = open_store(disk)
    writer = Writer(store)
    for i in range(200):
        writer.append(1 + i % 3, [b'"%d"' % i])
        if i % 7 == 0:
            writer.turn()
    writer.turn()
    assert store.shard_of(1).rotations_total >= 5
    _, recovered = reopen(disk)
    assert {(t, s): data for t, records in recovered.records.items() for s, data in records.items()} == writer.tried
    assert recovered.damaged == []


def test_rotation_waits_for_a_file_in_preparation_instead_of_blocking() -> None:
    """The loop never waits: what does not fit stays queued, and the queue's bound holds writers back."""
    store, _ = open_store(FakeDisk())
    writer = Writer(store)
    assert not [job for job in store.jobs() if job.name == "prepare"], "a file that is hardly used needs no successor"
    while store.shards[0].files.prepare_needed is False:
        writer.append(1, [b'"%s"' % (b"x" * 100)])
        store.write()
    (prepare,) = (job for job in store.jobs() if job.name == "prepare")
    tickets = [writer.append(1, [b'"%s"' % (b"x" * 100)]) for _ in range(40)]
    store.write()
    done = [ticket.committed is not None for ticket in tickets]
    assert 0 < sum(done) < 40
    assert done == sorted(done, reverse=True), "in order"
    assert store.pending
    prepare.run()
    prepare.done(None)
    while store.pending:
        writer.turn()
    assert all(ticket.committed is not None for ticket in tickets)


def test_a_file_in_preparation_that_is_needed_is_not_filled_any_further() -> None:
    """STORE-10: writers wait for a file, not for all of its zeros."""

    class Slow(FakeDisk):
        """Says what it is asked while it fills the next file."""

        enough: ClassVar[list[bool]] = []

        def allocate(
            self, handle: int, length: int, *, zero_fill: bool, enough: Callable[[], bool] | None = None
        ) -> None:
            assert enough is not None
            if during:
                assert zero_fill
                self.enough.append(enough())
                during.pop()()
                self.enough.append(enough())
            super().allocate(handle, length, zero_fill=zero_fill, enough=enough)

    during: list[Callable[[], None]] = []
    disk = Slow()
    store, _ = open_store(disk)
    writer = Writer(store)
    while store.shards[0].files.prepare_needed is False:
        writer.append(1, [b'"%s"' % (b"x" * 100)])
        store.write()
    (prepare,) = (job for job in store.jobs() if job.name == "prepare")
    tickets = [writer.append(1, [b'"%s"' % (b"x" * 100)], gated=True) for _ in range(40)]
    during.append(store.write)
    prepare.run()
    assert disk.enough == [False, True], "only once writers wait"
    prepare.done(None)
    while store.pending:
        writer.turn()
    assert all(ticket.committed is not None for ticket in tickets)
    _, recovered = reopen(disk, "dropped")
    acked = writer.acked(gated=True)
    assert len(acked) == 40
    assert {seq for _, seq in acked} <= recovered.records[1].keys()
    assert recovered.damaged == []


def test_a_frame_larger_than_a_file_gets_a_file_of_its_own() -> None:
    disk = FakeDisk()
    store, _ = open_store(disk)
    writer = Writer(store)
    writer.append(1, [b'"small"'])
    writer.turn()
    writer.append(1, [b'"%s"' % (b"x" * 20_000)], gated=True)
    writer.turn()
    writer.append(1, [b'"small"'], gated=True)
    writer.turn()
    assert len(writer.acked(gated=True)) == 2
    _, recovered = reopen(disk, "dropped")
    assert recovered.heads == {1: 3}
    assert recovered.damaged == []


def test_full_queue_refuses_and_takes_nothing() -> None:
    """PRESSURE-5."""
    store, _ = open_store(FakeDisk(), queue_bytes_max=1000)
    writer = Writer(store)
    while store.shard_of(1).queue_bytes < 850:
        writer.append(1, [b"1"], gated=True)
    with pytest.raises(wal.QueueFull) as caught:
        writer.append(1, [b"1"], gated=True)
    assert (caught.value.code, caught.value.status) == ("throttled", 429)
    shard = store.shard_of(1)
    assert shard.submit_full_total == 1
    queued = shard.queue_depth
    assert queued == len(writer.tickets)
    store.write()
    with pytest.raises(wal.QueueFull):
        writer.append(1, [b"1"], gated=True)
    run_inline(store.jobs())
    assert shard.queue_bytes == 0
    writer.append(1, [b"1"], gated=True)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_failed_write_or_sync_poisons_the_shard(operation: str) -> None:
    """DURABLE-14: nothing in flight is acked, the shard turns read-only, and only a restart clears it."""
    fake = FakeDisk()
    disk = FaultDisk(fake)
    store, _ = open_store(disk)  # type: ignore[arg-type]
    writer = Writer(store)
    before = writer.append(1, [b"1"], gated=True)
    writer.turn()
    waiting = writer.append(1, [b"2"], gated=True)
    disk.fail(operation)
    writer.turn()
    assert before.committed is not None
    assert waiting.committed is None
    assert isinstance(waiting.failed, StorageReadOnly)
    assert store.shard_of(1).read_only is not None
    with pytest.raises(StorageReadOnly, match="until a restart"):
        writer.append(1, [b"3"])
    writer.turn()
    _, recovered = reopen(fake, "dropped")
    assert recovered.records == {1: {1: b"1"}}


def test_short_write_leaves_no_half_frame() -> None:
    """A frame that was refused is not there after the restart where the disk allows to take it back."""
    fake = FakeDisk()
    disk = FaultDisk(fake)
    store, _ = open_store(disk)  # type: ignore[arg-type]
    writer = Writer(store)
    writer.append(1, [b"1"])
    writer.turn()
    ticket = writer.append(1, [b"2"])
    disk.fail("write", code=errno.ENOSPC, left_bytes=60)
    store.write()
    assert ticket.failed is not None
    _, recovered = reopen(fake)
    assert recovered.records == {1: {1: b"1"}}
    assert recovered.damaged == []


def test_low_space_refuses_growth_but_not_deletes(caplog: pytest.LogCaptureFixture) -> None:
    """DURABLE-15: low space is refused early with a clear 503, and the log says when that begins and ends."""
    caplog.set_level("INFO", "topics.storage")
    disk = FakeDisk()
    clock = ManualClock()
    store, _ = open_store(disk, clock, min_free_bytes=1000)
    writer = Writer(store)
    writer.append(1, [b"1"])
    disk.free = 999
    clock.advance(1000)
    store.jobs()
    with pytest.raises(StorageFull) as caught:
        writer.append(1, [b"2"])
    assert caught.value.status == 503
    needed = 1000 + store.owed_bytes()
    assert caught.value.detail == {"free_bytes": 999, "needed_bytes": needed}
    assert f"has 999 bytes left and {needed} are needed: free some space" in caught.value.message
    clock.advance(1000)
    store.jobs()
    writer.control(frame.DELETE, 1, frame.Deletion(2, [], 1))
    disk.free = needed
    clock.advance(1000)
    store.jobs()
    writer.append(1, [b"2"])
    assert [line.split(":")[0] for line in caplog.messages] == [
        f"the disk has 999 bytes left and the server needs {needed}",
        f"the disk has room again, {needed} bytes",
    ]


def test_second_process_is_refused_with_the_holder_of_the_directory() -> None:
    """STORE-13."""
    disk = FakeDisk()
    open_store(disk)
    with pytest.raises(Locked, match='"pid": 1'):
        Store(DIRECTORY, disk=disk, clock=ManualClock()).open()


def test_unknown_layout_and_file_versions_are_refused() -> None:
    """STORE-12: unknown versions are refused with a clear message."""
    disk = FakeDisk()
    store, _ = open_store(disk)
    store.close()
    header = bytearray(walfile.encode_header(walfile.WalName(1, 0, 1), bytes(16)))
    header[8] = 9
    header[56:] = walfile._CHECKSUM.pack(walfile.xxh3_64_intdigest(bytes(header[:56])))
    disk.damage(f"{DIRECTORY}/wal/00000001-0000-00000001.wal", 0, bytes(header))
    with pytest.raises(UnknownFormat, match="version 9; this program reads version 1"):
        open_store(disk)
    disk.crash("kill", random.Random(1))
    disk.damage(f"{DIRECTORY}/LAYOUT", 0, b"topics data directory, format 7")
    with pytest.raises(UnknownFormat, match="format 7"):
        open_store(disk)


def test_the_number_of_shards_may_change_between_starts() -> None:
    """STORE-11: recovery replays whatever shards it finds."""
    disk = FakeDisk()
    heads: dict[int, int] = {}
    tried: dict[tuple[int, int], bytes] = {}
    for shards in (1, 4, 2, 3):
        store, recovered = open_store(disk, shards=shards)
        assert recovered.heads == heads
        writer = Writer(store)
        writer.heads = dict(heads)
        for i in range(40):
            writer.append(1 + i % 8, [b'"%d of %d"' % (i, shards)], gated=True)
            writer.turn()
        heads, tried = writer.heads, {**tried, **writer.tried}
        disk.crash("dropped", random.Random(1))
    _, recovered = open_store(disk)
    assert {(t, s): data for t, records in recovered.records.items() for s, data in records.items()} == tried
    assert {shard_index(topic_id, 4) for topic_id in range(1, 9)} == {0, 1, 2, 3}


def test_structural_frames_come_in_lsn_order_over_all_shards() -> None:
    disk = FakeDisk()
    store, _ = open_store(disk, shards=4)
    writer = Writer(store)
    for topic_id in range(1, 40):
        writer.control(frame.CREATE, topic_id, frame.Create(f"t{topic_id}", b"{}", 1))
        writer.append(topic_id, [b"1"])
        if topic_id % 5 == 0:
            writer.control(frame.DROP, topic_id - 1, frame.Drop(2))
            writer.turn()
    writer.turn()
    _, recovered = reopen(disk)
    lsns = [control.lsn for control in recovered.controls]
    assert lsns == sorted(lsns)
    assert len(lsns) == 39 + 7


def test_small_appends_are_gathered_into_larger_blocks() -> None:
    """A restart makes no object per record: consecutive one-record frames of a topic become one Block."""
    disk = FakeDisk()
    store, _ = open_store(disk, wal_file_bytes=1 << 20)
    writer = Writer(store)
    for i in range(2500):
        writer.append(1 + i % 2, [b"%d" % i], extra=b"key-%d" % i if i % 10 == 0 else b"", ts=i)
    writer.turn()
    _, recovered = reopen(disk)
    appended = [event for event in recovered.events if hasattr(event, "block")]
    assert [event.block.n for event in appended if event.topic_id == 1] == [1000, 250]
    assert recovered.extras == {(1, 1 + 5 * k): b"key-%d" % (10 * k) for k in range(250)}
    first = next(event.block for event in appended if event.topic_id == 1)
    assert list(first.columns.ts[:2]) == [0, 2]


def test_memory_store_commits_at_write() -> None:
    store = MemoryStore()
    ticket = Ticket()
    store.shard_of(3).submit(b"", True, ticket)
    assert store.pending
    assert ticket.committed is None
    store.write()
    assert ticket.committed == (0, 0)
    assert (store.next_lsn(), store.next_lsn(), store.jobs(), store.pending) == (1, 2, [], False)


def test_monitor_catches_an_ack_before_its_sync() -> None:
    """The planted bug: a shard that commits gated tickets when they are written."""
    store, _ = open_store(FakeDisk())
    shard = store.shard_of(1)
    submit = shard.submit
    shard.submit = lambda encoded, gated, ticket=None: submit(encoded, False, ticket)  # type: ignore[method-assign]
    store.disk.monitor.attach(store)  # type: ignore[attr-defined]
    Writer(store).append(1, [b"1"], gated=True)
    with pytest.raises(MonitorViolation, match="before its frame was synced"):
        store.write()


def test_monitor_catches_a_sync_that_misses_the_retired_file() -> None:
    """The planted bug: after a rotation only the new file is synced."""
    store, _ = open_store(FakeDisk())
    writer = Writer(store)
    for _ in range(30):
        writer.append(1, [b'"%s"' % (b"x" * 100)], gated=True)
    store.write()
    store.shard_of(1).files.retired.clear()

    def run() -> None:
        jobs: list[Job] = store.jobs()
        run_inline(jobs)

    with pytest.raises(MonitorViolation, match="before its frame was synced"):
        run()


def test_a_large_frame_that_is_expected_finds_its_file() -> None:
    """STORE-10: the file is made by a job, whatever is written meanwhile, and no frame is lost."""
    disk = FakeDisk()
    store, _ = open_store(disk, wal_file_bytes=8192)
    writer = Writer(store)
    shard = store.shard_of(1)
    writer.append(1, [b"a" * 3000], gated=True)
    writer.turn()
    assert shard.files.next is not None, "a file of the usual size is there"
    expected = shard.expect_job(30_000)
    assert expected is not None
    assert shard.expect_job(30_000) is None, "one at a time"
    expected.run()
    # Fills the current file and takes the one after it, before the outcome of the job is known.
    for _ in range(3):
        writer.append(1, [b"b" * 2500], gated=True)
        writer.turn()
    expected.done(None)
    made = set(disk.list(f"{DIRECTORY}/wal"))
    writer.append(1, [b"c" * 29_000], gated=True)
    store.write()
    assert set(disk.list(f"{DIRECTORY}/wal")) == made, "the loop makes no file"
    writer.append(1, [b"d"], gated=True)
    writer.turn()
    store.close()
    _, found = reopen(disk)
    assert [found.records[1][seq][:1] for seq in range(1, 7)] == [b"a", b"b", b"b", b"b", b"c", b"d"]
    assert not found.damaged
    assert not found.gaps


def test_a_file_that_was_too_small_for_what_is_expected_is_left_out() -> None:
    """STORE-10: it keeps its number, so that no file is missing, and goes with the others."""
    disk = FakeDisk()
    store, _ = open_store(disk, wal_file_bytes=8192)
    writer = Writer(store)
    shard = store.shard_of(1)
    writer.append(1, [b"a" * 3000], gated=True)
    writer.turn()
    small = shard.files.next
    assert small is not None
    expected = shard.expect_job(30_000)
    assert expected is not None
    run_inline([expected])
    assert shard.files.next is not small
    warm = shard.expect_job(30_000)
    assert warm is not None
    run_inline([warm])
    writer.append(1, [b"c" * 29_000], gated=True)
    writer.turn()
    assert small.name in [file.name for file in (*shard.files.retired, *shard.files._synced)]
    _, found = reopen(disk)
    assert (len(found.records[1]), found.damaged, found.gaps) == (2, [], [])


def test_a_shard_that_takes_no_writes_expects_none() -> None:
    """STORE-10: and where the file cannot be made, the frame still finds one."""
    fault = FaultDisk(FakeDisk())
    store, _ = open_store(fault)
    writer = Writer(store)
    shard = store.shard_of(1)
    expected = shard.expect_job(30_000)
    assert expected is not None
    fault.fail("create")
    run_inline([expected])
    ticket = writer.append(1, [b"c" * 29_000], gated=True)
    writer.turn()
    assert ticket.committed is not None
    fault.fail("write")
    writer.append(1, [b"x"])
    store.write()
    assert shard.read_only is not None
    assert shard.expect_job(30_000) is None
