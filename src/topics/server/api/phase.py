"""Phase: starting, ready, draining, in this order only.

Outside of ready every request but the probes and the page is answered 503 with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from topics.errors import RETRY_AFTER_MS, NotReady, ShuttingDown

STARTING: Final = "starting"
READY: Final = "ready"
DRAINING: Final = "draining"


class Phase:
    """Whether the server serves, and why not."""

    __slots__ = ("_replayed", "_started_ns", "name", "ready")

    def __init__(self, replayed: Callable[[], float]) -> None:
        """`replayed` is how much of the log is replayed while the server starts, 0.0 to 1.0."""
        self._replayed = replayed
        self._started_ns = perf_counter_ns()
        self.name = STARTING
        self.ready = False

    def serve(self) -> None:
        """The log is replayed."""
        self.name = READY
        self.ready = True

    def drain(self) -> None:
        """The server stops."""
        self.name = DRAINING
        self.ready = False

    def unready(self) -> NotReady | ShuttingDown:
        """Why the server does not serve right now."""
        if self.name is DRAINING:
            return ShuttingDown(retry_after_ms=RETRY_AFTER_MS)
        return NotReady(retry_after_ms=RETRY_AFTER_MS, replay_progress=self.progress())

    def progress(self) -> float:
        """How much of the log is replayed, 0.0 to 1.0."""
        return 1.0 if self.name is not STARTING else self._replayed()

    @property
    def uptime_ms(self) -> int:
        """Milliseconds since the server started."""
        return (perf_counter_ns() - self._started_ns) // 1_000_000
