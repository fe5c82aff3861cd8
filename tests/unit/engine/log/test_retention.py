"""The LOSS and RETAIN rules to the millisecond: TTL, caps, floors and tombstones, on a clock that the test moves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topics.engine import ConfigPatch, Delete, Diff, Engine, RecordIn, Write
from topics.engine.log.difference import Difference
from topics.testing import ManualClock

START_MS = 1_750_000_000_000


class Bench:
    """One topic on an engine of its own, and a clock."""

    def __init__(self, **config: Any) -> None:
        self.clock = ManualClock(START_MS)
        self.engine = Engine(self.clock)
        self.engine.put_topic("t", ConfigPatch(**config))

    def put(self, **config: Any) -> None:
        self.engine.put_topic("t", ConfigPatch(**config))

    def write(self, count: int = 1, tag: str | None = None, node: str | None = None) -> int:
        """Append `count` records; the seq of the last one."""
        records = [RecordIn(msgspec.Raw(b"1"), tag=tag, node=node) for _ in range(count)]
        return self.engine.write("t", Write(records)).last_seq

    def diff(self, from_seq: int = 0, **fields: Any) -> Difference:
        return self.engine.diff("t", Diff(from_seq=from_seq, **fields))

    def seqs(self, from_seq: int = 0, **fields: Any) -> list[int]:
        return [record["$seq"] for record in self.diff(from_seq, **fields).records]

    def gap(self, from_seq: int = 0) -> tuple[int, int, str] | None:
        tombstone = self.diff(from_seq).tombstone
        return None if tombstone is None else (tombstone.gap_from, tombstone.gap_to, tombstone.reason)

    def floors(self) -> tuple[int, int, int]:
        """head_seq, earliest_seq, count."""
        state = self.engine.state("t", touch=False)
        return state.head_seq, state.earliest_seq, state.count


def test_record_expires_strictly_after_its_ttl() -> None:
    """RETAIN-1."""
    bench = Bench(ttl_ms=1000)
    bench.write()
    bench.clock.advance(1000)
    assert bench.seqs() == [1]
    assert bench.gap() is None
    assert bench.floors() == (1, 1, 1)
    bench.clock.advance(1)
    assert bench.seqs() == []
    assert bench.gap() == (1, 1, "ttl")
    assert bench.floors() == (1, 2, 0)


def test_ttl_floor_moves_with_the_clock_alone() -> None:
    """RETAIN-2."""
    bench = Bench(ttl_ms=100)
    for _ in range(5):
        bench.write(2)
        bench.clock.advance(10)
    for expired in range(6):
        now_live = list(range(2 * expired + 1, 11))
        bench.clock.set(START_MS + 100 + 10 * expired)
        assert bench.seqs() == now_live
        assert bench.floors() == (10, 2 * expired + 1, len(now_live))
        assert bench.gap() == ((1, 2 * expired, "ttl") if expired else None)
        if expired:
            assert bench.gap(2 * expired - 2) == (2 * expired - 1, 2 * expired, "ttl")
            assert bench.gap(2 * expired - 1) == (2 * expired, 2 * expired, "ttl")
        assert bench.gap(2 * expired) is None


def test_expired_records_leave_count_and_bytes() -> None:
    """RETAIN-3, TOPIC-16."""
    bench = Bench(ttl_ms=100)
    bench.write(3)
    one = bench.engine.state("t").bytes // 3
    bench.clock.advance(60)
    bench.write(2)
    bench.clock.advance(41)
    state = bench.engine.state("t")
    assert (state.count, state.bytes, state.earliest_seq) == (2, 2 * one, 4)
    (listed,), _ = bench.engine.list_topics()
    assert (listed.count, listed.bytes, listed.earliest_seq) == (2, 2 * one, 4)


def test_no_ttl_never_expires() -> None:
    """RETAIN-1: 0 means no TTL."""
    bench = Bench()
    bench.write(3)
    bench.clock.advance(10 * 365 * 86_400_000)
    assert bench.floors() == (3, 1, 3)


def test_clock_that_steps_back_brings_nothing_back() -> None:
    """LOSS-2."""
    bench = Bench(ttl_ms=100)
    bench.write(3)
    bench.clock.advance(101)
    assert bench.floors() == (3, 4, 0)
    bench.clock.set(START_MS)
    assert bench.floors() == (3, 4, 0)
    assert bench.gap() == (1, 3, "ttl")


def test_ts_is_never_below_its_predecessor() -> None:
    """WRITE-17."""
    bench = Bench()
    bench.write()
    bench.clock.set(START_MS - 5000)
    bench.write()
    bench.clock.set(START_MS + 7)
    bench.write()
    assert [record["$ts"] for record in bench.diff().records] == [START_MS, START_MS, START_MS + 7]


def test_loosened_ttl_brings_nothing_back() -> None:
    """RETAIN-9: also if nothing has read it in between."""
    bench = Bench(ttl_ms=100)
    bench.write(3)
    bench.clock.advance(101)
    bench.put(ttl_ms=0)
    assert bench.floors() == (3, 4, 0)
    bench.write(1)
    assert bench.seqs() == [4]
    assert bench.gap() == (1, 3, "ttl")


def test_tightened_ttl_shows_at_once() -> None:
    """RETAIN-9."""
    bench = Bench()
    bench.write(2)
    bench.clock.advance(50)
    bench.write(2)
    bench.put(ttl_ms=49)
    assert bench.floors() == (4, 3, 2)
    assert bench.gap() == (1, 2, "ttl")


def test_deleted_record_does_not_expire() -> None:
    """LOSS-3."""
    bench = Bench(ttl_ms=100)
    bench.write(3)
    bench.engine.delete("t", Delete(before_seq=4))
    bench.clock.advance(1000)
    assert bench.floors() == (3, 4, 0)
    assert [bench.gap(cursor) for cursor in range(4)] == [None] * 4


def test_expiry_beside_a_deleted_record_moves_the_floor_to_the_live_one() -> None:
    """LOSS-3."""
    bench = Bench(ttl_ms=100)
    bench.write()
    bench.write(tag="gone")
    bench.clock.advance(50)
    bench.write(2)
    bench.engine.delete("t", Delete(match="gone"))
    bench.clock.advance(51)
    assert bench.floors() == (4, 3, 2)
    assert bench.gap(0) == (1, 2, "ttl")
    assert bench.gap(1) is None
    assert bench.seqs(1) == [3, 4]


def test_eviction_beside_a_deleted_record_moves_the_floor_to_the_live_one() -> None:
    """LOSS-3."""
    bench = Bench()
    bench.write()
    bench.write(tag="gone")
    bench.write(2)
    bench.engine.delete("t", Delete(match="gone"))
    bench.put(cap_records=2)
    assert bench.floors() == (4, 3, 2)
    assert bench.gap(0) == (1, 2, "cap")
    assert bench.gap(1) is None


def test_delete_after_eviction_widens_the_gap_but_not_the_trigger() -> None:
    """LOSS-3, LOSS-6: `gap_to` is `earliest_seq - 1`, and the trigger is the `evict_floor`."""
    bench = Bench(cap_records=8)
    bench.write(10)
    bench.engine.delete("t", Delete(before_seq=6))
    assert bench.floors() == (10, 6, 5)
    assert [bench.gap(cursor) for cursor in range(6)] == [(1, 5, "cap"), (2, 5, "cap"), None, None, None, None]


def test_cap_and_ttl_in_one_gap_are_mixed() -> None:
    """LOSS-8."""
    bench = Bench(cap_records=3, ttl_ms=100)
    bench.write(5)
    assert bench.gap() == (1, 2, "cap")
    bench.clock.advance(101)
    assert bench.gap() == (1, 5, "mixed")
    assert bench.gap(2) == (3, 5, "ttl")


def test_ttl_then_cap_in_one_gap_are_mixed() -> None:
    """LOSS-8: in either order."""
    bench = Bench(cap_records=3, ttl_ms=100)
    bench.write(2)
    bench.clock.advance(101)
    assert bench.gap() == (1, 2, "ttl")
    bench.write(5)
    assert bench.gap() == (1, 4, "mixed")
    assert bench.gap(2) == (3, 4, "cap")


def test_expired_records_do_not_count_toward_the_cap() -> None:
    """RETAIN-3, RETAIN-7: the expired ones are gone already."""
    bench = Bench(cap_records=3, ttl_ms=100)
    bench.write(3)
    bench.clock.advance(101)
    bench.write(3)
    assert bench.seqs() == [4, 5, 6]
    assert bench.gap() == (1, 3, "ttl")


@pytest.mark.parametrize("batch", [1, 7, 40])
def test_cap_is_exact_at_every_moment(batch: int) -> None:
    """RETAIN-4, TOPIC-16."""
    bench = Bench(cap_records=25)
    for _ in range(200 // batch):
        head = bench.write(batch)
        kept = min(25, head)
        assert bench.floors() == (head, head - kept + 1, kept)
        assert bench.gap() == ((1, head - kept, "cap") if head > 25 else None)


def test_recreated_topic_has_fresh_floors() -> None:
    """TOPIC-22, LOSS-9: seqs start again, and a cursor from the future gets a tombstone."""
    bench = Bench(cap_records=1)
    bench.write(9)
    bench.engine.delete_topic("t")
    bench.put()
    bench.write(2)
    assert bench.floors() == (2, 1, 2)
    assert bench.gap(0) is None
    assert bench.gap(2) is None
    assert bench.gap(9) == (1, 2, "recreated")
    assert bench.seqs(9) == [1, 2]


def test_time_of_expiry_follows_the_record_not_the_reader() -> None:
    """RETAIN-1: reading does not prolong a life."""
    bench = Bench(ttl_ms=100)
    bench.write()
    for _ in range(10):
        bench.clock.advance(10)
        assert bench.seqs() == [1]
    bench.clock.advance(1)
    assert bench.seqs() == []


@pytest.mark.parametrize("config", [{"cap_records": 2}, {"ttl_ms": 150}], ids=str)
def test_reader_from_a_time_is_told_what_was_lost_since(config: dict[str, int]) -> None:
    """READ-14: `from_ts` begins with the first record of that time; where that one was evicted, it is a gap."""
    bench = Bench(**config)
    stamps = []
    for _ in range(4):
        bench.write()
        stamps.append(bench.clock.now_ms())
        bench.clock.advance(100)
    assert bench.floors()[1] >= 3
    earliest = bench.floors()[1]
    for n, stamp in enumerate(stamps, start=1):
        read = bench.diff(from_ts=stamp)
        assert (read.tombstone is not None) == (n < earliest), n
        assert [record["$seq"] for record in read.records] == list(range(max(n, earliest), 5))
    assert bench.diff(from_ts=stamps[earliest - 2] + 1).tombstone is None
