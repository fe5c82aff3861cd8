"""The PRIORITY rules in numbers: the recency term decays by half every 30 s, waiting adds up to 1000."""

from __future__ import annotations

import pytest

from topics.engine import ConfigPatch, Diff, Engine
from topics.engine.priority import effective_priority
from topics.testing import ManualClock


@pytest.mark.parametrize(
    ("elapsed_s", "priority"), [(0, 500), (15, 354), (30, 250), (60, 125), (120, 31), (300, 0), (301, 0), (86400, 0)]
)
def test_recency_decays_by_half_every_30_seconds(elapsed_s: int, priority: int) -> None:
    """PRIORITY-1: 0 s → 500, 15 s → 354, 30 s → 250, 60 s → 125, 120 s → 31, ≥300 s → 0."""
    clock = ManualClock()
    engine = Engine(clock)
    engine.put_topic("t", ConfigPatch())
    engine.diff("t", Diff())
    clock.advance(elapsed_s * 1000)
    found = engine.state("t", touch=False).effective_priority
    assert abs(found - priority) <= (0 if elapsed_s in (0, 30, 60) or priority == 0 else 1)


def test_recency_never_rises_with_time() -> None:
    """PRIORITY-1: the bonus halves every 30 s of inactivity, without a bump on the way, and is 0 from 5 min on."""
    clock = ManualClock()
    engine = Engine(clock)
    engine.put_topic("t", ConfigPatch())
    engine.state("t")
    seen = []
    for _ in range(330):
        seen.append(engine.state("t", touch=False).effective_priority)
        clock.advance(1000)
    assert seen == sorted(seen, reverse=True)
    assert seen[0] == 500
    assert all(value == 0 for value in seen[300:])
    assert all(isinstance(value, int) for value in seen)


@pytest.mark.parametrize("consume", ["state", "diff", "list with touch"])
def test_consuming_resets_the_decay(consume: str) -> None:
    """PRIORITY-2."""
    clock = ManualClock()
    engine = Engine(clock)
    engine.put_topic("t", ConfigPatch())
    engine.state("t")
    clock.advance(60_000)
    assert engine.state("t", touch=False).effective_priority == 125
    if consume == "state":
        engine.state("t")
    elif consume == "diff":
        engine.diff("t", Diff())
    else:
        engine.list_topics(touch=True)
    assert engine.state("t", touch=False).effective_priority == 500
    assert engine.state("t", touch=False).last_read_ts == clock.now_ms()


@pytest.mark.parametrize(
    ("waited_ms", "boost"), [(0, 0), (10, 1), (1000, 100), (5000, 500), (9999, 999), (10_000, 1000), (3_600_000, 1000)]
)
def test_waiting_adds_100_per_second_up_to_1000(waited_ms: int, boost: int) -> None:
    """PRIORITY-4."""
    assert effective_priority(None, False, None, 0, waited_ms) == boost
    assert effective_priority(-1000, True, 0, 0, waited_ms) == boost - 1000
    assert effective_priority(None, True, 0, 0, waited_ms) == 500 + boost


def test_age_term_is_zero_unless_delivery_waits() -> None:
    """PRIORITY-4."""
    clock = ManualClock()
    engine = Engine(clock)
    engine.put_topic("t", ConfigPatch(priority=5))
    clock.advance(600_000)
    assert engine.state("t").effective_priority == 5
