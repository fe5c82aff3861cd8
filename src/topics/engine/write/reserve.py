"""Reserve: raise the ceiling of a topic before its seqs reach it (write/ceiling.py says why there is one)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from topics.engine.write.ticket import Receipt
from topics.errors import RETRY_AFTER_MS, TopicsError
from topics.storage.wal import frame as frames
from topics.storage.wal.shard import QueueFull

if TYPE_CHECKING:
    from topics.engine.journal import Journal
    from topics.engine.topic import Topic

STEP_MAX: Final = 1 << 20


def reserve(journal: Journal, topic: Topic) -> None:
    """Raise the ceiling of a `disk` topic before its seqs reach it."""
    ceiling = topic.ceiling
    if topic.config.durability == "disk" and topic.next_seq + ceiling.step // 4 > ceiling.asked:
        _raise_to(journal, topic, topic.next_seq + ceiling.step)


def reserve_over(journal: Journal, topic: Topic, last_seq: int) -> list[Receipt]:
    """What has to be done before `last_seq` may be shown: nothing where the ceiling is above it already.

    Raises where the WAL takes no frame that would raise it.
    """
    ceiling = topic.ceiling
    ahead = topic.next_seq + ceiling.step
    if max(last_seq, ahead - 3 * ceiling.step // 4) > ceiling.asked:
        _raise_to(journal, topic, max(last_seq, ahead))
    if last_seq <= ceiling.seq:
        return []
    if last_seq > ceiling.asked or ceiling.change is None:
        raise QueueFull(retry_after_ms=RETRY_AFTER_MS)
    return [ceiling.change]


def _raise_to(journal: Journal, topic: Topic, seq: int) -> None:
    """Ask for a higher ceiling; the busier the topic, the larger the steps."""
    ceiling = topic.ceiling

    def raised(receipt: Receipt) -> None:
        if receipt.error is None:
            ceiling.seq = max(ceiling.seq, seq)
        else:
            ceiling.asked = ceiling.seq

    frame = frames.control(frames.CEILING, journal.next_lsn(), topic.id, frames.Ceiling(seq))
    # A full queue is no reason to fail the write that asked: it is gated instead, and the next one asks again.
    with contextlib.suppress(TopicsError):
        change = Receipt(on_done=raised)
        journal.submit(topic, frame, True, change)
        ceiling.change = change
        ceiling.asked = seq
        ceiling.step = min(ceiling.step * 2, STEP_MAX)
