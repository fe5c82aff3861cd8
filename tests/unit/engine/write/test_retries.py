"""RETRY and LIMIT-5 on a clock that the test moves: how long a key is remembered, and what a quota counts."""

from __future__ import annotations

import pytest

from topics.engine import ConfigPatch, Delete, Engine, Limits, Write
from topics.errors import Throttled, TopicFull
from topics.testing import ManualClock


def write(engine: Engine, key: str) -> bool:
    """Append one record under `key`; whether it was taken for a retry."""
    return engine.write("t", Write.of([1], idempotency_key=key)).deduped


@pytest.mark.parametrize(("config", "window_ms"), [({}, 120_000), ({"idempotency_window_ms": 500}, 500)])
def test_key_is_remembered_for_its_window(config: dict[str, int], window_ms: int) -> None:
    """RETRY-2."""
    clock = ManualClock()
    engine = Engine(clock)
    engine.put_topic("t", ConfigPatch(**config))  # type: ignore[arg-type]
    assert write(engine, "k") is False
    clock.advance(window_ms - 1)
    assert write(engine, "k") is True
    clock.advance(2)
    assert write(engine, "k") is False
    assert engine.state("t").head_seq == 2


def test_a_retry_does_not_prolong_the_window() -> None:
    """RETRY-2: the window is that of the write which assigned the seqs."""
    clock = ManualClock()
    engine = Engine(clock)
    engine.put_topic("t", ConfigPatch(idempotency_window_ms=100))
    assert write(engine, "k") is False
    clock.advance(80)
    assert write(engine, "k") is True
    clock.advance(21)
    assert write(engine, "k") is False


def test_keys_expire_one_by_one() -> None:
    """RETRY-2: each key has a window of its own."""
    clock = ManualClock()
    engine = Engine(clock)
    engine.put_topic("t", ConfigPatch(idempotency_window_ms=100))
    for key in ("a", "b", "c"):
        assert write(engine, key) is False
        clock.advance(40)
    assert [write(engine, key) for key in ("a", "b", "c")] == [False, True, True]


def test_a_producer_is_remembered_without_end() -> None:
    """RETRY-7."""
    clock = ManualClock()
    engine = Engine(clock)
    engine.write("t", Write.of([1], producer_id="p", producer_seq=7))
    clock.advance(365 * 86_400_000)
    engine.delete("t", Delete(before_seq=2))
    assert engine.write("t", Write.of([1], producer_id="p", producer_seq=7)).deduped is True
    assert engine.write("t", Write.of([1], producer_id="p", producer_seq=8)).deduped is False


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_retry_waits_for_the_same_sync_as_its_first_write(durability: str) -> None:
    """RETRY-6."""
    engine = Engine(ManualClock())
    engine.put_topic("t", ConfigPatch(durability=durability))  # type: ignore[arg-type]
    done: list[str] = []
    engine.write("t", Write.of([1], idempotency_key="k"), on_done=lambda _: done.append("first"))
    engine.write("t", Write.of([1], idempotency_key="k"), on_done=lambda _: done.append("retry"))
    assert done == ([] if durability != "ephemeral" else ["first", "retry"])
    engine.run_until_idle()
    assert done == ["first", "retry"]
    assert engine.state("t").head_seq == 1


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_quota_counts_writes_that_are_still_under_way(durability: str) -> None:
    """LIMIT-5: also in a burst before any of it is committed."""
    engine = Engine(ManualClock(), limits=Limits(max_total_bytes=1000))
    engine.put_topic("t", ConfigPatch(durability=durability))  # type: ignore[arg-type]
    engine.write("t", Write.of(["x" * 600]), on_done=lambda _: None)
    with pytest.raises(Throttled) as refused:
        engine.write("t", Write.of(["x" * 600]), on_done=lambda _: None)
    assert refused.value.detail == {"limit": "max_total_bytes", "max": 1000}
    engine.run_until_idle()
    assert engine.state("t").count == 1


@pytest.mark.parametrize("cap", [{"cap_records": 4}, {"cap_bytes": 500}], ids=str)
def test_topic_that_trims_itself_goes_on_at_the_quota(cap: dict[str, int]) -> None:
    """LIMIT-6: a write that evicts as much as it adds does not push the total over it."""
    engine = Engine(ManualClock(), limits=Limits(max_total_bytes=1000))
    engine.put_topic("trimmed", ConfigPatch(**cap))  # type: ignore[arg-type]
    for _ in range(6):
        engine.write("trimmed", Write.of(["x" * 90]))
    while engine.totals.bytes <= 950:
        engine.write("other", Write.of(["x" * 10]))
    for _ in range(20):
        engine.write("trimmed", Write.of(["x" * 90]))
        assert engine.totals.bytes <= 1000
    assert engine.state("trimmed").head_seq == 26
    with pytest.raises(Throttled):
        engine.write("other", Write.of(["x" * 90]))
    engine.put_topic("trimmed", ConfigPatch(discard="reject", cap_records=0, cap_bytes=10_000))
    with pytest.raises(Throttled):
        engine.write("trimmed", Write.of(["x" * 90]))


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_reject_counts_writes_that_are_still_under_way(durability: str) -> None:
    """RETAIN-5: no record is acknowledged and then dropped."""
    engine = Engine(ManualClock())
    engine.put_topic("t", ConfigPatch(durability=durability, cap_records=3, discard="reject"))  # type: ignore[arg-type]
    engine.write("t", Write.of([1, 2]), on_done=lambda _: None)
    with pytest.raises(TopicFull):
        engine.write("t", Write.of([3, 4]), on_done=lambda _: None)
    engine.run_until_idle()
    state = engine.state("t")
    assert (state.count, state.earliest_seq, state.head_seq) == (2, 1, 2)


def test_conditional_append_counts_writes_that_are_still_under_way() -> None:
    """WRITE-18: `expected_head_seq` compares with what was assigned, so that two racing writers cannot both win."""
    from topics.errors import HeadMismatch

    engine = Engine(ManualClock())
    engine.put_topic("t", ConfigPatch(durability="fsync"))
    engine.write("t", Write.of([1], expected_head_seq=0), on_done=lambda _: None)
    with pytest.raises(HeadMismatch):
        engine.write("t", Write.of([2], expected_head_seq=0), on_done=lambda _: None)
    engine.run_until_idle()
    assert engine.state("t").head_seq == 1


def test_fsync_records_are_visible_only_once_synced() -> None:
    """DURABLE-4."""
    engine = Engine(ManualClock())
    engine.put_topic("t", ConfigPatch(durability="fsync"))
    engine.write("t", Write.of([1]), on_done=lambda _: None)
    assert engine.state("t").head_seq == 0
    engine.run_until_idle()
    assert engine.state("t").head_seq == 1
