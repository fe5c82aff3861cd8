"""Governor: measures the pressure on the server and sets what gives way (server/flow/pressure.py has the ladder).

Ten times a second it looks how late its own timer runs, which is how long anything else waits for the loop, and how
full the storage's queues are. What follows from the level is done by others: delivery coalesces and pauses, the driver
widens its commits, admission holds writes back. The same beat drives what happens by time alone in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from topics.server.flow.admission import Admission
from topics.server.flow.pressure import OBSERVE_MS, REFUSE_WRITES, WIDEN_COMMITS, Pressure
from topics.storage.wal.shard import QUEUE_BYTES_MAX

if TYPE_CHECKING:
    from topics.engine import Engine
    from topics.server.delivery.delivery import Delivery

COMMIT_WINDOW_S: Final = 0.002
PUMP_S: Final = 0.01


class Governor:
    """The server's pressure, and the beat by which it is taken."""

    def __init__(self, engine: Engine, delivery: Delivery, loop: asyncio.AbstractEventLoop) -> None:
        self.pressure = Pressure()
        self.admission = Admission(engine, self.pressure, self._parked)
        self.widen: Callable[[float], None] = lambda window_s: None
        """Sets how long the driver gathers frames before it commits them."""
        self._engine = engine
        self._delivery = delivery
        self._loop = loop
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._pump: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure."""
        self._due = self._loop.time() + OBSERVE_MS / 1000
        self._timer = self._loop.call_at(self._due, self._beat)

    def stop(self) -> None:
        """Measure no longer."""
        for timer in (self._timer, self._pump):
            if timer is not None:
                timer.cancel()
        self._timer = self._pump = None

    def _beat(self) -> None:
        lag_ms = (self._loop.time() - self._due) * 1000
        self.observe(lag_ms)
        self._delivery.pulse()
        self.start()

    def observe(self, lag_ms: float) -> None:
        """Take a reading and set what follows from it."""
        fill = max((shard.queue_bytes / QUEUE_BYTES_MAX for shard in self._engine.store.shards), default=0.0)
        before = self.pressure.level
        level = self.pressure.observe(lag_ms, fill)
        if level != before:
            self._delivery.set_level(level)
            self.widen(COMMIT_WINDOW_S if level >= WIDEN_COMMITS else 0.0)
            self.admission.shut = level >= REFUSE_WRITES

    def _parked(self) -> None:
        if self._pump is None:
            self._pump = self._loop.call_later(PUMP_S, self._pump_parked)

    def _pump_parked(self) -> None:
        self._pump = None
        self.admission.pump()
        if self.admission.parked:
            self._parked()
