"""Removal: records leave a topic for good, by a delete or by an ack (the DELETE rules, QUEUE-7).

There is one frame per call, whatever the number of records. Routers out of the topic see everything first, except for
those that are blocked: what these had not reached is never forwarded, and the frame says how far they were.
"""

from __future__ import annotations

from topics.engine.journal import Journal
from topics.engine.log.directory import ranges
from topics.engine.topic import Topic
from topics.engine.write import extra as extras
from topics.engine.write.ticket import Receipt
from topics.storage.wal import frame as frames


def remove(
    journal: Journal, topic: Topic, before_seq: int, seqs: list[int], receipt: Receipt, now: int, acked: bytes = b""
) -> tuple[int, bool]:
    """Delete everything below `before_seq` and the ascending `seqs`; how many there were, and whether it is logged.

    Where it is, the receipt waits for the topic's class. Raises, without having changed anything, where the WAL takes
    no more, and Miss where something has to be read first.
    """
    log = topic.log
    if before_seq <= log.start and not seqs:
        return 0, False
    if topic.outbound is not None:
        topic.outbound.catch_up()
    runs = ranges(seqs)
    topic.fetch([(before_seq, before_seq)] if before_seq > log.start else runs)
    logged = topic.config.durability != "ephemeral"
    if logged:
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
    deleted = log.delete_below(before_seq) if before_seq > log.start else 0
    emptied = deleted > 0
    if seqs:
        gone, empty = log.delete_ranges(runs)
        emptied |= empty
        deleted += len(gone)
        if topic.queue is not None:
            topic.queue.forget(gone)
    if emptied and topic.archive.segments:
        first_seq = seqs[0] if seqs else 0
        topic.archive.drop_dead(first_seq, max(before_seq - 1, seqs[-1] if seqs else 0))
    return deleted, logged


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
