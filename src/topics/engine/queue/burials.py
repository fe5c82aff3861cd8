"""Burials: jobs whose deliveries are used up go to their dead letters without waiting for a claim (QUEUE-14).

A job that is given back after its last delivery is moved at once, and one whose last lease runs out shortly after that.
There is no timer per job: a queue that has handed out a last delivery is looked at when its next lease runs out. What
cannot be moved now stays ready, and the next claim moves it: where the dead-letter topic is full, does not exist, or
the storage takes nothing for a while.
"""

from __future__ import annotations

import heapq
from functools import partial
from typing import Final

from topics.engine.journal import Journal
from topics.engine.queue.dead_letter import DeadLetters
from topics.engine.queue.failures import ANY_NUMBER
from topics.engine.queue.lease import READY, Candidate, Lease
from topics.engine.queue.queue import Queue
from topics.engine.topic import Topic
from topics.errors import TopicsError
from topics.storage.job import Miss

BURIED_MAX: Final = 1000
"""How many jobs are moved at a time."""
RETRY_MS: Final = 1000


def last_delivery(topic: Topic) -> int:
    """The delivery after which a job of this queue is a dead letter; ANY_NUMBER where none is."""
    config = topic.config
    return config.max_deliveries if config.max_deliveries and config.dead_letter is not None else ANY_NUMBER


class Burials:
    """When queues are looked at for jobs to bury. Times are on the steady scale of the clock."""

    __slots__ = ("_at", "_dead_letters", "_journal", "_serial", "waiting")

    def __init__(self, journal: Journal, dead_letters: DeadLetters) -> None:
        self._journal = journal
        self._dead_letters = dead_letters
        self._at: dict[Topic, int] = {}
        self.waiting: list[tuple[int, int, Topic]] = []
        self._serial = 0

    def next_due_ms(self) -> int | None:
        """When `step` will next have something to do, or None."""
        return self.waiting[0][0] if self.waiting else None

    def is_due(self) -> bool:
        """Whether `step` has something to do now."""
        return bool(self.waiting) and self.waiting[0][0] <= self._journal.clock.steady_ms()

    def look(self, topic: Topic, due_ms: int) -> None:
        """Look at a queue then, unless that happens sooner anyway."""
        known = self._at.get(topic)
        if known is not None and known <= due_ms:
            return
        self._at[topic] = due_ms
        self._serial += 1
        heapq.heappush(self.waiting, (due_ms, self._serial, topic))
        if len(self.waiting) > 2 * len(self._at) + 64:
            self.waiting = sorted(entry for entry in self.waiting if self._at.get(entry[2]) == entry[0])
        self._journal.wake()

    def step(self) -> None:
        """Look at the queues that are due."""
        now = self._journal.clock.steady_ms()
        due = []
        while self.waiting and self.waiting[0][0] <= now:
            at_ms, _, topic = heapq.heappop(self.waiting)
            if self._at.get(topic) == at_ms:
                del self._at[topic]
                due.append(topic)
        for topic in due:
            queue = topic.queue
            if not topic.deleted and isinstance(queue, Queue):
                queue.advance(now)
                self.bury(topic, queue)
                lapse_ms = queue.next_lapse_ms()
                if lapse_ms is not None and last_delivery(topic) != ANY_NUMBER:
                    self.look(topic, lapse_ms)

    def resume(self, topic: Topic, queue: Queue) -> None:
        """After a restart: find the jobs that were given back, or ran out, after their last delivery."""
        last = last_delivery(topic)
        if last != ANY_NUMBER and queue.leases:
            queue.failures.expect(last, queue.leases.values())
            self.look(topic, self._journal.clock.steady_ms())

    def bury(self, topic: Topic, queue: Queue) -> None:
        """Move the jobs of a queue that have spent their deliveries; some at a time."""
        last = last_delivery(topic)
        failures = queue.failures
        spent = [lease for lease in failures.take_spent(BURIED_MAX) if _is_spent(queue, lease, last)]
        now = self._journal.clock.steady_ms()
        if failures.spent:
            self.look(topic, now)
        if not spent:
            return
        try:
            jobs = topic.reading(_candidates, queue, spent)
            if jobs:
                self._dead_letters.bury(topic, queue, jobs, self._journal.clock.now_ms())
        except Miss as miss:
            failures.expect(last, spent)
            topic.read_then(miss, partial(self.look, topic, now))
        except TopicsError:
            failures.expect(last, spent)
            self.look(topic, now + RETRY_MS)
        if queue.free:
            queue.prune_free()


def _is_spent(queue: Queue, lease: Lease, last: int) -> bool:
    return lease.deliveries >= last and lease.state in READY and queue.leases.get(lease.seq) is lease


def _candidates(queue: Queue, spent: list[Lease]) -> list[Candidate]:
    """The jobs of these leases with their Blocks, lowest seq first. Raises Miss or Corrupt."""
    log = queue.log
    jobs: list[Candidate] = []
    for lease in sorted(spent, key=lambda each: each.seq):
        if queue.leases.get(lease.seq) is lease:
            jobs.append((lease.seq, log.entries[log.index_of(lease.seq)].block(), lease))
    return jobs
