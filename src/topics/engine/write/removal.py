"""Removal: records leave a topic for good, by a delete or by an ack (the DELETE rules, QUEUE-7).

There is one frame per call, whatever the number of records. Routers out of the topic see everything first, except for
those that are blocked: what these had not reached is never forwarded, and the frame says how far they were.

A delete by a client may be of any number of records: it is a Work (slices.py). What it takes is decided when it is
called, and found, read and worked out in slices, which change nothing. Then it is logged and applied in one step: a
reader sees all of it or nothing, and a crash leaves all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from topics.engine.journal import Journal
from topics.engine.log.directory import ranges
from topics.engine.log.log import Log
from topics.engine.log.tags import TagMatch
from topics.engine.promise import Receipt
from topics.engine.slices import Work
from topics.engine.topic import Topic
from topics.engine.write import extra as extras
from topics.engine.write.selection import Picked, Range, Selection
from topics.errors import TopicNotFound
from topics.storage.job import Miss
from topics.storage.wal import frame as frames

# So often a plan is made again where others have changed the same Blocks; then what is left is done in one step.
PLANS_MAX: Final = 4


def remove(journal: Journal, topic: Topic, seqs: list[int], receipt: Receipt, now: int, acked: bytes = b"") -> bool:
    """Delete the records of these ascending seqs; whether it is logged, and so the receipt waits for the class.

    `acked` is what an ack says of them. Raises, without having changed anything, where the WAL takes no more, and Miss
    where something has to be read first.
    """
    if not seqs:
        return False
    if topic.outbound is not None:
        topic.outbound.catch_up()
    runs = ranges(seqs)
    topic.fetch(runs)
    logged = log_delete(journal, topic, 0, runs, receipt, now, acked)
    gone, emptied = topic.log.delete_ranges(runs)
    if topic.queue is not None:
        topic.queue.forget(gone)
    if emptied and topic.archive.segments:
        topic.archive.drop_dead(seqs[0], seqs[-1])
    return logged


def log_delete(
    journal: Journal,
    topic: Topic,
    before_seq: int,
    runs: Sequence[Range | Picked],
    receipt: Receipt,
    now: int,
    acked: bytes = b"",
) -> bool:
    """Log a delete that is about to happen; whether the topic's class logs anything."""
    if topic.config.durability == "ephemeral":
        return False
    log = topic.log
    payload = frames.Deletion(
        before_seq,
        runs,
        now,
        delete_extra(topic, acked),
        bound_head=log.head,
        evicted=(log.cap_evicted, log.ttl_expired),
    )
    frame = frames.control(frames.DELETE, journal.next_lsn(), topic.id, payload)
    journal.submit(topic, frame, topic.config.durability == "fsync", receipt)
    topic.last_change = receipt
    return True


def delete(
    journal: Journal,
    topic: Topic,
    before_seq: int,
    match: TagMatch | None,
    receipt: Receipt,
    apply_acks: Callable[[Topic], object],
    done: Callable[[int], None],
) -> Work:
    """Delete what is below `before_seq` and matches; `done` gets the number before the receipt is done.

    `apply_acks` has the jobs that were acked leave the topic.
    """
    if topic.outbound is not None:
        yield from topic.outbound.catching_up(before_seq - 1)
    if match is None:
        yield from _delete_below(journal, topic, before_seq, receipt, done)
        return
    chosen = Selection(topic)
    yield from topic.archive.search(match, before_seq, chosen.add, topic.lose)
    yield from chosen.plan()
    plans = 1
    while True:
        apply_acks(topic)
        stale = chosen.stale()
        if not stale:
            break
        plans += 1
        for first, last in stale:
            yield from (chosen.plan if plans < PLANS_MAX else chosen.plan_now)(first, last)
    _check(topic)
    _delete_chosen(journal, topic, chosen, receipt, done)
    if topic.queue is not None:
        yield from topic.queue.forgetting(chosen.seqs())


def count(topic: Topic, before_seq: int, match: TagMatch, receipt: Receipt, done: Callable[[int], None]) -> Work:
    """Count what `delete` would take now: nothing changes (DELETE-11)."""
    chosen = Selection(topic)
    yield from topic.archive.search(match, before_seq, chosen.add, topic.lose)
    yield from chosen.plan()
    done(sum(cut.count for cut in chosen.cuts()))
    receipt.commit(0, 0)


def _delete_below(
    journal: Journal, topic: Topic, before_seq: int, receipt: Receipt, done: Callable[[int], None]
) -> Work:
    while True:
        _check(topic)
        last_change = topic.last_change
        if before_seq <= topic.log.start:
            done(0)
            receipt.follow(last_change)
            return
        try:
            topic.fetch(_parted(topic.log, before_seq))
        except Miss as miss:
            yield miss
            continue
        logged = log_delete(journal, topic, before_seq, [], receipt, journal.clock.now_ms())
        deleted = topic.log.delete_below(before_seq)
        if deleted and topic.archive.segments:
            topic.archive.drop_dead(0, before_seq - 1)
        done(deleted)
        if not logged:
            receipt.follow(last_change)
        return


def _parted(log: Log, before_seq: int) -> list[Range]:
    """Where a delete of everything below takes a part of a Block: to count that, its content is needed.

    It is the last Block, and the first where retention has taken the beginning of it.
    """
    return [(seq, seq) for seq in (log.start, before_seq) if log.holds(seq - 1)]


def _delete_chosen(
    journal: Journal, topic: Topic, chosen: Selection, receipt: Receipt, done: Callable[[int], None]
) -> None:
    """Log and apply a plan."""
    cuts, last_change = chosen.cuts(), topic.last_change
    logged = bool(cuts) and log_delete(journal, topic, 0, chosen.ranges(), receipt, journal.clock.now_ms())
    if cuts:
        emptied = topic.log.apply(cuts)
        if emptied and topic.archive.segments:
            topic.archive.drop_dead(cuts[0].entry.first_seq, cuts[-1].entry.last_seq)
    done(sum(cut.count for cut in cuts))
    if not logged:
        # What was gone already is as durable as the change that took it.
        receipt.follow(last_change)


def _check(topic: Topic) -> None:
    if topic.deleted:
        raise TopicNotFound(f'topic "{topic.name}" was deleted', topic=topic.name)


def delete_extra(topic: Topic, acked: bytes) -> bytes:
    """What a DELETE frame holds about derived records, and about an ack."""
    lagging = [] if topic.outbound is None else topic.outbound.lagging()
    if topic.inbound is not None or topic.letters:
        position, source_id, run = position_of(topic)
        return extras.encode(extras.DeleteExtra(topic.next_seq, position, lagging, acked, source_id, run))
    return extras.encode(extras.DeleteExtra(lagging=lagging, acked=acked)) if lagging or acked else b""


def position_of(topic: Topic) -> tuple[int, int, tuple[int, int] | None]:
    """The place of the next frame of a topic among its router's copies; -1, 0 and None without one.

    It is the source seq up to which the router has copied, the source's id, and where the copies right before the frame
    began: whatever comes after the frame is another run of copies.
    """
    inbound = topic.inbound
    return (-1, 0, None) if inbound is None else (inbound.cursor, inbound.source.id, inbound.end_run())
