"""The store as a whole: checkpoints that fail, removals that wait, trimming, and jobs on real threads."""

from __future__ import annotations

import queue
import random
import threading
from pathlib import Path

import pytest

from tests.harness.storage import DIRECTORY, Mini, Recovered, Ticket
from topics.clock import SystemClock
from topics.errors import StorageReadOnly
from topics.storage import block
from topics.storage.disk import RealDisk
from topics.storage.inspect.verify import verify
from topics.storage.job import Job, run_inline
from topics.storage.snapshot import snapshot
from topics.storage.store import Store
from topics.storage.wal import frame
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_disk import FaultDisk


def filled(disk: FaultDisk, rounds: int = 30) -> Mini:
    mini = Mini(disk, wal_file_bytes=1024)  # type: ignore[arg-type]
    for i in range(rounds):
        mini.append(1, [b'"%d"' % i])
        mini.turn()
    return mini


@pytest.mark.parametrize(("operation", "nth"), [("write", 1), ("sync", 1), ("rename", 1), ("sync_dir", 1)])
def test_a_failed_checkpoint_leaves_the_one_before_it(operation: str, nth: int) -> None:
    """DURABLE-16: the previous checkpoint is kept until the new one is durable."""
    fake = FakeDisk()
    disk = FaultDisk(fake)
    mini = filled(disk)
    mini.checkpoint()
    before = mini.records()
    mini.append(1, [b'"later"'])
    mini.turn()
    mini.store.run_until_idle()
    wal = [path for path in fake.files() if path.endswith(".wal")]
    disk.fail(operation, nth)
    job = mini.store.checkpoint([], [], lsn=mini.store.last_lsn, next_topic_id=2)
    assert job is not None
    run_inline([job])
    assert mini.store.checkpoints_total == 1
    assert set(wal) <= {path for path in fake.files() if path.endswith(".wal")}, "nothing is trimmed"
    if operation != "sync_dir":
        fake.crash("dropped", random.Random(1))
        assert Mini(fake).records() == {**before, (1, 31): b'"later"'}


def test_flips_of_a_failed_checkpoint_are_written_by_the_next() -> None:
    fake = FakeDisk()
    disk = FaultDisk(fake)
    mini = filled(disk, 3)
    mini.seal(1)
    mini.checkpoint()
    mini.delete(1, 2, 2)
    mini.store.run_until_idle()
    disk.fail("write", 1)
    mini.checkpoint()
    assert mini.store.segments.flips
    mini.checkpoint()
    assert not mini.store.segments.flips
    fake.crash("dropped", random.Random(1))
    assert {seq for _, seq in Mini(fake).records()} == {1, 3}


def test_a_removal_that_fails_is_tried_again_and_does_not_fail_the_checkpoint() -> None:
    mini = filled(FaultDisk(FakeDisk()), 2)
    attempts: list[int] = []

    def removal() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("out of reach")

    mini.store.after_checkpoint(removal)
    for expected in (1, 2, 2):
        mini.checkpoint()
        assert len(attempts) == expected
    assert mini.store.checkpoints_total == 3


def test_disk_use_is_bounded_by_checkpoints_and_not_by_history() -> None:
    """STORE-9: the WAL is trimmed after them."""
    fake = FakeDisk()
    mini = Mini(fake, wal_file_bytes=1024)
    sizes = []
    for _ in range(10):
        for i in range(40):
            mini.append(1, [b'"%d"' % i])
            mini.turn()
        mini.extents[1].clear()
        mini.checkpoint()
        sizes.append(sum(len(data) for path, data in fake.files().items() if not path.endswith("LOCK")))
    assert max(sizes[2:]) <= sizes[1] + 2048
    assert mini.store.wal_bytes == 0


def test_a_poisoned_store_takes_no_checkpoint() -> None:
    """What was not acknowledged must not become durable unnoticed."""
    disk = FaultDisk(FakeDisk())
    mini = filled(disk, 2)
    disk.fail("write")
    mini.append(1, [b"1"])
    mini.turn()
    with pytest.raises(StorageReadOnly):
        mini.store.checkpoint([], [], lsn=1, next_topic_id=2)


