"""Sealing keeps up with writers: larger segments, several at a time, the largest tails first (the STORE rules)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.harness.machine import Machine, numbers
from tests.harness.world import World
from topics.engine import ConfigPatch, Write
from topics.engine.requests import RecordIn
from topics.engine.upkeep import seal as seals
from topics.engine.upkeep.eraser import Eraser
from topics.engine.upkeep.seal import GROWTH, Seal
from topics.engine.upkeep.sealer import BATCH_SEGMENTS, JOBS_MAX, RETRY_NS, SLICE_NS, Sealer
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.storage.block import Block
from topics.storage.flags import DELETED
from topics.storage.job import Job, run_inline
from topics.testing import ManualClock

EVENTS = 50


class TickingClock(ManualClock):
    """Every look at it takes 0.3 ms."""

    def elapsed_ns(self) -> int:
        self._elapsed_ns += 300_000
        return self._elapsed_ns


def written(machine: Machine, topic: str, records: int, batch: int = 10, tag: str | None = None) -> None:
    """Write records without giving upkeep a turn."""
    for first in range(1, records + 1, batch):
        write = numbers(first, min(records, first + batch - 1))
        if tag is not None:
            write = Write([RecordIn(record.data, tag=tag) for record in write.records])
        machine.engine.write(topic, write)


def segments(machine: Machine, topic: str) -> list[int]:
    """How many records each segment of a topic has."""
    return [segment.records for segment in machine.engine.topics[topic].archive.segments]


def test_tail_that_has_grown_becomes_one_larger_segment() -> None:
    """STORE-17: the further behind sealing is, the fewer files it makes."""
    machine = Machine()
    written(machine, "t", 20 * EVENTS)
    machine.run_until_idle()
    assert segments(machine, "t") == [20 * EVENTS]
    assert machine.read("t") == (list(range(1, 20 * EVENTS + 1)), [])
    machine.checkpoint()
    machine.crash("dropped")
    assert machine.read("t")[0] == list(range(1, 20 * EVENTS + 1))


def test_larger_segment_has_a_bound_in_records_and_in_bytes() -> None:
    """STORE-17: at most 32 times the records, and the bytes of the setting."""
    machine = Machine()
    written(machine, "t", (GROWTH + 5) * EVENTS, batch=25)
    machine.run_until_idle()
    assert segments(machine, "t") == [GROWTH * EVENTS, 5 * EVENTS]
    machine = Machine(UpkeepSettings(segment_max_events=EVENTS, segment_max_bytes=2000, checkpoint_wal_bytes=1 << 40))
    written(machine, "t", 10 * EVENTS, batch=25)
    machine.run_until_idle()
    found = machine.engine.topics["t"].archive.segments
    assert len(found) > 2
    assert all(segment.data_bytes < 2000 + 1500 for segment in found)


def test_tagged_records_make_no_larger_segment() -> None:
    """STORE-17: the index over their tags is made in one go, so it must stay small."""
    machine = Machine()
    written(machine, "t", 4 * EVENTS, tag="a")
    machine.run_until_idle()
    assert segments(machine, "t") == [EVENTS] * 4


def test_tail_of_very_many_blocks_is_sealed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """STORE-17: choosing what to seal is one step, so it has a bound."""
    monkeypatch.setattr(seals, "BLOCKS_MAX", 8)
    machine = Machine()
    written(machine, "t", 160, batch=10)
    machine.run_until_idle()
    assert segments(machine, "t") == [80, 80]


def test_segments_of_several_topics_share_a_job_and_a_sync_of_their_directory() -> None:
    """STORE-17."""
    machine = Machine()
    for i in range(BATCH_SEGMENTS):
        written(machine, f"t{i}", EVENTS)
    calls: Counter[str] = Counter()

    def count(number: int, operation: str, path: str) -> None:
        if "segments" in path:
            calls[operation] += 1

    machine.disk.after_call = count
    machine.run_until_idle()
    assert all(segments(machine, f"t{i}") == [EVENTS] for i in range(BATCH_SEGMENTS))
    assert calls["rename"] == 2 * BATCH_SEGMENTS
    assert calls["sync_dir"] == 1


@pytest.fixture
def behind() -> Machine:
    machine = Machine()
    for i in range(3 * BATCH_SEGMENTS):
        written(machine, f"t{i}", EVENTS)
    return machine


def seal_jobs(machine: Machine) -> list[Job]:
    """The seals that upkeep has ready, none of which is run."""
    while machine.upkeep.step():
        pass
    jobs = machine.store.jobs()
    run_inline(job for job in jobs if job.name != "seal")
    return [job for job in jobs if job.name == "seal"]


def test_so_many_seals_run_at_a_time_and_each_that_ends_makes_room_for_the_next(behind: Machine) -> None:
    """STORE-17: reads and syncs need the disk too."""
    jobs = seal_jobs(behind)
    assert len(jobs) == JOBS_MAX
    assert seal_jobs(behind) == []
    run_inline(jobs[:1])
    (third,) = seal_jobs(behind)
    run_inline([jobs[1], third])
    assert all(segments(behind, f"t{i}") == [EVENTS] for i in range(3 * BATCH_SEGMENTS))
    assert behind.engine.totals.unsealed.bytes == 0


def test_topic_that_is_deleted_while_it_is_sealed_takes_no_other_along(behind: Machine) -> None:
    """STORE-17."""
    jobs = seal_jobs(behind)
    behind.engine.delete_topic("t0", on_done=lambda receipt: None)
    run_inline(jobs)
    behind.run_until_idle()
    assert segments(behind, "t1") == [EVENTS]
    behind.checkpoint()
    behind.crash("dropped")
    assert "t0" not in behind.engine.topics
    assert behind.read("t1")[0] == list(range(1, EVENTS + 1))


@pytest.mark.parametrize(
    ("operation", "nth"), [("create", 5), ("write", 3), ("sync", 4), ("rename", 3), ("sync_dir", 1)]
)
def test_batch_that_fails_is_tried_again_later_and_leaves_no_file(operation: str, nth: int) -> None:
    """STORE-17: nothing has changed, and a disk that has no room gets it back."""
    world = World()
    for name in ("kept", "common", "scratch"):
        world.put(name, durability="fsync")
        world.write(name, 12)
    world.engine.run_until_idle()
    while world.upkeep.step():
        pass
    (job,) = [job for job in world.store.jobs() if job.name == "seal"]
    world.fault.fail(operation, nth)
    run_inline([job])
    assert world.disk.list("data/segments") == []
    world.run_until_idle()
    assert world.disk.list("data/segments") == [], "not at once: the disk has just refused"
    world.clock.advance(RETRY_NS // 1_000_000)
    world.run_until_idle()
    assert all(segments(world, name) == [12] for name in ("kept", "common", "scratch"))
    world.crash("dropped")


def test_merging_is_done_in_slices() -> None:
    """STORE-17: a step takes about a millisecond, however long the tail is."""
    machine = Machine()
    written(machine, "t", GROWTH * EVENTS, batch=20)
    shelf = machine.engine.catalog.shelf
    assert shelf is not None
    shelf.ask(machine.engine.topics["t"])
    sealer = Sealer(shelf, TickingClock())
    steps = 1
    while sealer.step():
        steps += 1
    merged = -(-GROWTH * EVENTS // 1000)
    assert steps >= merged * 300_000 // SLICE_NS
    assert [job.name for job in machine.store.jobs() if job.name == "seal"] == ["seal"]


def test_large_blocks_are_not_copied_to_be_sealed() -> None:
    """STORE-17: a segment in the making takes no memory of its own."""
    machine = Machine()
    written(machine, "t", 3000, batch=1000)
    seal = Seal(machine.engine.topics["t"], 100, 64 << 20)
    while seal.step():
        pass
    tail = machine.engine.topics["t"].log.tail()
    parts = seal.builder.data_parts()
    assert len(tail) == 3
    assert all(any(part is block.raw for part in parts) for block in tail)


def test_busy_topic_gathers_before_it_is_sealed_unless_memory_is_short() -> None:
    """STORE-17: a topic that is written at full speed gets few and large segments."""
    machine = Machine()
    shelf = machine.engine.catalog.shelf
    assert shelf is not None
    sealer = Sealer(shelf, machine.clock, gather_ns=250_000_000)
    written(machine, "t", EVENTS)
    sealer.step()
    run_inline(machine.store.jobs())
    assert segments(machine, "t") == [EVENTS], "the first one at once"
    written(machine, "t", EVENTS)
    assert not sealer.step()
    assert sealer.waits
    written(machine, "t", 3 * EVENTS)
    machine.clock.advance(249)
    assert not sealer.step()
    machine.clock.advance(1)
    sealer.step()
    run_inline(machine.store.jobs())
    assert segments(machine, "t") == [EVENTS, 4 * EVENTS]
    written(machine, "t", EVENTS)
    sealer.step()
    assert machine.store.jobs() == []
    sealer.step(at_once=True)
    assert [job.name for job in machine.store.jobs()] == ["seal"]


def test_what_a_burst_has_left_is_sealed_in_one_go() -> None:
    """STORE-17: a topic that is not written any more has nothing to gather."""
    machine = Machine()
    shelf = machine.engine.catalog.shelf
    assert shelf is not None
    sealer = Sealer(shelf, machine.clock, gather_ns=250_000_000)
    written(machine, "t", 4 * EVENTS, tag="t")
    for count in range(1, 4):
        sealer.step()
        run_inline(machine.store.jobs())
        assert segments(machine, "t") == [EVENTS] * count
    written(machine, "t", 1)
    sealer.step()
    assert machine.store.jobs() == [], "it is written again"
    machine.clock.advance(250)
    sealer.step()
    run_inline(machine.store.jobs())
    assert segments(machine, "t") == [EVENTS] * 4


def test_gathering_topic_is_erased() -> None:
    """SPACE-5: a topic that is written again and again gathers for most of its life."""
    machine = Machine()
    shelf = machine.engine.catalog.shelf
    assert shelf is not None
    sealer = Sealer(shelf, machine.clock, gather_ns=250_000_000)
    written(machine, "t", EVENTS)
    sealer.step()
    run_inline(machine.store.jobs())
    written(machine, "t", EVENTS)
    sealer.step()
    topic = machine.engine.topics["t"]
    assert topic.archive.sealing
    topic.log.tail()[0].delete(0, 1)
    eraser = Eraser(machine.engine, machine.upkeep._rewriter, 10_000)
    eraser._begin(topic)
    while eraser.step():
        pass
    assert eraser.is_due
    assert sum(block.erased().count(DELETED) for block in topic.log.tail()) == 1


def test_gathering_topic_does_not_hold_up_others() -> None:
    """STORE-17."""
    machine = Machine()
    shelf = machine.engine.catalog.shelf
    assert shelf is not None
    sealer = Sealer(shelf, machine.clock, gather_ns=250_000_000)
    for topic in ("busy", "busy", "calm"):
        written(machine, topic, EVENTS)
        sealer.step()
        run_inline(machine.store.jobs())
    assert segments(machine, "busy") == segments(machine, "calm") == [EVENTS]


def spread(topics: int, records: int, max_unsealed_bytes: int) -> Machine:
    """Many topics, each far from a segment of its own."""
    machine = Machine(
        UpkeepSettings(segment_max_events=100_000, checkpoint_wal_bytes=1 << 40, max_unsealed_bytes=max_unsealed_bytes)
    )
    for i in range(topics):
        written(machine, f"t{i}", records + i, batch=1000)
    return machine


def test_largest_tails_are_sealed_first_where_all_together_are_too_large() -> None:
    """STORE-17: with many topics, each below the size of a segment, memory is bounded all the same."""
    machine = spread(40, 100, max_unsealed_bytes=0)
    unsealed = machine.engine.totals.unsealed
    machine.run_until_idle()
    total = unsealed.bytes
    assert not any(segments(machine, f"t{i}") for i in range(40)), "without a bound nothing is sealed early"
    machine = spread(40, 100, max_unsealed_bytes=2 * total)
    machine.run_until_idle()
    unsealed = machine.engine.totals.unsealed
    assert total // 3 < unsealed.bytes <= 2 * total // 4
    sealed = [i for i in range(40) if segments(machine, f"t{i}")]
    assert sealed == list(range(40 - len(sealed), 40)), "the largest"
    assert all(segments(machine, f"t{i}") == [100 + i] for i in sealed)


def test_survey_looks_at_some_topics_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """STORE-17: with a hundred thousand topics it must not stop the loop."""
    monkeypatch.setattr("topics.engine.upkeep.survey.SLICE_TOPICS", 7)
    monkeypatch.setattr("topics.engine.upkeep.survey.CHOSEN_MAX", 5)
    machine = spread(40, 100, max_unsealed_bytes=1000)
    steps = 1
    while machine.upkeep.step():
        steps += 1
    assert steps >= 40 // 7
    run_inline(machine.store.jobs())
    assert [i for i in range(40) if segments(machine, f"t{i}")] == list(range(35, 40))


def check_counts(machine: Machine) -> None:
    """The tails are counted exactly."""
    unsealed = resident = 0
    for topic in machine.engine.topics.values():
        blocks = [entry for entry in topic.log.retained() if isinstance(entry, Block)]
        held = sum(len(block.raw) for block in blocks)
        assert topic.log.tail() == blocks
        assert (topic.log.tail_records, topic.log.tail_bytes) == (sum(block.n for block in blocks), held)
        if topic.config.durability == "ephemeral":
            resident += held
        else:
            unsealed += held
    totals = machine.engine.totals
    assert (totals.unsealed.bytes, totals.resident.bytes) == (unsealed, resident)


@pytest.mark.parametrize("seed", range(6))
def test_bytes_that_are_not_sealed_are_counted_exactly(seed: int) -> None:
    """PRESSURE-8: whatever happens to records: caps, deletes, seals, other classes, crashes."""
    world = World(seed)
    for _ in range(700):
        world.step()
        if seed % 2 and world.rng.random() < 0.01:
            world.crash()
        elif not seed % 2 and world.rng.random() < 0.05:
            world.put("mixed", durability=world.rng.choice(("ephemeral", "disk")))
        check_counts(world)
    assert world.done["seal"]


def test_evicted_blocks_are_free_at_once() -> None:
    """PRESSURE-8: what a cap takes leaves the memory, not only the count."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(cap_records=10))
    written(machine, "t", 200)
    log = machine.engine.topics["t"].log
    assert sum(isinstance(entry, Block) for entry in log.entries) == 1
    check_counts(machine)


def test_ephemeral_topic_is_not_among_what_will_be_sealed() -> None:
    """PRESSURE-8: nothing would ever take it out of there."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability="ephemeral"))
    written(machine, "t", 200)
    totals = machine.engine.totals
    assert totals.unsealed.bytes == 0 < totals.resident.bytes
    machine.engine.put_topic("t", ConfigPatch(durability="disk"))
    assert totals.resident.bytes == 0 < totals.unsealed.bytes
    machine.engine.delete_topic("t")
    assert totals.unsealed.bytes == 0
