"""Large writes take turns: many small steps, a few at a time, and no part of a write is seen before all of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import thread_time
from typing import Any, cast

import pytest

from tests.harness.loop import ManualLoop
from topics.engine.requests import Write
from topics.engine.write.batch import CheckedWrite
from topics.errors import TopicsError
from topics.server.api import large_writes
from topics.server.api.large_writes import ACTIVE_MAX, LargeWrites
from topics.server.api.records import write_body
from topics.server.http.body import Gathered, Plain
from topics.storage.job import Job
from topics.testing import MemoryEngine
from topics.testing.clock import ManualClock

STEP_S = 0.05
"""Far more than a step takes, and far less than all of them."""


class Taken:
    """Large writes on a loop that turns by hand, and what came of them."""

    def __init__(self) -> None:
        self.loop = ManualLoop(ManualClock())
        self.large = LargeWrites(cast("Any", self.loop), MemoryEngine(), 1 << 20, self._run_then)
        self.writes: list[Write] = []
        self.errors: list[TopicsError] = []

    def take(self, body: bytes) -> None:
        gathered = Gathered()
        gathered.add(body)
        self.large.take("t", (b"", Plain(gathered)), write_body.envelope, self._taken, self.errors.append)

    def _run_then(self, job: Job, then: Callable[[], None]) -> None:
        raise AssertionError("an engine in memory has nothing to make ready")

    def _taken(self, _: Write, write: Write, unknown: list[str]) -> None:
        self.writes.append(write)


def test_large_writes_take_turns_of_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-27: no turn does much, whatever the body holds, and the write comes out laid out."""
    monkeypatch.setattr(large_writes, "TURN_NS", 0)
    inner = json.dumps([{"data": i, "x": [{}] * 20} for i in range(40)]).encode()
    taken = Taken()
    taken.take(b'{"records":[%b]}' % b",".join([b'{"data":%b,"tag":"t"}' % inner] * 2500))
    taken.take(b'{"x":[%b],"records":[]}' % b",".join([b"{}"] * 4_000_000))
    steps = []
    while taken.large:
        before = thread_time()
        assert taken.loop.turn()
        steps.append(thread_time() - before)
        assert not taken.writes or len(taken.large) < 2
    assert len(steps) > 50
    assert max(steps) < STEP_S
    (write,) = taken.writes
    assert isinstance(write, CheckedWrite)
    block = write.batch.draft.place(1, 1, 1)  # type: ignore[union-attr]
    assert (block.n, block.data(2499), block.tag(2499)) == (2500, inner, b"t")
    assert [error.detail["limit"] for error in taken.errors] == ["max_command_bytes"]


def test_only_a_few_are_under_way_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-27: the others wait as they came; each gets its turn, and a defect in one harms no other."""
    monkeypatch.setattr(large_writes, "TURN_NS", 0)
    taken = Taken()
    begun: set[int] = set()
    for i in range(10):

        class Watched(Plain):
            def take(self, size: int, i: int = i) -> bytes:
                begun.add(i)
                assert i != 3, "a defect"
                return super().take(size)

        gathered = Gathered()
        gathered.add(b'{"records":[%b]}' % b",".join([b'{"data":%d}' % i] * 5000))
        taken.large.take("t", (b"", Watched(gathered)), write_body.envelope, taken._taken, taken.errors.append)
    taken.loop.turn()
    for _ in range(ACTIVE_MAX):
        taken.loop.turn()
    assert len(begun) <= ACTIVE_MAX + 1
    taken.loop.run_until_idle()
    assert begun == set(range(10))
    assert len(taken.writes) == 9
    assert [error.code for error in taken.errors] == ["internal"]
