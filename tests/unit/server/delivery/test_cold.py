"""Streams that stand before records which are not in memory (architecture: a cold page never stops the loop)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.loop import Listener, ManualLoop, delivery_of, plain_view
from topics.engine import Engine, Write
from topics.errors import ColdUnavailable
from topics.server.delivery import channel as channels
from topics.storage.damage import Corrupt, LostRecords
from topics.storage.job import Job, Miss, Task
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
    delivery = delivery_of(engine, loop, run_then=lambda job, then: disk.jobs.append((job, then)))
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
    delivery = delivery_of(engine, loop)

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


def test_damaged_records_are_a_tombstone_and_the_stream_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data loss is explicit: a stream that meets a damaged Block is told what is gone, and gets the rest."""
    clock = ManualClock()
    loop = ManualLoop(clock)
    engine = Engine(clock)
    engine.write("t", Write.of([1, 2]))
    engine.write("t", Write.of([3]))
    damage = [Corrupt("segment", 0, 100, LostRecords(1, 1, 2))]

    def read(*args: Any, **named: Any) -> Any:
        if damage:
            raise damage.pop()
        return real_read(*args, **named)

    monkeypatch.setattr(channels, "read", read)
    listener = Listener(delivery_of(engine, loop))
    listener.follow(engine, "t", 0, plain_view())
    loop.settle()
    assert listener.kinds() == ["tombstone", "record", "caught-up"]
    lost = listener.told[0][1]
    assert (lost["gap_from"], lost["gap_to"], lost["reason"]) == (1, 2, "corruption")
    assert listener.seqs() == [3]
