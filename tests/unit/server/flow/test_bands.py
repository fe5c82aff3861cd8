"""The order in which dirty topics are served (PRIORITY-6 to PRIORITY-9)."""

from __future__ import annotations

from topics.engine.priority import effective_priority
from topics.server.flow.bands import AGE_TICK_MS, BAND_CREDITS, OVERDUE_MS, Bands


def bands_of(priorities: dict[str, int]) -> Bands[str]:
    return Bands(lambda name, waited_ms: effective_priority(priorities[name], True, None, 0, waited_ms))


def drain(bands: Bands[str], now_ms: int, floor: int | None = None) -> list[str]:
    served = []
    while (name := bands.take(now_ms, floor)) is not None:
        served.append(name)
    return served


def test_higher_priority_is_served_first() -> None:
    """PRIORITY-6."""
    bands = bands_of({"low": -500, "zero": 0, "zero2": 0, "high": 300, "higher": 400, "top": 1000})
    for name in ("low", "zero", "zero2", "high", "higher", "top"):
        bands.put(name, 0)
    assert drain(bands, 0) == ["top", "higher", "high", "zero", "zero2", "low"]


def test_an_item_waits_once_and_keeps_its_place() -> None:
    """A topic that publishes again while it waits is one entry with its first time."""
    bands = bands_of({"a": 0, "b": 0})
    bands.put("a", 0)
    bands.put("b", 10)
    bands.put("a", 20)
    assert len(bands) == 2
    assert drain(bands, 30) == ["a", "b"]


def test_lower_bands_get_their_share_under_sustained_load() -> None:
    """PRIORITY-7."""
    priorities = {"top": 1000, "high": 300, "zero": 0, "low": -1000}
    bands = bands_of(priorities)
    served = dict.fromkeys(priorities, 0)
    for _ in range(sum(BAND_CREDITS) * 10):
        for name in priorities:
            bands.put(name, 0)
        name = bands.take(0)
        assert name is not None
        served[name] += 1
    assert served == {"top": 80, "high": 40, "zero": 20, "low": 10}


def test_ageing_lifts_what_waits() -> None:
    """PRIORITY-8, PRIORITY-4: 100 for each second, seen at the tick."""
    bands = bands_of({"old": -100, "fresh": 0})
    bands.put("old", 0)
    for now_ms in range(AGE_TICK_MS, 2_001, AGE_TICK_MS):
        bands.age(now_ms)
    bands.put("fresh", 2_000)
    assert drain(bands, 2_000) == ["old", "fresh"]


def test_floor_holds_negative_priority_back_until_it_has_aged() -> None:
    """Throttling pauses topics below the floor; ageing lifts them over it."""
    bands = bands_of({"low": -200, "zero": 0})
    for name in ("low", "zero"):
        bands.put(name, 0)
    assert drain(bands, 0, floor=0) == ["zero"]
    assert bands.below(0) == ["low"]
    bands.age(1_900)
    assert drain(bands, 1_900, floor=0) == []
    bands.age(2_000)
    assert drain(bands, 2_000, floor=0) == ["low"]


def test_overdue_goes_ahead_of_everything() -> None:
    """PRIORITY-9: whatever the priority and the floor."""
    bands = bands_of({"low": -1000, "top": 1000})
    bands.put("low", 0)
    bands.put("top", OVERDUE_MS)
    assert drain(bands, OVERDUE_MS, floor=0) == ["low", "top"]


def test_discarded_items_are_not_served() -> None:
    """A topic without followers does not come up, aged or not."""
    bands = bands_of({"a": 0, "b": 0})
    bands.put("a", 0)
    bands.put("b", 0)
    bands.age(1_000)
    bands.discard("a")
    assert drain(bands, 1_000) == ["b"]
    assert len(bands) == 0


def test_ageing_many_topics_goes_round_and_stays_bounded() -> None:
    """A tick ranks a bounded number of entries; all of them have their turn, and superseded ones are dropped."""
    names = {f"t{i}": -100 for i in range(2_500)}
    bands = bands_of(names)
    for name in names:
        bands.put(name, 0)
    for tick in range(1, 40):
        bands.age(tick * AGE_TICK_MS)
    assert sum(map(len, bands._heaps)) <= 4 * len(names) + 64 + 1_000
    assert sorted(drain(bands, 4_000)) == sorted(names)
