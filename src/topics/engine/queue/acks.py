"""Acks: the jobs that were completed in one turn leave their queue's log together at its end (QUEUE-11).

Many workers ack at the same time, and a delete costs the same for all of them: one look into the Blocks, one DELETE
frame. An ack is answered when that frame is as safe as the topic's class asks, as it would be alone.

From the ack on a job is `GONE` (lease.py): it cannot be claimed, and a second ack skips it. Its record is in the log
until the turn ends; a command that reads the log applies the acks first, so that it sees what came before it. Where the
storage refuses the frame, every ack in it fails and its jobs are held as they were.
"""

from __future__ import annotations

from topics.engine.journal import Journal
from topics.engine.promise import Receipt
from topics.engine.queue import event as lease_event
from topics.engine.queue.event import Acked
from topics.engine.queue.lease import Lease
from topics.engine.queue.queue import Queue
from topics.engine.topic import Topic
from topics.engine.write.removal import remove
from topics.errors import TopicNotFound, TopicsError
from topics.storage.job import Miss

Ack = tuple[str, list[Lease], Receipt]
"""A node, what it has completed, and the receipt it waits for."""


class Acks:
    """The acks of all queues that are not logged yet."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.waiting: dict[Topic, list[Ack]] = {}

    def add(self, topic: Topic, node: str, leases: list[Lease], receipt: Receipt) -> None:
        """The holder of these leases has completed their jobs."""
        queue = topic.queue
        assert isinstance(queue, Queue)
        queue.complete(leases)
        acks = self.waiting.get(topic)
        if acks is None:
            self.waiting[topic] = acks = []
            self._journal.wake()
        acks.append((node, leases, receipt))

    def apply_all(self) -> None:
        """Remove everything that was acked."""
        for topic in list(self.waiting):
            self.apply(topic)

    def apply(self, topic: Topic) -> None:
        """Remove everything that was acked in this queue."""
        acks = self.waiting.pop(topic, None)
        if acks is None:
            return
        together = Receipt()
        together.followers = [receipt for _, _, receipt in acks]
        now = self._journal.clock.now_ms()
        done = [Acked(node, [lease.seq for lease in leases], now) for node, leases, _ in acks]
        seqs = sorted([seq for acked in done for seq in acked.seqs])
        try:
            if topic.deleted:
                raise TopicNotFound(f'topic "{topic.name}" was deleted', topic=topic.name)
            logged = remove(self._journal, topic, seqs, together, now, lease_event.encode(done))
        except Miss as miss:
            topic.read_then(miss, lambda: self._again(topic, acks))
        except TopicsError as error:
            queue = topic.queue
            assert isinstance(queue, Queue)
            for _, leases, _ in acks:
                queue.hold_on(leases)
            together.fail(error)
        else:
            if not logged:
                together.commit(0, 0)

    def _again(self, topic: Topic, acks: list[Ack]) -> None:
        """The Block that was missing has been read: try again with the next turn."""
        self.waiting[topic] = acks + self.waiting.get(topic, [])
        self._journal.wake()
