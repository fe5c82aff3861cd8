"""Derive: append records to a topic that are logged nowhere as such (DESIGN §8.1, §10.7).

A router's copies and dead letters can be made again from what is logged elsewhere, so they cost no frame. They take
their seqs in the order in which readers see them: where the topic has writes that wait for their WAL class, the copy
becomes visible right behind those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.engine.ticket import OnDone, Ticket
from topics.storage.block import HAS_TAG, Block

if TYPE_CHECKING:
    from topics.engine.topic import Topic


def derive(topic: Topic, block: Block, on_done: OnDone | None = None) -> None:
    """Append the Block, whose first seq is the topic's `next_seq`."""
    assert block.first_seq == topic.next_seq
    assert block.first_ts >= topic.last_ts
    ticket = Ticket(topic, on_done, None)
    ticket.block = block
    ticket.tags = block.tags() if block.bits & HAS_TAG else None
    ticket.first_seq = block.first_seq
    ticket.count = block.n
    topic.last_ts = block.last_ts
    topic.next_seq = block.last_seq + 1
    topic.await_commit(block)
    last = topic.last_ticket
    if last is None:
        ticket.commit(0, 0)
    else:
        ticket.gated = last.gated
        topic.last_ticket = ticket
        ticket.follow(last)
