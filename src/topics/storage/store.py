"""Store: one data directory, open by one process.

    DIR/LAYOUT            magic and format version, as text
    DIR/LOCK              held, with flock, by the process that has the directory open; names that process
    DIR/wal/              the WAL files of all shards and generations (wal/)
    DIR/snapshots/        the checkpoint (snapshot/)
    DIR/segments/         sealed segments (segment/)
    DIR/quarantine/       copies of damaged bytes, one file per damaged region
    DIR/RESERVE           room that is kept for a checkpoint on a full disk (reserve.py)

How an engine uses it, on one thread (a driver executes the jobs; `run_inline` of job.py is the simplest one):

    store = Store(directory, disk=RealDisk(), clock=SystemClock())
    store.open()                          # takes the lock, checks the layout; Locked or UnknownFormat
    for event in store.recover(): ...     # rebuilds its state; see history.py for the events and their order
    store.start()                         # a generation of WAL files of its own; submit works from here on

    shard = store.shard_of(topic_id)      # once per topic; fixed until the process ends
    shard.submit(frame.append(store.next_lsn(), topic_id, first_seq, n, block.raw), gated, waiter)
    store.write()                         # once per turn: one write per shard; commits waiters that are not gated
    for job in store.jobs(): ...          # syncs and file preparations that may start now; the driver runs each

    draft = store.begin_checkpoint()      # state as of an lsn, added section by section, written by jobs
    job = store.end_checkpoint(draft, ...)       # trims the WAL once it is durable
    store.run_until_idle()                # at the end: write and sync everything, here and now
    store.close()                         # after a last checkpoint with clean=True, where the stop is orderly

A `write` may leave frames queued while the next WAL file is being prepared (`store.pending` stays true): call it again
after the next `done` of a job. After a job's `done`, call `jobs` again: the next group may be waiting for its sync.

`submit` raises before it takes anything, so build the frame first and change engine state once it has returned; an lsn
that was handed out and not used leaves a hole, which is harmless. Waiters of one topic commit in order as long as the
topic's class does not change between them; after a change from `fsync` to `disk` the later, ungated waiter may commit
first, and the engine shows records only in seq order.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Final

from topics.clock import Clock
from topics.errors import StorageReadOnly
from topics.storage import room
from topics.storage.checkpoint import Checkpoint, Draft
from topics.storage.damage import UnknownFormat
from topics.storage.disk import Disk, read_at, write_whole
from topics.storage.history import Event, History
from topics.storage.job import Job, Task, run_inline
from topics.storage.reserve import RESERVE_NAME, Reserve
from topics.storage.segment.cache import CACHE_BYTES
from topics.storage.segment.segments import Segments
from topics.storage.snapshot.snapshot import Header
from topics.storage.snapshot.writer import SnapshotWriter
from topics.storage.wal.file import WalName, boot_digest
from topics.storage.wal.frame import Lsns
from topics.storage.wal.shard import QUEUE_BYTES_MAX, SYNC_INTERVAL_NS, Shard
from topics.storage.wal.shard_files import FILE_BYTES

LAYOUT_NAME: Final = "LAYOUT"
LAYOUT_MAGIC: Final = "topics data directory, format "
# Since version 2 a segment has an edition. A directory of version 1 is taken over as it is.
LAYOUT_VERSION: Final = 2
LAYOUTS_READ: Final = tuple(f"{LAYOUT_MAGIC}{version}" for version in (1, LAYOUT_VERSION))
LOCK_NAME: Final = "LOCK"
MIN_FREE_BYTES: Final = 128 << 20
SPACE_INTERVAL_NS: Final = 1_000_000_000
# On a disk that fills up, a second of writes may be all that is left.
SPACE_NEAR_INTERVAL_NS: Final = 50_000_000
SPACE_NEAR_TIMES: Final = 8
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = 0xFFFFFFFFFFFFFFFF


def shard_index(topic_id: int, shards: int) -> int:
    """The shard that a topic's frames go to: the same for the same id and count, on every machine."""
    return ((topic_id * _GOLDEN & _MASK) >> 32) % shards


