"""Passes: when the claimers that wait for jobs are served (the QUEUE rules, QUEUE-21).

A claimer that is not served at once waits in the queue's Line, and a pass serves the whole line together: at the end of
the turn in which jobs were produced or given back, when a window closes, when a lease runs out or a delay ends, and
when a claim has waited long enough. Where no claimer waits, there is no pass.
"""

from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING

from topics.engine.queue.line import Line
from topics.engine.queue.queue import Queue
from topics.errors import TopicNotFound
from topics.storage.job import Miss

if TYPE_CHECKING:
    from topics.engine.journal import Journal
    from topics.engine.queue.claim import Claimer
    from topics.engine.queue.dispatch import Dispatch
    from topics.engine.topic import Topic


class Passes:
    """The lines of all queues, and the passes that are due."""

    __slots__ = ("_dirty", "_dispatch", "_due", "_journal", "_lines", "_serial")

    def __init__(self, journal: Journal, dispatch: Dispatch) -> None:
        self._journal = journal
        self._dispatch = dispatch
        self._lines: dict[Topic, Line] = {}
        self._dirty: dict[Topic, None] = {}
        self._due: list[tuple[int, int, Topic]] = []
        self._serial = 0

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do at once."""
        return bool(self._dirty)

    def next_due_ms(self) -> int | None:
        """When `step` will next have something to do, or None."""
        return self._due[0][0] if self._due else None

    def join(self, topic: Topic, claimer: Claimer) -> Line:
        """Have a claimer wait."""
        line = self._lines.get(topic)
        if line is None:
            line = self._lines[topic] = Line()
            topic.listeners.append(self._published)
        line.claimers.append(claimer)
        return line

    def leave(self, topic: Topic, claimer: Claimer) -> None:
        """A claimer waits no longer."""
        line = self._lines.get(topic)
        if line is not None:
            line.leave(claimer)
            self._drop_if_empty(topic, line)

    def _drop_if_empty(self, topic: Topic, line: Line) -> None:
        if not line.claimers and self._lines.get(topic) is line:
            del self._lines[topic]
            if self._published in topic.listeners:
                topic.listeners.remove(self._published)

    def stir(self, topic: Topic) -> None:
        """Something about the queue has changed: have a pass at the end of the turn if a claimer waits."""
        if topic in self._lines and topic not in self._dirty:
            self._dirty[topic] = None
            self._journal.wake()

    def _published(self, topic: Topic) -> None:
        if not topic.deleted:
            self.stir(topic)
            return
        line = self._lines.pop(topic, None)
        for claimer in line.claimers if line is not None else ():
            claimer.fail(TopicNotFound(f'topic "{topic.name}" was deleted', topic=topic.name))

    def step(self) -> None:
        """Hold the passes that are due."""
        if not self._due and not self._dirty:
            return
        now = self._journal.clock.now_ms()
        while self._due and self._due[0][0] <= now:
            self._dirty[heapq.heappop(self._due)[2]] = None
        dirty, self._dirty = self._dirty, {}
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
        topic.expire(now)
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
            ready_ms = queue.next_due_ms()
            if ready_ms is not None:
                due = ready_ms if due is None else min(due, ready_ms)
        if due is not None:
            self._serial += 1
            heapq.heappush(self._due, (max(due, now), self._serial, topic))
            if len(self._due) > 2 * len(self._lines) + 64:
                self._forget_stale_dues()
            self._journal.wake()

    def _forget_stale_dues(self) -> None:
        earliest: dict[Topic, tuple[int, int, Topic]] = {}
        for entry in self._due:
            if entry[2] in self._lines and (entry[2] not in earliest or entry < earliest[entry[2]]):
                earliest[entry[2]] = entry
        self._due = sorted(earliest.values())
