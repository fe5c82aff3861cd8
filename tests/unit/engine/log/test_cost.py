"""READ-16, DELETE-9, WRITE-19: what must not cost more where a topic holds more, counted in executed lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest

from topics.engine import ConfigPatch, Delete, Engine, RecordIn, Write
from topics.testing import ManualClock

BATCH = 1000


def lines_executed(work: Callable[[], object]) -> int:
    """How many lines of Python `work` executes, every turn of a loop counted."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def filled(records: int, clock: ManualClock, ttl_ms: int = 0) -> Engine:
    """A topic with so many records in batches of a thousand, five of them tagged `rare:n`."""
    engine = Engine(clock)
    engine.put_topic("t", ConfigPatch(ttl_ms=ttl_ms))
    rare = {records * n // 5: f"rare:{n}" for n in range(5)}
    for start in range(0, records, BATCH):
        tags = [rare.get(seq, f"common:{seq % 7}") for seq in range(start, start + BATCH)]
        engine.write("t", Write([RecordIn(msgspec.Raw(b"1"), tag=tag) for tag in tags]))
    return engine


@pytest.mark.parametrize("match", ["rare:2", ["tag", "Glob", "rare:*"]])
def test_tag_delete_does_not_scan_the_log(match: Any) -> None:
    """DELETE-9: a lookup or a range of the tag index."""
    costs = []
    for records in (5_000, 40_000):
        engine = filled(records, ManualClock())
        engine.delete("t", Delete(match=["tag", "Eq", "nobody"]))
        costs.append(lines_executed(lambda: engine.delete("t", Delete(match=match))))  # noqa: B023
        assert engine.state("t").count == records - (1 if isinstance(match, str) else 5)
    small, large = costs
    # The index has parts of a bounded number of records: three of them instead of one, and not eight times the records.
    assert large < 3 * small, costs


def test_before_seq_delete_does_not_visit_its_records() -> None:
    """DELETE-9: a before_seq delete is applied by a marker, not record by record."""
    engine = filled(40_000, ManualClock())
    cost = lines_executed(lambda: engine.delete("t", Delete(before_seq=39_501)))
    assert engine.state("t").count == 500
    assert cost < 5_000, cost


def test_expiry_does_not_visit_every_record() -> None:
    """READ-16: finding the TTL floor is O(log n) over segments."""
    clock = ManualClock()
    engine = filled(40_000, clock, ttl_ms=1000)
    clock.advance(500)
    engine.write("t", Write.of([1, 2, 3]))
    clock.advance(501)
    cost = lines_executed(lambda: engine.state("t"))
    assert (engine.state("t").count, engine.state("t").earliest_seq) == (3, 40_001)
    assert cost < 5_000, cost


def test_write_cost_does_not_grow_with_what_is_retained() -> None:
    """WRITE-19."""

    def cost(engine: Engine) -> int:
        return min(lines_executed(lambda: engine.write("t", Write.of([1]))) for _ in range(5))

    small = cost(filled(1_000, ManualClock()))
    large = cost(filled(40_000, ManualClock()))
    crowded = filled(1_000, ManualClock())
    for n in range(2_000):
        crowded.put_topic(f"other{n}", ConfigPatch())
    assert large <= small + 20, (small, large)
    assert cost(crowded) <= small + 20
