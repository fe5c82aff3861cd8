"""An event loop that a test turns by hand, on a clock that it moves by hand."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from topics.testing import ManualClock


class Handle:
    """A callback that may be cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class ManualLoop:
    """The part of an event loop that the server's own logic uses."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.turns = 0
        self._soon: list[Handle] = []
        self._later: list[tuple[float, int, Handle]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self.clock.elapsed_ns() / 1e9

    def call_soon(self, call: Callable[..., None], *args: Any) -> Handle:
        handle = Handle(lambda: call(*args))
        self._soon.append(handle)
        return handle

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> Handle:
        return self.call_at(self.time() + delay_s, call, *args)

    def call_at(self, when: float, call: Callable[..., None], *args: Any) -> Handle:
        handle = Handle(lambda: call(*args))
        heapq.heappush(self._later, (when, next(self._order), handle))
        return handle

    def turn(self) -> bool:
        """One turn: everything that is due, and nothing that it brings about; whether there was anything."""
        while self._later and self._later[0][0] <= self.time() + 1e-9:
            self._soon.append(heapq.heappop(self._later)[2])
        due, self._soon = self._soon, []
        for handle in due:
            if handle.call is not None:
                handle.call()
        self.turns += bool(due)
        return bool(due)

    def run_until_idle(self) -> None:
        """Turn until nothing is due at this moment."""
        while self.turn():
            pass

    def advance(self, ms: int, step_ms: int = 10) -> None:
        """Let time pass, and do what falls due on the way."""
        while ms > 0:
            self.clock.advance(min(ms, step_ms))
            ms -= step_ms
            self.run_until_idle()
