"""Shard: one ordered stream of frames with its own files and its own group commit.

The engine submits frames; once per turn of its loop it calls `write`, which hands all of them to the kernel in one
call. A frame is then safe from the death of the process, and its waiter commits unless it is gated. Gated waiters
commit once an `fdatasync` that began after their write has returned. Frames that arrive while a sync runs form the
next group, so the slower the disk, the larger the group, and the sync rate is the disk's own.

The rules:

1. Waiters of one gate commit in the order in which they were submitted.
2. A gated waiter never commits before its bytes, and the name of the file that holds them, are durable.
3. At most one sync runs at a time; it covers everything written before it began, in every file still unsynced.
4. A failed write or sync poisons the shard: no waiter that has not committed ever will, each fails with
   StorageReadOnly, and so does every later submit. After a failed sync the kernel may have dropped the dirty pages and
   report success next time, so a retry would prove nothing; only a restart, which reads the files, clears it.
5. What waits is bounded: bytes that are queued or wait for their sync. Beyond that `submit` raises QueueFull, and the
   frame was not taken.

The next file is prepared ahead of time by a job (shard_files.py). Where that job is still running when the current file
is full, it is asked to leave out the zeros that it has not written yet; until it is done the rest of the queue stays
queued and rule 5 holds the writers back. The loop never waits for it.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import ClassVar, Final, Protocol, cast

from topics.clock import Clock
from topics.errors import StorageFull, StorageReadOnly, Throttled, TopicsError
from topics.storage.disk import Disk
from topics.storage.job import Job, Task
from topics.storage.wal.frame import APPEND, CREATE, Frame, LargeFrame, kind_of, lsn_of
from topics.storage.wal.shard_files import FILE_BYTES, ShardFiles, WrittenFile

QUEUE_BYTES_MAX: Final = 64 << 20
SYNC_INTERVAL_NS: Final = 50_000_000
LATENCY_BOUNDS_US: Final = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 500_000)
_GROWING: Final = frozenset((APPEND, CREATE))


class QueueFull(Throttled):
    """The storage cannot keep up; retry shortly."""

    of_topic: ClassVar[bool] = False
    """Whether only writes to the same topic have to wait."""


class Waiter(Protocol):
    """What waits for a frame: exactly one of the two methods is called, once, on the engine's thread."""

    def commit(self, write_ns: int, sync_ns: int) -> None:
        """The frame is as safe as was asked.

        `write_ns` is what the kernel took, `sync_ns` the wait for the sync (0 for a frame that is not gated).
        """

    def fail(self, error: TopicsError) -> None:
        """The frame will never be acknowledged. It may or may not be there after a restart."""