class Store:
    """A data directory and everything in it.

    `on_synced` is called on the engine's thread after each sync of a shard, once that sync's waiters are committed.
    """

    keeps = False
    """Whether files that a checkpoint has replaced stay where they are: a backup reads them."""

    is_low = False
    """Whether the last look at the disk found too little room for writes."""

    owed_bytes: Callable[[], int] = staticmethod(lambda: 0)
    """How much is still to be written of what was acknowledged: no write may take the room of that."""

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
        reserve_bytes: int = 0,
        cold_directory: str | None = None,
        block_cache_bytes: int = CACHE_BYTES,
        on_synced: Callable[[], None] = lambda: None,
    ) -> None:
        assert shards >= 1
        self.directory = directory
        self.wal_directory = f"{directory}/wal"
        self.segment_directory = f"{directory}/segments"
        self.snapshot_directory = f"{directory}/snapshots"
        self.quarantine_directory = f"{directory}/quarantine"
        self.disk = disk
        self.clock = clock
        self.shards: tuple[Shard, ...] = ()
        self.free_bytes = 0
        self._shard_count = shards
        self._min_free_bytes = min_free_bytes
        self._open_shard = partial(
            Shard,
            disk,
            clock,
            self.wal_directory,
            file_bytes=wal_file_bytes,
            queue_bytes_max=queue_bytes_max,
            sync_interval_ns=sync_interval_ns,
            on_synced=on_synced,
        )
        self._space_due_ns = 0
        self._lock: int | None = None
        self._lsns = Lsns()
        self.next_lsn = self._lsns.next
        self._queued: list[Job] = []
        self.history = History(disk, self.wal_directory, self.snapshot_directory, self.quarantine_directory)
        self.checkpoints_total = self.snapshot_bytes = 0
        self._recovered = False
        self._old_files: dict[WalName, int] = {}
        self._checkpointing = False
        self._bytes_checkpointed = 0
        self._removals: list[Callable[[], None]] = []
        self.removals_failed = 0
        self._reserve = Reserve(disk, f"{directory}/{RESERVE_NAME}", reserve_bytes)
        self.segments = Segments(
            disk,
            self.segment_directory,
            self.quarantine_directory,
            cold_directory=cold_directory,
            cache_bytes=block_cache_bytes,
            after_checkpoint=self.after_checkpoint,
        )

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
        for directory in (
            self.wal_directory,
            self.segment_directory,
            self.snapshot_directory,
            self.quarantine_directory,
        ):
            disk.make_dir(directory)
        if not disk.exists(path):
            write_whole(disk, path, [f"{LAYOUTS_READ[-1]}\n".encode()])
            # The directory itself is a name in another one.
            disk.sync_dir(self.directory.rstrip("/").rpartition("/")[0] or ("/" if self.directory[:1] == "/" else "."))
            return
        text = read_at(disk, path, 0, 256).decode("utf-8", "replace").strip()
        if text not in LAYOUTS_READ:
            raise UnknownFormat(f"{path} says {text!r}; this program reads {LAYOUTS_READ[0]} to {LAYOUT_VERSION}")
        if text != LAYOUTS_READ[-1]:
            write_whole(disk, path, [f"{LAYOUTS_READ[-1]}\n".encode()])

    def recover(self) -> Iterator[Event]:
        """Everything that is in the directory, as events (history.py); take all of them before `start`.

        `store.history.progress` says how far it is.
        """
        assert self._lock is not None, "open() comes first"
        segment_files = len(self.disk.list(self.segment_directory))
        self.segments.tiers.open()
        self.segments.tiers.patient = True
        yield from self.history.events(segment_files)
        for name in self.disk.list(self.snapshot_directory):
            handle = self.disk.open(f"{self.snapshot_directory}/{name}")
            self.snapshot_bytes += self.disk.size(handle)
            self.disk.close(handle)
        self._recovered = True
        self._lsns.last = self.history.last_lsn
        self._old_files = dict(self.history.files)

    def start(self) -> None:
        """Open this start's generation of WAL files. Everything that writes works from here on."""
        assert self._recovered, "recover() comes first, and to its end"
        self.segments.tiers.patient = False
        generation = self.history.last_generation + 1
        for index in range(self._shard_count):
            try:
                shard = self._open_shard(generation, index)
            except OSError as error:
                if error.errno != errno.ENOSPC or not self._reserve.release():
                    raise
                shard = self._open_shard(generation, index)
            self.shards += (shard,)
        self._check_space(self.clock.elapsed_ns())

    @property
    def last_lsn(self) -> int:
        """The lsn handed out last."""
        return self._lsns.last

    def shard_of(self, topic_id: int) -> Shard:
        """The shard that takes the topic's frames."""
        return self.shards[shard_index(topic_id, self._shard_count) if self._shard_count > 1 else 0]

    @property
    def pending(self) -> bool:
        """Whether frames wait for `write`."""
        return any(shard.pending for shard in self.shards)

    def write(self) -> None:
        """Hand all queued frames to the kernel, one write per shard, and commit the waiters that are not gated."""
        for shard in self.shards:
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
        if self.segments.flips and all(shard.is_idle for shard in self.shards):
            # The frame that says why a record is deleted goes first: a dead letter is deleted and copied, or neither.
            # Where syncs never catch up with writes, the next checkpoint writes the flips.
            flip = self.segments.flips.job(now_ns)
            if flip is not None:
                jobs.append(flip)
        return jobs

    def next_due_ns(self) -> int | None:
        """The `clock.elapsed_ns()` at which `jobs` will next have a sync or a write of flags, or None."""
        first_ns = self.segments.flips.next_due_ns(self.clock.elapsed_ns()) if self.segments.flips else None
        for shard in self.shards:
            due_ns = shard.next_sync_ns()
            if due_ns is not None and (first_ns is None or due_ns < first_ns):
                first_ns = due_ns
        return first_ns

    def leave_files(self) -> bool:
        """Move on from every WAL file with anything in it, so that a checkpoint that begins now will remove them.

        False where the next files are not ready; they will be.
        """
        ready = [shard.may_leave_file for shard in self.shards]
        if not all(ready):
            return False
        for shard in self.shards:
            shard.leave_file()
        return True

    @property
    def removals_pending(self) -> int:
        """How many removals wait for a checkpoint."""
        return len(self._removals)

    @property
    def is_full(self) -> bool:
        """Whether writes that take room are refused."""
        return any(shard.full for shard in self.shards)

    def begin_checkpoint(self) -> Draft | None:
        """A checkpoint to add sections to, or None while one is under way; then `end_checkpoint`, or `give_up`.

        Sections are made with snapshot.py and added to its `snapshot`; every TOPIC is essential. Everything given to
        `after_checkpoint` before this call is done once it is durable.
        """
        for shard in self.shards:
            if shard.read_only is not None:
                raise StorageReadOnly(shard.read_only.message)
        if self._checkpointing:
            return None
        self._checkpointing = self.segments.flips.capturing = True
        removals, self._removals = self._removals, []
        number = self.history.snapshot_number + 1
        writer = SnapshotWriter(self.disk, self.snapshot_directory, number, self._reserve.release)
        return Draft(writer, sum(shard.bytes_written_total for shard in self.shards), removals)

    def end_checkpoint(
        self,
        draft: Draft,
        *,
        lsn: int,
        next_topic_id: int,
        clean: bool = False,
        on_done: Callable[[BaseException | None], None] = lambda error: None,
    ) -> Job:
        """The job that publishes a checkpoint, all of whose sections were added.

        `lsn`: every frame up to it is included in the sections, or is about a topic that is gone; a topic with
        a newer image says so in its section. Include only what has committed: a gated frame that still waits for
        its sync must have an lsn above. First of all, delete flags that are not on disk yet are written. Once the
        snapshot is durable, the one before it and the WAL files that it covers are removed. `on_done` gets the error,
        or None, at the end.
        """
        boot = boot_digest(self.disk.boot_id())
        covered = sorted(name for name, last_lsn in self._old_files.items() if last_lsn <= lsn)
        for shard in self.shards:
            shard.rotate_for_trim()
            covered += shard.files.trimmable(lsn)
        return Checkpoint(
            self.disk,
            self.wal_directory,
            self.snapshot_directory,
            Header(draft.snapshot.number, lsn, boot, next_topic_id, clean),
            draft,
            shards=self.shards,
            flips=self.segments.flips,
            covered=covered,
            keeps=self.keeps,
            on_done=partial(self._checkpointed, on_done),
        )

    def give_up(self, draft: Draft) -> Job:
        """The job that removes what was written of a checkpoint that will not be published; then another may begin."""
        self._removals = draft.removals + self._removals
        self.segments.flips.capturing = False

        def done(error: BaseException | None) -> None:
            self._checkpointing = False

        return Task("snapshot", draft.snapshot.abandon, done)

    def checkpoint(
        self,
        sections: Sequence[bytes],
        essential: Collection[int],
        *,
        lsn: int,
        next_topic_id: int,
        clean: bool = False,
    ) -> Job | None:
        """As `begin_checkpoint` and `end_checkpoint`, for sections that are at hand; `essential` are indices."""
        draft = self.begin_checkpoint()
        if draft is None:
            return None
        for i, section in enumerate(sections):
            draft.snapshot.add(section, essential=i in essential)
        return self.end_checkpoint(draft, lsn=lsn, next_topic_id=next_topic_id, clean=clean)

    def _checkpointed(
        self, on_done: Callable[[BaseException | None], None], checkpoint: Checkpoint, error: BaseException | None
    ) -> None:
        self._checkpointing = False
        self._removals = checkpoint.removals + self._removals
        self.removals_failed = len(checkpoint.removals) + checkpoint.keeps
        if checkpoint.is_durable:
            self.history.snapshot_number = checkpoint.header.number
            self.checkpoints_total += 1
            self.snapshot_bytes = checkpoint.snapshot_bytes
            self._bytes_checkpointed = checkpoint.bytes_written
            gone = set(checkpoint.covered)
            for name in gone:
                self._old_files.pop(name, None)
            handles = [handle for shard in self.shards for handle in shard.files.trimmed(gone)]
            if handles:
                self.enqueue(Task("close", lambda: self._close_all(handles), lambda error: None))
        on_done(error)

    def _close_all(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self.disk.close(handle)

    def after_checkpoint(self, removal: Callable[[], None]) -> None:
        """Do this, on a job's thread, once a checkpoint that begins after this call is durable, and no sooner.

        A checkpoint that is being captured may hold what is given up now: only the one after it can go without.

        It is done again where it failed, so it must be harmless to repeat.
        """
        self._removals.append(removal)

    @property
    def wal_bytes(self) -> int:
        """How many bytes of frames a restart would have to apply now: what decides when to take a checkpoint."""
        old = sum(self.history.used_bytes[name] for name in self._old_files)
        return old + sum(shard.bytes_written_total for shard in self.shards) - self._bytes_checkpointed

    def run_until_idle(self) -> None:
        """Write and sync everything that is queued, here and now, and commit its waiters.

        Waits for the disk. Every job that was handed out must be done before.
        """
        for shard in self.shards:
            while shard.pending and shard.read_only is None:
                shard.write()
                run_inline(shard.jobs(self.clock.elapsed_ns()))
            sync = shard.sync_job()
            if sync is not None:
                run_inline([sync])

    def _check_space(self, now_ns: int) -> None:
        self._space_due_ns = now_ns + SPACE_INTERVAL_NS
        with contextlib.suppress(OSError):
            self.free_bytes = self.disk.free_bytes(self.directory)
            needed_bytes = self._min_free_bytes + self.owed_bytes()
            spare_bytes = self.free_bytes - needed_bytes
            if 0 <= spare_bytes < SPACE_NEAR_TIMES * self._min_free_bytes:
                self._space_due_ns = now_ns + SPACE_NEAR_INTERVAL_NS
            self.is_low = room.judge(self.shards, self.free_bytes, needed_bytes, self.is_low)
            if spare_bytes >= 0 and not self._reserve.held and self.shards:
                restore = self._reserve.job(spare_bytes)
                if restore is not None:
                    self.enqueue(restore)

    def close(self) -> None:
        """Close every file and release the lock."""
        for shard in self.shards:
            shard.files.close()
        self.shards = ()
        self.segments.tiers.close()
        if self._lock is not None:
            self.disk.unlock(self._lock)
            self._lock = None
