"""LOSS-12 to LOSS-15: loss above live records. A read stops before it, reports it once, and goes on after it."""

from __future__ import annotations

from typing import Any

import pytest

from topics.engine import ConfigPatch, Delete, Diff, Engine, Write
from topics.testing import ManualClock


class Bench:
    """A topic with the live records 1-3 and 7-9, between which 4-6 are lost."""

    def __init__(self, behind: int = 3) -> None:
        self.engine = Engine(ManualClock())
        self.engine.put_topic("t", ConfigPatch())
        self.engine.write("t", Write.of([1, 2, 3], node="n"))
        topic = self.engine.topics["t"]
        topic.log.lose(4, 6, "source_trim")
        topic.next_seq = 7
        if behind:
            self.engine.write("t", Write.of([7, 8, 9][:behind], node="n"))

    def read(self, from_seq: int, **fields: Any) -> tuple[Any, list[int], int, bool]:
        """The gap, the seqs, next_from_seq and caught_up of one diff."""
        found = self.engine.diff("t", Diff(from_seq=from_seq, **fields))
        gap = found.tombstone and (found.tombstone.gap_from, found.tombstone.gap_to, found.tombstone.reason)
        return gap, [record["$seq"] for record in found.records], found.next_from_seq, found.caught_up


def test_read_stops_before_a_lost_range_and_goes_on_behind_it() -> None:
    """LOSS-12: one tombstone, and then it goes on after the range."""
    bench = Bench()
    assert bench.read(0) == (None, [1, 2, 3], 3, False)
    assert bench.read(3) == ((4, 6, "source_trim"), [7, 8, 9], 9, True)
    assert bench.read(6) == (None, [7, 8, 9], 9, True)
    assert bench.read(9) == (None, [], 9, True)


def test_cursor_inside_a_lost_range_is_told_of_the_rest() -> None:
    """LOSS-12: no silent loss for a cursor that is already inside."""
    bench = Bench()
    assert bench.read(4) == ((5, 6, "source_trim"), [7, 8, 9], 9, True)
    assert bench.read(5) == ((6, 6, "source_trim"), [7, 8, 9], 9, True)


def test_lost_range_moves_no_floor() -> None:
    """LOSS-13."""
    bench = Bench()
    state = bench.engine.state("t")
    assert (state.head_seq, state.earliest_seq, state.count) == (9, 1, 6)
    assert bench.read(0)[0] is None


def test_lost_tail_is_told() -> None:
    """LOSS-13: a lost acked tail is a lost range; the reader ends up at the head."""
    bench = Bench(behind=0)
    assert bench.engine.state("t").head_seq == 6
    assert bench.read(0) == (None, [1, 2, 3], 3, False)
    assert bench.read(3) == ((4, 6, "source_trim"), [], 6, True)
    assert bench.engine.write("t", Write.of(["next"])).first_seq == 7


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_lost_range_is_told_whatever_the_limit(limit: int) -> None:
    """LOSS-12: every reader that passes gets exactly one tombstone."""
    bench = Bench()
    cursor, seen, gaps = 0, [], []
    for _ in range(12):
        gap, seqs, cursor, caught_up = bench.read(cursor, limit=limit)
        seen += seqs
        gaps += [gap] if gap else []
        if caught_up:
            break
    assert seen == [1, 2, 3, 7, 8, 9]
    assert gaps == [(4, 6, "source_trim")]


def test_node_filter_does_not_hide_a_lost_range() -> None:
    """LOSS-11, LOSS-14: filters are silent, loss is not."""
    bench = Bench()
    assert bench.read(0, node="n") == (None, [], 3, False)
    assert bench.read(3, node="n") == ((4, 6, "source_trim"), [], 9, True)


def test_delete_beside_a_lost_range_does_not_hide_it() -> None:
    """LOSS-14: voluntary and involuntary are never mixed: deleting 1-3 does not excuse the loss of 4-6."""
    bench = Bench()
    bench.engine.delete("t", Delete(before_seq=4))
    gap, seqs, cursor, _ = bench.read(0)
    if gap is None:
        assert (seqs, cursor) == ([], 3)
        gap, seqs, cursor, _ = bench.read(cursor)
    assert gap is not None
    assert gap[1:] == (6, "source_trim")
    assert (seqs, cursor) == ([7, 8, 9], 9)


def test_eviction_past_a_lost_range_is_one_gap() -> None:
    """LOSS-15, LOSS-7: one contiguous range up to `earliest_seq - 1`."""
    bench = Bench()
    bench.engine.put_topic("t", ConfigPatch(cap_records=2))
    assert bench.read(0) == ((1, 7, "cap"), [8, 9], 9, True)
    assert bench.read(3) == ((4, 7, "cap"), [8, 9], 9, True)
    assert bench.read(7) == (None, [8, 9], 9, True)


def test_eviction_before_a_lost_range_keeps_both_gaps() -> None:
    """LOSS-15: first the evicted range, then the lost one, each with its own bounds."""
    bench = Bench()
    bench.engine.put_topic("t", ConfigPatch(cap_records=4))
    assert bench.read(0) == ((1, 2, "cap"), [3], 3, False)
    assert bench.read(3) == ((4, 6, "source_trim"), [7, 8, 9], 9, True)


def test_reader_from_a_time_is_told_of_what_may_be_of_that_time() -> None:
    """READ-14: the times of lost records are lost too, so a reader that begins next to them gets the gap."""
    clock = ManualClock()
    engine = Engine(clock)
    stamps = {}
    for seq in range(1, 8):
        if seq in (3, 4):
            engine.topics["t"].log.lose(seq, seq, "source_trim")
            engine.topics["t"].next_seq = seq + 1
        else:
            engine.write("t", Write.of([seq]))
        stamps[seq] = clock.now_ms()
        clock.advance(100)

    def first_of(ts: int) -> tuple[Any, int]:
        found = engine.diff("t", Diff(from_ts=ts))
        gap = found.tombstone and (found.tombstone.gap_from, found.tombstone.gap_to)
        return gap, next(iter(found.records), {"$seq": 0})["$seq"]

    assert [first_of(stamps[seq]) for seq in (1, 2)] == [(None, 1), (None, 2)]
    assert [first_of(stamps[seq]) for seq in (3, 4, 5)] == [((3, 4), 5)] * 3
    assert [first_of(stamps[seq]) for seq in (6, 7)] == [(None, 6), (None, 7)]
    assert first_of(stamps[7] + 1) == (None, 0)


def test_reader_from_a_time_is_told_of_a_lost_tail() -> None:
    """READ-14: also if nothing is left that was written later."""
    bench = Bench(behind=0)
    now_ms = bench.engine.clock.now_ms()
    assert bench.read(0, from_ts=now_ms) == (None, [1, 2, 3], 3, False)
    assert bench.read(0, from_ts=now_ms + 1) == ((4, 6, "source_trim"), [], 6, True)
