"""Journal: the one way by which frames get into the WAL, and the one rule for which of them wait for a sync.

A frame is queued in its topic's shard, and a turn is asked for that writes it. What only logs a change takes a Journal
and needs no engine. `submit` raises before it takes anything, so a caller changes its own state after the call.

The ceiling of a `disk` topic (write/ceiling.py) is raised here, before its seqs reach it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import msgspec

from topics.clock import Clock
from topics.engine.topic import Topic
from topics.engine.write.ticket import Promise, Receipt, Ticket
from topics.errors import RETRY_AFTER_MS, TopicsError
from topics.storage.block import Block
from topics.storage.memory import MemoryShard, MemoryStore
from topics.storage.store import Store
from topics.storage.wal import frame as frames
from topics.storage.wal.shard import QueueFull, Shard

CEILING_STEP_MAX: Final = 1 << 20


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

    def submit(self, topic: Topic, frame: frames.Frame, gated: bool, future: Promise | None) -> None:
        """Queue a frame about a topic, and ask for the turn that writes it. Raises where the WAL takes no more."""
        (topic.shard or self._choose_shard(topic)).submit(frame, gated, future)
        self.wake()

    def _choose_shard(self, topic: Topic) -> Shard | MemoryShard:
        """The shard of a topic, which stays the same until the process ends."""
        topic.shard = self.store.shard_of(topic.id)
        return topic.shard

    def submit_twice(
        self, topic: Topic, kind: int, payload: msgspec.Struct | bytes, future: Promise | None, gated: bool = True
    ) -> int:
        """Log what is nowhere else twice, so that no single damaged place can take it; returns the last lsn."""
        self.submit(topic, _frame(kind, self.next_lsn(), topic.id, payload), gated, future)
        lsn = self.next_lsn()
        # The change is on its way with the first; a queue that is too full for the second is no reason to take it back.
        with contextlib.suppress(TopicsError):
            (topic.shard or self._choose_shard(topic)).submit(_frame(kind, lsn, topic.id, payload), gated, None)
        return lsn

    def append(self, topic: Topic, ticket: Ticket, block: Block, extra: bytes) -> None:
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

    def reserve(self, topic: Topic, last_seq: int) -> list[Receipt]:
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

    def _raise_ceiling(self, topic: Topic, seq: int) -> None:
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
