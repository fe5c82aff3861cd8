"""ManualServer: a whole server but for its sockets, threads and files. Its clock and its loop move on demand."""

from __future__ import annotations

import json
from typing import Any, cast

from tests.harness.connection import Client, request
from tests.harness.loop import ManualLoop
from tests.harness.machine import Machine
from topics.engine import Engine
from topics.server.assembly import Assembly
from topics.server.auth import Keys
from topics.server.delivery.channel import Unsynced
from topics.server.driver import Wakeup
from topics.settings import Settings
from topics.storage.job import Job, run_inline
from topics.testing import ManualClock


class ManualServer:
    """Everything that serves an engine in memory; ready, unless `replayed` says how far its start has come.

    With a `machine`, it serves the engine of that, and keeps the jobs for its disk in `jobs` until `run_jobs`.
    """

    def __init__(
        self,
        keys: str = "",
        replayed: float | None = None,
        settings: Settings | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.clock = ManualClock() if machine is None else machine.clock
        self.loop = ManualLoop(self.clock)
        self.jobs: list[Job] = []
        loop = cast("Any", self.loop)
        wakeup = Wakeup(loop)
        self.engine = Engine(self.clock, wake=wakeup.wake) if machine is None else machine.engine
        self.engine.journal.wake = wakeup.wake
        self.assembly = Assembly(
            settings or Settings(), Keys(keys), loop, self.engine, wakeup, Unsynced(), replayed=lambda: replayed or 0.0
        )
        self.app = self.assembly.app
        # In the place of threads.
        self.assembly.driver.start = self.jobs.append  # type: ignore[method-assign, assignment]
        if replayed is None:
            self.assembly.phase.serve()

    def run_jobs(self) -> None:
        """Execute the jobs that the engine asked for, and what follows from them."""
        while self.jobs:
            jobs, self.jobs[:] = list(self.jobs), []
            run_inline(jobs)
            self.loop.run_until_idle()

    def send(self, method: str, path: str, body: Any = None, *headers: str) -> Client:
        """Send a request, with JSON if it has a body, on a connection of its own."""
        client = Client(self.app)
        encoded = None if body is None else json.dumps(body).encode()
        client.send(request(method, path, encoded, "Content-Type: application/json", *headers))
        self.loop.run_until_idle()
        return client

    def post(self, **fields: Any) -> Client:
        """Write one record to topic `t`; the fields are more of the write."""
        return self.send("POST", "/v0/topics/t", {"records": [{"data": 1}], **fields})

    def overload(self) -> None:
        """Bring the pressure to its highest level."""
        for _ in range(20):
            self.assembly.governor.observe(5_000.0)

    def calm(self) -> None:
        """Let the pressure go."""
        for _ in range(100):
            self.assembly.governor.observe(0.0)
