"""Upkeep: what the engine does for its data directory besides serving: checkpoints, seals, relocation.

All of it happens off the path of any request: on the engine's thread in slices of at most about a millisecond, and in
jobs that wait for the disk elsewhere. `step` is called after every turn and at least once a second.

A checkpoint begins when a restart would have to read more than `checkpoint_wal_bytes`, so that both the size of the
WAL and the time of a restart are bounded by a setting and not by history. What routers copied counts too: it is in no
frame, but a restart has to make it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from topics.engine.engine import Engine
from topics.engine.log.archive import SEGMENT_BYTES_MAX, SEGMENT_EVENTS_MAX
from topics.engine.restart.checkpoint import Capture
from topics.engine.restart.recovery import Recovery
from topics.engine.restart.routers import reached, resume
from topics.engine.topic import Topic
from topics.engine.upkeep.sealer import Sealer
from topics.storage.job import run_inline
from topics.storage.store import Store
from topics.storage.wal import frame as frames
from topics.storage.wal.shard import Shard

log = logging.getLogger("topics.upkeep")

CAPTURE_TOPICS: Final = 100
ROUND_TOPICS: Final = 500
ROUND_NS: Final = 5_000_000_000
RETRY_NS: Final = 5_000_000_000


class UpkeepSettings(Struct, frozen=True):
    """When to seal, to move and to checkpoint."""

    segment_max_events: int = SEGMENT_EVENTS_MAX
    segment_max_bytes: int = SEGMENT_BYTES_MAX
    segment_max_age_ms: int = 3_600_000
    hot_retain_segments: int = 4
    hot_retain_bytes: int = 0
    checkpoint_wal_bytes: int = 128 << 20


class Upkeep:
    """The background work of one engine on one store."""

    def __init__(self, engine: Engine, store: Store, settings: UpkeepSettings | None = None) -> None:
        self._engine = engine
        self._store = store
        self._settings = settings or UpkeepSettings()
        shelf = engine.catalog.shelf
        assert shelf is not None, "an engine with a data directory has a shelf"
        self._shelf = shelf
        self._sealer = Sealer(self._shelf)
        self._round: Iterator[Topic] | None = None
        self._round_due_ns = 0
        self._relocating = False
        self._waiting: list[tuple[Shard, int]] | None = None
        self._waiting_lsn = 0
        self._capture: Capture | None = None
        self._checkpointing = False
        # What had been derived when the checkpoint began: all of it is in the snapshot.
        self._derived_bytes = 0
        # The next checkpoint after one that failed does not begin before then.
        self._retry_ns = 0

    def recover(self) -> Iterator[None]:
        """Take over what the data directory holds, then open it for writing; yields between events."""
        engine, store = self._engine, self._store
        recovery = Recovery(engine, store.segments.loader.load)
        yield from recovery.run(store.recover(), lambda: store.history.lost_power)
        if recovery.jumped and store.history.one_boot:
            # There was no loss of power that could have taken what is missing.
            engine.totals.corruption_total = max(1, engine.totals.corruption_total)
        intact = not engine.totals.corruption_total
        for name in store.segments.loader.sweep(intact=intact):
            if intact:
                log.info("removed %s, which no checkpoint lists: its records are in the log", name)
            else:
                log.error("kept %s, which no checkpoint lists", name)
        store.start()
        self._log_losses(recovery.given_up, recovery.lost_power)
        self._log_heads(recovery.heads())
        for topic in engine.topics.values():
            topic.ask_seal()

    def _log_losses(self, ranges: list[tuple[int, int, int]], lost_power: bool) -> None:
        """Log what a loss of power took, as the first frame of this start, before any request is served.

        It is one frame, so that all of it is there or nothing; in the latter case the next start finds the same again.
        It is there twice, as everything that no other frame repeats. Where records are derived, it is there in any
        case: what could not be derived by now never will be, whatever seqs a source hands out again.
        """
        store, topics, graph = self._store, self._engine.topics.values(), self._engine.routers.graph
        if ranges or graph.by_name or graph.lineage.letters:
            lost = frames.Lost(ranges, reached(topics), lost_power)
            for _ in range(2):
                store.shards[0].submit(frames.control(frames.LOST, store.next_lsn(), 0, lost), True)
        resume(graph.lineage, topics)
        store.run_until_idle()

    def _log_heads(self, heads: list[tuple[int, int]]) -> None:
        """Log how far each topic went, in the files of this start: then a file that goes missing is noticed.

        Nothing waits for it, and nothing else depends on it.
        """
        if heads:
            store = self._store
            store.shards[0].submit(frames.control(frames.HEADS, store.next_lsn(), 0, frames.Heads(heads)), False)

    def step(self) -> bool:
        """Do a slice of what is due; returns whether there is more to do at once."""
        more = self._sealer.step()
        now_ns = self._engine.clock.elapsed_ns()
        if now_ns >= self._round_due_ns:
            self._round_due_ns = now_ns + ROUND_NS
            self._round = iter(list(self._engine.topics.values()))
        if self._round is not None:
            more = self._look_round() or more
        return self._step_checkpoint() or more

    def _look_round(self) -> bool:
        """Seal what is old and move what is beyond the hot tier, some topics per slice; returns whether more remain."""
        assert self._round is not None
        oldest_ts = self._engine.clock.now_ms() - self._settings.segment_max_age_ms
        for _ in range(ROUND_TOPICS):
            topic = next(self._round, None)
            if topic is None:
                self._round = None
                return False
            tail = topic.log.tail_first()
            if tail is not None and tail.first_ts < oldest_ts:
                self._shelf.ask(topic)
            if topic.archive.segments and not self._relocating:
                self._relocate(topic)
            if topic.dedupe is not None:
                topic.dedupe.expire(self._engine.clock.steady_ms(), topic.config.idempotency_window_ms)
        return True

    def _relocate(self, topic: Topic) -> None:
        segments = self._store.segments
        settings = self._settings
        found = segments.to_relocate(topic.archive.segments, settings.hot_retain_segments, settings.hot_retain_bytes)
        job = segments.relocate_job(found[0], self._relocated) if found else None
        if job is not None:
            self._relocating = True
            # The next round begins as soon as this one has moved, so that a backlog does not take a round per segment.
            self._store.enqueue(job)

    def _relocated(self, error: BaseException | None) -> None:
        self._relocating = False
        if error is None:
            self._round_due_ns = 0
        else:
            log.error("a segment could not be moved to the cold store: %s", error)

    def _step_checkpoint(self) -> bool:
        if self._read_only():
            # What was not acknowledged must not become durable; only a restart helps.
            return False
        if self._capture is not None:
            if any(shard.pending for shard in self._store.shards):
                # What would be captured may have been changed by frames that are not even written yet.
                return False
            if not self._capture.step(CAPTURE_TOPICS):
                return True
            self._publish(self._capture)
            self._capture = None
            return False
        if self._waiting is not None:
            return self._await_sync()
        to_read = self._store.wal_bytes + self._engine.journal.derived_bytes
        due = to_read > self._settings.checkpoint_wal_bytes and not self._checkpointing
        if due and self._engine.clock.elapsed_ns() >= self._retry_ns:
            self.checkpoint()
        return False

    def checkpoint(self) -> None:
        """Begin a checkpoint: once everything written up to now is synced, it is captured."""
        if self._checkpointing or any(shard.pending for shard in self._store.shards):
            return
        self._checkpointing = True
        self._waiting_lsn = self._store.last_lsn
        self._derived_bytes = self._engine.journal.derived_bytes
        self._waiting = [(shard, shard.written_lsn) for shard in self._store.shards]

    def _await_sync(self) -> bool:
        assert self._waiting is not None
        if any(shard.synced_lsn < lsn for shard, lsn in self._waiting):
            return False
        self._waiting = None
        self._capture = Capture(self._engine, self._store, self._waiting_lsn)
        return True

    def _read_only(self) -> bool:
        return any(shard.read_only is not None for shard in self._store.shards)

    def _publish(self, capture: Capture, clean: bool = False) -> None:
        job = self._store.checkpoint(
            capture.sections,
            capture.essential,
            lsn=capture.lsn,
            next_topic_id=self._engine.catalog.next_topic_id,
            clean=clean,
            on_done=self._published,
        )
        if job is None:
            self._checkpointing = False
        else:
            self._store.enqueue(job)

    def _published(self, error: BaseException | None) -> None:
        self._checkpointing = False
        if error is None:
            self._engine.journal.derived_bytes -= self._derived_bytes
        else:
            self._retry_ns = self._engine.clock.elapsed_ns() + RETRY_NS
            log.error("a checkpoint could not be written, and the WAL grows until one can: %s", error)

    def close(self) -> None:
        """A last checkpoint that marks the stop as orderly. Nothing may be in flight any more."""
        store = self._store
        if self._read_only():
            return
        for topic in self._engine.topics.values():
            topic.ceiling.set(topic.log.head)
        capture = Capture(self._engine, store, store.last_lsn)
        while not capture.step(CAPTURE_TOPICS):
            pass
        self._publish(capture, clean=True)
        run_inline(store.jobs())
