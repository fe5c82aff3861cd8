"""The delivery loop: slices, sharing, stalls, pacing, heartbeats (WATCH-29 to WATCH-32)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.loop import Listener, ManualLoop, plain_view
from topics.engine import ConfigPatch, Delete, Engine, Write
from topics.server.delivery import channel as channels
from topics.server.delivery.delivery import SLICE_FEEDS, Delivery
from topics.testing import ManualClock


class World:
    """An engine, a loop and a delivery, all by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.engine = Engine(self.clock)
        self.delivery = Delivery(self.engine, self.loop, 5_000, 30_000)  # type: ignore[arg-type]

    def write(self, topic: str, count: int = 1, **fields: Any) -> None:
        self.engine.write(topic, Write.of(range(count), **fields))

    def listener(self, topic: str, cursor: int = 0, **view: Any) -> Listener:
        listener = Listener(self.delivery)
        listener.follow(self.engine, topic, cursor, plain_view(**view))
        return listener


@pytest.fixture
def world() -> World:
    return World()


def test_frames_are_read_once_for_all_streams_at_the_same_place(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """WATCH-32: one frame per topic, cursor and options."""
    world.write("t")
    listeners = [world.listener("t", 1) for _ in range(SLICE_FEEDS)]
    tagged = [world.listener("t", 1, include_tags=True) for _ in range(3)]
    world.loop.settle()
    reads = []
    monkeypatch.setattr(channels, "read", lambda *args, **named: reads.append(1) or real_read(*args, **named))
    world.write("t")
    world.loop.settle()
    assert all(listener.seqs() == [2] for listener in [*listeners, *tagged])
    # Two views, and the round takes two slices.
    assert len(reads) <= 4


real_read = channels.read


def test_fan_out_is_sliced(world: World) -> None:
    """WATCH-32: 1,000 streams never hold up a POST: a turn of the loop serves a bounded number of feeds."""
    world.write("t")
    listeners = [world.listener("t", 1) for _ in range(1_000)]
    world.loop.settle()
    world.write("t")
    before = 0
    while world.loop.turn():
        served = sum(len(listener.seqs()) for listener in listeners)
        assert served - before <= SLICE_FEEDS
        before = served
    assert before == 1_000


def test_writes_between_slices_coalesce(world: World) -> None:
    """WATCH-29: records coalesce into larger and fewer batches, in order."""
    world.write("t")
    listeners = [world.listener("t", 1) for _ in range(500)]
    world.loop.settle()
    for _ in range(50):
        world.write("t")
        world.loop.turn()
    world.loop.settle()
    for listener in listeners:
        assert listener.seqs() == list(range(2, 52))
    frames = sum(listener.kinds().count("record") for listener in listeners)
    assert frames < 50 * 500 / 2


def test_feed_far_behind_does_not_stand_before_those_at_the_head(world: World) -> None:
    """One batch per feed and round: a replay of a long log delays nobody."""
    world.write("t", 10_000)
    far, near = world.listener("t", 0, limit=10), world.listener("t", 10_000)
    world.loop.turn()
    world.write("t")
    for _ in range(6):
        world.loop.turn()
    assert near.seqs() == [10_001]
    assert len(far.seqs()) < 10_000, "the replay is still under way: the test shows what it says"
    world.loop.settle()
    assert far.seqs() == list(range(1, 10_002))
    assert far.kinds()[-1] == "caught-up"


def test_stalled_stream_is_passed_over_and_then_gets_everything(world: World) -> None:
    """WATCH-29: a slow stream lags alone."""
    world.write("t")
    slow, quick = world.listener("t", 1), world.listener("t", 1)
    world.loop.settle()
    slow.pause()
    for _ in range(100):
        world.write("t")
        world.loop.settle()
    assert quick.seqs() == list(range(2, 102))
    assert slow.seqs() == []
    slow.resume()
    world.loop.settle()
    assert slow.seqs() == list(range(2, 102))
    assert slow.kinds().count("record") == 1, "what gathered leaves in one batch"


def test_grace_and_timeout_of_a_stalled_stream(world: World) -> None:
    """WATCH-30, WATCH-31."""
    world.engine.put_topic("t", ConfigPatch(cap_records=2))
    world.write("t")
    short, long, never = (world.listener("t", 1) for _ in range(3))
    world.loop.settle()
    for listener in (short, long, never):
        listener.pause()
    world.write("t", 5)
    world.loop.settle()
    pulse(world, 1_000)
    short.resume()
    pulse(world, 5_000)
    long.resume()
    world.loop.settle()
    for listener, reason in ((short, "cap"), (long, "from_seq_too_old")):
        lost = dict(listener.told)["tombstone"]
        assert (lost["reason"], lost["gap_from"], lost["gap_to"]) == (reason, 2, 4)
        assert listener.seqs() == [5, 6]
    assert not never.given_up
    pulse(world, 30_000)
    assert never.given_up
    assert not world.delivery.stalled


def test_stream_that_still_reads_a_little_is_not_given_up(world: World) -> None:
    """WATCH-31: the timeout is for a stream that stays full."""
    world.write("t")
    listener = world.listener("t", 1)
    world.loop.settle()
    listener.pause()
    world.write("t")
    world.loop.settle()
    for _ in range(10):
        listener.unsent_bytes -= 8_000
        pulse(world, 20_000)
    assert not listener.given_up
    pulse(world, 31_000)
    assert listener.given_up


def pulse(world: World, ms: int) -> None:
    for _ in range(ms // 100):
        world.clock.advance(100)
        world.delivery.pulse()
        world.loop.settle()


def test_pressure_paces_negative_priority_and_says_so_once(world: World) -> None:
    """WATCH-28: `error` 429 is advisory; the stream stays open and gets everything once the topic has aged."""
    world.engine.put_topic("low", ConfigPatch(priority=-300))
    world.engine.put_topic("high", ConfigPatch(priority=10))
    listener = world.listener("low")
    listener.follow(world.engine, "high")
    world.loop.settle()
    world.delivery.set_level(3)
    world.clock.advance(100)
    world.write("low")
    world.write("high")
    world.loop.advance(200)
    world.delivery.pulse()
    world.delivery.pulse()
    assert (listener.seqs("high"), listener.seqs("low")) == ([1], [])
    assert listener.warnings == [["low"]]
    world.loop.advance(3_200)
    assert listener.seqs("low") == [1]


def test_pressure_coalesces_rounds(world: World) -> None:
    """The first rung: pushes rest for a moment, and nothing is lost."""
    world.write("t")
    listener = world.listener("t", 1)
    world.loop.settle()
    world.delivery.set_level(1)
    for _ in range(100):
        world.clock.advance(1)
        world.write("t")
        world.loop.settle()
    world.loop.advance(50)
    assert listener.seqs() == list(range(2, 102))
    assert listener.kinds().count("record") <= 12


def test_deleted_topic_reaches_stalled_streams_too(world: World) -> None:
    """WATCH-27: topic-deleted, whenever the stream can take it."""
    world.write("t")
    slow, quick = world.listener("t", 1), world.listener("t", 1)
    world.loop.settle()
    slow.pause()
    world.engine.delete_topic("t")
    world.loop.settle()
    assert quick.kinds()[-1] == "topic-deleted"
    slow.resume()
    world.loop.settle()
    assert slow.kinds()[-1] == "topic-deleted"
    assert not world.delivery._channels


def test_nothing_stays_of_streams_that_left(world: World) -> None:
    """LIMIT-10: no leak."""
    world.write("t")
    topic = world.engine.topic("t")
    listeners = [world.listener("t", 1) for _ in range(10)]
    for listener in listeners:
        world.delivery.enrol(listener, 1_000)
    listeners[0].pause()
    world.write("t")
    for listener in listeners:
        world.delivery.leave(listener)
    world.loop.settle()
    assert not topic.listeners
    assert not world.delivery._channels
    assert not world.delivery.stalled
    assert len(world.delivery.wheel) == 0
    assert world.delivery.waiting == 0


def test_heartbeats_of_many_streams_are_sliced_too(world: World) -> None:
    """A thousand streams that are due at once do not stop the loop."""
    world.write("t")
    listeners = [world.listener("t", 1) for _ in range(1_000)]
    for listener in listeners:
        world.delivery.enrol(listener, 1_000)
    world.loop.settle()
    world.clock.advance(1_200)
    world.delivery.pulse()
    world.loop.turn()
    assert 0 < sum(listener.beats for listener in listeners) <= SLICE_FEEDS
    world.loop.settle()
    assert sum(listener.beats for listener in listeners) == 1_000


class SlowShard:
    """A shard whose sync has come as far as a test says."""

    def __init__(self, shard: Any) -> None:
        self._shard = shard
        self.synced_lsn = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)


@pytest.mark.parametrize(
    ("durability", "waits"), [("disk", True), ("memory", True), ("fsync", False), ("ephemeral", False)]
)
def test_strong_shows_only_what_is_synced(
    world: World, monkeypatch: pytest.MonkeyPatch, durability: Any, waits: bool
) -> None:
    """WATCH-13: push only after the sync; eventual does not wait."""
    world.engine.put_topic("t", ConfigPatch(durability=durability))
    shard = SlowShard(world.engine.store.shard_of(1))
    monkeypatch.setattr(world.engine.store, "shard_of", lambda topic_id: shard)
    strong, eventual = world.listener("t", strong=True), world.listener("t")
    world.write("t", 2)
    world.loop.advance(100)
    assert eventual.seqs() == [1, 2]
    assert strong.seqs() == ([] if waits else [1, 2])
    assert ("caught-up" in strong.kinds()) is not waits
    shard.synced_lsn = shard.written_lsn
    world.write("t")
    world.loop.advance(100)
    assert strong.seqs() == ([1, 2] if waits else [1, 2, 3])
    shard.synced_lsn = shard.written_lsn
    world.loop.advance(100)
    assert strong.seqs() == [1, 2, 3]
    assert strong.kinds().count("caught-up") >= 1


def test_records_deleted_before_their_slice_are_not_delivered(world: World) -> None:
    """WATCH-24: a delete takes effect at once for every reader."""
    world.write("t")
    listeners = [world.listener("t", 1) for _ in range(300)]
    world.loop.settle()
    world.write("t", 2)
    world.loop.turn()
    world.engine.delete("t", Delete(before_seq=3))
    told = [listener for listener in listeners if listener.seqs()]
    world.loop.settle()
    assert 0 < len(told) < 300
    assert all(listener.seqs() == [2, 3] for listener in told)
    assert all(listener.seqs() == [3] for listener in listeners if listener not in told)


def test_defect_with_one_stream_does_not_silence_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One feed that cannot be served ends alone, with a line in the log."""
    world.write("t")
    listeners = [world.listener("t", 1) for _ in range(300)]
    world.loop.settle()
    broken = listeners[7]

    def fail(*args: Any) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(broken, "send", fail)
    monkeypatch.setattr(broken, "unreadable", lambda feed, error: world.delivery.leave(broken))
    for _ in range(3):
        world.write("t")
        world.loop.settle()
    assert all(listener.seqs() == [2, 3, 4] for listener in listeners if listener is not broken)
    assert broken.closed
    assert [record.message for record in caplog.records] == ['delivering topic "t" failed']