def test_a_second_checkpoint_waits_for_the_first() -> None:
    mini = filled(FaultDisk(FakeDisk()), 2)
    first = mini.store.checkpoint([], [], lsn=1, next_topic_id=2)
    assert first is not None
    assert mini.store.checkpoint([], [], lsn=1, next_topic_id=2) is None
    run_inline([first])
    assert mini.store.checkpoint([], [], lsn=1, next_topic_id=2) is not None


def test_sections_of_the_engine_come_back_once_each() -> None:
    fake = FakeDisk()
    mini = Mini(fake)
    kind = snapshot.FIRST_ENGINE_KIND
    sections = [snapshot.engine_section(kind, i, b"section %d" % i, topic_id=i % 2) for i in range(4)]
    job = mini.store.checkpoint(sections, range(4), lsn=0, next_topic_id=7, clean=True)
    assert job is not None
    run_inline([job])
    mini.store.close()
    store = Store(DIRECTORY, disk=fake, clock=SystemClock())
    store.open()
    found = Recovered(store.recover())
    assert [section.payload for section in found.sections] == [b"section %d" % i for i in range(4)]
    assert found.started is not None
    assert found.started.header is not None
    assert (found.started.header.clean, found.started.header.next_topic_id) == (True, 7)
    assert found.started.same_boot


class Threads:
    """A driver with real threads, as the server has."""

    def __init__(self, count: int) -> None:
        self._todo: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Job, BaseException | None]] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work) for _ in range(count)]
        self.running = 0
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (job := self._todo.get()) is not None:
            error: BaseException | None = None
            try:
                job.run()
            except OSError as exception:
                error = exception
            self._done.put((job, error))

    def start(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._todo.put(job)
            self.running += 1

    def finish_one(self) -> None:
        job, error = self._done.get(timeout=30)
        self.running -= 1
        job.done(error)

    def close(self) -> None:
        while self.running:
            self.finish_one()
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join(30)


def test_jobs_run_on_threads_beside_the_loop(tmp_path: Path) -> None:
    """Syncs, preparations and checkpoints in threads, on a real disk: everything acknowledged is there afterwards."""
    store = Store(
        str(tmp_path), disk=RealDisk(), clock=SystemClock(), shards=2, wal_file_bytes=1 << 16, min_free_bytes=0
    )
    store.open()
    list(store.recover())
    store.start()
    threads = Threads(4)
    tickets: dict[tuple[int, int], Ticket] = {}
    heads = dict.fromkeys(range(1, 9), 0)
    for turn in range(150):
        for topic_id in heads:
            heads[topic_id] += 1
            made = block.encode(topic_id, heads[topic_id], 1, [b'"%d-%d"' % (topic_id, turn)])
            ticket = tickets[topic_id, heads[topic_id]] = Ticket()
            encoded = frame.append(store.next_lsn(), topic_id, heads[topic_id], 1, made.raw)
            store.shard_of(topic_id).submit(encoded, turn % 3 == 0, ticket)
        store.write()
        threads.start(store.jobs())
        if turn == 75:
            job = store.checkpoint([], [], lsn=0, next_topic_id=9)
            assert job is not None
            threads.start([job])
        while threads.running > 3:
            threads.finish_one()
    while store.pending or threads.running:
        store.write()
        threads.start(store.jobs())
        if threads.running:
            threads.finish_one()
    threads.close()
    store.run_until_idle()
    assert all(ticket.committed is not None for ticket in tickets.values())
    store.close()
    assert verify(str(tmp_path), lambda line: None) == 0
    again = Store(str(tmp_path), disk=RealDisk(), clock=SystemClock(), min_free_bytes=0)
    again.open()
    found = Recovered(again.recover())
    again.close()
    assert found.heads == heads
    assert found.damaged == []
    assert all(found.records[topic_id][seq] == b'"%d-%d"' % (topic_id, seq - 1) for topic_id, seq in tickets)
