"""Store: one data directory, open by one process.

    DIR/LAYOUT            magic and format version, as text
    DIR/LOCK              held by the process that has the directory open, and says which
    DIR/wal/              the WAL files of all shards and generations (wal.py, walfile.py)
    DIR/snapshots/        the checkpoint (snapshot.py)
    DIR/segments/         sealed segments (segment.py)
    DIR/quarantine/       copies of damaged bytes, one file per damaged region

How an engine uses it, on one thread:

    store = Store(directory, disk=RealDisk(), clock=SystemClock())
    store.open()                          # takes the lock, checks the layout; Locked or UnknownFormat
    for event in store.recover(): ...     # rebuilds its state; see recovery.py for the events and their order
    store.start()                         # a generation of WAL files of its own; submit works from here on

    shard = store.shard_of(topic_id)      # once per topic; fixed until the process ends
    shard.submit(frame.append(store.next_lsn(), topic_id, first_seq, n, block.raw), gated, ticket)
    store.write()                         # once per turn: one write per shard; commits tickets that are not gated
    for job in store.jobs(): ...          # syncs and file preparations that may start now; the driver runs each

    store.close()                         # after a last checkpoint with clean=True, where the stop is orderly

`submit` raises before it takes anything, so build the frame first and change engine state once it has returned; an lsn
that was handed out and not used leaves a hole, which is harmless. Tickets of one topic commit in order as long as the
topic's class does not change between them; after a change from `fsync` to `disk` the later, ungated ticket may commit
first, and the engine shows records only in seq order.
"""

from __future__ import annotations

import contextlib
from typing import Final

from topics.clock import Clock
from topics.storage.disk import Disk
from topics.storage.job import Job
from topics.storage.wal import FILE_BYTES, QUEUE_BYTES_MAX, SYNC_INTERVAL_NS, Shard
from topics.storage.walfile import UnknownFormat, parse_name

LAYOUT_NAME: Final = "LAYOUT"
LAYOUT_MAGIC: Final = "topics data directory, format "
LAYOUT_VERSION: Final = 1
LOCK_NAME: Final = "LOCK"
MIN_FREE_BYTES: Final = 256 << 20
SPACE_INTERVAL_NS: Final = 1_000_000_000
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = 0xFFFFFFFFFFFFFFFF


def shard_index(topic_id: int, shards: int) -> int:
    """The shard that a topic's frames go to: the same for the same id and count, on every machine."""
    return ((topic_id * _GOLDEN & _MASK) >> 32) % shards


