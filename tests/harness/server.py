"""A whole server without sockets, threads or files, whose time is moved by hand."""

from __future__ import annotations

from typing import Any

from tests.harness.loop import ManualLoop
from topics.engine import Engine
from topics.server.assembly import Assembly
from topics.server.auth import Keys
from topics.server.delivery.unsynced import Unsynced
from topics.server.driver import Wakeup
from topics.settings import Settings
from topics.testing import ManualClock


class HandServer:
    """Everything that serves an engine in memory; ready, unless `replayed` says how far its start has come."""

    def __init__(self, keys: str = "", replayed: float | None = None) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        loop: Any = self.loop
        wakeup = Wakeup(loop)
        self.engine = Engine(self.clock, wake=wakeup.wake)
        self.assembly = Assembly(
            Settings(), Keys(keys), loop, self.engine, wakeup, Unsynced(), replayed=lambda: replayed or 0.0
        )
        self.app = self.assembly.app
        if replayed is None:
            self.assembly.phase.serve()
