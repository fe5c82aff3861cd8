"""Phase: starting, ready, draining, in this order only.

Outside of ready every request but the probes and the page is answered 503 with the reason. No request looks at the
phase for that: each comes through a `Door`, and a change of the phase opens or shuts the doors, also for requests whose
head was resolved long before.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from topics.errors import RETRY_AFTER_MS, NotReady, ShuttingDown
from topics.server.api.route import Handler
from topics.server.http.exchange import Exchange

STARTING: Final = "starting"
READY: Final = "ready"
DRAINING: Final = "draining"


class Door:
    """The way of complete requests to a handler: `handle` is that, or refuses them while the door is shut."""

    __slots__ = ("handle",)

    def __init__(self, handle: Handler) -> None:
        self.handle = handle


class Phase:
    """Whether the server serves, and why not."""

    __slots__ = ("_doors", "_replayed", "_started_ns", "name", "ready")

    def __init__(self, replayed: Callable[[], float]) -> None:
        """`replayed` is how much of the log is replayed while the server starts, 0.0 to 1.0."""
        self._replayed = replayed
        self._started_ns = perf_counter_ns()
        self._doors: dict[Handler, Door] = {}
        self.name = STARTING
        self.ready = False

    def door(self, handle: Handler) -> Door:
        """The way to this handler that is open while the server is ready, the same one each time."""
        door = self._doors.get(handle)
        if door is None:
            door = self._doors[handle] = Door(handle if self.ready else self._refuse)
        return door

    def serve(self) -> None:
        """The log is replayed."""
        self.name = READY
        self.ready = True
        for handle, door in self._doors.items():
            door.handle = handle

    def drain(self) -> None:
        """The server stops."""
        self.name = DRAINING
        self.ready = False
        for door in self._doors.values():
            door.handle = self._refuse

    def _refuse(self, exchange: Exchange) -> None:
        raise self.unready()

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