class Counters:
    """What a shard has done since the start, as the metrics report it, and how far it has come."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.written_lsn = 0
        self.synced_lsn = 0
        self.full = False
        # The bytes that the disk has left, and those that it needs for more to be taken.
        self.room = (0, 0)
        self.frames_total = 0
        self.batches_total = 0
        self.fsyncs_total = 0
        self.bytes_written_total = 0
        self.submit_full_total = 0
        self.queue_depth_peak = 0
        self.fsync_us_buckets = [0] * (len(LATENCY_BOUNDS_US) + 1)
        self.fsync_us_sum = 0


class Shard(Counters):
    """One shard of the WAL, open for writing. All methods belong to the engine's thread; jobs alone run elsewhere."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: str,
        generation: int,
        index: int,
        *,
        file_bytes: int = FILE_BYTES,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        sync_interval_ns: int = SYNC_INTERVAL_NS,
        on_synced: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(index)
        self.files = ShardFiles(disk, clock, directory, generation, index, file_bytes=file_bytes)
        self._on_synced = on_synced
        self._disk = disk
        self._clock = clock
        self._queue_bytes_max = queue_bytes_max
        self._sync_interval_ns = sync_interval_ns
        self._frames: list[Frame] = []
        self._waiters: list[Waiter | None] = []
        self._gates: list[bool] = []
        # Waiters without a frame of their own, which wait for those that are queued.
        self._after_write: list[Waiter] = []
        self._queue_bytes = 0
        # Whether a LargeFrame is among them.
        self._large = False
        # Gated waiters with written frames, and the time of the write; the sync that runs has its own list.
        self._waiting: list[tuple[Waiter, int, int]] = []
        self._waiting_bytes = 0
        self._syncing: list[tuple[Waiter, int, int]] | None = None
        self._dirty_since_ns: int | None = None
        self._poison: StorageReadOnly | None = None

    @property
    def pending(self) -> bool:
        """Whether frames wait for `write`."""
        return bool(self._frames)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was submitted is durable."""
        return not self._frames and self.synced_lsn >= self.written_lsn

    @property
    def queue_depth(self) -> int:
        """How many frames wait to be written, and gated ones to be synced."""
        return len(self._frames) + len(self._waiting) + len(self._syncing or ())

    @property
    def queue_bytes(self) -> int:
        """How many bytes those frames have."""
        return self._queue_bytes + self._waiting_bytes

    @property
    def unwritten_bytes(self) -> int:
        """How many bytes the frames that wait for `write` have."""
        return self._queue_bytes

    @property
    def rotations_total(self) -> int:
        """How often a file was full and the next one begun."""
        return self.files.rotations_total

    @property
    def read_only(self) -> StorageReadOnly | None:
        """Why the shard takes no writes, or None while it does."""
        return self._poison

    def _no_room(self) -> StorageFull:
        free_bytes, needed_bytes = self.room
        if free_bytes >= needed_bytes:
            # There was no room for the next file, and nobody has looked since.
            return StorageFull()
        message = (
            f"The disk has {free_bytes} bytes left and {needed_bytes} are needed: free some space, or delete records "
            "or topics. Reads and deletes go on, and writes as soon as there is room."
        )
        return StorageFull(message, free_bytes=free_bytes, needed_bytes=needed_bytes)

    def submit(self, frame: Frame, gated: bool, waiter: Waiter | None = None) -> None:
        """Queue a frame for the next `write`.

        Raises, and takes nothing, where the shard is poisoned (StorageReadOnly), its queue is full (QueueFull), or the
        disk is nearly full and the frame takes room (StorageFull).
        """
        if self._poison is not None:
            raise self._refusal()
        if self.full and kind_of(frame) in _GROWING:
            raise self._no_room()
        size = self._queue_bytes + len(frame)
        if size + self._waiting_bytes > self._queue_bytes_max and self.queue_depth:
            self.submit_full_total += 1
            raise QueueFull(retry_after_ms=100, queue_bytes=self.queue_bytes, queue_bytes_max=self._queue_bytes_max)
        self._queue_bytes = size
        if type(frame) is not bytes:
            self._large = True
        self._frames.append(frame)
        self._waiters.append(waiter)
        self._gates.append(gated)

    def write(self) -> None:
        """Hand everything queued to the kernel and commit the waiters that are not gated."""
        frames = self._frames
        if not frames:
            return
        count = len(frames)
        depth = count + len(self._waiting) + len(self._syncing or ())
        if depth > self.queue_depth_peak:
            self.queue_depth_peak = depth
        waiters, gates = self._waiters, self._gates
        self._frames, self._waiters, self._gates = [], [], []
        queue_bytes, self._queue_bytes = self._queue_bytes, 0
        started_ns = self._clock.elapsed_ns()
        file = self.files.current
        try:
            if file.at + queue_bytes <= file.size:
                self._put(file, frames)
                file.at += queue_bytes
                file.last_lsn = lsn_of(frames[-1])
            else:
                count = self._write_across(frames)
        except OSError as error:
            self._waiters, self._gates = waiters, gates
            self._fail("write", error)
            return
        self._large = False
        if count < len(frames):
            self._frames, self._waiters, self._gates = frames[count:], waiters[count:], gates[count:]
            self._large = any(isinstance(frame, LargeFrame) for frame in self._frames)
            self._queue_bytes = sum(map(len, self._frames))
            frames = frames[:count]
            queue_bytes -= self._queue_bytes
        if count:
            self._commit_written(frames, waiters, gates, queue_bytes, started_ns)
        if self._after_write and not self._frames:
            followers, self._after_write = self._after_write, []
            for follower in followers:
                self.after_sync(follower)

    def _put(self, file: WrittenFile, frames: list[Frame]) -> None:
        """Write frames to the end of a file in one call."""
        if self._large:
            parts = [(frame,) if isinstance(frame, bytes) else frame.parts for frame in frames]
            self._disk.write_parts(file.handle, file.at, list(chain.from_iterable(parts)))
        else:
            small = cast("list[bytes]", frames)
            self._disk.write(file.handle, file.at, small[0] if len(small) == 1 else b"".join(small))

    def _write_across(self, frames: list[Frame]) -> int:
        """Write frames over as many files as they need; how many were written before the next file was not ready."""
        done = 0
        while done < len(frames):
            file = self.files.current
            room = file.size - file.at
            upto, size = done, 0
            while upto < len(frames) and size + len(frames[upto]) <= room:
                size += len(frames[upto])
                upto += 1
            if upto > done:
                self._put(file, frames[done:upto])
                file.at += size
                file.last_lsn = lsn_of(frames[upto - 1])
                done = upto
            if done < len(frames) and not self.files.rotate(len(frames[done])):
                break
        return done

    def _commit_written(
        self, frames: list[Frame], waiters: list[Waiter | None], gates: list[bool], size: int, started_ns: int
    ) -> None:
        now_ns = self._clock.elapsed_ns()
        write_ns = now_ns - started_ns
        self.written_lsn = lsn_of(frames[-1])
        self.frames_total += len(frames)
        self.batches_total += 1
        self.bytes_written_total += size
        if self._dirty_since_ns is None:
            self._dirty_since_ns = now_ns
        if len(frames) == 1 and not gates[0]:
            if waiters[0] is not None:
                waiters[0].commit(write_ns, 0)
            return
        # What one waiter does wrong keeps nothing from the others.
        failure: Exception | None = None
        for frame, waiter, gated in zip(frames, waiters, gates, strict=False):
            if waiter is None:
                continue
            if gated:
                self._waiting.append((waiter, now_ns, write_ns))
                self._waiting_bytes += len(frame)
                continue
            try:
                waiter.commit(write_ns, 0)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def next_sync_ns(self) -> int | None:
        """When the sync of what is written falls due: at once where a gated waiter waits, else after the interval.

        None where nothing is dirty or a sync runs already.
        """
        if self._dirty_since_ns is None or self._syncing is not None or self._poison is not None:
            return None
        return self._dirty_since_ns if self._waiting else self._dirty_since_ns + self._sync_interval_ns

    def sync_job(self) -> Job | None:
        """The sync of everything written so far, or None where nothing is dirty, or one runs already."""
        if self._syncing is not None or self._dirty_since_ns is None or self._poison is not None:
            return None
        files, upto_lsn = self.files.begin_sync(), self.written_lsn
        # The bytes under sync still count as waiting until it is done.
        waiters, waiting_bytes = self._waiting, self._waiting_bytes
        self._syncing, self._waiting = waiters, []
        self._dirty_since_ns = None
        took_ns = 0

        def run() -> None:
            nonlocal took_ns
            started_ns = self._clock.elapsed_ns()
            self._sync(files)
            took_ns = self._clock.elapsed_ns() - started_ns

        def done(error: BaseException | None) -> None:
            if error is not None:
                self.sync_failed(error)
            elif self._poison is None:
                self.synced_lsn = upto_lsn
                self._waiting_bytes -= waiting_bytes
                self._commit_synced(waiters, took_ns)

        return Task("sync", run, done)

    def _commit_synced(self, waiters: list[tuple[Waiter, int, int]], took_ns: int) -> None:
        self._syncing = None
        self.fsyncs_total += 1
        self.fsync_us_buckets[bisect.bisect_left(LATENCY_BOUNDS_US, took_ns // 1000)] += 1
        self.fsync_us_sum += took_ns // 1000
        self.files.end_sync()
        now_ns = self._clock.elapsed_ns()
        failure: Exception | None = None
        for waiter, written_ns, write_ns in waiters:
            try:
                waiter.commit(write_ns, now_ns - written_ns)
            except Exception as error:
                failure = failure or error
        self._on_synced()
        if failure is not None:
            raise failure

    def _sync(self, files: Iterable[WrittenFile]) -> None:
        for file in files:
            self._disk.sync(file.handle)

    def after_sync(self, waiter: Waiter) -> None:
        """Commit a waiter that has no frame of its own once everything submitted up to now is durable."""
        if self._poison is not None:
            waiter.fail(self._refusal())
        elif self._frames:
            self._after_write.append(waiter)
        elif self.synced_lsn >= self.written_lsn:
            waiter.commit(0, 0)
        elif self._dirty_since_ns is None:
            # The sync that runs covers all of it.
            assert self._syncing is not None
            self._syncing.append((waiter, self._clock.elapsed_ns(), 0))
        else:
            self._waiting.append((waiter, self._clock.elapsed_ns(), 0))

    def flush(self) -> Callable[[], None]:
        """What makes everything written up to now durable, for a job's thread; where it fails, call `sync_failed`."""
        return partial(self._sync, self.files.unsynced())

    def sync_failed(self, error: BaseException) -> None:
        """A `flush` or a sync has failed. The kernel reports that only once, so both poison the shard (rule 4)."""
        if self._poison is None:
            self._fail("sync", error)

    def jobs(self, now_ns: int) -> list[Job]:
        """The sync that is due and the preparation of the next file, where they may start now."""
        if self._poison is not None:
            return []
        jobs: list[Job] = []
        due_ns = self.next_sync_ns()
        if due_ns is not None and now_ns >= due_ns:
            sync = self.sync_job()
            if sync is not None:
                jobs.append(sync)
        if self.files.next is None:
            self.full = self.full or self.files.no_room
            prepare = self.files.prepare_job(now_ns)
            if prepare is not None:
                jobs.append(prepare)
        return jobs

    @property
    def may_leave_file(self) -> bool:
        """Whether `leave_file` is possible now; where it is not, it will be."""
        # A sync that runs may not cover the file that would be left, and nothing would ask for another.
        covered = self._syncing is None or self._dirty_since_ns is not None
        return self.files.may_leave and covered and self._poison is None

    def leave_file(self) -> None:
        """Move on to the next file, so that everything written so far can be trimmed."""
        self.files.leave(clean=self._dirty_since_ns is None)

    def expect_job(self, frame_bytes: int) -> Job | None:
        """What makes the files ready for a large frame that will be submitted soon, or None."""
        return None if self._poison is not None else self.files.expect_job(frame_bytes)

    def rotate_for_trim(self) -> None:
        """Move on to the next file where one is ready and this one is well used, so that it can be trimmed."""
        if self._poison is None:
            self.files.rotate_for_trim(clean=self._dirty_since_ns is None and self._syncing is None)

    def _fail(self, what: str, error: BaseException) -> None:
        reason = f"{what} failed in WAL shard {self.index}: {error}"
        self._poison = StorageReadOnly(f"{reason}; the shard takes no writes until a restart", shard=self.index)
        unacked: list[Waiter | None] = [waiter for waiter, _, _ in (*(self._syncing or ()), *self._waiting)]
        unacked += [*self._waiters, *self._after_write]
        self._frames, self._waiters, self._gates, self._after_write = [], [], [], []
        self._waiting, self._syncing = [], None
        self._queue_bytes = self._waiting_bytes = 0
        if what == "write":
            self.files.blank_rest()
        elif what == "sync":
            self.files.mark_suspect()
        for waiter in unacked:
            if waiter is not None:
                waiter.fail(self._refusal())

    def _refusal(self) -> StorageReadOnly:
        """Why nothing is taken, as a new exception: one that is raised again and again grows each time."""
        assert self._poison is not None
        return StorageReadOnly(self._poison.message, shard=self.index)
