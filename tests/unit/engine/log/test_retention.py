"""The LOSS and RETAIN rules to the millisecond: TTL, caps, floors and tombstones, on a clock that the test moves."""

from __future__ import annotations

import pytest

from tests.harness.memory import OneTopic
from topics.engine import Delete
from topics.testing.clock import START_MS


def test_record_expires_strictly_after_its_ttl() -> None:
    """RETAIN-1."""
    topic = OneTopic(ttl_ms=1000)
    topic.write()
    topic.clock.advance(1000)
    assert topic.seqs() == [1]
    assert topic.gap() is None
    assert topic.floors() == (1, 1, 1)
    topic.clock.advance(1)
    assert topic.seqs() == []
    assert topic.gap() == (1, 1, "ttl")
    assert topic.floors() == (1, 2, 0)


def test_ttl_floor_moves_with_the_clock_alone() -> None:
    """RETAIN-2."""
    topic = OneTopic(ttl_ms=100)
    for _ in range(5):
        topic.write(2)
        topic.clock.advance(10)
    for expired in range(6):
        now_live = list(range(2 * expired + 1, 11))
        topic.clock.set(START_MS + 100 + 10 * expired)
        assert topic.seqs() == now_live
        assert topic.floors() == (10, 2 * expired + 1, len(now_live))
        assert topic.gap() == ((1, 2 * expired, "ttl") if expired else None)
        if expired:
            assert topic.gap(2 * expired - 2) == (2 * expired - 1, 2 * expired, "ttl")
            assert topic.gap(2 * expired - 1) == (2 * expired, 2 * expired, "ttl")
        assert topic.gap(2 * expired) is None


def test_expired_records_leave_count_and_bytes() -> None:
    """RETAIN-3, TOPIC-16."""
    topic = OneTopic(ttl_ms=100)
    topic.write(3)
    one = topic.engine.state("t").bytes // 3
    topic.clock.advance(60)
    topic.write(2)
    topic.clock.advance(41)
    state = topic.engine.state("t")
    assert (state.count, state.bytes, state.earliest_seq) == (2, 2 * one, 4)
    (listed,), _ = topic.engine.list_topics()
    assert (listed.count, listed.bytes, listed.earliest_seq) == (2, 2 * one, 4)


def test_no_ttl_never_expires() -> None:
    """RETAIN-1: 0 means no TTL."""
    topic = OneTopic()
    topic.write(3)
    topic.clock.advance(10 * 365 * 86_400_000)
    assert topic.floors() == (3, 1, 3)


def test_clock_that_steps_back_brings_nothing_back() -> None:
    """LOSS-2."""
    topic = OneTopic(ttl_ms=100)
    topic.write(3)
    topic.clock.advance(101)
    assert topic.floors() == (3, 4, 0)
    topic.clock.set(START_MS)
    assert topic.floors() == (3, 4, 0)
    assert topic.gap() == (1, 3, "ttl")


def test_ts_is_never_below_its_predecessor() -> None:
    """WRITE-17."""
    topic = OneTopic()
    topic.write()
    topic.clock.set(START_MS - 5000)
    topic.write()
    topic.clock.set(START_MS + 7)
    topic.write()
    assert [record["$ts"] for record in topic.diff().records] == [START_MS, START_MS, START_MS + 7]


def test_loosened_ttl_brings_nothing_back() -> None:
    """RETAIN-9: also if nothing has read it in between."""
    topic = OneTopic(ttl_ms=100)
    topic.write(3)
    topic.clock.advance(101)
    topic.put(ttl_ms=0)
    assert topic.floors() == (3, 4, 0)
    topic.write(1)
    assert topic.seqs() == [4]
    assert topic.gap() == (1, 3, "ttl")


def test_tightened_ttl_shows_at_once() -> None:
    """RETAIN-9."""
    topic = OneTopic()
    topic.write(2)
    topic.clock.advance(50)
    topic.write(2)
    topic.put(ttl_ms=49)
    assert topic.floors() == (4, 3, 2)
    assert topic.gap() == (1, 2, "ttl")


def test_deleted_record_does_not_expire() -> None:
    """LOSS-3."""
    topic = OneTopic(ttl_ms=100)
    topic.write(3)
    topic.engine.delete("t", Delete(before_seq=4))
    topic.clock.advance(1000)
    assert topic.floors() == (3, 4, 0)
    assert [topic.gap(cursor) for cursor in range(4)] == [None] * 4


def test_expiry_beside_a_deleted_record_moves_the_floor_to_the_live_one() -> None:
    """LOSS-3."""
    topic = OneTopic(ttl_ms=100)
    topic.write()
    topic.write(tag="gone")
    topic.clock.advance(50)
    topic.write(2)
    topic.engine.delete("t", Delete(match="gone"))
    topic.clock.advance(51)
    assert topic.floors() == (4, 3, 2)
    assert topic.gap(0) == (1, 2, "ttl")
    assert topic.gap(1) is None
    assert topic.seqs(1) == [3, 4]


