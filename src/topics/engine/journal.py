"""Journal: the one way by which frames get into the WAL, and the one rule for which of them wait for a sync.

A frame is queued in its topic's shard, and a turn is asked for that writes it. What only logs a change takes a Journal
and needs no engine. `submit` raises before it takes anything, so a caller changes its own state after the call.

A `Ticket` is one write on its way from its seqs to its ack. The seqs are assigned when the ticket is made, in the same
step that puts the frame into the WAL's queue, so seq order and WAL order cannot disagree. The records become visible
when the WAL calls `commit`, because the write is as safe as its topic's class asks; after `fail` none of them does.

The ceiling of a `disk` topic (write/ceiling.py) is raised here, before its seqs reach it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from topics.clock import Clock
from topics.engine.config import TopicConfig
from topics.engine.log.log import Log
from topics.engine.promise import Promise, Receipt
from topics.engine.write.ceiling import Ceiling
from topics.engine.write.dedupe import Remembered
from topics.errors import RETRY_AFTER_MS, TopicsError
from topics.storage.block import Block
from topics.storage.memory import MemoryShard, MemoryStore
from topics.storage.store import Store
from topics.storage.wal import frame as frames
from topics.storage.wal.shard import QueueFull, Shard

CEILING_STEP_MAX: Final = 1 << 20

OnDone = Callable[["Ticket"], None]


class Target(Protocol):
    """The topic that a frame is about, as far as the journal, a ticket and its answer need it."""

    id: int
    config: TopicConfig
    log: Log
    next_seq: int
    ceiling: Ceiling
    shard: Shard | MemoryShard | None
    """Where its frames go, once there was one."""
    last_ticket: Ticket | None
    """The last write that is not visible yet."""
    last_config: Receipt | None
    """The last config, which may be on its way to the disk."""

    def publish(self, ticket: Ticket) -> None:
        """Make a committed write visible."""

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a write that failed."""


class Ticket(Promise):
    """What a write answers with, complete once `done`."""

    __slots__ = (
        "apart",
        "before",
        "block",
        "count",
        "created",
        "deduped",
        "first_seq",
        "gated",
        "head_seq",
        "key_reused",
        "remembered",
        "tags",
        "topic",
    )

    def __init__(self, topic: Target, on_done: OnDone | None, context: Any) -> None:
        self.on_done = on_done
        self.context = context
        self.done = False
        self.error = None
        self.write_ns = 0
        self.sync_ns = 0
        self.followers = None
        self.topic = topic
        self.block: Block | None = None
        self.tags: list[bytes | None] | None = None
        self.first_seq = 0
        self.count = 0
        self.head_seq = 0
        self.created = False
        self.deduped = False
        self.key_reused = False
        self.gated = False
        self.remembered: Remembered | None = None
        # Whether it waits for something other than its turn in the topic's own shard, as does everything after it:
        # then the order of the shard is not enough, and each names the one before it.
        self.apart = False
        self.before: Ticket | None = None

    @property
    def last_seq(self) -> int:
        """The seq of the write's last record."""
        return self.first_seq + self.count - 1

    def commit(self, write_ns: int, sync_ns: int) -> None:
        """The WAL holds the write as its class asks: publish it after the one before it, and answer."""
        if self.before is not None:
            before, self.before = self.before, None
            if not before.done:
                self.follow(before)
                return
        self.write_ns = write_ns
        self.sync_ns = sync_ns
        self.topic.publish(self)
        self._finish()

    def fail(self, error: TopicsError) -> None:
        """The WAL could not take the write: none of it becomes visible."""
        self.error = error
        self.topic.withdraw(self)
        self._finish()

    def _finish(self) -> None:
        self.done = True
        self.head_seq = self.topic.log.head
        if self.remembered is not None:
            self.remembered.ticket = None
        if self.on_done is not None:
            self.on_done(self)
        if self.followers is not None:
            self._release(self.followers)


