"""The delivery loop: slices, sharing, stalls, pacing, heartbeats (WATCH-29 to WATCH-32)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.delivery import ManualDelivery
from topics.engine import ConfigPatch, Delete
from topics.server.delivery import channel as channels
from topics.server.delivery.delivery import SLICE_FEEDS


@pytest.fixture
def manual() -> ManualDelivery:
    return ManualDelivery()


def test_frames_are_read_once_for_all_streams_at_the_same_place(
    manual: ManualDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WATCH-32: one frame per topic, cursor and options."""
    manual.write("t")
    listeners = [manual.listener("t", 1) for _ in range(SLICE_FEEDS)]
    tagged = [manual.listener("t", 1, include_tags=True) for _ in range(3)]
    manual.loop.run_until_idle()
    reads = []
    monkeypatch.setattr(channels, "read", lambda *args, **named: reads.append(1) or real_read(*args, **named))
    manual.write("t")
    manual.loop.run_until_idle()
    assert all(listener.seqs() == [2] for listener in [*listeners, *tagged])
    # Two views, and the round takes two slices.
    assert len(reads) <= 4


real_read = channels.read


def test_fan_out_is_sliced(manual: ManualDelivery) -> None:
    """WATCH-32: 1,000 streams never hold up a POST: a turn of the loop serves a bounded number of feeds."""
    manual.write("t")
    listeners = [manual.listener("t", 1) for _ in range(1_000)]
    manual.loop.run_until_idle()
    manual.write("t")
    before = 0
    while manual.loop.turn():
        served = sum(len(listener.seqs()) for listener in listeners)
        assert served - before <= SLICE_FEEDS
        before = served
    assert before == 1_000


def test_writes_between_slices_coalesce(manual: ManualDelivery) -> None:
    """WATCH-29: records coalesce into larger and fewer batches, in order."""
    manual.write("t")
    listeners = [manual.listener("t", 1) for _ in range(500)]
    manual.loop.run_until_idle()
    for _ in range(50):
        manual.write("t")
        manual.loop.turn()
    manual.loop.run_until_idle()
    for listener in listeners:
        assert listener.seqs() == list(range(2, 52))
    frames = sum(listener.kinds().count("record") for listener in listeners)
    assert frames < 50 * 500 / 2


def test_feed_that_lags_far_does_not_delay_those_at_the_head(manual: ManualDelivery) -> None:
    """One batch per feed and round: a reader of a long log delays no other."""
    manual.write("t", 10_000)
    far, near = manual.listener("t", 0, limit=10), manual.listener("t", 10_000)
    manual.loop.turn()
    manual.write("t")
    for _ in range(6):
        manual.loop.turn()
    assert near.seqs() == [10_001]
    assert len(far.seqs()) < 10_000, "the replay is still under way: the test shows what it says"
    manual.loop.run_until_idle()
    assert far.seqs() == list(range(1, 10_002))
    assert far.kinds()[-1] == "caught-up"


def test_stalled_stream_is_passed_over_and_then_gets_everything(manual: ManualDelivery) -> None:
    """WATCH-29: a slow stream lags alone."""
    manual.write("t")
    slow, quick = manual.listener("t", 1), manual.listener("t", 1)
    manual.loop.run_until_idle()
    slow.pause()
    for _ in range(100):
        manual.write("t")
        manual.loop.run_until_idle()
    assert quick.seqs() == list(range(2, 102))
    assert slow.seqs() == []
    slow.resume()
    manual.loop.run_until_idle()
    assert slow.seqs() == list(range(2, 102))
    assert slow.kinds().count("record") == 1, "what gathered leaves in one batch"


def test_grace_and_timeout_of_a_stalled_stream(manual: ManualDelivery) -> None:
    """WATCH-30, WATCH-31."""
    manual.engine.put_topic("t", ConfigPatch(cap_records=2))
    manual.write("t")
    short, long, never = (manual.listener("t", 1) for _ in range(3))
    manual.loop.run_until_idle()
    for listener in (short, long, never):
        listener.pause()
    manual.write("t", 5)
    manual.loop.run_until_idle()
    manual.pulse(1_000)
    short.resume()
    manual.pulse(5_000)
    long.resume()
    manual.loop.run_until_idle()
    for listener, reason in ((short, "cap"), (long, "from_seq_too_old")):
        lost = dict(listener.received)["tombstone"]
        assert (lost["reason"], lost["gap_from"], lost["gap_to"]) == (reason, 2, 4)
        assert listener.seqs() == [5, 6]
    assert not never.given_up
    manual.pulse(30_000)
    assert never.given_up
    assert not manual.delivery.stalled


def test_stream_that_still_reads_a_little_is_not_given_up(manual: ManualDelivery) -> None:
    """WATCH-31: the timeout is for a stream that stays full."""
    manual.write("t")
    listener = manual.listener("t", 1)
    manual.loop.run_until_idle()
    listener.pause()
    manual.write("t")
    manual.loop.run_until_idle()
    for _ in range(10):
        listener.unsent_bytes -= 8_000
        manual.pulse(20_000)
    assert not listener.given_up
    manual.pulse(31_000)
    assert listener.given_up


