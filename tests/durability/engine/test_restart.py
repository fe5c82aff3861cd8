"""The engine on a data directory: what was written is there after a restart, whatever happened in between."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.harness.machine import Machine, numbers
from topics.engine import ConfigPatch, Delete, Write
from topics.engine.upkeep.upkeep import UpkeepSettings


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_process_crash_loses_nothing(durability: str) -> None:
    """DURABLE-3: kill -9 loses no frame that was acked, and the next seq is head + 1."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability=durability))  # type: ignore[arg-type]
    machine.engine.write("t", numbers(1, 10))
    machine.crash("kill")
    assert machine.read("t") == (list(range(1, 11)), [])
    assert machine.engine.write("t", numbers(11, 11)).first_seq == 11


def test_power_loss_keeps_fsync_records_and_goes_on_at_the_next_seq() -> None:
    """DURABLE-4: an acked `fsync` write survives any crash."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability="fsync"))
    machine.engine.write("t", numbers(1, 10))
    for damage in ("dropped", "torn", "garbled"):
        machine.crash(damage)
        assert machine.read("t") == (list(range(1, 11)), [])
    assert machine.engine.write("t", numbers(11, 11)).first_seq == 11


def test_power_loss_of_a_disk_topic_is_a_lost_range_and_no_seq_is_used_again() -> None:
    """DURABLE-5: acked and lost seqs are never reused, and the range between is a lost range."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability="disk"))
    machine.engine.write("t", numbers(1, 10))
    done: list[Any] = []
    machine.engine.write("t", numbers(11, 20), done.append)
    machine.engine.turn()
    assert done[0].last_seq == 20, "acked without a sync"
    machine.crash("dropped")
    seqs, gaps = machine.read("t")
    assert seqs == list(range(1, 11))
    assert len(gaps) == 1
    assert gaps[0][0] == 11
    assert gaps[0][1] >= 20
    ticket = machine.engine.write("t", numbers(1, 1))
    assert ticket.first_seq == gaps[0][1] + 1
    assert machine.read("t", gaps[0][1]) == ([ticket.first_seq], [])


def test_clean_stop_leaves_no_gap_even_after_a_new_boot() -> None:
    """DURABLE-7: a clean stop writes ceiling = head."""
    machine = Machine()
    machine.engine.write("t", numbers(1, 10))
    machine.stop()
    machine.disk.crash("dropped", random.Random(1))
    machine.start()
    assert machine.read("t") == (list(range(1, 11)), [])
    assert machine.engine.write("t", numbers(11, 11)).first_seq == 11


def test_ephemeral_records_are_gone_after_a_restart_and_reported() -> None:
    """DURABLE-6: the config and the head survive a clean stop; the records are lost, and readers get a tombstone."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability="ephemeral", ttl_ms=99_000))
    machine.engine.write("t", numbers(1, 10))
    machine.stop()
    assert machine.engine.state("t").config.ttl_ms == 99_000
    assert machine.read("t") == ([], [(1, 10, "restart")])
    assert machine.engine.write("t", numbers(11, 11)).first_seq == 11


def test_sealed_records_read_the_same_before_and_after_a_restart() -> None:
    """STORE-1: sealing changes where bytes are and nothing that a reader sees."""
    machine = Machine()
    for first in range(1, 500, 7):
        machine.engine.write("t", numbers(first, first + 6))
        machine.run_until_idle()
    assert len(machine.engine.topics["t"].archive.segments) >= 5
    state = machine.engine.state("t")
    expected = machine.read("t")
    assert expected == (list(range(1, state.head_seq + 1)), [])
    machine.checkpoint()
    machine.crash("dropped")
    assert machine.read("t")[0][: len(expected[0])] == expected[0]
    after = machine.engine.state("t")
    assert (after.count, after.bytes, after.earliest_seq) == (state.count, state.bytes, 1)


def test_tail_of_many_bytes_is_sealed_however_few_records_it_has() -> None:
    """STORE-16: a tail is sealed by its bytes too."""
    machine = Machine(UpkeepSettings(segment_max_events=1000, segment_max_bytes=500))
    machine.engine.write("t", numbers(1, 1))
    machine.run_until_idle()
    assert not machine.engine.topics["t"].archive.segments
    machine.engine.write("t", numbers(2, 60))
    machine.run_until_idle()
    assert machine.engine.topics["t"].archive.segments
    assert machine.read("t") == (list(range(1, 61)), [])


def test_checkpoint_trims_the_log_and_keeps_everything() -> None:
    """STORE-9: disk use and restart time are bounded by settings and not by history."""
    machine = Machine()
    for _ in range(40):
        machine.engine.write("t", Write.of(["x" * 1000] * 20))
        machine.run_until_idle()
    before = machine.store.wal_bytes
    machine.checkpoint()
    assert machine.store.wal_bytes < before / 4
    machine.crash("kill")
    assert machine.read("t") == (list(range(1, 801)), [])


@pytest.mark.parametrize("damage", ["kill", "dropped", "torn", "garbled"])
def test_deletes_of_sealed_and_unsealed_records_survive(damage: str) -> None:
    """DURABLE-12: a delete of a sealed record survives a checkpoint that trims its frame."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability="fsync"))
    for i in range(120):
        write = Write.of([i])
        write.records[0].tag = f"tag:{i % 10}"
        machine.engine.write("t", write)
    machine.run_until_idle()
    assert len(machine.engine.topics["t"].archive.segments) == 2
    deleted = machine.engine.delete("t", Delete(match=["tag", "Eq", "tag:3"])).result
    assert deleted.deleted == 12
    assert machine.engine.delete("t", Delete(match=["tag", "Glob", "tag:4*"], before_seq=60)).result.deleted == 6
    expected = machine.read("t")
    machine.crash(damage)
    assert machine.read("t") == expected
    machine.checkpoint()
    machine.crash(damage)
    assert machine.read("t") == expected
    assert machine.engine.state("t").count == 120 - 18


