"""Ceiling: seqs that a topic may hand out although a crash would leave no word of them (decision 37).

A `disk` write is acked before it is synced, and a copy of a record that only memory held is logged nowhere. What was
seen under such a seq can be lost, but the seq must never be handed out again. So the WAL says ahead of time, in large
steps, how far a topic may go; a restart that finds less goes on above it, and the range between is a lost range. No
seq above the ceiling is shown before the frame that raises it is durable.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from topics.engine.write.ticket import Receipt
from topics.errors import TopicsError
from topics.storage.wal import frame as frames
from topics.storage.wal.shard import QueueFull

if TYPE_CHECKING:
    from topics.engine.journal import Journal
    from topics.engine.topic import Topic

STEP_MAX: Final = 1 << 20
RETRY_AFTER_MS: Final = 1000


def reserve(journal: Journal, topic: Topic) -> None:
    """Raise the ceiling of a `disk` topic before its seqs reach it."""
    if topic.config.durability == "disk" and topic.next_seq + topic.ceiling_step // 4 > topic.ceiling_asked:
        _raise_to(journal, topic, topic.next_seq + topic.ceiling_step)


def over(journal: Journal, topic: Topic, last_seq: int) -> list[Receipt]:
    """What has to be done before `last_seq` may be shown: nothing where the ceiling is above it already.

    Raises where the WAL takes no frame that would raise it.
    """
    ahead = topic.next_seq + topic.ceiling_step
    if max(last_seq, ahead - 3 * topic.ceiling_step // 4) > topic.ceiling_asked:
        _raise_to(journal, topic, max(last_seq, ahead))
    if last_seq <= topic.ceiling:
        return []
    if last_seq > topic.ceiling_asked or topic.ceiling_change is None:
        raise QueueFull(retry_after_ms=RETRY_AFTER_MS)
    return [topic.ceiling_change]


def _raise_to(journal: Journal, topic: Topic, ceiling: int) -> None:
    """Ask for a higher ceiling; the busier the topic, the larger the steps."""

    def raised(receipt: Receipt) -> None:
        if receipt.error is None:
            topic.ceiling = max(topic.ceiling, ceiling)
        else:
            topic.ceiling_asked = topic.ceiling

    frame = frames.control(frames.CEILING, journal.next_lsn(), topic.id, frames.Ceiling(ceiling))
    # A full queue is no reason to fail the write that asked: it is gated instead, and the next one asks again.
    with contextlib.suppress(TopicsError):
        change = Receipt(None, raised, None)
        journal.submit(topic, frame, True, change)
        topic.ceiling_change = change
        topic.ceiling_asked = ceiling
        topic.ceiling_step = min(topic.ceiling_step * 2, STEP_MAX)
