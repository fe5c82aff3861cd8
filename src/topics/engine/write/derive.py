"""Derive: append records to a topic that are logged nowhere as such (ROUTER-15, QUEUE-18).

A router's copies and dead letters can be made again from what is logged elsewhere, so they cost no frame. They take
their seqs in the order in which readers see them: where the topic has writes that wait for their WAL class, the copy
becomes visible right after those. Where what they follow from must be on disk first, they wait for that, and so do the
topic's writes after them, whichever shard it is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topics.engine.write import extra as extras
from topics.engine.write.removal import position_of
from topics.engine.write.reserve import reserve
from topics.engine.write.ticket import OnDone, Receipt, Ticket
from topics.storage.block import HAS_TAG, Block

if TYPE_CHECKING:
    from topics.engine.journal import Journal
    from topics.engine.topic import Topic


def derive(topic: Topic, block: Block, on_done: OnDone | None = None, after: Sequence[Receipt] = ()) -> None:
    """Append a Block that begins at the topic's `next_seq`; it becomes visible once all of `after` are done."""
    last = topic.last_ticket
    ticket = Ticket(topic, on_done, None)
    _take_seqs(topic, ticket, block)
    if after:
        ticket.gated = ticket.apart = True
        ticket.before = last
        topic.last_ticket = ticket
        ticket.follow_all(after)
    elif last is None:
        ticket.commit(0, 0)
    else:
        ticket.gated = last.gated
        ticket.apart = last.apart
        topic.last_ticket = ticket
        ticket.follow(last)


def append(journal: Journal, topic: Topic, block: Block) -> None:
    """Append a Block in the same way that follows from nothing on disk: it is logged here, as a write is."""
    if topic.config.durability == "ephemeral":
        derive(topic, block)
        return
    position, source_id = position_of(topic)
    extra = extras.encode(extras.AppendExtra(position=position, source_id=source_id))
    ticket = Ticket(topic, None, None)
    journal.append(topic, ticket, block, extra)
    _take_seqs(topic, ticket, block)
    reserve(journal, topic)


def _take_seqs(topic: Topic, ticket: Ticket, block: Block) -> None:
    assert block.first_seq == topic.next_seq
    assert block.first_ts >= topic.last_ts
    ticket.block = block
    ticket.tags = block.tags() if block.bits & HAS_TAG else None
    ticket.first_seq = block.first_seq
    ticket.count = block.n
    topic.last_ts = block.last_ts
    topic.next_seq = block.last_seq + 1
    topic.pending.add(block)
