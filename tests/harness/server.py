"""ManualServer: a whole server but for its sockets and threads. Its clock and its loop move when the test says so."""

from __future__ import annotations

import json
from typing import Any, cast

from tests.harness.connection import Client, request
from tests.harness.loop import ManualLoop
from topics.server.app import READY, App
from topics.server.auth import Keys
from topics.settings import Settings
from topics.testing import MemoryEngine


class ManualServer:
    """An App over an engine in memory, ready unless another phase is given."""

    def __init__(self, keys: str = "", phase: str = READY) -> None:
        self.engine = MemoryEngine()
        self.clock = self.engine.clock
        self.loop = ManualLoop(self.clock)
        self.engine.on_pending = self._wake
        self.app = App(Settings(), Keys(keys), self.engine, cast("Any", self.loop))
        self.app.phase = phase
        self.governor = self.app.governor

    def _wake(self) -> None:
        self.loop.call_soon(self.engine.turn)

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
            self.governor.observe(5_000.0)

    def calm(self) -> None:
        """Let the pressure go."""
        for _ in range(100):
            self.governor.observe(0.0)
