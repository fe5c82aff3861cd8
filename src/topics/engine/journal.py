"""Journal: the one way by which frames get into the WAL, and the one rule for which of them wait for a sync.

A frame is queued in its topic's shard, and a turn is asked for that writes it. What only logs a change takes a Journal
and needs no engine. `submit` raises before it takes anything, so a caller changes its own state after the call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from topics.clock import Clock
from topics.errors import TopicsError
from topics.storage.memory import MemoryStore
from topics.storage.store import Store
from topics.storage.wal import frame as frames

if TYPE_CHECKING:
    from topics.engine.topic import Topic
    from topics.engine.write.ticket import Promise, Ticket
    from topics.storage.block import Block


class Journal:
    """The WAL as the engine writes it. `wake` asks the driver for a turn."""

    __slots__ = ("_shard_of", "clock", "next_lsn", "store", "wake")

    def __init__(self, clock: Clock, store: Store | MemoryStore, wake: Callable[[], None]) -> None:
        self.clock = clock
        self.store = store
        self.wake = wake
        self.next_lsn = store.next_lsn
        self._shard_of = store.shard_of

    def submit(self, topic: Topic, frame: bytes, gated: bool, future: Promise | None) -> None:
        """Queue a frame about a topic, and ask for the turn that writes it. Raises where the WAL takes no more."""
        self._shard_of(topic.id).submit(frame, gated, future)
        self.wake()

    def submit_twice(
        self, topic: Topic, kind: int, payload: msgspec.Struct | bytes, future: Promise | None, gated: bool = True
    ) -> int:
        """Log what is nowhere else twice, so that no single damaged place can take it; returns the last lsn."""
        self.submit(topic, _frame(kind, self.next_lsn(), topic.id, payload), gated, future)
        lsn = self.next_lsn()
        # The change is on its way with the first; a queue that is too full for the second is no reason to take it back.
        with contextlib.suppress(TopicsError):
            self._shard_of(topic.id).submit(_frame(kind, lsn, topic.id, payload), gated, None)
        return lsn

    def append(self, topic: Topic, ticket: Ticket, block: Block, extra: bytes) -> None:
        """Log the Block of a write, in order with the topic's other writes: the ticket is its last one from here on."""
        first_seq, n = block.first_seq, block.n
        durability = topic.config.durability
        last, config = topic.last_ticket, topic.last_config
        # The rule for what waits for its sync before it is shown.
        ticket.gated = gated = (
            durability == "fsync"
            # The class that the write counts on must be durable before the write is.
            or (config is not None and not config.done)
            # Records become visible in the order of their seqs, so a write after one that waits for its sync waits too.
            or (last is not None and last.gated)
            or (durability == "disk" and first_seq + n - 1 > topic.ceiling.seq)
        )
        frame = frames.append(self.next_lsn(), topic.id, first_seq, n, block.raw, extra)
        self._shard_of(topic.id).submit(frame, gated, ticket)
        if last is not None and last.apart:
            ticket.apart, ticket.before = True, last
        topic.last_ticket = ticket
        self.wake()


def _frame(kind: int, lsn: int, topic_id: int, payload: msgspec.Struct | bytes) -> bytes:
    if isinstance(payload, bytes):
        return frames.encode(kind, lsn, topic_id, payload)
    return frames.control(kind, lsn, topic_id, payload)
