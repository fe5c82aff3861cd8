"""LOSS-12 to LOSS-15: loss above live records. A read stops before it, reports it once, and goes on after it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.memory import OneTopic
from topics.engine import ConfigPatch, Delete, Diff, Write
from topics.testing import MemoryEngine


class Gapped(OneTopic):
    """A topic with the live records 1-3 and 7-9, between which 4-6 are lost."""

    def __init__(self, after: int = 3) -> None:
        super().__init__()
        self.write(3, node="n")
        topic = self.engine.topics["t"]
        topic.log.lose(4, 6, "source_trim")
        topic.next_seq = 7
        if after:
            self.write(after, node="n")


def test_read_stops_before_a_lost_range_and_goes_on_after_it() -> None:
    """LOSS-12: one tombstone, and then it goes on after the range."""
    topic = Gapped()
    assert topic.read(0) == (None, [1, 2, 3], 3, False)
    assert topic.read(3) == ((4, 6, "source_trim"), [7, 8, 9], 9, True)
    assert topic.read(6) == (None, [7, 8, 9], 9, True)
    assert topic.read(9) == (None, [], 9, True)


def test_cursor_inside_a_lost_range_gets_a_tombstone_for_the_rest() -> None:
    """LOSS-12: no silent loss for a cursor that is already inside."""
    topic = Gapped()
    assert topic.read(4) == ((5, 6, "source_trim"), [7, 8, 9], 9, True)
    assert topic.read(5) == ((6, 6, "source_trim"), [7, 8, 9], 9, True)


def test_lost_range_moves_no_floor() -> None:
    """LOSS-13."""
    topic = Gapped()
    state = topic.engine.state("t")
    assert (state.head_seq, state.earliest_seq, state.count) == (9, 1, 6)
    assert topic.read(0)[0] is None


def test_lost_tail_is_reported() -> None:
    """LOSS-13: a lost acked tail is a lost range; the reader ends up at the head."""
    topic = Gapped(after=0)
    assert topic.engine.state("t").head_seq == 6
    assert topic.read(0) == (None, [1, 2, 3], 3, False)
    assert topic.read(3) == ((4, 6, "source_trim"), [], 6, True)
    assert topic.engine.write("t", Write.of(["next"])).first_seq == 7


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_lost_range_is_reported_whatever_the_limit(limit: int) -> None:
    """LOSS-12: every reader that passes gets exactly one tombstone."""
    topic = Gapped()
    cursor, seen, gaps = 0, [], []
    for _ in range(12):
        gap, seqs, cursor, caught_up = topic.read(cursor, limit=limit)
        seen += seqs
        gaps += [gap] if gap else []
        if caught_up:
            break
    assert seen == [1, 2, 3, 7, 8, 9]
    assert gaps == [(4, 6, "source_trim")]


def test_node_filter_does_not_hide_a_lost_range() -> None:
    """LOSS-11, LOSS-14: filters are silent, loss is not."""
    topic = Gapped()
    assert topic.read(0, node="n") == (None, [], 3, False)
    assert topic.read(3, node="n") == ((4, 6, "source_trim"), [], 9, True)


def test_delete_beside_a_lost_range_does_not_hide_it() -> None:
    """LOSS-14: voluntary and involuntary are never mixed: deleting 1-3 does not excuse the loss of 4-6."""
    topic = Gapped()
    topic.engine.delete("t", Delete(before_seq=4))
    gap, seqs, cursor, _ = topic.read(0)
    if gap is None:
        assert (seqs, cursor) == ([], 3)
        gap, seqs, cursor, _ = topic.read(cursor)
    assert gap is not None
    assert gap[1:] == (6, "source_trim")
    assert (seqs, cursor) == ([7, 8, 9], 9)


def test_eviction_past_a_lost_range_is_one_gap() -> None:
    """LOSS-15, LOSS-7: one contiguous range up to `earliest_seq - 1`."""
    topic = Gapped()
    topic.engine.put_topic("t", ConfigPatch(cap_records=2))
    assert topic.read(0) == ((1, 7, "cap"), [8, 9], 9, True)
    assert topic.read(3) == ((4, 7, "cap"), [8, 9], 9, True)
    assert topic.read(7) == (None, [8, 9], 9, True)


def test_eviction_before_a_lost_range_keeps_both_gaps() -> None:
    """LOSS-15: first the evicted range, then the lost one, each with its own bounds."""
    topic = Gapped()
    topic.engine.put_topic("t", ConfigPatch(cap_records=4))
    assert topic.read(0) == ((1, 2, "cap"), [3], 3, False)
    assert topic.read(3) == ((4, 6, "source_trim"), [7, 8, 9], 9, True)


def test_reader_from_a_time_gets_a_tombstone_for_what_may_be_of_that_time() -> None:
    """READ-14: the times of lost records are lost too, so a reader that begins next to them gets the gap."""
    engine = MemoryEngine()
    stamps = {}
    for seq in range(1, 8):
        if seq in (3, 4):
            engine.topics["t"].log.lose(seq, seq, "source_trim")
            engine.topics["t"].next_seq = seq + 1
        else:
            engine.write("t", Write.of([seq]))
        stamps[seq] = engine.clock.now_ms()
        engine.clock.advance(100)

    def first_of(ts: int) -> tuple[Any, int]:
        found = engine.diff("t", Diff(from_ts=ts))
        gap = found.tombstone and (found.tombstone.gap_from, found.tombstone.gap_to)
        return gap, next(iter(found.records), {"$seq": 0})["$seq"]

    assert [first_of(stamps[seq]) for seq in (1, 2)] == [(None, 1), (None, 2)]
    assert [first_of(stamps[seq]) for seq in (3, 4, 5)] == [((3, 4), 5)] * 3
    assert [first_of(stamps[seq]) for seq in (6, 7)] == [(None, 6), (None, 7)]
    assert first_of(stamps[7] + 1) == (None, 0)


def test_reader_from_a_time_gets_a_tombstone_for_a_lost_tail() -> None:
    """READ-14: also if nothing is left that was written later."""
    topic = Gapped(after=0)
    now_ms = topic.clock.now_ms()
    assert topic.read(0, from_ts=now_ms) == (None, [1, 2, 3], 3, False)
    assert topic.read(0, from_ts=now_ms + 1) == ((4, 6, "source_trim"), [], 6, True)