class Store:
    """A data directory and everything in it."""

    def __init__(
        self,
        directory: str,
        *,
        disk: Disk,
        clock: Clock,
        shards: int = 1,
        wal_file_bytes: int = FILE_BYTES,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        sync_interval_ns: int = SYNC_INTERVAL_NS,
        min_free_bytes: int = MIN_FREE_BYTES,
    ) -> None:
        assert shards >= 1
        self.directory = directory
        self.disk = disk
        self.clock = clock
        self.shards: tuple[Shard, ...] = ()
        self.generation = 0
        self.free_bytes = 0
        self._shard_count = shards
        self._wal_file_bytes = wal_file_bytes
        self._queue_bytes_max = queue_bytes_max
        self._sync_interval_ns = sync_interval_ns
        self._min_free_bytes = min_free_bytes
        self._space_due_ns = 0
        self._lock: int | None = None
        self._lsn = 0
        self._queued: list[Job] = []

    @property
    def wal_directory(self) -> str:
        """Where the WAL files are."""
        return f"{self.directory}/wal"

    @property
    def segment_directory(self) -> str:
        """Where the sealed segments of the hot tier are."""
        return f"{self.directory}/segments"

    @property
    def snapshot_directory(self) -> str:
        """Where the checkpoint is."""
        return f"{self.directory}/snapshots"

    @property
    def quarantine_directory(self) -> str:
        """Where damaged bytes are kept."""
        return f"{self.directory}/quarantine"

    def open(self) -> None:
        """Take the lock and check the layout, or lay out an empty directory. Raises Locked or UnknownFormat."""
        disk = self.disk
        disk.make_dir(self.directory)
        self._lock = disk.lock(f"{self.directory}/{LOCK_NAME}")
        try:
            self._check_layout()
        except BaseException:
            self.close()
            raise

    def _check_layout(self) -> None:
        disk = self.disk
        path = f"{self.directory}/{LAYOUT_NAME}"
        if not disk.exists(path):
            for directory in (
                self.wal_directory,
                self.segment_directory,
                self.snapshot_directory,
                self.quarantine_directory,
            ):
                disk.make_dir(directory)
            temporary = path + ".tmp"
            if disk.exists(temporary):
                disk.unlink(temporary)
            handle = disk.create(temporary)
            try:
                disk.write(handle, 0, f"{LAYOUT_MAGIC}{LAYOUT_VERSION}\n".encode())
                disk.sync(handle)
            finally:
                disk.close(handle)
            disk.rename(temporary, path)
            disk.sync_dir(self.directory)
            return
        handle = disk.open(path)
        try:
            text = disk.read(handle, 0, 256).decode("utf-8", "replace").strip()
        finally:
            disk.close(handle)
        if text != f"{LAYOUT_MAGIC}{LAYOUT_VERSION}":
            raise UnknownFormat(f"{path} says {text!r}; this program reads {LAYOUT_MAGIC}{LAYOUT_VERSION}")

    def start(self) -> None:
        """Open this start's generation of WAL files. Everything that writes works from here on."""
        names = [name for name in map(parse_name, self.disk.list(self.wal_directory)) if name is not None]
        self.generation = 1 + max((name.generation for name in names), default=0)
        self.shards = tuple(
            Shard(
                self.disk,
                self.clock,
                self.wal_directory,
                self.generation,
                index,
                file_bytes=self._wal_file_bytes,
                queue_bytes_max=self._queue_bytes_max,
                sync_interval_ns=self._sync_interval_ns,
            )
            for index in range(self._shard_count)
        )

    def next_lsn(self) -> int:
        """The next lsn, handed out once; it goes into a frame that is submitted before the next call."""
        self._lsn += 1
        return self._lsn

    @property
    def last_lsn(self) -> int:
        """The lsn handed out last."""
        return self._lsn

    def shard_of(self, topic_id: int) -> Shard:
        """The shard that takes the topic's frames."""
        return self.shards[shard_index(topic_id, self._shard_count)]

    @property
    def pending(self) -> bool:
        """Whether frames wait for `write`."""
        return any(shard._frames for shard in self.shards)

    def write(self) -> None:
        """Hand all queued frames to the kernel, one write per shard, and commit the tickets that are not gated."""
        for shard in self.shards:
            if shard._frames:
                shard.write()

    def enqueue(self, job: Job) -> None:
        """Give the driver a job with the next `jobs`: a seal, a checkpoint, a relocation."""
        self._queued.append(job)

    def jobs(self) -> list[Job]:
        """The jobs that may start now; each is returned once, and the driver must execute it.

        At most one sync and one preparation at a time per shard, and what was enqueued.
        """
        now_ns = self.clock.elapsed_ns()
        if now_ns >= self._space_due_ns:
            self._check_space(now_ns)
        jobs, self._queued = self._queued, []
        for shard in self.shards:
            jobs += shard.jobs(now_ns)
        return jobs

    def next_due_ns(self) -> int | None:
        """The `clock.elapsed_ns()` at which `jobs` will next have a background sync, or None where nothing is dirty."""
        return min((due for due in (shard.next_sync_ns() for shard in self.shards) if due is not None), default=None)

    def _check_space(self, now_ns: int) -> None:
        self._space_due_ns = now_ns + SPACE_INTERVAL_NS
        with contextlib.suppress(OSError):
            self.free_bytes = self.disk.free_bytes(self.directory)
            for shard in self.shards:
                shard.full = self.free_bytes < self._min_free_bytes

    def close(self) -> None:
        """Close every file and give the lock back."""
        for shard in self.shards:
            shard.close()
        self.shards = ()
        if self._lock is not None:
            self.disk.unlock(self._lock)
            self._lock = None
