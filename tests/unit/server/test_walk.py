"""The life of a lone POST: the modules between its bytes and its answer are those of the walk in architecture.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any, cast

import topics
from tests.harness.connection import FakeTransport, request
from tests.harness.loop import ManualLoop
from topics.clock import SystemClock
from topics.engine import Engine, Write
from topics.server.assembly import Assembly
from topics.server.auth import Keys
from topics.server.delivery.channel import Unsynced
from topics.server.driver import Wakeup
from topics.server.http.connection import Connection
from topics.server.http.connections import Connections
from topics.server.http.limits import ConnectionLimits
from topics.settings import Settings
from topics.storage.disk import RealDisk
from topics.storage.store import Store
from topics.testing import ManualClock

SOURCE = Path(topics.__file__).parent
TESTING = SOURCE / "testing"
WALK = (
    "server/http/connection", "server/http/exchange", "server/api/records", "server/flow/admission", "server/driver",
    "engine/engine", "clock", "engine/write/batch", "engine/write/arrival", "engine/journal", "engine/topic",
    "engine/log/directory",
    "storage/block", "storage/wal/frame", "storage/wal/shard", "storage/disk",
)  # fmt: skip
NOW_AND_THEN = {"server/http/reply", "server/http/traffic"}
"""Once a second the head of answers is made anew, and some requests of a busy route are looked at for the metrics."""


class Post:
    """A server on a data directory, without sockets, and one connection that sends the same POST again and again."""

    def __init__(self, directory: Path) -> None:
        clock = SystemClock()
        self.loop = ManualLoop(ManualClock())
        loop = cast("Any", self.loop)
        # Nothing is synced in the background: that is for threads, and nothing here waits for it.
        self.store = Store(str(directory), disk=RealDisk(), clock=clock, sync_interval_ns=1 << 62)
        self.store.open()
        for _ in self.store.recover():
            pass
        self.store.start()
        wakeup = Wakeup(loop)
        self.engine = Engine(clock, self.store, wake=wakeup.wake)
        assembly = Assembly(Settings(), Keys(""), loop, self.engine, wakeup, Unsynced())
        assembly.phase.serve()
        self.connection = Connection(
            Connections(
                assembly.app, loop, ConnectionLimits(), assembly.turns, assembly.account, None, assembly.traffic
            )
        )
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)

    def send(self) -> None:
        """Send a POST of one record, and let the server answer."""
        before = len(self.transport.writes)
        body = b'{"records":[{"data":{"a":1}}]}'
        self.connection.data_received(request("POST", "/v0/topics/t", body, "Content-Type: application/json"))
        while len(self.transport.writes) == before:
            assert self.loop.turn()

    def walk(self) -> list[str]:
        """The modules of ours that are called, in order, until the answer is sent."""
        called: dict[str, None] = {}
        sent = self.transport.writes

        def note(frame: FrameType, event: str, _: object) -> None:
            path = Path(frame.f_code.co_filename)
            if event == "call" and not answered and path.is_relative_to(SOURCE) and not path.is_relative_to(TESTING):
                called[str(path.relative_to(SOURCE).with_suffix(""))] = None
            elif event == "call" and frame.f_code is FakeTransport.write.__code__:
                answered.append(len(sent))

        answered: list[int] = []
        sys.setprofile(note)
        try:
            self.send()
        finally:
            sys.setprofile(None)
        return list(called)


def test_a_lone_post_passes_the_modules_that_the_walk_names(tmp_path: Path) -> None:
    """PROOF-12: who adds a module to the path of every write says so here, and in architecture.md."""
    post = Post(tmp_path / "data")
    # The first write makes the topic, and waits for a sync.
    for i in range(2):
        post.engine.write("t", Write.of([i]))
    for _ in range(2):
        post.send()
    walked = post.walk()
    post.store.close()
    assert b'"seqs":[5]' in post.transport.sent
    assert set(walked) - NOW_AND_THEN == set(WALK), walked
    assert walked[0] == WALK[0]


def test_architecture_names_each_module_of_the_walk() -> None:
    """PROOF-12: the walk that is written down is the one that is walked."""
    text = (SOURCE.parents[1] / "docs/design/architecture.md").read_text()
    found = re.search(r"\*\*POST\.\*\*.*?\n\n", text, re.DOTALL)
    assert found is not None
    named = found[0].lower()
    short = [module.split("/", 1)[-1] for module in WALK]
    missing = [name for name in short if name not in named and name.rpartition("/")[2] not in named]
    assert not missing
