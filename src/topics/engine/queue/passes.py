"""Passes: when the claimers that wait for jobs are served (the QUEUE rules, QUEUE-21).

A claimer that is not served at once waits in the queue's Line, and a pass serves the whole line together: at the end of
the turn in which jobs were produced, given back or deleted, when a window closes, when a lease runs out or a delay
ends, and when a claim has waited long enough. Claims with `wait_ms`, claims of a coalescing window and /work streams
wait in the same line, in the order of their arrival, so that a pass balances them together. Where no claimer waits,
there is neither a line nor a pass. All times here are on the steady scale of the clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from functools import partial
from typing import Final

from topics.engine.journal import Journal
from topics.engine.queue.claim import Claim, Claimer, Worker
from topics.engine.queue.dispatch import Dispatch
from topics.engine.queue.queue import Queue
from topics.engine.slices import Work
from topics.engine.topic import Topic
from topics.errors import TopicNotFound
from topics.storage.job import Miss

LOOK_MS_MIN: Final = 10
LOOK_MS_MAX: Final = 1000
LOOKS_PER_TTL: Final = 10
"""How often to look for expired jobs while a stream holds some: they make room without anybody asking."""


class Line:
    """The claimers of one queue that wait, and when the window that gathers them closes."""

    __slots__ = ("claimers", "closes_ms")

    def __init__(self) -> None:
        # In the order of their arrival. A dict, because thousands may wait and leave at once.
        self.claimers: dict[Claimer, None] = {}
        self.closes_ms: int | None = None

    def wanting(self) -> list[Claimer]:
        """The claimers that want jobs now, longest waiting first."""
        return [claimer for claimer in self.claimers if claimer.demand]

    def reorder(self, served: Collection[Claimer]) -> None:
        """After a pass: answered claims leave, streams that were served go to the end."""
        ids = set(map(id, served))
        stay: list[Claimer] = []
        back: list[Claimer] = []
        for claimer in self.claimers:
            if isinstance(claimer, Claim):
                if claimer.demand:
                    stay.append(claimer)
            elif not claimer.closed:
                (back if id(claimer) in ids else stay).append(claimer)
        self.claimers = dict.fromkeys(stay + back)

    def holds_jobs(self) -> bool:
        """Whether jobs are held by a stream in this line."""
        return any(isinstance(claimer, Worker) and claimer.held for claimer in self.claimers)

    def next_due_ms(self) -> int | None:
        """When the window closes, or else when the first claim stops waiting; None where neither will happen."""
        if self.closes_ms is not None:
            return self.closes_ms
        claims = (claimer for claimer in self.claimers if isinstance(claimer, Claim) and claimer.demand)
        return min((claim.until_ms for claim in claims), default=None)


class Passes:
    """The lines of all queues, and the passes that are due."""

    __slots__ = ("_dispatch", "_journal", "_lines", "_serial", "dirty", "due")

    def __init__(self, journal: Journal, dispatch: Dispatch) -> None:
        self._journal = journal
        self._dispatch = dispatch
        self._lines: dict[Topic, Line] = {}
        self.dirty: dict[Topic, None] = {}
        self.due: list[tuple[int, int, Topic]] = []
        self._serial = 0

    def next_due_ms(self) -> int | None:
        """When `step` will next have something to do, or None."""
        return self.due[0][0] if self.due else None

    def join(self, topic: Topic, claimer: Claimer) -> Line:
        """Have a claimer wait."""
        line = self._lines.get(topic)
        if line is None:
            line = self._lines[topic] = Line()
            topic.listeners[self._published] = None
        line.claimers[claimer] = None
        return line

    def leave(self, topic: Topic, claimer: Claimer) -> None:
        """A claimer waits no longer."""
        line = self._lines.get(topic)
        if line is not None:
            line.claimers.pop(claimer, None)
            self._drop_if_empty(topic, line)

    def _drop_if_empty(self, topic: Topic, line: Line) -> None:
        if not line.claimers and self._lines.get(topic) is line:
            del self._lines[topic]
            topic.listeners.pop(self._published, None)

    def stir(self, topic: Topic) -> None:
        """Something about the queue has changed: have a pass at the end of the turn if a claimer waits."""
        if topic in self._lines and topic not in self.dirty:
            self.dirty[topic] = None
            self._journal.wake()

    def after(self, topic: Topic, removal: Work) -> Work:
        """Do what may take jobs away; then streams that held them have room for others."""
        yield from removal
        self.stir(topic)

    def _published(self, topic: Topic) -> None:
        if not topic.deleted:
            self.stir(topic)
            return
        line = self._lines.pop(topic, None)
        for claimer in line.claimers if line is not None else ():
            claimer.fail(TopicNotFound(f'topic "{topic.name}" was deleted', topic=topic.name))

    def step(self) -> None:
        """Hold the passes that are due."""
        now = self._journal.clock.steady_ms()
        while self.due and self.due[0][0] <= now:
            self.dirty[heapq.heappop(self.due)[2]] = None
        dirty, self.dirty = self.dirty, {}
        for topic in dirty:
            try:
                self._pass(topic, now)
            except Miss as miss:
                topic.read_then(miss, partial(self.stir, topic))

    def _pass(self, topic: Topic, now: int) -> None:
        line = self._lines.get(topic)
        if line is None:
            return
        queue = topic.queue
        assert isinstance(queue, Queue)
        topic.expire(self._journal.clock.now_ms())
        queue.advance(now)
        jitter_ms = topic.config.claim_jitter_ms
        if jitter_ms and line.closes_ms is None and queue.ready and line.wanting():
            line.closes_ms = now + jitter_ms
        if line.closes_ms is None or line.closes_ms <= now:
            line.closes_ms = None
            line.reorder([claimer for claimer, _, _ in self._dispatch.serve(topic, line.wanting(), now)])
            self._drop_if_empty(topic, line)
        self.schedule(topic, now)

    def schedule(self, topic: Topic, now: int) -> None:
        """Come back when the next thing happens that a claimer in the line waits for."""
        line = self._lines.get(topic)
        if line is None:
            return
        due = line.next_due_ms()
        if line.closes_ms is None:
            queue = topic.queue
            assert isinstance(queue, Queue)
            # What stopped before it knew everything goes on at once.
            ready_ms = now if queue.stopped else queue.next_due_ms()
            if ready_ms is not None:
                due = ready_ms if due is None else min(due, ready_ms)
            ttl_ms = topic.config.ttl_ms
            if ttl_ms and line.holds_jobs():
                look_ms = now + min(max(ttl_ms // LOOKS_PER_TTL, LOOK_MS_MIN), LOOK_MS_MAX)
                due = look_ms if due is None else min(due, look_ms)
        if due is not None:
            self._serial += 1
            heapq.heappush(self.due, (max(due, now), self._serial, topic))
            if len(self.due) > 2 * len(self._lines) + 64:
                self._forget_stale_dues()
            self._journal.wake()

    def _forget_stale_dues(self) -> None:
        earliest: dict[Topic, tuple[int, int, Topic]] = {}
        for entry in self.due:
            if entry[2] in self._lines and (entry[2] not in earliest or entry < earliest[entry[2]]):
                earliest[entry[2]] = entry
        self.due = sorted(earliest.values())
