"""Where time comes from.

Nothing below `server/` asks the operating system for the time: the engine takes a `Clock`, so that retention, leases
and ageing can be driven by hand in tests. It has three readings:

- `now_ms`: wall-clock milliseconds since the Unix epoch, the unit of every `$ts` and of everything that clients and
  files see. An operator or NTP may step it, in either direction; the engine keeps `$ts` monotonic per topic itself.
- `steady_ms`: milliseconds that pass as time passes, whatever is done to the wall clock. Leases, delays, waits and
  windows are counted in them. They began with the wall-clock time of the start, so both agree until the first step.
- `elapsed_ns`: nanoseconds, for how long something took.

What has to outlive the process is written down in wall-clock time, together with the time at which it was noted:
`steady_of` and `wall_of` translate.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

# Where there is one, a clock that goes on while the machine sleeps.
_STEADY_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """The readings of time that the engine uses."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch."""

    def steady_ms(self) -> int:
        """Milliseconds on the scale of deadlines, which no step of the wall clock moves."""

    def elapsed_ns(self) -> int:
        """Monotonic nanoseconds since an arbitrary start."""


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns() - time.clock_gettime_ns(_STEADY_CLOCK)

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        """Milliseconds on the scale of deadlines, which no step of the wall clock moves."""
        return (self._began_ns + time.clock_gettime_ns(_STEADY_CLOCK)) // 1_000_000

    # Several times in every request: not by way of a call of ours.
    elapsed_ns = staticmethod(time.perf_counter_ns)


def steady_of(clock: Clock, wall_ms: int, since_ms: int = 0) -> int:
    """A wall-clock time on the steady scale.

    One that was noted at `since_ms` is no further away than it was then: where the clock shows less by now, it was set
    back.
    """
    return clock.steady_ms() + wall_ms - max(clock.now_ms(), since_ms)


def wall_of(clock: Clock, steady_ms: int) -> int:
    """What the wall clock will show at a time of the steady scale, if nobody steps it."""
    return clock.now_ms() + steady_ms - clock.steady_ms()
