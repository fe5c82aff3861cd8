"""Engine: every topic of one server, and the commands on them.

The engine is pure: it takes a Clock, a Store and commands, and answers. It knows no socket, no thread and no event
loop. One thread owns it, so there are no locks. A command that changes something takes effect in memory at once or
when its frame is committed, and submits a frame to the store. The driver calls `prepare` and then `turn` once per turn
of its loop, which writes all frames of the turn in one go. A caller that passes no `on_done` wants to wait: then the
engine drives itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from topics.clock import Clock
from topics.engine import config as configs
from topics.engine import listing, requests
from topics.engine.catalog import Catalog
from topics.engine.config import ConfigPatch, TopicConfig
from topics.engine.drops import Drops
from topics.engine.journal import Journal, OnDone, Ticket
from topics.engine.limits import Limits
from topics.engine.log.archive import Shelf
from topics.engine.log.difference import Difference, Window, read
from topics.engine.log.render import WITH_DATA, WITH_META, WITH_TAG, WireCache
from topics.engine.log.tags import parse_match
from topics.engine.promise import OnReceipt, Receipt
from topics.engine.queue.queue import Queue
from topics.engine.queue.queues import Queues
from topics.engine.router.routers import Routers
from topics.engine.slices import Slices, Work
from topics.engine.state import Deleted, DeletedTopic, PutTopic, TopicState, TopicSummary
from topics.engine.topic import Topic
from topics.engine.write import batch as batches
from topics.engine.write import removal, room
from topics.engine.write.arrival import append, append_together
from topics.engine.write.dedupe import Dedupe
from topics.engine.write.digest import UNKNOWN, of_batch
from topics.errors import InvalidRequest, TopicNotEmpty, TopicNotFound
from topics.names import check_topic_name
from topics.storage.job import Job, Miss, run_inline
from topics.storage.memory import MemoryStore
from topics.storage.store import Store
from topics.storage.wal import frame as frames

DIFF_LIMIT_DEFAULT: Final = 256
BATCH_BYTES_DEFAULT: Final = 1 << 20
BATCH_BYTES_MAX: Final = 8 << 20
FRAME_OVERHEAD_BYTES: Final = 64 << 10
UNBOUNDED: Final = 1 << 62


class Engine:
    """All topics, and the commands on them."""

    def __init__(
        self,
        clock: Clock,
        store: Store | MemoryStore | None = None,
        limits: Limits | None = None,
        *,
        shelf: Shelf | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`shelf` holds what leaves memory; `wake` asks the driver for a turn."""
        self.clock = clock
        self.store: Store | MemoryStore = MemoryStore() if store is None else store
        self.limits = Limits() if limits is None else limits
        self.journal = Journal(clock, self.store, wake)
        self.catalog = Catalog(self.journal, self.limits, shelf, Queue)
        self.topics = self.catalog.topics
        self.totals = self.catalog.totals
        self._unsealed = self.totals.unsealed
        self._unsealed_max = self.limits.max_unsealed_bytes or UNBOUNDED
        self.wires = WireCache()
        self.slices = Slices(clock, wake, self.read_then)
        self.routers = Routers(self.journal, self.catalog, self.run_until_idle)
        self.queues = Queues(
            self.journal, self.catalog, self.routers.lineage.link, self.write, self.run_until_idle, self.slices
        )
        self._drops = Drops()

    # Driving

    def turn(self) -> None:
        """Write what was submitted since the last turn, forward a slice of it, and hand out jobs."""
        schedule, passes, burials = self.routers.schedule, self.queues.passes, self.queues.burials
        if self.slices.active and self._slices_run:
            self.slices.step()
        self.journal.write()
        if (schedule.dirty or schedule.blocked) and not self.is_full:
            schedule.step()
        if passes.dirty or passes.due:
            passes.step()
        if burials.waiting:
            burials.step()
        if (schedule.dirty and self._forwards) or passes.dirty or (self.slices.active and self._slices_run):
            self.journal.wake()

    @property
    def is_full(self) -> bool:
        """Whether so much is not sealed yet that large writes, and copies that nobody waits for, have to wait."""
        return self._unsealed.bytes >= self._unsealed_max

    def unsealed_fill(self) -> float:
        """How much of its bound is not sealed yet: 1 where it is full."""
        return self._unsealed.bytes / self._unsealed_max

    @property
    def _forwards(self) -> bool:
        """Whether copies are to be made, and there is room for them; the job that makes room asks for a turn."""
        return bool(self.routers.schedule.dirty) and not self.is_full

    @property
    def _slices_run(self) -> bool:
        """Whether a long command goes on: it may make copies, and where memory is full they wait for the sealer."""
        return bool(self.slices.active) and (not self.is_full or self.store.is_full)

    def read_then(self, miss: Miss, then: Callable[[], None]) -> None:
        """Have what is missing read by a job of the next turn, then call `then`, whether or not that succeeded."""
        assert self.catalog.shelf is not None, "only what is on a shelf has to be read"
        self.catalog.shelf.read_then(miss, then)

    def prepare(self) -> None:
        """Submit the acks that were gathered for this turn; comes once before each `turn`."""
        if self.queues.acks.waiting:
            self.queues.acks.apply_all()

    def run_until_idle(self) -> None:
        """Drive the engine and its store here and now until nothing waits any more."""
        busy = True
        while busy:
            self.prepare()
            self.turn()
            if self.slices.active:
                # Nobody seals here.
                self.slices.step()
            busy = (
                bool(run_inline(self.store.jobs()))
                or self._forwards
                or bool(self.queues.passes.dirty)
                or self.queues.burials.is_due()
                or bool(self.slices.active)
                or self.store.pending
            )

    def next_due_ns(self) -> int | None:
        """The `clock.elapsed_ns()` at which a turn will next have something to do by time alone, or None."""
        due_ns = self.store.next_due_ns()
        schedule, passes, burials = self.routers.schedule, self.queues.passes, self.queues.burials
        if not (schedule.blocked or passes.due or burials.waiting):
            return due_ns
        # Where memory is full, copies wait for a job and not for a time.
        forwards_ms = None if self.is_full else schedule.next_due_ms()
        for due_ms in (forwards_ms, passes.next_due_ms(), burials.next_due_ms()):
            if due_ms is not None:
                ns = self.clock.elapsed_ns() + (due_ms - self.clock.steady_ms()) * 1_000_000
                due_ns = ns if due_ns is None else min(due_ns, ns)
        return due_ns

    # Topics

    def topic(self, name: str) -> Topic:
        """The topic of this name; raises TopicNotFound."""
        topic = self.topics.get(name)
        if topic is None:
            return self.catalog.topic(name)
        return self.queues.apply_acks(topic)

    def put_topic(
        self, name: str, patch: ConfigPatch, on_done: OnReceipt | None = None, context: Any = None
    ) -> Receipt:
        """Create a topic or change its config (TOPIC-4, TOPIC-6); the result is a PutTopic."""
        check_topic_name(name)
        topic = self.topics.get(name)
        if topic is None:
            config = configs.apply(patch, None, name)
            receipt = Receipt(None, on_done, context)
            self.catalog.create(name, config, receipt)
            receipt.result = PutTopic(topic=name, created=True, config=config)
            return receipt.waited(self.run_until_idle)
        config = configs.apply(patch, self.queues.apply_acks(topic).config, name)
        receipt = Receipt(PutTopic(topic=name, created=False, config=config), on_done, context)
        if config == topic.config:
            receipt.follow(topic.last_config)
            return receipt.waited(self.run_until_idle)
        topic.expire(self.clock.now_ms())
        if topic.inbound is not None:
            topic.inbound.catch_up()
            topic.inbound.mark(leaves=config.durability)
        if topic.outbound is not None and config.durability != topic.config.durability:
            # What the old class does not keep, the new one cannot report as missing: the copies can.
            topic.outbound.mark()
        payload = frames.Config(
            msgspec.json.encode(config), self.clock.now_ms(), topic.next_seq - 1, bound_head=topic.log.head
        )
        topic.config_lsn = self.journal.submit_twice(topic, frames.CONFIG, payload, receipt)
        topic.last_config = topic.last_change = receipt
        if config.durability == "ephemeral" != topic.config.durability:
            topic.unkept.doubt(topic.next_seq - 1)
        topic.configure(config, payload.ts)
        self.queues.passes.stir(topic)
        return receipt.waited(self.run_until_idle)

    def state(self, name: str, touch: bool = True) -> TopicState:
        """The state of a topic right now (TOPIC-15)."""
        topic = self.topic(name)
        topic.catch_up()
        now = self.clock.now_ms()
        topic.expire(now)
        if touch:
            topic.touch(now)
        log = topic.log
        return TopicState(
            topic=name,
            type=topic.config.type,
            head_seq=log.head,
            earliest_seq=log.start,
            next_seq=log.head + 1,
            count=log.count,
            bytes=log.bytes,
            config=topic.config,
            effective_priority=topic.effective_priority(now),
            last_write_ts=topic.last_write_ts,
            last_read_ts=topic.last_read_ts,
            erased_before_ts=topic.erased_before(now),
            queue=msgspec.UNSET if topic.queue is None else self.queues.state(topic),
        )

    def list_topics(
        self,
        prefix: str = "",
        after: str = "",
        page_size: int = 100,
        allowed: tuple[str, ...] = (),
        touch: bool = False,
    ) -> tuple[list[TopicSummary], str | None]:
        """A page of topics after the name `after`, and the name to continue from if there are more (TOPIC-19)."""
        self.queues.acks.apply_all()
        return listing.page(self.catalog, prefix, after, page_size, allowed, self.clock.now_ms(), touch=touch)

    def delete_topic(
        self, name: str, if_empty: bool = False, on_done: OnReceipt | None = None, context: Any = None
    ) -> Receipt:
        """Remove a topic and all it holds for good (TOPIC-20); the result is a DeletedTopic."""
        check_topic_name(name)
        topic = self.topics.get(name)
        if topic is None:
            receipt = Receipt(DeletedTopic(topic=name, deleted=False, routers_removed=[]), on_done, context)
            receipt.follow(self._drops.last(name))
            return receipt.waited(self.run_until_idle)
        self.queues.apply_acks(topic).catch_up()
        topic.expire(self.clock.now_ms())
        _check_empty(topic, if_empty)
        receipt = Receipt(None, on_done, context)
        self.slices.start(self._drop(topic, if_empty, receipt), receipt)
        return receipt.waited(self.run_until_idle)

    def _drop(self, topic: Topic, if_empty: bool, receipt: Receipt) -> Work:
        name = topic.name
        if topic.outbound is not None:
            # What is written from here on goes with the topic, and may be copied or not.
            yield from topic.outbound.catching_up(topic.log.head)
        if not topic.deleted:
            _check_empty(topic, if_empty)
            # A topic that has to be empty gets no chance to be otherwise.
            yield from self.routers.cascade(topic, at_once=if_empty)
        if topic.deleted:
            receipt.result = DeletedTopic(topic=name, deleted=False, routers_removed=[])
            receipt.follow(self._drops.last(name))
            return
        removed = self.routers.forget(topic)
        receipt.result = DeletedTopic(topic=name, deleted=True, routers_removed=removed)
        drop = frames.Drop(self.clock.now_ms())
        self.journal.submit_twice(topic, frames.DROP, drop, receipt)
        self._drops.add(name, receipt)
        leaving = self.catalog.leaving(topic)
        next(leaving)
        topic.notify()
        yield from leaving

    # Writing

    def write(self, name: str, write: requests.Write, on_done: OnDone | None = None, context: Any = None) -> Ticket:
        """Append records (WRITE-1); `on_done` is called with the ticket once it is committed, failed, or a repeat."""
        topic = self.topics.get(name)
        unsealed = self._unsealed.bytes + self.totals.pending_bytes
        if unsealed >= self._unsealed_max:
            room.check_memory(topic, unsealed, self._unsealed_max, write)
        if topic is not None and topic.outbound is not None:
            room.check_copies(topic)
        batch = batches.check(write, self.limits)
        if batch.draft is not None:
            room.check_large(topic, unsealed, self._unsealed_max, batch.size_bytes)
        n = len(batch.datas)
        now = self.clock.now_ms()
        created: Receipt | None = None
        if topic is None:
            config = self._config_for_create(name, write)
            room.check_head(name, 0, write)
            room.check_fits(config, n, batch.size_bytes)
            self.catalog.check_quota(None, n, batch.size_bytes, now)
            Dedupe(self.totals).check(write.idempotency_key, write.producer_id, now, self.limits)
            created = Receipt()
            topic = self.catalog.create(name, config, created)
        else:
            if write.idempotency_key is not None or write.producer_id is not None:
                repeat = self._repeat(topic, write, batch, on_done, context)
                if repeat is not None:
                    return repeat
            if write.expected_head_seq is not None:
                room.check_head(name, topic.next_seq - 1, write)
            if topic.config.discard == "reject":
                room.check_topic(self.queues.apply_acks(topic), n, batch.size_bytes, now)
            if self.limits.max_total_bytes:
                self.queues.acks.apply_all()
                self.catalog.check_quota(topic, n, batch.size_bytes, now)
        ticket = append(self.journal, topic, batch, now, write, created, on_done, context)
        if on_done is None:
            self.run_until_idle()
            if ticket.error is not None:
                raise ticket.error
        return ticket

    def expect_job(self, name: str, size_bytes: int) -> Job | None:
        """What makes the log ready for a large write to a topic, off the loop; None where there is nothing to do."""
        topic = self.topics.get(name)
        shard = self.store.shards[0] if topic is None else self.store.shard_of(topic.id)
        return shard.expect_job(size_bytes + FRAME_OVERHEAD_BYTES)

    def joins(self, name: str, write: requests.Write) -> bool:
        """Whether a write may be one of several in `write_together`: one record, and nothing special asked."""
        if write.idempotency_key is not None or write.producer_id is not None or len(write.records) != 1:
            return False
        topic = self.topics.get(name)
        if topic is None or topic.config.discard == "reject" or self.limits.max_total_bytes:
            return False
        only = write.records[0]
        plain = write.expected_head_seq is None and write.producer_seq is None
        return plain and only.delay_ms is None and only.deliver_at is None

    def write_together(self, name: str, writes: Sequence[tuple[requests.Write, OnDone, Any]]) -> None:
        """Append writes that `joins` accepted, each with callback and context; raises, and changes nothing, if full."""
        topic = self.topics[name]
        if self._unsealed.bytes + self.totals.pending_bytes >= self._unsealed_max:
            for write, _, _ in writes:
                room.check_memory(topic, self._unsealed.bytes + self.totals.pending_bytes, self._unsealed_max, write)
        if topic.outbound is not None:
            room.check_copies(topic)
        append_together(self.journal, self.limits, topic, writes)

    def _config_for_create(self, name: str, write: requests.Write) -> TopicConfig:
        check_topic_name(name)
        config = configs.apply(write.config or configs.NO_PATCH, None, name)
        if not (config.auto_create if write.create is None else write.create):
            raise TopicNotFound(f'topic "{name}" does not exist and this write may not create it', topic=name)
        return config

    def _repeat(
        self, topic: Topic, write: requests.Write, batch: batches.Batch, on_done: OnDone | None, context: Any
    ) -> Ticket | None:
        """The answer to a write that was seen before, or None; raises Throttled where it cannot be remembered."""
        dedupe = topic.dedupe or Dedupe(self.totals)
        window_ms, now = topic.config.idempotency_window_ms, self.clock.steady_ms()
        found = dedupe.find(write.idempotency_key, write.producer_id, write.producer_seq, now, window_ms)
        if found is None:
            dedupe.check(write.idempotency_key, write.producer_id, now, self.limits)
            return None
        ticket = Ticket(topic, on_done, context)
        ticket.deduped = True
        ticket.first_seq = found.first_seq
        ticket.count = found.count
        key = write.idempotency_key
        if key is not None and found.digest != UNKNOWN and dedupe.keys.get(key) is found:
            ticket.key_reused = found.digest != of_batch(batch)
        ticket.follow(found.ticket)
        if on_done is None:
            self.run_until_idle()
        return ticket

    # Reading

    def diff(self, name: str, diff: requests.Diff) -> Difference:
        """The records after a cursor (the READ rules)."""
        topic = self.topic(name)
        topic.catch_up()
        now = self.clock.now_ms()
        topic.touch(now)
        return self.read(topic, self.cursor(topic, diff), self.window(topic, diff))

    def read(self, topic: Topic, from_seq: int, window: Window) -> Difference:
        """What comes after a cursor now. Raises Miss where a sealed Block has to be read from disk first."""
        topic.expire(self.clock.now_ms())
        return topic.reading(read, topic.log, self.wires, from_seq, window)

    def window(self, topic: Topic, diff: requests.Diff) -> Window:
        """What a diff asks for, clamped to the limits."""
        fields = WITH_DATA | (WITH_TAG if diff.include_tags else 0) | (WITH_META if diff.include_meta else 0)
        nodes: frozenset[bytes] | tuple[()] = ()
        if diff.node is not None and topic.config.dedupe_node:
            nodes = frozenset(map(str.encode, [diff.node] if isinstance(diff.node, str) else diff.node))
        match = None if diff.match is None else parse_match(diff.match)
        limit = min(diff.limit or DIFF_LIMIT_DEFAULT, self.limits.max_limit)
        return Window(limit, min(diff.max_batch_bytes or BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX), fields, nodes, match)

    @staticmethod
    def cursor(topic: Topic, diff: requests.Diff) -> int:
        """Where a diff starts: after `from_seq`, or before the first record with a `$ts` of at least `from_ts`."""
        if diff.from_ts is None:
            return diff.from_seq
        return max(diff.from_seq, topic.cursor_at_ts(diff.from_ts))

    # Deleting

    def delete(
        self, name: str, delete: requests.Delete, on_done: OnReceipt | None = None, context: Any = None
    ) -> Receipt:
        """Delete records for good, by seq, by tag, or both (the DELETE rules); the result is a Deleted."""
        if delete.before_seq is None and delete.match is None:
            raise InvalidRequest("say what to delete: before_seq, match, or both", field="before_seq")
        match = None if delete.match is None else parse_match(delete.match)
        topic = self.topic(name)
        topic.catch_up()
        now = self.clock.now_ms()
        topic.expire(now)
        log = topic.log
        before_seq = log.head + 1 if delete.before_seq is None else min(delete.before_seq, log.head + 1)
        receipt = Receipt(None, on_done, context)

        def done(deleted: int) -> None:
            dry_run = delete.dry_run or msgspec.UNSET
            receipt.result = Deleted(name, deleted, log.start, log.head, log.count, log.bytes, dry_run)

        if not delete.dry_run:
            work = removal.delete(self.journal, topic, before_seq, match, receipt, self.queues.apply_acks, done)
        elif match is not None:
            work = removal.count(topic, before_seq, match, receipt, done)
        else:
            raise InvalidRequest("a dry run counts the records of a match: name one", field="match")
        self.slices.start(self.queues.passes.after(topic, work), receipt)
        return receipt.waited(self.run_until_idle)


def _check_empty(topic: Topic, if_empty: bool) -> None:
    count = topic.log.count + topic.pending_records
    if if_empty and count:
        raise TopicNotEmpty(f'topic "{topic.name}" holds {count} records', topic=topic.name, count=count)
