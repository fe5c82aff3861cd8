"""Shard: one ordered stream of frames with its own files and its own group commit.

The engine submits frames; once per turn of its loop it calls `write`, which hands all of them to the kernel in one
call. A frame is then safe from the death of the process, and its ticket commits unless it is gated. Gated tickets
commit once an `fdatasync` that began after their write has returned. Frames that arrive while a sync runs form the
next group, so the slower the disk, the larger the group, and the sync rate is the disk's own.

Rules that this file keeps:

1. Tickets of one gate commit in the order in which they were submitted.
2. A gated ticket never commits before its bytes, and the name of the file that holds them, are durable.
3. At most one sync runs at a time; it covers everything written before it began, in every file still unsynced.
4. A failed write or sync poisons the shard: no ticket that has not committed ever will, each fails with
   StorageReadOnly, and so does every later submit. After a failed sync the kernel may have dropped the dirty pages and
   report success next time, so trying again would be a lie; only a restart, which replays, clears it.
5. What waits is bounded: bytes that are queued or wait for their sync. Beyond that `submit` raises QueueFull, and the
   frame was not taken.

The next file is prepared ahead of time by a job. Where that job is still running when the current file is full, the
rest of the queue stays queued and the bound of rule 5 holds the writers back; the loop never waits for it.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Callable, Collection
from typing import Final, Protocol

from topics.clock import Clock
from topics.errors import StorageFull, StorageReadOnly, Throttled, TopicsError
from topics.storage.disk import Disk
from topics.storage.job import Job, Task
from topics.storage.wal import file as walfile
from topics.storage.wal.file import WalName
from topics.storage.wal.frame import APPEND, CREATE, lsn_of

FILE_BYTES: Final = 64 << 20
FIRST_FILE_BYTES: Final = 4 << 20
FILE_GROWTH: Final = 4
PREPARE_AT_FRACTION: Final = 4
PREPARE_AT_BYTES: Final = 256 << 10
QUEUE_BYTES_MAX: Final = 64 << 20
SYNC_INTERVAL_NS: Final = 50_000_000
# A file that fills faster than this is under bulk load: writing its successor's zeros would double the load, and the
# dearer sync of unwritten extents is shared by large groups anyway.
ZERO_FILL_LIFE_NS: Final = 5_000_000_000
PREPARE_RETRY_NS: Final = 1_000_000_000
# How full a file must be for a checkpoint to move on from it: below that, reading it again costs less than a new one.
TRIM_USED_PERCENT: Final = 25
LATENCY_BOUNDS_US: Final = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 500_000)
_GROWING: Final = frozenset((APPEND, CREATE))


class QueueFull(Throttled):
    """The storage is behind; retry shortly."""


class Ticket(Protocol):
    """What waits for a frame. Exactly one of the two is called, once, on the engine's thread."""

    def commit(self, write_ns: int, sync_ns: int) -> None:
        """The frame is as safe as was asked.

        `write_ns` is what the kernel took, `sync_ns` the wait for the sync (0 for a frame that is not gated).
        """

    def fail(self, error: TopicsError) -> None:
        """The frame will never be acknowledged. It may or may not be there after a restart."""


class WrittenFile:
    """A file of this generation: where writing stands, and the last lsn in it, by which it is trimmed."""

    __slots__ = ("at", "handle", "last_lsn", "name", "size")

    def __init__(self, name: WalName, handle: int, size: int) -> None:
        self.name = name
        self.handle = handle
        self.size = size - walfile.TAIL_BYTES
        self.at = walfile.HEADER_BYTES
        self.last_lsn = 0


