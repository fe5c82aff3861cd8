"""Dead letters: a job that was delivered too often moves to another topic (QUEUE-14 to QUEUE-18).

The move is one frame in the queue's shard, written twice, that is both: the delete of these jobs, and the Block of
their copies in the dead-letter topic. So after a crash both halves have happened or neither has. An `ephemeral` queue
logs nothing; there the copies alone are logged, in the dead-letter topic. The frame
holds the Block, because the delete may already be on disk when the frame is replayed. A copy keeps node, tag, meta and
data, and its meta names where it came from. How letters come back is in redrive.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from topics.engine.catalog import Catalog
from topics.engine.journal import Journal, Ticket
from topics.engine.meta import with_fields
from topics.engine.promise import Receipt
from topics.engine.queue import event as lease_event
from topics.engine.queue.event import Buried
from topics.engine.queue.lease import Candidate
from topics.engine.queue.queue import Queue
from topics.engine.topic import Topic
from topics.engine.write import room
from topics.engine.write.arrival import append_block, derive
from topics.engine.write.removal import position_of
from topics.errors import TopicsError
from topics.storage import block as blocks
from topics.storage.block import Block
from topics.storage.wal import frame as frames

FROM = "$dead_letter_from"
DELIVERIES = "$dead_letter_deliveries"
SRC_SEQ = "$dead_letter_src_seq"
REASON = "$dead_letter_reason"


class DeadLetters:
    """Moves jobs to dead-letter topics."""

    def __init__(self, journal: Journal, catalog: Catalog, link: Callable[[Topic, Topic], None]) -> None:
        """`link` notes that dead letters of a queue went to a topic."""
        self._journal = journal
        self._catalog = catalog
        self._link = link
        # By queue: done when its letters that are not shown yet are.
        self.moving: dict[Topic, Receipt] = {}

    def bury(self, topic: Topic, queue: Queue, jobs: Sequence[Candidate], now: int) -> bool:
        """Move jobs to the dead-letter topic; False where there is none and it may not be created.

        Where it is full and rejects, jobs stay where they are and are not delivered.
        """
        dest = self._topic(topic)
        if dest is None:
            return False
        dest.catch_up()
        if topic.outbound is not None:
            topic.outbound.catch_up()
        block = _copies(topic.name, queue, jobs, dest, now)
        if not _fits(dest, block, now):
            upto = range(1, len(jobs))
            count = bisect_left(
                upto, True, key=lambda n: not _fits(dest, _copies(topic.name, queue, jobs[:n], dest, now), now)
            )
            if not count:
                return True
            jobs = jobs[:count]
            block = _copies(topic.name, queue, jobs, dest, now)
        seqs = [seq for seq, _, _ in jobs]
        total = queue.dead_lettered + len(seqs)
        if topic.config.durability == "ephemeral":
            # The queue forgets its jobs in a restart; its dead letters are kept as their own topic's class says.
            append_block(self._journal, dest, block)
        else:
            lagging = [] if topic.outbound is None else topic.outbound.lagging()
            position, source_id, run = position_of(dest)
            log = topic.log
            buried = Buried(
                seqs,
                dest.id,
                block.raw,
                total,
                position,
                lagging,
                source_id,
                run,
                bound_head=log.head,
                evicted=(log.cap_evicted, log.ttl_expired),
                place=None if topic.inbound is None else (topic.next_seq, *position_of(topic)),
            )
            self._log(topic, dest, block, buried)
        topic.log.delete_seqs(seqs)
        history = queue.history.buried((lease for _, _, lease in jobs), now)
        queue.forget(seqs)
        queue.history.restore(history)
        queue.dead_lettered = total
        dest.letters = True
        self._link(topic, dest)
        return True

    def _log(self, topic: Topic, dest: Topic, block: Block, buried: Buried) -> None:
        """Log a move and show the letters after its frame: where either class is `fsync`, once that is synced."""
        after = self._journal.reserve(dest, block.last_seq) if dest.config.durability == "disk" else []
        payload = lease_event.encode(buried)
        gated = "fsync" in (topic.config.durability, dest.config.durability)
        logged, moved = Receipt(), Receipt()
        self._journal.submit_twice(topic, frames.DEAD_LETTER, payload, logged, gated)
        self.moving[topic] = moved
        topic.last_change = logged

        def shown(ticket: Ticket) -> None:
            if self.moving.get(topic) is moved:
                del self.moving[topic]
            if ticket.error is None:
                moved.commit(ticket.write_ns, ticket.sync_ns)
            else:
                moved.fail(ticket.error)

        derive(dest, block, shown, [*after, logged])

    def _topic(self, topic: Topic) -> Topic | None:
        name = topic.config.dead_letter
        assert name is not None
        dest = self._catalog.topics.get(name)
        if dest is None and topic.config.auto_create:
            try:
                dest = self._catalog.create_default(name)
            except TopicsError:
                return None
        return dest


def _fits(dest: Topic, block: Block, now: int) -> bool:
    try:
        room.check_topic(dest, block.n, block.live_bytes, now)
    except TopicsError:
        return False
    return True


def _copies(name: str, queue: Queue, jobs: Sequence[Candidate], dest: Topic, now: int) -> Block:
    """The Block of the copies."""
    reasons = queue.failures.reasons
    records = [(block, seq - block.first_seq) for seq, block, _ in jobs]
    nodes = [block.node(i) for block, i in records]
    tags = [block.tag(i) for block, i in records]
    metas = [
        with_fields(
            block.meta(seq - block.first_seq),
            {FROM: name, DELIVERIES: str(lease.deliveries if lease else 0), SRC_SEQ: str(seq)}
            | ({REASON: reasons[seq]} if seq in reasons else {}),
        )
        for seq, block, lease in jobs
    ]
    return blocks.encode(
        dest.id,
        dest.next_seq,
        max(now, dest.last_ts),
        [block.data(i) for block, i in records],
        nodes if any(node is not None for node in nodes) else None,
        tags if any(tag is not None for tag in tags) else None,
        metas,
    )
