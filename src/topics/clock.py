"""Where time comes from.

Nothing below `server/` asks the operating system for the time: the engine takes a `Clock`, so that retention, leases
and ageing can be driven by hand in tests. `now_ms` is wall-clock milliseconds since the Unix epoch, the unit of every
`$ts`; it may step backwards, and the engine keeps `$ts` monotonic per topic itself. `elapsed_ns` never steps backwards
and measures durations.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The two readings of time that the engine uses."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch."""

    def elapsed_ns(self) -> int:
        """Monotonic nanoseconds since an arbitrary start."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def elapsed_ns(self) -> int:
        """Monotonic nanoseconds since an arbitrary start."""
        return time.perf_counter_ns()