class Journal:
    """The WAL as the engine writes it. `wake` asks the driver for a turn."""

    __slots__ = ("clock", "derived_bytes", "next_lsn", "store", "wake")

    def __init__(self, clock: Clock, store: Store | MemoryStore, wake: Callable[[], None]) -> None:
        self.clock = clock
        self.store = store
        self.wake = wake
        self.next_lsn = store.next_lsn
        # What a restart would have to make again since the last checkpoint although no frame says so, in the bytes of
        # WAL that it could read in the same time. Whoever derives records adds to it.
        self.derived_bytes = 0

    def write(self) -> None:
        """Hand everything that was submitted to the kernel, one write per shard, and commit what needs no sync."""
        for shard in self.store.shards:
            shard.write()

    def queued_bytes(self) -> int:
        """How much `write` would hand to the kernel now."""
        return sum([shard.unwritten_bytes for shard in self.store.shards])

    def submit(self, topic: Target, frame: frames.Frame, gated: bool, future: Promise | None) -> None:
        """Queue a frame about a topic, and ask for the turn that writes it. Raises where the WAL takes no more."""
        (topic.shard or self._choose_shard(topic)).submit(frame, gated, future)
        self.wake()

    def _choose_shard(self, topic: Target) -> Shard | MemoryShard:
        """The shard of a topic, which stays the same until the process ends."""
        topic.shard = self.store.shard_of(topic.id)
        return topic.shard

    def submit_twice(
        self, topic: Target, kind: int, payload: msgspec.Struct | bytes, future: Promise | None, gated: bool = True
    ) -> int:
        """Log what is nowhere else twice, so that no single damaged place can take it; returns the last lsn."""
        self.submit(topic, _frame(kind, self.next_lsn(), topic.id, payload), gated, future)
        lsn = self.next_lsn()
        # The change is on its way with the first; a queue that is too full for the second is no reason to take it back.
        with contextlib.suppress(TopicsError):
            (topic.shard or self._choose_shard(topic)).submit(_frame(kind, lsn, topic.id, payload), gated, None)
        return lsn

    def append(self, topic: Target, ticket: Ticket, block: Block, extra: bytes) -> None:
        """Log the Block of a write, in order with the topic's other writes: the ticket is its last one from here on."""
        first_seq, n = block.first_seq, block.n
        durability, ceiling = topic.config.durability, topic.ceiling
        last, config = topic.last_ticket, topic.last_config
        # The rule for what waits for its sync before it is shown.
        ticket.gated = gated = (
            durability == "fsync"
            # The class that the write counts on must be durable before the write is.
            or (config is not None and not config.done)
            # Records become visible in the order of their seqs, so a write after one that waits for its sync waits too.
            or (last is not None and last.gated)
            or (durability == "disk" and first_seq + n - 1 > ceiling.seq)
        )
        frame = frames.append(self.next_lsn(), topic.id, first_seq, n, block.raw, extra)
        (topic.shard or self._choose_shard(topic)).submit(frame, gated, ticket)
        if last is not None and last.apart:
            ticket.apart, ticket.before = True, last
        topic.last_ticket = ticket
        next_seq = first_seq + n
        if durability == "disk" and next_seq + ceiling.step // 4 > ceiling.asked:
            self._raise_ceiling(topic, next_seq + ceiling.step)
        self.wake()

    def reserve(self, topic: Target, last_seq: int) -> list[Receipt]:
        """What has to be done before `last_seq` may be shown: nothing where the ceiling is above it already.

        Raises where the WAL takes no frame that would raise it.
        """
        ceiling = topic.ceiling
        ahead = topic.next_seq + ceiling.step
        if max(last_seq, ahead - 3 * ceiling.step // 4) > ceiling.asked:
            self._raise_ceiling(topic, max(last_seq, ahead))
        if last_seq <= ceiling.seq:
            return []
        if last_seq > ceiling.asked or ceiling.change is None:
            raise QueueFull(retry_after_ms=RETRY_AFTER_MS)
        return [ceiling.change]

    def _raise_ceiling(self, topic: Target, seq: int) -> None:
        """Ask for a higher ceiling; the busier the topic, the larger the steps."""
        ceiling = topic.ceiling

        def raised(receipt: Receipt) -> None:
            if receipt.error is None:
                ceiling.seq = max(ceiling.seq, seq)
            else:
                ceiling.asked = ceiling.seq

        frame = frames.control(frames.CEILING, self.next_lsn(), topic.id, frames.Ceiling(seq))
        # A full queue is no reason to fail the write that asked: it is gated instead, and the next one asks again.
        with contextlib.suppress(TopicsError):
            change = Receipt(on_done=raised)
            self.submit(topic, frame, True, change)
            ceiling.change = change
            ceiling.asked = seq
            ceiling.step = min(ceiling.step * 2, CEILING_STEP_MAX)


def _frame(kind: int, lsn: int, topic_id: int, payload: msgspec.Struct | bytes) -> bytes:
    if isinstance(payload, bytes):
        return frames.encode(kind, lsn, topic_id, payload)
    return frames.control(kind, lsn, topic_id, payload)
