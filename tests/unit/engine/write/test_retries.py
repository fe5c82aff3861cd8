"""RETRY and LIMIT-5 on a clock that the test moves: how long a key is remembered, and what a quota counts."""

from __future__ import annotations

import json

import pytest

from tests.harness.machine import Machine
from topics.engine import ConfigPatch, Delete, Engine, Limits, Write
from topics.engine.topic import Topic
from topics.engine.write import batch as batches
from topics.engine.write import dedupe
from topics.engine.write.digest import of_batch, of_block
from topics.errors import Throttled, TopicFull
from topics.server.api.records import write_body
from topics.storage import block as blocks
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


def test_writes_at_the_quota_do_not_look_at_all_topics_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIMIT-5: what has expired makes room, and to find out takes a small part of the time however many ask."""
    clock = ManualClock()
    engine = Engine(clock, limits=Limits(max_total_bytes=1000))
    engine.put_topic("old", ConfigPatch(ttl_ms=5000))
    engine.write("old", Write.of(["x" * 900]))
    looks = 0
    expire = Topic.expire

    def slowly(topic: Topic, now: int) -> None:
        nonlocal looks
        if topic.name == "old":
            looks += 1
            clock.advance(10)
        expire(topic, now)

    monkeypatch.setattr(Topic, "expire", slowly)
    for _ in range(100):
        with pytest.raises(Throttled):
            engine.write("other", Write.of(["x" * 90]))
    assert looks == 1
    clock.advance(5000)
    engine.write("other", Write.of(["x" * 90]))
    assert looks == 2


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


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000], ids=["back", "forward"])
def test_window_is_counted_in_elapsed_time(step_ms: int) -> None:
    """RETRY-9: a step of the wall clock neither forgets a key early nor keeps it longer."""
    clock = ManualClock()
    engine = Engine(clock)
    assert write(engine, "k") is False
    clock.set(clock.now_ms() + step_ms)
    clock.advance(119_999)
    assert write(engine, "k") is True
    clock.advance(2)
    assert write(engine, "k") is False


def produce(engine: Engine, producer: str, seq: int = 1, topic: str = "t") -> bool:
    """Append one record as a producer; whether it was taken for a repeat."""
    return engine.write(topic, Write.of([1], producer_id=producer, producer_seq=seq)).deduped


def test_new_producer_over_the_limit_is_refused_and_nobody_is_forgotten() -> None:
    """LIMIT-15."""
    engine = Engine(ManualClock(), limits=Limits(max_producers_per_topic=2))
    assert produce(engine, "a") is False
    assert produce(engine, "b") is False
    with pytest.raises(Throttled) as refused:
        produce(engine, "c")
    assert refused.value.detail["limit"] == "max_producers_per_topic"
    assert refused.value.detail["max"] == 2
    assert [produce(engine, "a"), produce(engine, "b"), produce(engine, "a", 2)] == [True, True, False]
    assert produce(engine, "c", topic="other") is False
    assert engine.state("t").head_seq == 3


def test_producer_that_is_silent_for_a_week_makes_way() -> None:
    """LIMIT-15: only where there are too many, and only the one that has been silent for the longest time."""
    clock = ManualClock()
    engine = Engine(clock, limits=Limits(max_producers_per_topic=2))
    produce(engine, "a")
    produce(engine, "b")
    clock.advance(dedupe.IDLE_MS)
    produce(engine, "a", 2)
    with pytest.raises(Throttled):
        produce(engine, "c")
    clock.advance(1)
    assert produce(engine, "c") is False
    assert produce(engine, "a", 2) is True
    with pytest.raises(Throttled):
        produce(engine, "b")


def test_memory_for_keys_and_producers_is_bounded_over_all_topics() -> None:
    """LIMIT-16: what is new is refused, what is known stays known, and writes that ask for nothing go on."""
    clock = ManualClock()
    engine = Engine(clock, limits=Limits(max_dedupe_bytes=4 * (dedupe.ENTRY_BYTES + 1)))
    assert [write(engine, "a"), write(engine, "b"), produce(engine, "c", topic="u")] == [False] * 3
    with pytest.raises(Throttled) as refused:
        engine.write("new", Write.of([1], idempotency_key="d", producer_id="e", producer_seq=1))
    assert refused.value.detail["limit"] == "max_dedupe_bytes"
    assert "new" not in engine.topics
    assert produce(engine, "d") is False
    with pytest.raises(Throttled):
        write(engine, "e")
    assert [write(engine, "a"), produce(engine, "d"), produce(engine, "c", 2, topic="u")] == [True, True, False]
    engine.write("t", Write.of([1]))
    clock.advance(120_001)
    assert write(engine, "e") is False
    engine.delete_topic("t")
    engine.delete_topic("u")
    assert engine.totals.dedupe_bytes == 0


def test_keys_are_forgotten_some_at_a_time() -> None:
    """LIMIT-16: no write pays for everything that has expired since the last one."""
    clock = ManualClock()
    engine = Engine(clock)
    for i in range(3 * dedupe.EXPIRED_MAX):
        write(engine, f"k{i}")
    clock.advance(120_001)
    assert write(engine, "k2999") is False
    memory = engine.topics["t"].dedupe
    assert memory is not None
    assert len(memory.keys) == 2 * dedupe.EXPIRED_MAX
    assert [write(engine, "k2998"), write(engine, "k2999")] == [False, True]
    assert len(memory.keys) == 2
    assert engine.totals.dedupe_bytes == 2 * (dedupe.ENTRY_BYTES + 5)


RECORD = {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}


@pytest.mark.parametrize(
    ("records", "reused"),
    [
        ([RECORD, {"data": 2}], False),
        ([RECORD], True),
        ([RECORD, {"data": 2}, {"data": 2}], True),
        ([{"data": 2}, RECORD], True),
        ([{**RECORD, "data": {"a": 2}}, {"data": 2}], True),
        ([{**RECORD, "tag": "u"}, {"data": 2}], True),
        ([{**RECORD, "node": "m"}, {"data": 2}], True),
        ([{**RECORD, "meta": {"k": "w"}}, {"data": 2}], True),
        ([RECORD, {"data": 2, "tag": "t"}], True),
    ],
)
@pytest.mark.parametrize("restart", ["no", "kill", "checkpoint"])
def test_a_key_that_comes_again_with_other_records_is_marked(
    records: list[dict[str, object]], reused: bool, restart: str
) -> None:
    """RETRY-10: also after a restart, from the log or from a checkpoint."""
    machine = Machine()
    first = body({"records": [RECORD, {"data": 2}], "idempotency_key": "k"})
    assert machine.engine.write("t", first).key_reused is False
    machine.engine.write("t", Write.of([0]))
    if restart == "checkpoint":
        machine.checkpoint()
    if restart != "no":
        machine.run_until_idle()
        machine.crash("kill")
    again = machine.engine.write("t", body({"records": records, "idempotency_key": "k"}))
    assert (again.deduped, again.first_seq, again.count, again.key_reused) == (True, 1, 2, reused)


def body(fields: dict[str, object]) -> Write:
    return write_body(json.dumps(fields).encode())


def test_a_producer_that_repeats_itself_reuses_no_key() -> None:
    """RETRY-10."""
    engine = Engine(ManualClock())
    engine.write("t", Write.of([1], producer_id="p", producer_seq=7, idempotency_key="k"))
    again = engine.write("t", Write.of([2], producer_id="p", producer_seq=7, idempotency_key="l"))
    assert (again.deduped, again.key_reused) == (True, False)


def test_the_digest_of_a_write_is_that_of_its_block() -> None:
    """RETRY-10: whatever columns it has."""
    for records in ([{"data": 1}], [RECORD], [RECORD, {"data": None}], [{"data": "", "tag": ""}, {"data": []}]):
        batch = batches.check(body({"records": records}), Limits())
        block = blocks.encode(1, 5, 7, batch.datas, batch.nodes, batch.tags, batch.metas)
        assert of_batch(batch) == of_block(block, 0, block.n) != 0
