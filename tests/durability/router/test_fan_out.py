"""What routers copied is in no frame, but a restart has to make it again: it counts towards the next checkpoint."""

from __future__ import annotations

import msgspec
import pytest

from tests.harness.machine import SMALL, Machine, numbers
from topics.engine import ConfigPatch
from topics.engine.router.forward import into
from topics.engine.router.router import PutRouter

FAN_OUT = 40
BOUND_BYTES = 64 << 10


def machine_with(rule: dict[str, object]) -> Machine:
    settings = msgspec.structs.replace(SMALL, segment_max_events=10_000, checkpoint_wal_bytes=BOUND_BYTES)
    machine = Machine(settings)
    for i in range(FAN_OUT):
        machine.engine.routers.put(f"r{i}", PutRouter("source", f"dest-{i}", **rule))  # type: ignore[arg-type]
    machine.run_until_idle()
    machine.checkpoint()
    return machine


@pytest.mark.parametrize("rule", [{}, {"preserve_node": False}])
def test_restart_makes_no_more_copies_again_than_the_bound_allows(rule: dict[str, object]) -> None:
    """ROUTER-30: 40 destinations get 200 records each, which are a small log and many copies."""
    machine = machine_with(rule)
    for i in range(100):
        machine.engine.write("source", numbers(2 * i, 2 * i + 1))
        machine.clock.advance(100)
        machine.run_until_idle()
    assert machine.store.wal_bytes < BOUND_BYTES, "without the copies the log alone asks for no checkpoint"
    machine.crash()
    # A slice of each forward may come on top of the bound.
    assert machine.engine.journal.derived_bytes < 2 * BOUND_BYTES
    for i in range(FAN_OUT):
        assert machine.datas(f"dest-{i}") == list(range(200))


def test_copies_that_a_restart_made_again_count_for_the_next_checkpoint() -> None:
    """ROUTER-30: a server that is killed again and again does not have more to do each time."""
    machine = machine_with({})
    for i in range(60):
        machine.engine.write("source", numbers(i, i))
        machine.engine.run_until_idle()
        machine.crash()
        for _ in range(2):
            machine.clock.advance(100)
            machine.run_until_idle()
        assert machine.engine.journal.derived_bytes < 2 * BOUND_BYTES
    assert machine.datas("dest-0") == list(range(60))


def test_copies_of_an_ephemeral_destination_do_not_count() -> None:
    """ROUTER-30: a restart does not make them again."""
    machine = Machine()
    machine.engine.put_topic("dest", ConfigPatch(durability="ephemeral"))
    machine.engine.routers.put("r", PutRouter("source", "dest"))
    machine.engine.write("source", numbers(0, 99))
    machine.run_until_idle()
    assert machine.engine.topics["dest"].log.count == 100
    assert machine.engine.journal.derived_bytes == 0


def test_many_routers_between_the_same_topics_copy_in_slices() -> None:
    """ROUTER-31: a slice is bounded by the copies that it makes, not by the records that it looks at."""
    machine = Machine()
    for i in range(100):
        machine.engine.routers.put(f"r{i}", PutRouter("source", "dest"))
    machine.engine.write("source", numbers(0, 0))
    machine.run_until_idle()
    machine.engine.write("source", numbers(1, 999), on_done=lambda _: None)
    machine.store.write()
    forward = into(machine.engine.topics["dest"])
    assert forward is not None
    before = forward.dest.next_seq
    forward.step()
    assert forward.dest.next_seq - before == 1000
    machine.run_until_idle()
    assert forward.dest.log.count == 100_000