class Shard:
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
        self.index = index
        self.generation = generation
        self.written_lsn = 0
        self.synced_lsn = 0
        self.full = False
        self.frames_total = 0
        self.batches_total = 0
        self.fsyncs_total = 0
        self.bytes_written_total = 0
        self.rotations_total = 0
        self.submit_full_total = 0
        self.queue_depth_peak = 0
        self.fsync_us_buckets = [0] * (len(LATENCY_BOUNDS_US) + 1)
        self.fsync_us_sum = 0
        self._on_synced = on_synced
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._boot = walfile.boot_digest(disk.boot_id())
        self._file_bytes = file_bytes
        self._queue_bytes_max = queue_bytes_max
        self._sync_interval_ns = sync_interval_ns
        self._frames: list[bytes] = []
        self._tickets: list[Ticket | None] = []
        self._gates: list[bool] = []
        self._queue_bytes = 0
        # Gated tickets whose frames are written, with the time of the write; the sync that runs has its own list.
        self._waiting: list[tuple[Ticket, int, int]] = []
        self._waiting_bytes = 0
        self._syncing: list[tuple[Ticket, int, int]] | None = None
        self._dirty_since_ns: int | None = None
        self._poison: StorageReadOnly | None = None
        self._next: WrittenFile | None = None
        self._preparing = False
        self._closed = False
        self._prepare_after_ns = 0
        self._retired: list[WrittenFile] = []
        # The retired files that a running sync has taken over.
        self._under_sync: list[WrittenFile] = []
        self._trimmable: list[WrittenFile] = []
        first_bytes = min(file_bytes, FIRST_FILE_BYTES)
        self._file = self._create(1, first_bytes, zero_fill=True)
        self._file_since_ns = clock.elapsed_ns()

    @property
    def pending(self) -> bool:
        """Whether frames wait for `write`."""
        return bool(self._frames)

    @property
    def settled(self) -> bool:
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
    def read_only(self) -> StorageReadOnly | None:
        """Why the shard takes no writes, or None while it does."""
        return self._poison

    def submit(self, frame: bytes, gated: bool, ticket: Ticket | None = None) -> None:
        """Queue a frame for the next `write`.

        Raises, and takes nothing, where the shard is poisoned (StorageReadOnly) or behind (QueueFull), or the disk is
        nearly full and the frame is one that takes room (StorageFull).
        """
        if self._poison is not None:
            raise self._refusal()
        if self.full and frame[4] in _GROWING:
            raise StorageFull()
        size = self._queue_bytes + len(frame)
        if size + self._waiting_bytes > self._queue_bytes_max and self.queue_depth:
            self.submit_full_total += 1
            raise QueueFull(retry_after_ms=100, queue_bytes=self.queue_bytes, queue_bytes_max=self._queue_bytes_max)
        self._queue_bytes = size
        self._frames.append(frame)
        self._tickets.append(ticket)
        self._gates.append(gated)

    def write(self) -> None:
        """Hand everything queued to the kernel and commit the tickets that are not gated."""
        frames = self._frames
        if not frames:
            return
        depth = self.queue_depth
        if depth > self.queue_depth_peak:
            self.queue_depth_peak = depth
        tickets, gates = self._tickets, self._gates
        self._frames, self._tickets, self._gates = [], [], []
        queue_bytes, self._queue_bytes = self._queue_bytes, 0
        started_ns = self._clock.elapsed_ns()
        file = self._file
        try:
            if file.at + queue_bytes <= file.size:
                self._disk.write(file.handle, file.at, frames[0] if len(frames) == 1 else b"".join(frames))
                file.at += queue_bytes
                file.last_lsn = lsn_of(frames[-1])
                count = len(frames)
            else:
                count = self._write_across(frames)
        except OSError as error:
            self._tickets, self._gates = tickets, gates
            self._fail("write", error)
            return
        if count < len(frames):
            self._requeue(frames, tickets, gates, count)
            frames = frames[:count]
            queue_bytes -= self._queue_bytes
        if count:
            self._commit_written(frames, tickets, gates, queue_bytes, started_ns)

    def _write_across(self, frames: list[bytes]) -> int:
        """Write frames over as many files as they need; how many were written before the next file was not ready."""
        done = 0
        while done < len(frames):
            file = self._file
            room = file.size - file.at
            upto, size = done, 0
            while upto < len(frames) and size + len(frames[upto]) <= room:
                size += len(frames[upto])
                upto += 1
            if upto > done:
                self._disk.write(file.handle, file.at, b"".join(frames[done:upto]))
                file.at += size
                file.last_lsn = lsn_of(frames[upto - 1])
                done = upto
            if done < len(frames) and not self._rotate(len(frames[done])):
                break
        return done

    def _requeue(self, frames: list[bytes], tickets: list[Ticket | None], gates: list[bool], count: int) -> None:
        self._frames = frames[count:]
        self._tickets = tickets[count:]
        self._gates = gates[count:]
        self._queue_bytes = sum(map(len, self._frames))

    def _commit_written(
        self, frames: list[bytes], tickets: list[Ticket | None], gates: list[bool], size: int, started_ns: int
    ) -> None:
        now_ns = self._clock.elapsed_ns()
        write_ns = now_ns - started_ns
        self.written_lsn = lsn_of(frames[-1])
        self.frames_total += len(frames)
        self.batches_total += 1
        self.bytes_written_total += size
        if self._dirty_since_ns is None:
            self._dirty_since_ns = now_ns
        for frame, ticket, gated in zip(frames, tickets, gates, strict=False):
            if ticket is None:
                continue
            if gated:
                self._waiting.append((ticket, now_ns, write_ns))
                self._waiting_bytes += len(frame)
            else:
                ticket.commit(write_ns, 0)

    def _rotate(self, frame_bytes: int) -> bool:
        """Make the next file the current one; False where it is not ready yet. A frame always fits into it."""
        needed = walfile.HEADER_BYTES + frame_bytes + walfile.TAIL_BYTES
        following = self._next
        skipped: list[WrittenFile] = []
        if following is not None and needed <= following.size + walfile.TAIL_BYTES:
            self._next = None
        elif self._preparing:
            return False
        else:
            if following is not None:
                # Too small and never used; it goes when the one before it goes, since a missing number is damage.
                skipped.append(following)
                self._next = None
            number = (following or self._file).name.number + 1
            following = self._create(number, max(needed, self._file_bytes), zero_fill=False)
        self._retired += [self._file, *skipped]
        self._file = following
        self.rotations_total += 1
        return True

    def _create(self, number: int, size: int, *, zero_fill: bool) -> WrittenFile:
        name = WalName(self.generation, self.index, number)
        handle = walfile.create(self._disk, self._directory, name, self._boot, size, zero_fill=zero_fill)
        return WrittenFile(name, handle, size)

    def sync_due(self, now_ns: int) -> bool:
        """Whether a sync should start: a gated ticket waits, or written bytes have waited for the interval."""
        if self._syncing is not None or self._dirty_since_ns is None or self._poison is not None:
            return False
        return bool(self._waiting) or now_ns - self._dirty_since_ns >= self._sync_interval_ns

    def next_sync_ns(self) -> int | None:
        """When the sync of what is written falls due, or None where nothing is dirty or a sync runs already."""
        if self._dirty_since_ns is None or self._syncing is not None or self._poison is not None:
            return None
        return self._dirty_since_ns if self._waiting else self._dirty_since_ns + self._sync_interval_ns

    def sync_job(self) -> Job | None:
        """The sync of everything written so far, or None where nothing is dirty, or one runs already."""
        if self._syncing is not None or self._dirty_since_ns is None or self._poison is not None:
            return None
        waiting, self._syncing, self._waiting = self._waiting, self._waiting, []
        waiting_bytes, self._waiting_bytes = self._waiting_bytes, 0
        retired, self._under_sync, self._retired = self._retired, self._retired, []
        self._dirty_since_ns = None
        job = _Sync(self, retired, self._file, self.written_lsn, waiting)
        # The bytes under sync still count as waiting until it is done.
        self._waiting_bytes = waiting_bytes
        job.waiting_bytes = waiting_bytes
        return job

    def after_sync(self, ticket: Ticket) -> None:
        """Commit a ticket that has no frame of its own once everything written up to now is durable."""
        if self._poison is not None:
            ticket.fail(self._refusal())
        elif self.synced_lsn >= self.written_lsn:
            ticket.commit(0, 0)
        elif self._dirty_since_ns is None:
            # The sync that runs covers all of it.
            assert self._syncing is not None
            self._syncing.append((ticket, self._clock.elapsed_ns(), 0))
        else:
            self._waiting.append((ticket, self._clock.elapsed_ns(), 0))

    def flush(self) -> Callable[[], None]:
        """What makes everything written up to now durable, for a job's thread; where it fails, call `flush_failed`."""
        handles = [file.handle for file in (*self._under_sync, *self._retired, self._file)]

        def work() -> None:
            for handle in handles:
                self._disk.sync(handle)

        return work

    def flush_failed(self, error: BaseException) -> None:
        """A sync beside the shard's own has failed. The kernel says so once, so it counts as the shard's (rule 4)."""
        if self._poison is None:
            self._fail("sync", error)

    def synced(self, job: _Sync, error: BaseException | None) -> None:
        """Take over what a sync brought: commit its tickets, or poison the shard."""
        if self._poison is not None:
            return
        if error is not None:
            self._fail("sync", error)
            return
        self._syncing = None
        self._waiting_bytes -= job.waiting_bytes
        self.synced_lsn = job.upto_lsn
        self.fsyncs_total += 1
        latency_us = job.took_ns // 1000
        self.fsync_us_buckets[bisect.bisect_left(LATENCY_BOUNDS_US, latency_us)] += 1
        self.fsync_us_sum += latency_us
        self._under_sync = []
        for file in job.retired:
            self._trimmable.append(file)
        now_ns = self._clock.elapsed_ns()
        for ticket, written_ns, write_ns in job.tickets:
            ticket.commit(write_ns, now_ns - written_ns)
        self._on_synced()

    @property
    def prepare_needed(self) -> bool:
        """Whether the current file is used so far that its successor should be made: early, for a disk that is slow."""
        return self._file.at >= min(self._file.size // PREPARE_AT_FRACTION, PREPARE_AT_BYTES)

    def prepare_job(self, now_ns: int) -> Job | None:
        """The making of the next file, or None where it is there, being made, not needed soon, or failed just now.

        Files grow with use: a server that is hardly written to prepares nothing, a busy one the full size.
        """
        if self._next is not None or self._preparing or self._poison is not None or now_ns < self._prepare_after_ns:
            return None
        if not self.prepare_needed:
            return None
        self._preparing = True
        bulk = self.rotations_total > 1 and now_ns - self._file_since_ns < ZERO_FILL_LIFE_NS
        self._file_since_ns = now_ns
        made: list[WrittenFile] = []
        number = self._file.name.number + 1
        size = min(self._file_bytes, self._file.size * FILE_GROWTH)

        def work() -> None:
            made.append(self._create(number, size, zero_fill=not bulk))

        def finish(error: BaseException | None) -> None:
            self._preparing = False
            if error is None:
                self._next = made[0]
                if self._closed:
                    self.close()
            else:
                self._prepare_after_ns = self._clock.elapsed_ns() + PREPARE_RETRY_NS

        return Task("prepare", work, finish)

    def jobs(self, now_ns: int) -> list[Job]:
        """The sync that is due and the preparation of the next file, where they may start now."""
        jobs: list[Job] = []
        if self.sync_due(now_ns):
            sync = self.sync_job()
            if sync is not None:
                jobs.append(sync)
        if self._next is None and not self._preparing:
            prepare = self.prepare_job(now_ns)
            if prepare is not None:
                jobs.append(prepare)
        return jobs

    def trimmable(self, upto_lsn: int) -> list[WalName]:
        """The full, synced files whose every frame is at or below `upto_lsn`, oldest first, and none behind another."""
        upto = itertools.takewhile(lambda file: file.last_lsn <= upto_lsn, self._trimmable)
        return [file.name for file in upto]

    def trimmed(self, names: Collection[WalName]) -> None:
        """Let go of files that have been unlinked."""
        for file in self._trimmable:
            if file.name in names:
                self._disk.close(file.handle)
        self._trimmable = [file for file in self._trimmable if file.name not in names]

    def rotate_for_trim(self) -> bool:
        """Move on to the next file where one is ready and this one is well used, so that it can be trimmed."""
        used = self._file.at
        if self._poison is not None or self._next is None or used < self._file.size * TRIM_USED_PERCENT // 100:
            return False
        clean = self._dirty_since_ns is None and self._syncing is None
        self._rotate(0)
        if clean:
            self._trimmable += self._retired
            self._retired = []
        return True

    def close(self) -> None:
        """Close the files. Whatever was not committed stays uncommitted."""
        self._closed = True
        files = [*self._retired, *self._trimmable]
        if self._file.handle >= 0:
            files.append(self._file)
        if self._next is not None:
            files.append(self._next)
        for file in files:
            with contextlib.suppress(OSError):
                self._disk.close(file.handle)
            file.handle = -1
        self._retired, self._trimmable, self._next = [], [], None

    def _fail(self, what: str, error: BaseException) -> None:
        reason = f"{what} failed in WAL shard {self.index}: {error}"
        self._poison = StorageReadOnly(f"{reason}; the shard takes no writes until a restart", shard=self.index)
        unacked: list[Ticket | None] = [ticket for ticket, _, _ in (*(self._syncing or ()), *self._waiting)]
        unacked += self._tickets
        self._frames, self._tickets, self._gates = [], [], []
        self._waiting, self._syncing = [], None
        self._queue_bytes = self._waiting_bytes = 0
        if what == "write":
            # The frames of the failed write were never acknowledged: leave no half of them behind if that can be had.
            with contextlib.suppress(OSError):
                self._disk.write(self._file.handle, self._file.at, bytes(self._file.size - self._file.at))
        elif what == "sync":
            # For the next start under this kernel, which reads from its memory what may not be on the disk.
            with contextlib.suppress(OSError):
                self._disk.close(self._disk.create(f"{self._directory}/{walfile.SUSPECT_NAME}"))
        for ticket in unacked:
            if ticket is not None:
                ticket.fail(self._refusal())

    def _refusal(self) -> StorageReadOnly:
        """Why nothing is taken, as an exception of its own: one that is raised again and again grows with each time."""
        assert self._poison is not None
        return StorageReadOnly(self._poison.message, shard=self.index)


class _Sync:
    """The running sync of a shard: older files first, so that an order seen on disk is one that was written."""

    __slots__ = ("_current", "_shard", "name", "retired", "tickets", "took_ns", "upto_lsn", "waiting_bytes")

    def __init__(
        self,
        shard: Shard,
        retired: list[WrittenFile],
        current: WrittenFile,
        upto_lsn: int,
        tickets: list[tuple[Ticket, int, int]],
    ) -> None:
        self.name = "sync"
        self.retired = retired
        self.tickets = tickets
        self.upto_lsn = upto_lsn
        self.waiting_bytes = 0
        self.took_ns = 0
        self._shard = shard
        self._current = current

    def run(self) -> None:
        """Sync the files."""
        shard = self._shard
        started_ns = shard._clock.elapsed_ns()
        for file in self.retired:
            shard._disk.sync(file.handle)
        shard._disk.sync(self._current.handle)
        self.took_ns = shard._clock.elapsed_ns() - started_ns

    def done(self, error: BaseException | None) -> None:
        """Commit the tickets, or poison the shard."""
        self._shard.synced(self, error)
