"""A destination that rejects what is too much: what a copy got its room from is on the disk before the copy is shown.

A restart makes copies again as far as there is room. If a loss of power could take the change that made room, it could
take with it a copy that readers of an `fsync` topic have seen (DURABLE-4, ROUTER-32).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness.machine import Machine, numbers
from tests.harness.story import ignore
from topics.engine import ConfigPatch, Delete
from topics.engine.queue.requests import ClaimJobs, NackJobs
from topics.engine.router.router import PutRouter
from topics.storage.job import run_inline
from topics.testing.fake_disk import DAMAGES, Damage


def delete(machine: Machine) -> None:
    machine.engine.delete("dest", Delete(before_seq=2), ignore)


def loosen(machine: Machine) -> None:
    machine.engine.put_topic("dest", ConfigPatch(cap_records=3), ignore)


def bury(machine: Machine) -> None:
    machine.engine.queues.nack("dest", NackJobs("w", [1]), on_done=ignore)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("make_room", [delete, loosen, bury])
def test_copy_waits_for_the_change_that_made_room_for_it(make_room: Callable[[Machine], None], damage: Damage) -> None:
    """ROUTER-32: what a reader has seen in an `fsync` topic is there after any crash."""
    machine = Machine(shards=2)
    queue = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead", "lease_ms": 60_000}
    config = {"durability": "fsync", "cap_records": 2, "discard": "reject"}
    machine.engine.put_topic("source", ConfigPatch(durability="fsync"))
    machine.engine.put_topic("dest", ConfigPatch(**config, **queue))  # type: ignore[arg-type]
    machine.engine.routers.put("r", PutRouter("source", "dest"))
    machine.engine.write("source", numbers(1, 3))
    machine.run_until_idle()
    machine.engine.queues.claim("dest", ClaimJobs("w", 1))
    machine.run_until_idle()
    assert machine.datas("dest") == [1, 2]
    make_room(machine)
    for _ in range(20):
        # Every turn but no sync: the copy has its room, and must not be seen.
        machine.clock.advance(1000)
        machine.engine.prepare()
        machine.engine.turn()
        machine.engine.topics["dest"].catch_up()
        assert 3 not in machine.visible("dest")
    run_inline(machine.store.jobs())
    machine.run_until_idle()
    shown = machine.visible("dest")
    assert 3 in shown
    machine.crash(damage)
    assert machine.visible("dest") == shown
