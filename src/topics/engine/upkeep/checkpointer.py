"""Checkpointer: when a checkpoint begins, and its way from there to a durable snapshot.

A checkpoint begins when a restart would have to read more than `checkpoint_wal_bytes`, so that both the size of the WAL
and the time of a restart are bounded by a setting and not by history. What routers copied counts too: it is in no
frame, but a restart has to make it again. What is sealed costs a checkpoint nothing, and what is not is copied into the
snapshot, from which a restart has to read it too. So it waits for the sealer, until what is left to seal is little
beside what a restart would read. One that frees room on the disk (reclaimer.py), erases what was deleted (eraser.py),
or is for a backup (backups.py), begins when that is due.

Once everything written so far is synced, the topics are captured in slices, and the snapshot is written meanwhile. A
checkpoint that fails is tried again after a while; until then the WAL has everything.
"""

from __future__ import annotations

import logging
from typing import Final

from topics.engine.engine import Engine
from topics.engine.restart.checkpoint import Capture
from topics.engine.upkeep.backups import Backups
from topics.engine.upkeep.eraser import Eraser, Erasing
from topics.engine.upkeep.reclaimer import Reclaimer
from topics.engine.upkeep.sealer import Sealer
from topics.engine.upkeep.timing import Timing
from topics.storage.job import run_inline
from topics.storage.store import Store
from topics.storage.wal.shard import Shard

log = logging.getLogger("topics.upkeep")

UNSEALED_PART: Final = 8
"""What may be left to seal when a checkpoint begins, as a part of what a restart would read."""
WAIT_FACTOR: Final = 8
"""How many times `checkpoint_wal_bytes` a restart may have to read before no sealer is waited for any more."""
RETRY_NS: Final = 5_000_000_000


class Checkpointer:
    """The checkpoints of one engine, one after the other."""

    def __init__(
        self, engine: Engine, store: Store, sealer: Sealer, eraser: Eraser, backups: Backups, wal_bytes: int
    ) -> None:
        self._engine = engine
        self._store = store
        self._sealer = sealer
        self._eraser = eraser
        self._backups = backups
        self._reclaimer = Reclaimer(engine, store)
        # What is erased with the checkpoint that is under way.
        self._erasing: list[Erasing] = []
        self._wal_bytes = wal_bytes
        # From its beginning until it is handed to a job: what is captured, and what has to be synced first.
        self._capture: Capture | None = None
        self._waiting: list[tuple[Shard, int]] = []
        self._under_way = False
        # What had been derived when the checkpoint began: all of it is in the snapshot.
        self._derived_bytes = 0
        # The next checkpoint after one that failed does not begin before then.
        self._retry_ns = 0
        self._began_ns = 0
        self.timing = Timing()

    def step(self) -> bool:
        """Do a slice of what is due; returns whether there is more to do at once."""
        if self._read_only():
            # What was not acknowledged must not become durable; only a restart helps.
            return False
        if self._capture is not None:
            return self._step_capture(self._capture)
        now_ns = self._engine.clock.elapsed_ns()
        if not self._under_way and now_ns >= self._retry_ns:
            # While a backup is taken nothing is removed, and so nothing would be freed or erased.
            erase = self._eraser.is_due and not self._store.keeps
            frees = not self._store.keeps and self._reclaimer.is_due(now_ns)
            if erase or frees or self._backups.waits or self._is_due():
                self.begin(erase=erase)
        return self._capture is not None

    def _is_due(self) -> bool:
        to_read = self._store.wal_bytes + self._engine.journal.derived_bytes
        if to_read <= self._wal_bytes:
            return False
        unsealed_bytes = self._engine.totals.unsealed.bytes
        return (
            unsealed_bytes <= to_read // UNSEALED_PART
            or self._sealer.is_idle
            or to_read > self._wal_bytes * WAIT_FACTOR
        )

    def begin(self, *, erase: bool = False) -> None:
        """Begin a checkpoint: once everything written up to now is synced, it is captured.

        To `erase`, it leaves the WAL files of before; while that is not possible, it does not begin.
        """
        store = self._store
        if self._under_way or store.pending:
            return
        if erase and not store.leave_files():
            return
        draft = store.begin_checkpoint()
        if draft is None:
            # What one that failed has left is still being removed.
            return
        self._erasing = self._eraser.take() if erase else []
        self._began_ns = self._engine.clock.elapsed_ns()
        self._reclaimer.began(self._began_ns)
        self._under_way = True
        self._derived_bytes = self._engine.journal.derived_bytes
        self._capture = Capture(self._engine, store, store.last_lsn, draft, self._backups.listing())
        self._waiting = [(shard, shard.written_lsn) for shard in store.shards]

    def _step_capture(self, capture: Capture) -> bool:
        store, writer = self._store, capture.draft.snapshot
        if any(shard.synced_lsn < lsn for shard, lsn in self._waiting):
            return False
        if store.pending:
            # What would be captured may have been changed by frames that are not even written yet.
            return False
        if writer.error is not None:
            self._capture = None
            store.enqueue(store.give_up(capture.draft))
            self._ended(writer.error)
            return False
        if capture.is_outdated:
            if writer.is_writing:
                return False
            self._capture = Capture(self._engine, store, capture.lsn, capture.draft.again(), self._backups.listing())
            return True
        if not capture.is_complete and not writer.is_full:
            capture.step()
        job = writer.job()
        if job is not None:
            store.enqueue(job)
        if not capture.is_complete:
            return not writer.is_full
        if not writer.is_writing:
            self._capture = None
            self._publish(capture)
        return False

    def _publish(self, capture: Capture, clean: bool = False) -> None:
        job = self._store.end_checkpoint(
            capture.draft,
            lsn=capture.lsn,
            next_topic_id=self._engine.catalog.next_topic_id,
            clean=clean,
            on_done=self._ended,
        )
        self._store.enqueue(job)

    def _ended(self, error: BaseException | None) -> None:
        now_ns = self._engine.clock.elapsed_ns()
        self._under_way = False
        self.timing.ended(self._began_ns, now_ns, failed=error is not None)
        self._reclaimer.ended(now_ns)
        self._eraser.erased(self._erasing, complete=error is None and not self._store.removals_failed)
        self._erasing = []
        if error is None:
            self._engine.journal.derived_bytes -= self._derived_bytes
            self._derived_bytes = 0
        else:
            self._retry_ns = now_ns + RETRY_NS
            log.error("a checkpoint could not be written, and the WAL grows until one can: %s", error)
        self._backups.checkpointed(error)

    def _read_only(self) -> bool:
        return any(shard.read_only is not None for shard in self._store.shards)

    def close(self) -> None:
        """A last checkpoint that marks the stop as orderly. Nothing may be in flight any more."""
        store = self._store
        if self._read_only():
            return
        for topic in self._engine.topics.values():
            topic.ceiling.set(topic.log.head)
        if self._capture is not None:
            run_inline([store.give_up(self._capture.draft)])
            self._capture = None
        draft = store.begin_checkpoint()
        assert draft is not None, "nothing is in flight any more"
        capture = Capture(self._engine, store, store.last_lsn, draft)
        while not capture.step():
            job = draft.snapshot.job()
            run_inline([] if job is None else [job])
        self._publish(capture, clean=True)
        while run_inline(store.jobs()):
            pass