def test_eviction_beside_a_deleted_record_moves_the_floor_to_the_live_one() -> None:
    """LOSS-3."""
    topic = OneTopic()
    topic.write()
    topic.write(tag="gone")
    topic.write(2)
    topic.engine.delete("t", Delete(match="gone"))
    topic.put(cap_records=2)
    assert topic.floors() == (4, 3, 2)
    assert topic.gap(0) == (1, 2, "cap")
    assert topic.gap(1) is None


def test_delete_after_eviction_widens_the_gap_but_not_the_trigger() -> None:
    """LOSS-3, LOSS-6: `gap_to` is `earliest_seq - 1`, and the trigger is the `evict_floor`."""
    topic = OneTopic(cap_records=8)
    topic.write(10)
    topic.engine.delete("t", Delete(before_seq=6))
    assert topic.floors() == (10, 6, 5)
    assert [topic.gap(cursor) for cursor in range(6)] == [(1, 5, "cap"), (2, 5, "cap"), None, None, None, None]


def test_cap_and_ttl_in_one_gap_are_mixed() -> None:
    """LOSS-8."""
    topic = OneTopic(cap_records=3, ttl_ms=100)
    topic.write(5)
    assert topic.gap() == (1, 2, "cap")
    topic.clock.advance(101)
    assert topic.gap() == (1, 5, "mixed")
    assert topic.gap(2) == (3, 5, "ttl")


def test_ttl_then_cap_in_one_gap_are_mixed() -> None:
    """LOSS-8: in either order."""
    topic = OneTopic(cap_records=3, ttl_ms=100)
    topic.write(2)
    topic.clock.advance(101)
    assert topic.gap() == (1, 2, "ttl")
    topic.write(5)
    assert topic.gap() == (1, 4, "mixed")
    assert topic.gap(2) == (3, 4, "cap")


def test_expired_records_do_not_count_toward_the_cap() -> None:
    """RETAIN-3, RETAIN-7: the expired ones are gone already."""
    topic = OneTopic(cap_records=3, ttl_ms=100)
    topic.write(3)
    topic.clock.advance(101)
    topic.write(3)
    assert topic.seqs() == [4, 5, 6]
    assert topic.gap() == (1, 3, "ttl")


@pytest.mark.parametrize("batch", [1, 7, 40])
def test_cap_is_exact_at_every_moment(batch: int) -> None:
    """RETAIN-4, TOPIC-16."""
    topic = OneTopic(cap_records=25)
    for _ in range(200 // batch):
        head = topic.write(batch)
        kept = min(25, head)
        assert topic.floors() == (head, head - kept + 1, kept)
        assert topic.gap() == ((1, head - kept, "cap") if head > 25 else None)


def test_recreated_topic_has_fresh_floors() -> None:
    """TOPIC-22, LOSS-9: seqs start again, and a cursor from the future gets a tombstone."""
    topic = OneTopic(cap_records=1)
    topic.write(9)
    topic.engine.delete_topic("t")
    topic.put()
    topic.write(2)
    assert topic.floors() == (2, 1, 2)
    assert topic.gap(0) is None
    assert topic.gap(2) is None
    assert topic.gap(9) == (1, 2, "recreated")
    assert topic.seqs(9) == [1, 2]


def test_time_of_expiry_follows_the_record_not_the_reader() -> None:
    """RETAIN-1: reading does not prolong a life."""
    topic = OneTopic(ttl_ms=100)
    topic.write()
    for _ in range(10):
        topic.clock.advance(10)
        assert topic.seqs() == [1]
    topic.clock.advance(1)
    assert topic.seqs() == []


@pytest.mark.parametrize("config", [{"cap_records": 2}, {"ttl_ms": 150}], ids=str)
def test_reader_from_a_time_gets_a_tombstone_for_what_was_lost_since(config: dict[str, int]) -> None:
    """READ-14: `from_ts` begins with the first record of that time; where that one was evicted, it is a gap."""
    topic = OneTopic(**config)
    stamps = []
    for _ in range(4):
        topic.write()
        stamps.append(topic.clock.now_ms())
        topic.clock.advance(100)
    assert topic.floors()[1] >= 3
    earliest = topic.floors()[1]
    for n, stamp in enumerate(stamps, start=1):
        read = topic.diff(from_ts=stamp)
        assert (read.tombstone is not None) == (n < earliest), n
        assert [record["$seq"] for record in read.records] == list(range(max(n, earliest), 5))
    assert topic.diff(from_ts=stamps[earliest - 2] + 1).tombstone is None
