"""DURABLE-27: a clock that is set back brings nothing back that a TTL has taken, over any end of the process."""

from __future__ import annotations

import pytest

from tests.harness.machine import Machine, numbers
from topics.engine import ConfigPatch
from topics.engine.router.router import PutRouter
from topics.testing.fake_disk import DAMAGES

TTL_MS = 60_000
HOUR_MS = 3_600_000


def _machine(durability: str = "memory") -> Machine:
    """A machine with five records, of which a reader is told that they have expired."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability=durability, ttl_ms=TTL_MS))  # type: ignore[arg-type]
    machine.engine.write("t", numbers(1, 5))
    machine.clock.advance(HOUR_MS)
    assert machine.read("t") == ([], [(1, 5, "ttl")])
    return machine


def _floors(machine: Machine) -> tuple[int, int, int]:
    log = machine.engine.topics["t"].log
    return log.start, log.evict_floor, log.head


@pytest.mark.parametrize(
    ("durability", "damage"), [("memory", "kill"), ("disk", "kill"), *(("fsync", damage) for damage in DAMAGES)]
)
@pytest.mark.parametrize("captured", [False, True], ids=["log", "checkpoint"])
def test_what_has_expired_stays_gone_when_the_clock_is_set_back_before_a_start(
    durability: str, damage: str, captured: bool
) -> None:
    machine = _machine(durability)
    machine.run_until_idle()
    if captured:
        machine.checkpoint()
    floors = _floors(machine)
    for _ in range(2):
        machine.clock.set(machine.clock.now_ms() - HOUR_MS)
        machine.crash(damage)  # type: ignore[arg-type]
        assert machine.read("t") == ([], [(1, 5, "ttl")])
        assert _floors(machine) == floors


def test_the_time_of_a_later_record_tells_what_had_expired() -> None:
    machine = _machine()
    machine.engine.write("t", numbers(6, 6))
    # No upkeep has come by: only the write is in the log.
    machine.clock.set(machine.clock.now_ms() - HOUR_MS)
    machine.crash()
    assert machine.read("t") == ([6], [(1, 5, "ttl")])


def test_records_that_are_written_after_the_clock_was_set_back_are_kept() -> None:
    machine = _machine()
    machine.run_until_idle()
    machine.clock.set(machine.clock.now_ms() - HOUR_MS)
    machine.engine.write("t", numbers(6, 7))
    machine.run_until_idle()
    for _ in range(2):
        machine.crash()
        assert machine.read("t") == ([6, 7], [(1, 5, "ttl")])


def test_floor_is_logged_once_per_second() -> None:
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability="memory", ttl_ms=TTL_MS))
    for i in range(500):
        machine.engine.write("t", numbers(i, i))
        machine.clock.advance(10)
    machine.clock.advance(TTL_MS - 5000)
    machine.run_until_idle()
    before = machine.store.last_lsn
    for _ in range(500):
        machine.clock.advance(10)
        machine.read("t")
        machine.run_until_idle()
    assert machine.read("t")[0] == []
    assert 5 <= machine.store.last_lsn - before <= 7
    machine.clock.advance(1000)
    machine.run_until_idle()
    machine.clock.set(machine.clock.now_ms() - HOUR_MS)
    machine.crash()
    assert machine.read("t") == ([], [(1, 500, "ttl")])


@pytest.mark.parametrize("shards", [1, 3])
def test_copies_of_what_has_expired_keep_their_seqs(shards: int) -> None:
    """ROUTER-15: at a restart, what expired in the source after it was copied can still be copied."""
    machine = Machine(shards=shards)
    engine = machine.engine
    engine.put_topic("t", ConfigPatch(durability="memory", ttl_ms=TTL_MS))
    engine.put_topic("copy", ConfigPatch(durability="memory"))
    engine.routers.put("t->copy", PutRouter("t", "copy"))
    for i in range(3):
        engine.write("t", numbers(i, i))
        machine.run_until_idle()
        machine.clock.advance(HOUR_MS)
        machine.read("t")
        machine.run_until_idle()
    shown = machine.visible("copy")
    assert len(shown) == 3
    machine.clock.set(machine.clock.now_ms() - 5 * HOUR_MS)
    machine.crash()
    assert machine.visible("copy") == shown
    assert machine.read("t") == ([], [(1, 3, "ttl")])
