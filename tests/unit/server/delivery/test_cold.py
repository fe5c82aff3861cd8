"""Streams that come to records which are not in memory (WATCH-33, STORE-6)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.delivery import Listener, ManualDelivery
from topics.errors import ColdUnavailable
from topics.server.delivery import channel as channels
from topics.storage.damage import Corrupt, LostRecords
from topics.storage.job import Miss, Task

real_read = channels.read


class Disk:
    """Reads that miss until their job has run."""

    def __init__(self) -> None:
        self.warm = False

    def read(self, *args: Any, **named: Any) -> Any:
        if not self.warm:
            raise Miss(Task("read", lambda: None, self._done))
        return real_read(*args, **named)

    def _done(self, error: BaseException | None) -> None:
        self.warm = True


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(channels, "read", disk.read)
    return disk


def test_feeds_wait_for_the_disk_and_then_go_on(disk: Disk) -> None:
    """One job for all feeds at the same place; the others are served meanwhile; nothing is skipped."""
    manual = ManualDelivery()
    manual.write("t", 3)
    listeners = [manual.listener("t") for _ in range(5)]
    manual.loop.run_until_idle()
    assert len(manual.jobs) == 1
    assert all(listener.received == [] for listener in listeners)
    manual.delivery.leave(listeners[0])
    manual.run_jobs()
    manual.loop.run_until_idle()
    assert listeners[0].received == []
    assert all(listener.seqs() == [1, 2, 3] for listener in listeners[1:])
    assert all(listener.kinds()[-1] == "caught-up" for listener in listeners[1:])


def test_unreadable_records_end_the_feed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that cannot be read is reported, not skipped over."""
    manual = ManualDelivery()
    manual.write("t")

    def fail(*args: Any, **named: Any) -> Any:
        raise ColdUnavailable

    monkeypatch.setattr(channels, "read", fail)
    reported: list[Exception] = []
    listener = Listener(manual.delivery)
    monkeypatch.setattr(listener, "unreadable", lambda feed, error: reported.append(error))
    feed = listener.follow(manual.engine, "t")
    manual.loop.run_until_idle()
    assert [type(error) for error in reported] == [ColdUnavailable]
    assert feed.cursor == 0


def test_damaged_records_are_a_tombstone_and_the_stream_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data loss is explicit: a stream that meets a damaged Block gets a tombstone in its place, and then the rest."""
    manual = ManualDelivery()
    manual.write("t", 2)
    manual.write("t")
    damage = [Corrupt("segment", 0, 100, LostRecords(1, 1, 2))]

    def read(*args: Any, **named: Any) -> Any:
        if damage:
            raise damage.pop()
        return real_read(*args, **named)

    monkeypatch.setattr(channels, "read", read)
    listener = manual.listener("t")
    manual.loop.run_until_idle()
    assert listener.kinds() == ["tombstone", "record", "caught-up"]
    lost = listener.received[0][1]
    assert (lost["gap_from"], lost["gap_to"], lost["reason"]) == (1, 2, "corruption")
    assert listener.seqs() == [3]
