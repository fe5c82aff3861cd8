"""Floors: what a TTL has taken stays gone, also where the clock is set back before the next start (DURABLE-27).

A restart expires again what the clock says. So that it takes no less than before, it must know how far a TTL had come:
that is logged, as a delete of nothing that names the floor.

A topic's floor is logged at once where that was not done for REST_NS, and otherwise after that time: the log does not
grow with every look at a topic. So a crash and a clock that is set back can bring back what expired in about REST_NS
before the crash, and nothing else.
"""

from __future__ import annotations

from typing import Final

from topics.engine.journal import Journal
from topics.engine.log.archive import Sealable, Shelf
from topics.engine.promise import Receipt
from topics.engine.topic import Topic
from topics.engine.write.removal import log_delete
from topics.errors import TopicsError

REST_NS: Final = 1_000_000_000
# How many are logged in a step: a start, or a round, may expire something in every topic.
STEP_FLOORS: Final = 64


class Floors:
    """Logs how far TTLs have come in topics that the shelf names."""

    def __init__(self, journal: Journal, shelf: Shelf) -> None:
        self._journal = journal
        self._expired = shelf.expired
        # Topics that were logged a short while ago, with the end of that while, in its order; and those that have gone
        # on since.
        self._resting: dict[Sealable, int] = {}
        self._again: set[Sealable] = set()

    def step(self) -> bool:
        """Log some of what is due; returns whether there was anything."""
        expired, resting = self._expired, self._resting
        if not (expired or resting):
            return False
        now_ns = self._journal.clock.elapsed_ns()
        while resting and resting[topic := next(iter(resting))] <= now_ns:
            del resting[topic]
            if topic in self._again:
                self._again.discard(topic)
                expired[topic] = None
        due = min(len(expired), STEP_FLOORS)
        for _ in range(due):
            topic = next(iter(expired))
            del expired[topic]
            if topic in resting or not self._log(topic):
                self._again.add(topic)
            resting.setdefault(topic, now_ns + REST_NS)
        return due > 0

    def _log(self, topic: Sealable) -> bool:
        """Whether nothing of it is left to do: where the log takes no more, it is tried again."""
        assert isinstance(topic, Topic)
        if topic.deleted:
            return True
        try:
            log_delete(self._journal, topic, 0, [], Receipt(), self._journal.clock.now_ms())
        except TopicsError:
            return False
        return True
