"""What a queue knows about failed jobs is there after a crash (QUEUE-14, QUEUE-32, QUEUE-33)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.machine import Machine
from tests.harness.oracle import read_all
from topics.engine import ConfigPatch, Write
from topics.engine.queue.queue import Queue, queue_of
from topics.engine.queue.requests import ClaimJobs, NackJobs
from topics.testing.fake_disk import DAMAGES, Crashed


def machine_with(durability: str = "disk", **config: Any) -> Machine:
    machine = Machine()
    patch = {"type": "queue", "durability": durability, "dead_letter": "dlq", "lease_ms": 1000, **config}
    machine.engine.put_topic("q", ConfigPatch(**patch))
    machine.engine.put_topic("dlq", ConfigPatch(durability=durability))  # type: ignore[arg-type]
    machine.engine.write("q", Write.of(["a", "b", "c"]))
    machine.run_until_idle()
    return machine


def claim(machine: Machine, max: int = 10) -> list[int]:
    return [job["$seq"] for job in machine.engine.queues.claim("q", ClaimJobs("w", max)).claimed]


def letters(machine: Machine) -> dict[str, str | None]:
    """The reason by the data of each dead letter."""
    records = list(read_all(machine.engine, "dlq")[0].values())
    found = {json.loads(each.data): json.loads(each.meta or b"{}").get("$dead_letter_reason") for each in records}
    assert len(found) == len(records)
    return found


def of(machine: Machine) -> Queue:
    found = queue_of(machine.engine.topics["q"])
    assert found is not None
    return found


@pytest.mark.parametrize("checkpointed", [False, True])
def test_reason_survives(checkpointed: bool) -> None:
    """QUEUE-32: in the log and in a checkpoint, and the job takes it to its dead letter."""
    machine = machine_with(max_deliveries=2)
    claim(machine)
    machine.engine.queues.nack("q", NackJobs("w", [1, 2], 0, None, "no disk"))
    machine.run_until_idle()
    if checkpointed:
        machine.checkpoint()
    machine.crash("kill")
    assert of(machine).failures.reasons == {1: "no disk", 2: "no disk"}
    assert claim(machine, 2) == [1, 2]
    machine.crash("kill")
    machine.clock.advance(1001)
    machine.run_until_idle()
    assert letters(machine) == {"a": "no disk", "b": "no disk"}
    assert of(machine).failures.reasons == {}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_each_job_keeps_its_own_pause(checkpointed: bool) -> None:
    """QUEUE-33."""
    machine = machine_with(backoff_ms=10_000, lease_ms=60_000)
    claim(machine)
    machine.engine.queues.nack("q", NackJobs("w", [1, 2, 3]))
    machine.run_until_idle()
    due = {seq: lease.due_ms for seq, lease in of(machine).leases.items()}
    assert len(set(due.values())) == 3
    if checkpointed:
        machine.checkpoint()
    machine.crash("kill")
    assert {seq: lease.due_ms for seq, lease in of(machine).leases.items()} == due
    for seq in sorted(due, key=lambda each: due[each]):
        machine.clock.advance(due[seq] - machine.clock.steady_ms() - 1)
        assert claim(machine) == []
        machine.clock.advance(1)
        assert claim(machine) == [seq]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_last_nack_is_all_or_nothing_at_every_disk_call(durability: str, damage: Any) -> None:
    """QUEUE-14, QUEUE-17: a job is in one place after a crash, and gets to its dead letters without a claim."""
    calls = 1
    while True:
        machine = machine_with(durability, max_deliveries=1, leases_durable=True)
        claim(machine)
        machine.run_until_idle()
        machine.disk.crash_at = machine.disk.calls + calls
        answered: list[dict[str, str | None]] = []

        def done(receipt: Any, machine: Machine = machine, answered: list[Any] = answered) -> None:
            assert receipt.error is None
            answered.append(letters(machine))

        try:
            machine.engine.queues.nack("q", NackJobs("w", [1, 3], 500, None, "why"), on_done=done)
            machine.run_until_idle()
            crashed = False
        except Crashed:
            crashed = True
        assert answered in ([], [{"a": "why", "c": "why"}]), "the answer comes after the letters"
        machine.crash(damage)
        if answered and (damage == "kill" or durability == "fsync"):
            assert letters(machine) == {"a": "why", "c": "why"}
        assert len(letters(machine)) in (0, 2)
        machine.clock.advance(1001)
        machine.run_until_idle()
        assert letters(machine).keys() == {"a", "b", "c"}
        assert machine.datas("q") == []
        calls += 1
        if not crashed:
            assert calls > 3
            return
