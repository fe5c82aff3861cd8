"""Streams that come to records which are not in memory (WATCH-33, STORE-6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.loop import Listener, ManualLoop, plain_view
from topics.engine import Engine, Write
from topics.errors import ColdUnavailable
from topics.server.delivery import channel as channels
from topics.server.delivery.delivery import Delivery
from topics.storage.job import Job, Task
from topics.storage.segment.segment import Miss
from topics.testing import ManualClock

real_read = channels.read


class Disk:
    """Reads that miss until their job has run."""

    def __init__(self) -> None:
        self.warm = False
        self.jobs: list[tuple[Job, Callable[[], None]]] = []

    def read(self, *args: Any, **named: Any) -> Any:
        if not self.warm:
            raise Miss(Task("read", lambda: None, self._done))
        return real_read(*args, **named)

    def _done(self, error: BaseException | None) -> None:
        self.warm = True

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job, then in jobs:
            job.run()
            job.done(None)
            then()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(channels, "read", disk.read)
    return disk


def test_feeds_wait_for_the_disk_and_then_go_on(disk: Disk) -> None:
    """One job for all feeds at the same place; the others are served meanwhile; nothing is skipped."""
    clock = ManualClock()
    loop = ManualLoop(clock)
    engine = Engine(clock)
    engine.write("t", Write.of(range(3)))
    delivery = Delivery(engine, loop, 5_000, 30_000)  # type: ignore[arg-type]
    delivery.run_then = lambda job, then: disk.jobs.append((job, then))
    listeners = [Listener(delivery) for _ in range(5)]
    for listener in listeners:
        listener.follow(engine, "t", 0, plain_view())
    loop.settle()
    assert len(disk.jobs) == 1
    assert all(listener.told == [] for listener in listeners)
    delivery.leave(listeners[0])
    disk.run()
    loop.settle()
    assert listeners[0].told == []
    assert all(listener.seqs() == [1, 2, 3] for listener in listeners[1:])
    assert all(listener.kinds()[-1] == "caught-up" for listener in listeners[1:])


def test_unreadable_records_end_the_feed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that cannot be read is told, not skipped over."""
    clock = ManualClock()
    loop = ManualLoop(clock)
    engine = Engine(clock)
    engine.write("t", Write.of([1]))
    delivery = Delivery(engine, loop, 5_000, 30_000)  # type: ignore[arg-type]

    def fail(*args: Any, **named: Any) -> Any:
        raise ColdUnavailable

    monkeypatch.setattr(channels, "read", fail)
    told: list[Exception] = []
    listener = Listener(delivery)
    monkeypatch.setattr(listener, "unreadable", lambda feed, error: told.append(error))
    feed = listener.follow(engine, "t", 0, plain_view())
    loop.settle()
    assert [type(error) for error in told] == [ColdUnavailable]
    assert feed.cursor == 0
