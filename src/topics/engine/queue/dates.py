"""Dates: the delayed jobs that wait for a time of the wall clock (`deliver_at`) and not for time to pass.

Everything else about a queue is counted in elapsed time, which no step of the wall clock changes. What is left until a
date does change with it: `moved` says for which jobs, whenever the clock was stepped since it was last asked.
"""

from __future__ import annotations

from typing import Final

from topics.clock import Clock, steady_of

STEP_MS: Final = 100
"""By less than this the two scales of the clock differ for other reasons."""
LOOK_MS: Final = 1000
"""How often to look for a step while a claimer waits for a date."""


class Dates:
    """The dates of delayed jobs by seq."""

    __slots__ = ("_ahead_ms", "_clock", "by_seq")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = 0
        self.by_seq: dict[int, int] = {}

    def add(self, seq: int, date_ms: int) -> int:
        """Note the date of a job; when that is, on the steady scale."""
        if not self.by_seq:
            self._ahead_ms = self._ahead()
        self.by_seq[seq] = date_ms
        return steady_of(self._clock, date_ms)

    def moved(self) -> list[tuple[int, int]]:
        """(seq, when it is due on the steady scale) of each job, where the wall clock was stepped; mostly nothing."""
        ahead_ms = self._ahead()
        if abs(ahead_ms - self._ahead_ms) < STEP_MS:
            return []
        self._ahead_ms = ahead_ms
        return [(seq, date_ms - ahead_ms) for seq, date_ms in self.by_seq.items()]

    def _ahead(self) -> int:
        return self._clock.now_ms() - self._clock.steady_ms()
