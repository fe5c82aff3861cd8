"""Restored: what has to change in an engine that was made from a backup, before it may serve (BACKUP-7, BACKUP-8).

The server that the backup was taken of went on: it has handed out seqs and topic ids that the backup does not know.
None of them may be handed out again for something else. So each topic goes on far above its head, and everything in
between is a lost range with the reason `restore`: a reader that was there, or is about to read on, gets a tombstone.

With a time, records that were written after it belong to the lost range as well.
"""

from __future__ import annotations

from typing import Final

from topics.engine.engine import Engine
from topics.engine.log.loss import RESTORE
from topics.engine.queue.queue import queue_of
from topics.engine.router.forward import out_of
from topics.engine.topic import Topic

# More seqs than a topic can be given in a millisecond.
SEQS_PER_MS: Final = 10_000
# For clocks that do not agree: years of writing at a usual rate, hours at the highest.
JUMP_MIN: Final = 1 << 36
# A seq has to be below 2^53, and many restores must be possible.
JUMP_MAX: Final = 1 << 49


def jump_after(elapsed_ms: int) -> int:
    """How many seqs a topic may at most have been given in this time, since a backup or since a record."""
    return min(max(JUMP_MIN, elapsed_ms * SEQS_PER_MS), JUMP_MAX)


def go_on_above(engine: Engine, jump: int, until_ts: int | None = None) -> int:
    """Have everything go on above what may have been handed out; how many records after `until_ts` were left out.

    The engine has recovered, serves nobody, and reads wait for the disk.
    """
    left_out = 0
    for topic in engine.topics.values():
        head = topic.log.head
        first = head + 1 if until_ts is None else min(topic.log.seq_at_ts(until_ts + 1), head + 1)
        left_out += _cut(topic, first)
        first = max(first, topic.log.evict_floor)
        topic.log.lose(first, head + jump, RESTORE)
        topic.next_seq = topic.log.head + 1
        for forward in out_of(topic):
            # What was copied up to here is copied. What is lost after it is lost in the destination too, which says so.
            if forward.cursor >= first - 1:
                forward.backlog.move(topic.log.head)
    engine.catalog.next_topic_id += jump
    return left_out


def _cut(topic: Topic, first: int) -> int:
    """Remove every record from `first` on, with what is known of it; how many there were."""
    log, queue, removed = topic.log, queue_of(topic), 0
    for entry in [entry for entry in log.retained() if entry.last_seq >= first]:
        gone, _ = topic.reading(log.delete_ranges, [(max(first, entry.first_seq), entry.last_seq)])
        removed += len(gone)
        if queue is not None:
            queue.forget(gone)
    if removed:
        topic.archive.drop_dead(first, log.head)
    if topic.dedupe is not None:
        for write in [write for write in topic.dedupe.keys.values() if write.first_seq >= first]:
            topic.dedupe.forget(write)
    return removed