def test_pressure_paces_negative_priority_and_says_so_once(manual: ManualDelivery) -> None:
    """WATCH-28: `error` 429 is advisory; the stream stays open and gets everything once the topic has aged."""
    manual.engine.put_topic("low", ConfigPatch(priority=-300))
    manual.engine.put_topic("high", ConfigPatch(priority=10))
    listener = manual.listener("low")
    listener.follow(manual.engine, "high")
    manual.loop.run_until_idle()
    manual.delivery.set_level(3)
    manual.clock.advance(100)
    manual.write("low")
    manual.write("high")
    manual.loop.advance(200)
    manual.delivery.pulse()
    manual.delivery.pulse()
    assert (listener.seqs("high"), listener.seqs("low")) == ([1], [])
    assert listener.warnings == [["low"]]
    manual.loop.advance(3_200)
    assert listener.seqs("low") == [1]


def test_pressure_coalesces_rounds(manual: ManualDelivery) -> None:
    """The first rung: pushes rest for a moment, and nothing is lost."""
    manual.write("t")
    listener = manual.listener("t", 1)
    manual.loop.run_until_idle()
    manual.delivery.set_level(1)
    for _ in range(100):
        manual.clock.advance(1)
        manual.write("t")
        manual.loop.run_until_idle()
    manual.loop.advance(50)
    assert listener.seqs() == list(range(2, 102))
    assert listener.kinds().count("record") <= 12


def test_deleted_topic_reaches_stalled_streams_too(manual: ManualDelivery) -> None:
    """WATCH-27: topic-deleted, whenever the stream can take it."""
    manual.write("t")
    slow, quick = manual.listener("t", 1), manual.listener("t", 1)
    manual.loop.run_until_idle()
    slow.pause()
    manual.engine.delete_topic("t")
    manual.loop.run_until_idle()
    assert quick.kinds()[-1] == "topic-deleted"
    slow.resume()
    manual.loop.run_until_idle()
    assert slow.kinds()[-1] == "topic-deleted"
    assert not manual.delivery._channels


def test_nothing_stays_of_streams_that_left(manual: ManualDelivery) -> None:
    """LIMIT-10: no leak."""
    manual.write("t")
    topic = manual.engine.topic("t")
    listeners = [manual.listener("t", 1) for _ in range(10)]
    for listener in listeners:
        manual.delivery.enrol(listener, 1_000)
    listeners[0].pause()
    manual.write("t")
    for listener in listeners:
        manual.delivery.leave(listener)
    manual.loop.run_until_idle()
    assert not topic.listeners
    assert not manual.delivery._channels
    assert not manual.delivery.stalled
    assert len(manual.delivery.wheel) == 0
    assert len(manual.delivery._bands) == 0
    assert not manual.delivery._resting


def test_heartbeats_of_many_streams_are_sliced_too(manual: ManualDelivery) -> None:
    """A thousand streams that are due at once do not stop the loop."""
    manual.write("t")
    listeners = [manual.listener("t", 1) for _ in range(1_000)]
    for listener in listeners:
        manual.delivery.enrol(listener, 1_000)
    manual.loop.run_until_idle()
    manual.clock.advance(1_200)
    manual.delivery.pulse()
    manual.loop.turn()
    assert 0 < sum(listener.beats for listener in listeners) <= SLICE_FEEDS
    manual.loop.run_until_idle()
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
    manual: ManualDelivery, monkeypatch: pytest.MonkeyPatch, durability: Any, waits: bool
) -> None:
    """WATCH-13: push only after the sync; eventual does not wait."""
    manual.engine.put_topic("t", ConfigPatch(durability=durability))
    shard = SlowShard(manual.engine.store.shard_of(1))
    monkeypatch.setattr(manual.engine.store, "shard_of", lambda topic_id: shard)
    strong, eventual = manual.listener("t", consistency="strong"), manual.listener("t")
    manual.write("t", 2)
    manual.loop.advance(100)
    assert eventual.seqs() == [1, 2]
    assert strong.seqs() == ([] if waits else [1, 2])
    assert ("caught-up" in strong.kinds()) is not waits
    shard.synced_lsn = shard.written_lsn
    manual.write("t")
    manual.loop.advance(100)
    assert strong.seqs() == ([1, 2] if waits else [1, 2, 3])
    shard.synced_lsn = shard.written_lsn
    manual.delivery.unsynced.synced()
    manual.loop.run_until_idle()
    assert strong.seqs() == [1, 2, 3]
    assert strong.kinds().count("caught-up") >= 1


def test_records_deleted_before_their_slice_are_not_delivered(manual: ManualDelivery) -> None:
    """WATCH-24: a delete takes effect at once for every reader."""
    manual.write("t")
    listeners = [manual.listener("t", 1) for _ in range(300)]
    manual.loop.run_until_idle()
    manual.write("t", 2)
    manual.loop.turn()
    manual.engine.delete("t", Delete(before_seq=3))
    served = [listener for listener in listeners if listener.seqs()]
    manual.loop.run_until_idle()
    assert 0 < len(served) < 300
    assert all(listener.seqs() == [2, 3] for listener in served)
    assert all(listener.seqs() == [3] for listener in listeners if listener not in served)


def test_defect_with_one_stream_does_not_silence_the_others(
    manual: ManualDelivery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One feed that cannot be served ends alone, with a line in the log."""
    manual.write("t")
    listeners = [manual.listener("t", 1) for _ in range(300)]
    manual.loop.run_until_idle()
    broken = listeners[7]

    def fail(*args: Any) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(broken, "send", fail)
    monkeypatch.setattr(broken, "unreadable", lambda feed, error: manual.delivery.leave(broken))
    for _ in range(3):
        manual.write("t")
        manual.loop.run_until_idle()
    assert all(listener.seqs() == [2, 3, 4] for listener in listeners if listener is not broken)
    assert broken.closed
    assert [record.message for record in caplog.records] == ['delivering topic "t" failed']
