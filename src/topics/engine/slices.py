"""Slices: commands that take long, done a piece at a time, so that nobody else waits for them.

A `Work` is a generator that yields wherever others may have their turn. It yields None, or the Miss of what has to be
read before it can go on. It changes nothing that a reader may see before its last piece, so that others see all of its
effect or none; only the routers of a topic that is deleted go before it (ROUTER-12). Between two pieces everything may
change: whatever it has learned by then it has to look at again.

The first piece is done at once: what is short is over when the command returns. The rest is done at about a millisecond
per turn, for all of them together. Only so many are under way at a time, because each of them remembers what it has
found; the others wait.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import Final, Protocol

from topics.clock import Clock
from topics.errors import Internal, TopicsError
from topics.storage.job import Miss

log = logging.getLogger("topics.slices")

STEP_NS: Final = 1_000_000
ACTIVE_MAX: Final = 8

Work = Generator[Miss | None, None, None]


class Answer(Protocol):
    """What a work is for: it commits it itself, and where it raises, it fails."""

    def fail(self, error: TopicsError) -> None:
        """The work could not be done."""


class Slices:
    """The works that are under way, and those that wait for their beginning."""

    __slots__ = ("_clock", "_read_then", "_reading", "_wake", "active", "waiting")

    def __init__(
        self, clock: Clock, wake: Callable[[], None], read_then: Callable[[Miss, Callable[[], None]], None]
    ) -> None:
        """`wake` asks for a turn; `read_then` has something read, then calls back."""
        self._clock = clock
        self._wake = wake
        self._read_then = read_then
        self.active: deque[tuple[Work, Answer]] = deque()
        self.waiting: deque[tuple[Work, Answer]] = deque()
        # How many are under way and wait for a read.
        self._reading = 0

    def start(self, work: Work, answer: Answer) -> None:
        """Do the first piece of a work now, and the rest turn by turn; what it raises fails the answer."""
        if len(self.active) + self._reading >= ACTIVE_MAX:
            self.waiting.append((work, answer))
        elif self._run(work, answer, self._clock.elapsed_ns() + STEP_NS):
            self.active.append((work, answer))
        if self.active:
            self._wake()

    def step(self) -> None:
        """Go on for about STEP_NS; `active` holds what is left."""
        deadline_ns = self._clock.elapsed_ns() + STEP_NS
        while self.active:
            work, answer = self.active.popleft()
            if self._run(work, answer, deadline_ns):
                self.active.append((work, answer))
            while self.waiting and len(self.active) + self._reading < ACTIVE_MAX:
                self.active.append(self.waiting.popleft())
            if self._clock.elapsed_ns() >= deadline_ns:
                return

    def _run(self, work: Work, answer: Answer, deadline_ns: int) -> bool:
        """Go on with a work until then; whether there is more to do at once."""
        try:
            for miss in work:
                if miss is not None:
                    self._reading += 1
                    self._read_then(miss, lambda: self._resume(work, answer))
                    return False
                if self._clock.elapsed_ns() >= deadline_ns:
                    return True
        except TopicsError as error:
            answer.fail(error)
        except Exception:
            log.exception("a command failed")
            answer.fail(Internal())
        return False

    def _resume(self, work: Work, answer: Answer) -> None:
        self._reading -= 1
        self.active.append((work, answer))
        self._wake()
