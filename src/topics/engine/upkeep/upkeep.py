"""Upkeep: what the engine does for its data directory besides serving: checkpoints, seals, relocation.

All of it happens off the path of any request: on the engine's thread in slices of at most about a millisecond, and in
jobs that wait for the disk elsewhere. `step` is called after every turn and at least once a second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from topics.engine.engine import Engine
from topics.engine.log.archive import SEGMENT_BYTES_MAX, SEGMENT_EVENTS_MAX
from topics.engine.restart.recovery import Recovery
from topics.engine.restart.routers import reached, resume
from topics.engine.topic import Topic
from topics.engine.upkeep.backups import Backups
from topics.engine.upkeep.checkpointer import Checkpointer
from topics.engine.upkeep.compactor import Compactor
from topics.engine.upkeep.eraser import Eraser
from topics.engine.upkeep.floors import Floors
from topics.engine.upkeep.merger import Merger
from topics.engine.upkeep.rewriter import Rewriter
from topics.engine.upkeep.sealer import Sealer
from topics.engine.upkeep.survey import Survey
from topics.engine.upkeep.timing import Timing
from topics.errors import TopicsError
from topics.storage.job import Miss
from topics.storage.store import Store
from topics.storage.wal import frame as frames

log = logging.getLogger("topics.upkeep")

ROUND_TOPICS: Final = 500
ROUND_CHECK_TOPICS: Final = 16
ROUND_SLICE_NS: Final = 500_000
ROUND_NS: Final = 5_000_000_000
ROUND_TOPIC_NS: Final = 200_000
"""A round takes no less than this per topic, which is about a hundred times as long as a look at one."""
# A tail is written into a snapshot, and again into its segment before that snapshot can go.
TAIL_TIMES: Final = 2


class UpkeepSettings(Struct, frozen=True):
    """When to seal, to move and to checkpoint."""

    segment_max_events: int = SEGMENT_EVENTS_MAX
    segment_max_bytes: int = SEGMENT_BYTES_MAX
    segment_max_age_ms: int = 3_600_000
    hot_retain_segments: int = 4
    hot_retain_bytes: int = 0
    checkpoint_wal_bytes: int = 128 << 20
    max_unsealed_bytes: int = 200 << 20
    erase_after_ms: int = 86_400_000


class Upkeep:
    """The background work of one engine on one store."""

    def __init__(
        self, engine: Engine, store: Store, settings: UpkeepSettings | None = None, *, gather_ns: int = 0
    ) -> None:
        """`gather_ns` is how long a tail that is large enough waits for more before it is sealed."""
        self._engine = engine
        self._store = store
        self._settings = settings or UpkeepSettings()
        shelf = engine.catalog.shelf
        assert shelf is not None, "an engine with a data directory has a shelf"
        self._shelf = shelf
        self._sealer = Sealer(self._shelf, engine.clock, gather_ns)
        self._survey = Survey(
            engine.topics,
            shelf,
            engine.clock,
            engine.totals.unsealed,
            self._settings.max_unsealed_bytes,
            store,
        )
        self._round: Iterator[Topic] | None = None
        self._round_due_ns = 0
        self._relocating = False
        # What is to be erased is found in rounds.
        self._round_ns_max = self._settings.erase_after_ms * 1_000_000 // 8
        self._round_ns = min(ROUND_NS, self._round_ns_max)
        self._rewriter = Rewriter(engine.clock, self._shelf, store, engine.journal.wake)
        self._compactor = Compactor(self._shelf, self._rewriter)
        self._merger = Merger(self._shelf, self._survey, self._rewriter)
        self._eraser = Eraser(engine, self._rewriter, self._settings.erase_after_ms)
        self._floors = Floors(engine.journal, self._shelf)
        store.owed_bytes = lambda: TAIL_TIMES * engine.totals.unsealed.bytes
        self.backups = Backups(store, engine.clock, engine.journal.wake, self._settings.erase_after_ms)
        self._checkpointer = Checkpointer(
            engine, store, self._sealer, self._eraser, self.backups, self._settings.checkpoint_wal_bytes
        )

    @property
    def checkpoints(self) -> Timing:
        """How the checkpoints went."""
        return self._checkpointer.timing

    @property
    def seals(self) -> Timing:
        """How the jobs went that write segments."""
        return self._sealer.timing

    def recover(self) -> Iterator[None]:
        """Take over what the data directory holds, then open it for writing; yields between events."""
        engine, store = self._engine, self._store
        recovery = Recovery(engine, store.segments.loader.load)
        yield from recovery.run(store.recover(), lambda: store.history.lost_power)
        if recovery.jumped and store.history.one_boot:
            # There was no loss of power that could have taken what is missing.
            engine.totals.corruption_total = max(1, engine.totals.corruption_total)
        intact = not engine.totals.corruption_total
        swept = store.segments.loader.sweep(intact=intact)
        if swept and intact:
            log.info("removed %d files that no checkpoint lists: their records are in the log", len(swept))
        for name in [] if intact else swept:
            log.error("kept %s, which no checkpoint lists", name)
        store.start()
        self._log_losses(recovery.given_up, recovery.lost_power)
        self._log_heads(recovery.heads())
        for topic in engine.topics.values():
            # The log may have deleted what was left in a segment.
            topic.archive.drop_dead(0, topic.log.head)
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
        sealer, survey = self._sealer, self._survey
        more = not sealer.waits and survey.step(sealer.held_bytes)
        more = sealer.step(at_once=survey.is_short) or more
        self._compactor.step()
        more = self._rewriter.step() or more
        more = self._eraser.step() or more
        # After the eraser, which has a time to keep: whoever comes first has the rewriter.
        more = self._merger.step() or more
        now_ns = self._engine.clock.elapsed_ns()
        if now_ns >= self._round_due_ns:
            round_ns = min(ROUND_TOPIC_NS * len(self._engine.topics), self._round_ns_max)
            self._round_due_ns = now_ns + max(self._round_ns, round_ns)
            self._eraser.look_at_deleted(self._engine.clock.now_ms())
            self._round = iter(list(self._engine.topics.values()))
        if self._round is not None:
            more = self._look_round() or more
        # After the round, which expires what nobody reads.
        more = self._floors.step() or more
        more = self._checkpointer.step() or more
        self.backups.step()
        return more

    def _look_round(self) -> bool:
        """Seal what is old and move what is beyond the hot tier, some topics per slice; returns whether more remain."""
        assert self._round is not None
        clock = self._engine.clock
        now_ms, until_ns = clock.now_ms(), clock.elapsed_ns() + ROUND_SLICE_NS
        oldest_ts = now_ms - self._settings.segment_max_age_ms
        for i in range(ROUND_TOPICS):
            if i % ROUND_CHECK_TOPICS == ROUND_CHECK_TOPICS - 1 and clock.elapsed_ns() >= until_ns:
                break
            topic = next(self._round, None)
            if topic is None:
                self._round = None
                return False
            self._expire(topic, now_ms)
            self._eraser.look(topic, now_ms)
            tail = topic.log.tail_first()
            if tail is not None and tail.first_ts < oldest_ts:
                self._shelf.ask(topic)
            if topic.archive.segments and not self._relocating:
                self._relocate(topic)
            self._compactor.look(topic)
            self._merger.look(topic)
            if topic.dedupe is not None:
                topic.dedupe.expire(self._engine.clock.steady_ms(), topic.config.idempotency_window_ms)
        return True

    @staticmethod
    def _expire(topic: Topic, now_ms: int) -> None:
        """Apply the TTL where nobody reads; what has to be read for it is there in the next round."""
        if topic.config.ttl_ms:
            try:
                topic.expire_or_fail(now_ms)
            except Miss as miss:
                topic.read_then(miss, lambda: None)
            except TopicsError as error:
                log.warning("topic %s: expiring waits: %s", topic.name, error)

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

    def checkpoint(self) -> None:
        """Begin a checkpoint: once everything written up to now is synced, it is captured."""
        self._checkpointer.begin()

    def close(self) -> None:
        """A last checkpoint that marks the stop as orderly. Nothing may be in flight any more."""
        self.backups.close()
        self._checkpointer.close()
