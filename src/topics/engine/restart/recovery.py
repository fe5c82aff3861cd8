"""Recovery: from what a data directory holds to an engine that goes on where the last one stopped (the DURABLE rules).

The storage yields events in order (storage/history.py); this applies them. Rules:

1. An append is applied once: seqs that the checkpoint already holds are skipped.
2. A jump in a topic's seqs is a loss, and so is everything that damage names: both become lost ranges, never silence.
   Everything after the damage is kept.
3. Config changes act at the time they were made, so retention decides as it did then.
4. After a loss of power, a `disk` topic goes on above its durable ceiling: seqs that may have been acked are never
   handed out again, and the range between is a lost range (`given_up`, which goes into the WAL before anything else, so
   that the next start knows it too). After the death of the process alone nothing is missing (DURABLE-3).
5. An `ephemeral` topic keeps its config and its head; its records are gone, and reported as lost.
6. Where every copy of a topic's name and config is damaged, what is left of its records is kept under a name made of
   its id, with everything before and between reported as lost. How far its seqs went, only records of later frames
   tell; where there are none, it goes on above all that it may have handed out since its last record, and that range
   is lost too (`given_up`, as in 4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from topics.engine.config import TopicConfig
from topics.engine.engine import Engine
from topics.engine.log.loss import CORRUPTION, CRASH, RESTART, LostRange
from topics.engine.queue.queue import queue_of
from topics.engine.restart.awaiting_caps import AwaitingCaps
from topics.engine.restart.checkpoint import LEASES_SECTION, decode_extra
from topics.engine.restart.derivation import Derivation
from topics.engine.restart.restored import jump_after
from topics.engine.restart.routers import ROUTERS_SECTION
from topics.engine.topic import Topic
from topics.engine.write.dedupe import Dedupe, Remembered
from topics.engine.write.digest import UNKNOWN, of_block
from topics.engine.write.extra import decode as decode_append_extra
from topics.storage.block import Block, Extent
from topics.storage.damage import Corrupt
from topics.storage.history import Event, Started, TopicLoaded, TopicsNameless
from topics.storage.segment.format import SegmentRef
from topics.storage.segment.loading import Loaded
from topics.storage.snapshot.reader import SectionLoaded
from topics.storage.splice import cut
from topics.storage.wal import frame as frames
from topics.storage.wal.reader import Appended, Control, Damaged

log = logging.getLogger("topics.recovery")

NAMELESS: Final = "recovered-topic-{}"

_decode_config = msgspec.json.Decoder(TopicConfig).decode


OpenSegments = Callable[[int, list[SegmentRef]], Loaded]


class Recovery:
    """Applies the events of one data directory to an empty engine."""

    def __init__(self, engine: Engine, open_segments: OpenSegments) -> None:
        self._engine = engine
        self._open_segments = open_segments
        self._by_id: dict[int, Topic] = {}
        self._caps = AwaitingCaps()
        self._derivation = Derivation(engine, self._by_id, self._caps, self._apply_as_it_is)
        self._clean = False
        # (topic id, first, last) of what a loss of power has taken, beyond what the WAL says itself.
        self.given_up: list[tuple[int, int, int]] = []
        # Whether frames that were not synced may be missing: known at the end.
        self.lost_power = False
        self._nameless: set[int] = set()
        # Of those, the ones with a head that nothing tells so far.
        self._headless: set[int] = set()
        # Whether seqs were missing between two records of a topic, with nothing to explain it.
        self.jumped = False
        # The topics that the WAL had records of.
        self._seen: set[int] = set()

    def run(self, events: Iterator[Event], lost_power: Callable[[], bool]) -> Iterator[None]:
        """Apply everything; yields after each event, so that a caller may do other things in between.

        `lost_power` is called at the end: whether the power was lost since the last frame.
        """
        for event in events:
            self.apply(event)
            yield
        self._finish(lost_power())

    def apply(self, event: Event) -> None:
        """Apply one event."""
        if isinstance(event, Appended | Control):
            self._clean = False
            if self._headless:
                self._note_heads(event)
            self._derivation.take(event)
        elif isinstance(event, TopicLoaded):
            self._load(event)
        elif isinstance(event, TopicsNameless):
            self._load_nameless(event)
        elif isinstance(event, Damaged):
            self._damage(event)
        elif isinstance(event, Started):
            if event.header is not None:
                self._clean = event.header.clean
                catalog = self._engine.catalog
                catalog.next_topic_id = max(catalog.next_topic_id, event.header.next_topic_id)
        else:
            assert isinstance(event, SectionLoaded)
            if event.kind == ROUTERS_SECTION:
                self._derivation.routers.restore(event.payload)
            elif event.kind == LEASES_SECTION:
                self._load_leases(event)
            else:
                log.error("a section of kind %d is unknown to this program and was ignored", event.kind)

    def _apply_as_it_is(self, event: Appended | Control) -> None:
        if isinstance(event, Appended):
            self._append(event)
        else:
            self._control(event)

    def _load(self, event: TopicLoaded) -> None:
        state = event.image
        extra = decode_extra(state.extra)
        topic = self._new(state.id, state.name, _decode_config(state.config), state.created_ts)
        topic.last_ts = state.last_ts
        topic.last_write_ts = extra.last_write_ts
        topic.ceiling.set(state.ceiling)
        topic.config_lsn = extra.config_lsn
        if extra.erased_ts:
            topic.erasure.erased(extra.erased_gone, extra.erased_ts)
        self._derivation.load(topic, extra.taken_lsn, extra.forward)
        queue = queue_of(topic)
        if queue is not None and extra.queue and topic.config.durability != "ephemeral":
            self._engine.queues.dispatch.load(queue, extra.queue)
        if state.producers or state.dedupe:
            topic.dedupe = dedupe = Dedupe(self._engine.totals)
            # When a producer last wrote is not known: it counts from here.
            at_ms = self._engine.clock.steady_ms()
            for producer, seq in state.producers.items():
                dedupe.remember(None, producer, seq, Remembered(0, 0, 0, at_ms))
            # A snapshot of an earlier version has none.
            digests = [*state.digests, *([UNKNOWN] * len(state.dedupe))]
            for (key, first_seq, count, ts), digest in zip(state.dedupe, digests, strict=False):
                dedupe.remember(key, None, None, Remembered(first_seq, count, ts, self._past(ts), None, digest))
        sealed: list[Extent] = []
        damage: list[Corrupt] = []
        if state.segments:
            topic.archive.segments, damage = self._open_segments(topic.id, state.segments)
            damage += _check_first(topic, state.earliest_seq)
            sealed = [block for segment in topic.archive.segments for block in segment.blocks]
        log_ = topic.log
        log_.cap_evicted = extra.cap_evicted
        log_.ttl_expired = extra.ttl_expired
        log_.evicted_ts = extra.evicted_ts
        log_.lost = [LostRange(*lost) for lost in state.lost]
        if topic.config.durability == "ephemeral":
            log_.head = state.head_seq
            log_.start = state.head_seq + 1
            if extra.count:
                log_.lose(state.earliest_seq, state.head_seq, RESTART)
            return
        log_.restore([*sealed, *event.blocks], state.earliest_seq, state.head_seq)
        for block in event.blocks:
            topic.archive.index_block(block)
        for corrupt in damage:
            self._count(corrupt)
            if corrupt.lost.n:
                # Not the log's start, which has moved to the first record that could be read.
                first = max(corrupt.lost.first_seq, state.earliest_seq)
                self._lose(topic, first, corrupt.lost.first_seq + corrupt.lost.n - 1)
        if extra.tail_first:
            self._lose_holes(topic, extra.tail_first, event.blocks)

    def _load_leases(self, event: SectionLoaded) -> None:
        topic = self._by_id.get(event.topic_id)
        queue = None if topic is None else queue_of(topic)
        # Where the state of the topic is lost, it is a log.
        if queue is not None:
            self._engine.queues.dispatch.load_leases(queue, event.payload)

    def _count(self, corrupt: Corrupt) -> None:
        self._engine.totals.corruption_total += 1
        log.error("%s: corruption at offset %d, %d bytes", corrupt.path, corrupt.offset, corrupt.length)

    def _load_nameless(self, event: TopicsNameless) -> None:
        shelf = self._engine.catalog.shelf
        assert shelf is not None
        tails = dict(event.tails)
        if not event.complete:
            tails |= {id: [] for id in shelf.segments.loader.topic_ids() if id not in self._by_id and id not in tails}
        for id, tail in sorted(tails.items()):
            topic = self._new_nameless(id)
            self._headless.add(id)
            topic.archive.segments, damage = self._open_segments(id, shelf.segments.loader.refs(id))
            for corrupt in damage:
                self._count(corrupt)
            extents: list[Extent] = [sealed for segment in topic.archive.segments for sealed in segment.blocks]
            sealed_to = extents[-1].last_seq if extents else 0
            # What was sealed while the checkpoint was made is there twice.
            kept = [block for block in tail if block.first_seq > sealed_to]
            extents += kept
            head = extents[-1].last_seq if extents else 0
            topic.log.restore(extents, extents[0].first_seq if extents else 1, head)
            topic.last_ts = extents[-1].last_ts if extents else 0
            for block in kept:
                topic.archive.index_block(block)
            self._lose_holes(topic, 1, extents)

    def _note_heads(self, event: Appended | Control) -> None:
        """What an event tells of topics with heads that are not known: a write, or how an earlier start went on."""
        if isinstance(event, Appended):
            # Copies and dead letters may have come after a write that says its place among such.
            if not any(decode_append_extra(data).position is not None for _, _, data in event.extras):
                self._headless.discard(event.topic_id)
        elif event.kind == frames.LOST:
            self._headless.difference_update(topic_id for topic_id, _, _ in event.payload.ranges)

    def _new_nameless(self, id: int) -> Topic:
        """A topic of which only the id is known."""
        name = NAMELESS.format(id)
        while name in self._engine.topics:
            name += "x"
        self._nameless.add(id)
        self._derivation.routers.strangers.add(id)
        return self._new(id, name, TopicConfig(durability="fsync"), self._engine.clock.now_ms())

    def _lose_holes(self, topic: Topic, expected: int, tail: Sequence[Extent]) -> None:
        """Lose what is between `expected` and the head and is in none of these."""
        for block in tail:
            if block.first_seq > expected and not topic.log.lost_at(expected):
                self._lose(topic, expected, block.first_seq - 1)
            expected = max(expected, block.last_seq + 1)
        if expected <= topic.log.head and not topic.log.lost_at(topic.log.head):
            self._lose(topic, expected, topic.log.head)

    def _new(self, id: int, name: str, config: TopicConfig, created_ts: int) -> Topic:
        catalog = self._engine.catalog
        topic = self._by_id[id] = catalog.new(id, name, config, created_ts)
        named = catalog.topics.get(name)
        # A checkpoint may hold a topic while its predecessor of the same name is still to be replayed, up to its end.
        if named is None or named.id < id:
            catalog.enter(topic)
        catalog.next_topic_id = max(catalog.next_topic_id, id + 1)
        return topic

    def _append(self, event: Appended) -> None:
        topic = self._by_id.get(event.topic_id)
        if topic is None:
            if not self._engine.totals.corruption_total:
                # Its CREATE was lost with the power and was never acked; or its DROP follows.
                return
            topic = self._new_nameless(event.topic_id)
        block = event.block
        head = topic.log.head
        if block.last_seq <= head:
            return
        if block.first_seq <= head:
            block = cut(block, head + 1 - block.first_seq, block.n)
        elif block.first_seq > head + 1:
            self.jumped = True
            self._lose(topic, head + 1, block.first_seq - 1)
        self._seen.add(topic.id)
        self._caps.adopt(topic, block)
        for first_seq, n, data in event.extras:
            if first_seq > head:
                self._remember(topic, first_seq, n, data, block)

    def _past(self, ts: int) -> int:
        """When something was that is dated `ts`, on the steady scale: now, where the clock was set back since."""
        clock = self._engine.clock
        return clock.steady_ms() + min(0, ts - clock.now_ms())

    def _remember(self, topic: Topic, first_seq: int, n: int, data: bytes, block: Block) -> None:
        extra, at = decode_append_extra(data), first_seq - block.first_seq
        ts, digest = block.ts_at(at), UNKNOWN if extra.idempotency_key is None else of_block(block, at, n)
        if topic.dedupe is None:
            topic.dedupe = Dedupe(self._engine.totals)
        write = Remembered(first_seq, n, ts, self._past(ts), None, digest)
        topic.dedupe.remember(extra.idempotency_key, extra.producer_id, extra.producer_seq, write)

    def _control(self, event: Control) -> None:
        kind, payload = event.kind, event.payload
        topic = self._by_id.get(event.topic_id)
        if kind == frames.CREATE:
            if topic is None:
                topic = self._new(event.topic_id, payload.name, _decode_config(payload.config), payload.ts)
                topic.config_lsn = event.lsn
            return
        if topic is None and event.topic_id != 0:
            return
        if kind == frames.CONFIG:
            assert topic is not None
            if event.lsn > topic.config_lsn:
                self._caps.apply(topic, payload.bound_head)
                if topic.config.durability != "fsync":
                    # Seqs that the old class may have shown and did not keep: the new class cannot report them.
                    self._lose(topic, topic.log.head + 1, payload.head_seq, CRASH)
                config = _decode_config(payload.config)
                self._caps.reconfigure(topic, config, payload.ts, payload.bound_head)
                topic.config_lsn = event.lsn
        elif kind == frames.DROP:
            assert topic is not None
            del self._by_id[topic.id]
            self._nameless.discard(topic.id)
            self._engine.catalog.leave(topic)
        elif kind == frames.DELETE:
            assert topic is not None
            self._caps.apply(topic, payload.bound_head)
            _delete(topic, payload)
        elif kind == frames.CEILING:
            assert topic is not None
            topic.ceiling.set(max(topic.ceiling.seq, payload.seq))
        elif kind == frames.HEADS:
            for topic_id, head in payload.heads:
                topic = self._by_id.get(topic_id)
                if topic is not None and topic.log.head < head and not self._derivation.waits(topic):
                    self._engine.totals.corruption_total += 1
                    self._lose(topic, topic.log.head + 1, head)
        elif kind == frames.LEASE:
            self._engine.queues.dispatch.restore(topic, payload)
        else:
            log.error("a frame of kind %d is unknown to this program and was ignored", kind)

    def _damage(self, event: Damaged) -> None:
        if event.reason == "torn":
            log.warning(
                "%s: the last write was cut off at offset %d; its %d bytes are set aside in %s",
                event.path, event.offset, event.length, event.quarantined or "nothing",
            )  # fmt: skip
            return
        self._engine.totals.corruption_total += 1
        log.error(
            "%s: corruption at offset %d, %d bytes, kept in %s; lost: %s",
            event.path, event.offset, event.length, event.quarantined or "nothing",
            [tuple(lost) for lost in event.lost] or [tuple(frame) for frame in event.lost_frames] or "unknown",
        )  # fmt: skip
        for topic_id, first_seq, n in event.lost:
            topic = self._by_id.get(topic_id)
            if topic is not None and self._derivation.lose(topic, first_seq, n, event.lsn):
                continue
            if topic is not None and first_seq + n - 1 > topic.log.head:
                if first_seq > topic.log.head + 1:
                    self._lose(topic, topic.log.head + 1, first_seq - 1)
                self._lose(topic, max(first_seq, topic.log.head + 1), first_seq + n - 1)
            elif topic is not None and not topic.log.holds(first_seq):
                self._lose(topic, first_seq, first_seq + n - 1)

    def heads(self) -> list[tuple[int, int]]:
        """The (id, head) of topics with their last records only in the WAL; copies follow from their sources."""
        return [
            (topic.id, topic.log.head)
            for id, topic in sorted(self._by_id.items())
            if (id in self._seen or topic.letters) and topic.inbound is None and topic.config.durability != "ephemeral"
        ]

    @staticmethod
    def _lose(topic: Topic, first: int, last: int, reason: str = CORRUPTION) -> None:
        first = max(first, topic.log.evict_floor)
        if first <= last:
            log.error("topic %s: records %d to %d are lost (%s)", topic.name, first, last, reason)
            topic.log.lose(first, last, reason)

    def _finish(self, lost_power: bool) -> None:
        now = self._engine.clock.now_ms()
        self.lost_power = powerless = lost_power and not self._clean

        def lose_tail(topic: Topic) -> None:
            head, last, reason = topic.log.head, topic.ceiling.seq, CRASH
            if topic.id in self._headless:
                last, reason = head + jump_after(now - topic.last_ts), CORRUPTION
            elif not powerless or topic.config.durability != "disk":
                return
            if last > head:
                self._lose(topic, head + 1, last, reason)
                self.given_up.append((topic.id, head + 1, last))

        self._derivation.complete(lose_tail, powerless, rest=not self._clean)
        for topic in [topic for topic in self._by_id.values() if self._engine.topics.get(topic.name) is not topic]:
            del self._by_id[topic.id]
            self._engine.catalog.leave(topic)
        for topic in self._by_id.values():
            topic.next_seq = topic.log.head + 1
            self._caps.apply(topic)
            topic.expire(now)
            topic.archive.drop_dead(1, topic.log.head)
        for topic in [self._by_id[id] for id in sorted(self._nameless & self._by_id.keys())]:
            log.error("the name of topic %d is lost; its %d records are in %s", topic.id, topic.log.count, topic.name)
        self._derivation.finish()
        for topic in self._engine.topics.values():
            queue = queue_of(topic)
            if queue is not None:
                self._engine.queues.burials.resume(topic, queue)


def _check_first(topic: Topic, start: int) -> list[Corrupt]:
    """The damage to the sealed Block in which the log begins: only its content tells how much of it is left."""
    for segment in topic.archive.segments:
        for sealed in segment.blocks:
            if sealed.first_seq < start <= sealed.last_seq and sealed.live:
                try:
                    sealed.size_bytes(0, 1)
                except Corrupt as corrupt:
                    segment.blocks.remove(sealed)
                    if not segment.blocks:
                        topic.archive.segments.remove(segment)
                    return [corrupt]
    return []


def _delete(topic: Topic, payload: frames.Deletion) -> None:
    """Delete what a frame says; a sealed Block that is found damaged has nothing left to delete."""
    log = topic.log

    def delete() -> None:
        log.raise_floors(*payload.evicted)
        if payload.before_seq:
            log.delete_below(payload.before_seq)
        log.delete_ranges(list(payload.runs()))

    topic.reading(delete)
