"""Governor: measures the pressure on the server, and passes the level on to what gives way.

Ten times a second it looks how late its own timer runs, which is how long anything else waits for the loop, and how
full the storage's queues are, and the memory for what is not sealed yet. That memory alone does not bring the level to
its last rung: where it is full, each write waits for exactly the room that it needs (admission.py), so that writers
slow down to the rate of the sealer and do not stop and go.

What follows from the level (pressure.py has the ladder) is up to others: delivery coalesces and pauses, the driver
widens its commits, parking holds writes back. The same beat drives what happens in delivery by time alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from topics.server.flow.pressure import FILL_RUNGS, OBSERVE_MS, PAUSE_LOW_PRIORITY, Pressure
from topics.storage.memory import MemoryStore
from topics.storage.store import Store
from topics.storage.wal.shard import QUEUE_BYTES_MAX


class Governor:
    """The beat by which the pressure is measured."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pressure: Pressure,
        store: Store | MemoryStore,
        unsealed_fill: Callable[[], float],
        on_level: Sequence[Callable[[int], None]],
        on_beat: Sequence[Callable[[], None]],
    ) -> None:
        """`unsealed_fill` says how much of its bound is not sealed yet, from 0 to 1.

        Each of `on_level` is called when the level changes, each of `on_beat` after every measurement.
        """
        self._loop = loop
        self._pressure = pressure
        self._store = store
        self._unsealed_fill = unsealed_fill
        self._on_level = on_level
        self._on_beat = on_beat
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure."""
        self._due = self._loop.time() + OBSERVE_MS / 1000
        self._timer = self._loop.call_at(self._due, self._beat)

    def stop(self) -> None:
        """Measure no longer."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self.observe((self._loop.time() - self._due) * 1000)
        for beat in self._on_beat:
            beat()
        self.start()

    def observe(self, lag_ms: float) -> None:
        """Take a reading, and pass on the level that follows from it."""
        fill = max((shard.queue_bytes / QUEUE_BYTES_MAX for shard in self._store.shards), default=0.0)
        fill = max(fill, min(self._unsealed_fill(), FILL_RUNGS[PAUSE_LOW_PRIORITY - 1]))
        before = self._pressure.level
        level = self._pressure.observe(lag_ms, fill)
        if level != before:
            for set_level in self._on_level:
                set_level(level)
