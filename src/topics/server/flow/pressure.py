"""Pressure: the level of elastic throttling, from 0 (calm) to 4 (PRESSURE-1).

| level | what gives way |
|---|---|
| 0 | nothing |
| 1 | pushes: records of a topic gather for a moment and leave in larger frames |
| 2 | commits: the frames of several loop turns share one write |
| 3 | topics of negative priority: their pushes wait until ageing lifts them |
| 4 | writers and claimers: a write or claim waits, then gets 429 with `retry_after_ms`, unless it opted out |

Latency gives way, never correctness: no level drops, reorders or hides a record.

Two readings decide: the lag of the loop (how late its timers run, smoothed so that one late timer, however late, is not
an overload) and the fill of the fullest queue (0 to 1). The level rises by one rung per observation, and falls by one
only after `CALM_OBSERVATIONS` in a row that are well below the rung, so that it does not flutter. Pure: readings are
passed in.
"""

from __future__ import annotations

from typing import Final

OBSERVE_MS: Final = 100
LAG_RUNGS_MS: Final = (10.0, 40.0, 150.0, 1000.0)
FILL_RUNGS: Final = (0.25, 0.5, 0.75, 0.9)
CALM_FRACTION: Final = 0.5
FILL_CALM_FRACTION: Final = 0.8
"""Memory that is three eighths full is at rest (`engine.upkeep.survey`): it may keep the first rung, and no other."""
CALM_OBSERVATIONS: Final = 3
SMOOTHING: Final = 0.3
RETRY_AFTER_MS_MIN: Final = 250
RETRY_AFTER_MS_MAX: Final = 5_000
# The most that one reading counts. A machine that slept for an hour, or a process that was stopped, is late once, not
# busy.
LAG_MS_MAX: Final = RETRY_AFTER_MS_MAX / 2

COALESCE: Final = 1
WIDEN_COMMITS: Final = 2
PAUSE_LOW_PRIORITY: Final = 3
REFUSE_WRITES: Final = 4


class Pressure:
    """The current level, and the readings that led to it."""

    __slots__ = ("_calm", "fill", "lag_ms", "level")

    def __init__(self) -> None:
        self.level = 0
        self.lag_ms = 0.0
        self.fill = 0.0
        self._calm = 0

    def observe(self, lag_ms: float, fill: float) -> int:
        """Take a reading, which is due every `OBSERVE_MS`; the level from now on."""
        self.lag_ms += SMOOTHING * (max(0.0, min(lag_ms, LAG_MS_MAX)) - self.lag_ms)
        self.fill = fill
        target = max(_rung(self.lag_ms, LAG_RUNGS_MS), _rung(fill, FILL_RUNGS))
        if target > self.level:
            self.level += 1
            self._calm = 0
        elif (
            self.level
            and max(_kept(self.lag_ms, LAG_RUNGS_MS, CALM_FRACTION), _kept(fill, FILL_RUNGS, FILL_CALM_FRACTION))
            < self.level
        ):
            self._calm += 1
            if self._calm >= CALM_OBSERVATIONS:
                self.level -= 1
                self._calm = 0
        else:
            self._calm = 0
        return self.level

    @property
    def retry_after_ms(self) -> int:
        """How long a refused writer should stay away: longer, the later the loop runs."""
        return max(RETRY_AFTER_MS_MIN, min(RETRY_AFTER_MS_MAX, round(2 * self.lag_ms)))


def _rung(reading: float, rungs: tuple[float, ...]) -> int:
    """How many rungs a reading has reached."""
    return sum(reading >= rung for rung in rungs)


def _kept(reading: float, rungs: tuple[float, ...], calm: float) -> int:
    """The rung that a reading still keeps: a rung is left well below where it was reached."""
    return _rung(reading, tuple(rung * calm for rung in rungs))
