"""Schedule: which sources have something to copy, and which destinations to try again.

Copying happens off the path of any ack, in slices, for about a millisecond per turn. A source with a Block that has to
be read from disk first is put aside until that is done, and holds up no other.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from topics.engine.journal import Journal
from topics.engine.router.fanout import Fanout
from topics.engine.router.forward import Forward
from topics.storage.job import Miss

STEP_NS: Final = 1_000_000


class Schedule:
    """The sources that wait for their turn, and the forwards into destinations that refused."""

    def __init__(self, journal: Journal) -> None:
        self._clock = journal.clock
        self._wake = journal.wake
        self.dirty: deque[Fanout] = deque()
        self.blocked: dict[Forward, None] = {}

    def enqueue(self, fanout: Fanout) -> None:
        """A source has something to copy."""
        self.dirty.append(fanout)
        self._wake()

    def retry_later(self, forward: Forward) -> None:
        """A destination refused."""
        self.blocked[forward] = None
        self._wake()

    def forget(self, forward: Forward) -> None:
        """A forward is gone."""
        self.blocked.pop(forward, None)

    def next_due_ms(self) -> int | None:
        """When a destination that refused is to be tried again, or None."""
        dues = (forward.pressure.retry_ms for forward in self.blocked)
        return min((due for due in dues if due is not None), default=None)

    def step(self, budget_ns: int = STEP_NS) -> None:
        """Copy for about so long; `dirty` holds what is left."""
        if self.blocked:
            self._retry()
        clock, dirty = self._clock, self.dirty
        deadline_ns = clock.elapsed_ns() + budget_ns
        while dirty:
            fanout = dirty[0]
            try:
                if fanout.step():
                    dirty.rotate(-1)
                else:
                    dirty.popleft()
            except Miss as miss:
                dirty.popleft()
                fanout.dirty = False
                fanout.source.read_then(miss, partial(fanout.published, fanout.source))
            if clock.elapsed_ns() >= deadline_ns:
                return

    def _retry(self) -> None:
        now = self._clock.now_ms()
        for forward in list(self.blocked):
            source, pressure = forward.source, forward.pressure
            if forward.has_backlog and pressure.retry_ms is not None and pressure.retry_ms > now:
                continue
            del self.blocked[forward]
            pressure.retry_ms = None
            if forward.has_backlog and source.outbound is not None:
                source.outbound.published(source)
