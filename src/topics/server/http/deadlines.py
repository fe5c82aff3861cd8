"""Deadlines: by when a connection's client has to send or read something.

There are no timers per request or per connection. A connection writes its deadlines down, and one sweep per second
(`Connections.sweep`) looks at all of them. A deadline is therefore met to within one sweep: late, never early.
"""

from __future__ import annotations

from typing import Final

from topics.errors import RequestTimeout
from topics.server.http.intake import IN_HEAD, PROGRESS_BYTES
from topics.server.http.limits import ConnectionLimits

SWEEP_S: Final = 1.0
NEVER: Final = float("inf")


class SweepClock:
    """The time of the last sweep, from which every deadline is counted. One for all connections."""

    __slots__ = ("_idle_timeout_s", "idle_deadline", "now")

    def __init__(self, idle_timeout_ms: int) -> None:
        self._idle_timeout_s = idle_timeout_ms / 1000
        self.now = 0.0
        self.idle_deadline = 0.0
        """By when a connection that goes idle now must send its next request."""

    def set(self, now: float) -> None:
        """A sweep begins at `now`, in seconds of the loop's clock."""
        self.now = now
        # A connection that goes idle before the next sweep reads this value up to one sweep later.
        self.idle_deadline = now + SWEEP_S + self._idle_timeout_s

    def after(self, timeout_ms: int) -> float:
        """The deadline `timeout_ms` from now, never early although `now` is as old as the last sweep."""
        return self.now + SWEEP_S + timeout_ms / 1000


class Deadlines:
    """The deadlines of one connection."""

    __slots__ = ("_limits", "_message", "_renewals", "_unsent_mark", "clock", "read", "write")

    def __init__(self, clock: SweepClock, limits: ConnectionLimits) -> None:
        self.clock = clock
        self.read = NEVER
        """By when something must arrive."""
        self.write = NEVER
        """By when the client must have read some of what was written."""
        self._limits = limits
        self._message = NEVER
        self._renewals = 0
        self._unsent_mark = 0

    def clear(self) -> None:
        """Nothing is due."""
        self.read = self.write = NEVER

    def expect_message(self, phase: int, renewals: int) -> None:
        """The rest of a message is due; each of the intake's renewals earns it a fresh deadline."""
        if self._renewals != renewals:
            self._renewals = renewals
            limits = self._limits
            self._message = self.clock.after(limits.header_timeout_ms if phase == IN_HEAD else limits.body_timeout_ms)
        self.read = self._message

    def timeout(self, phase: int) -> RequestTimeout:
        """What a client is answered whose message did not arrive in time."""
        limits = self._limits
        if phase == IN_HEAD:
            message, name, limit = "The head took too long to arrive.", "header_timeout_ms", limits.header_timeout_ms
        else:
            message, name, limit = "The body arrived too slowly.", "body_timeout_ms", limits.body_timeout_ms
        return RequestTimeout(message, limit=name, max=limit)

    def watch_writing(self, unsent_bytes: int) -> None:
        """From now on the client has to take what is unsent at a certain pace."""
        self._unsent_mark = unsent_bytes
        self.write = self.clock.after(self._limits.write_timeout_ms)

    def is_stuck(self, unsent_bytes: int) -> bool:
        """Whether the client took too little since `watch_writing`."""
        return unsent_bytes > self._unsent_mark - PROGRESS_BYTES