def test_segment_that_is_all_deleted_is_dropped_wherever_it_is() -> None:
    """STORE-2: also a segment in the middle."""
    machine = Machine()
    for i in range(200):
        write = Write.of([i])
        write.records[0].tag = "middle" if 50 <= i < 100 else "other"
        machine.engine.write("t", write)
        machine.run_until_idle()
    segments = len(machine.engine.topics["t"].archive.segments)
    machine.engine.delete("t", Delete(match="middle"))
    assert len(machine.engine.topics["t"].archive.segments) == segments - 1
    expected = machine.read("t")
    assert expected == ([*range(1, 51), *range(101, 201)], [])
    machine.checkpoint()
    machine.crash("kill")
    assert machine.read("t") == expected


def test_caps_and_floors_survive_a_restart() -> None:
    """DURABLE-9: floors, count and bytes are the same after a restart."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(cap_records=77, durability="fsync"))
    for i in range(60):
        machine.engine.write("t", numbers(i, i + 4))
        machine.run_until_idle()
    state = machine.engine.state("t")
    expected = machine.read("t")
    assert expected[1] == [(1, 300 - 77, "cap")]
    for how in ("crash", "checkpoint", "stop"):
        if how == "crash":
            machine.crash("dropped")
        elif how == "checkpoint":
            machine.checkpoint()
            machine.crash("dropped")
        else:
            machine.stop()
        after = machine.engine.state("t")
        assert (after.count, after.bytes, after.earliest_seq) == (state.count, state.bytes, state.earliest_seq)
        assert machine.read("t") == expected


def test_a_restart_names_the_reasons_that_were_named_before() -> None:
    """DURABLE-9: where a cap and a TTL both act, the restart finds what each of them took."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(cap_records=5, ttl_ms=200, durability="fsync"))
    for first, last in ((1, 8), (9, 11)):
        machine.engine.write("t", numbers(first, last))
        machine.run_until_idle()
        machine.clock.advance(300)

    def reasons() -> list[str]:
        return [machine.read("t", cursor)[1][0][2] for cursor in range(8)]

    expected = ["mixed"] * 3 + ["ttl"] * 5
    assert reasons() == expected
    machine.crash("kill")
    assert reasons() == expected
    machine.checkpoint()
    machine.crash("dropped")
    assert reasons() == expected


def test_retries_stay_safe_across_a_restart() -> None:
    """RETRY-8: the dedupe window and the producers survive a restart."""
    machine = Machine()
    first = machine.engine.write("t", Write.of([1], idempotency_key="k"))
    machine.engine.write("t", Write.of([2], producer_id="p", producer_seq=7))
    for checkpoint in (False, True):
        if checkpoint:
            machine.checkpoint()
        machine.crash("kill")
        again = machine.engine.write("t", Write.of([1], idempotency_key="k"))
        assert (again.deduped, again.first_seq) == (True, first.first_seq)
        assert machine.engine.write("t", Write.of([2], producer_id="p", producer_seq=7)).deduped
        assert machine.engine.write("t", Write.of([2], producer_id="p", producer_seq=3)).deduped
    assert machine.engine.state("t").count == 2


def test_deleted_topic_stays_deleted_and_a_recreated_one_is_new() -> None:
    """DURABLE-11, TOPIC-3: a recreated topic is another instance with seqs of its own."""
    machine = Machine()
    machine.engine.write("t", numbers(1, 60))
    machine.run_until_idle()
    machine.engine.delete_topic("t")
    machine.crash("kill")
    assert "t" not in machine.engine.topics
    machine.engine.write("t", numbers(1, 3))
    epoch = machine.engine.topics["t"].id
    machine.checkpoint()
    machine.crash("kill")
    assert machine.read("t") == ([1, 2, 3], [])
    assert machine.engine.topics["t"].id == epoch
    assert not [name for name in machine.disk.list("data/segments") if not name.startswith(f"{epoch:016x}")]


def test_old_segments_move_to_the_cold_tier_and_read_the_same() -> None:
    """STORE-1: tiering changes nothing that a reader sees."""
    settings = UpkeepSettings(segment_max_events=50, checkpoint_wal_bytes=1 << 40, hot_retain_segments=1)
    machine = Machine(settings, cold_directory="cold")
    for i in range(0, 300, 5):
        machine.engine.write("t", numbers(i, i + 4))
        machine.run_until_idle()
    for _ in range(10):
        machine.clock.advance(6000)
        machine.run_until_idle()
    cold = [segment for segment in machine.engine.topics["t"].archive.segments if segment.is_cold]
    assert len(cold) == len(machine.engine.topics["t"].archive.segments) - 1
    assert machine.read("t") == (list(range(1, 301)), [])
    machine.checkpoint()
    assert len([name for name in machine.disk.list("data/segments") if name.endswith(".data")]) == 1
    machine.crash("dropped")
    seqs, _ = machine.read("t")
    assert seqs[:300] == list(range(1, 301))
