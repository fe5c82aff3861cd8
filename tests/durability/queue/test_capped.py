"""A queue with a cap, across a kill: a move to the dead letters makes room when it happens, no earlier and no later."""

from __future__ import annotations

from tests.harness.machine import SMALL, Machine, numbers
from tests.harness.story import ignore
from topics.engine import ConfigPatch
from topics.engine.queue.requests import ClaimJobs, NackJobs

CAP = 3


def machine_with_jobs() -> Machine:
    """A queue that is full, whose jobs are delivered once; all of them are out."""
    machine = Machine(SMALL)
    config = {"type": "queue", "cap_records": CAP, "max_deliveries": 1, "dead_letter": "dead", "durability": "fsync"}
    machine.engine.put_topic("q", ConfigPatch(**config))  # type: ignore[arg-type]
    machine.engine.put_topic("dead", ConfigPatch(durability="fsync"))
    machine.engine.write("q", numbers(1, CAP))
    machine.run_until_idle()
    claimed = machine.engine.queues.claim("q", ClaimJobs("w", CAP)).claimed
    assert [job["$seq"] for job in claimed] == [1, 2, 3]
    machine.run_until_idle()
    return machine


def shown(machine: Machine) -> tuple[list[int], list[tuple[int, int, str]], list[int], int]:
    seqs, gaps = machine.read("q")
    return seqs, gaps, machine.datas("dead"), machine.engine.topics["q"].log.evict_floor


def test_job_that_a_burial_made_room_for_is_not_evicted_by_a_restart() -> None:
    """DURABLE-10: a write that waits for its sync has its frame before that of the move, and was shown after it."""
    machine = machine_with_jobs()
    machine.engine.write("q", numbers(4, 4), on_done=ignore)
    machine.engine.turn()
    machine.engine.queues.nack("q", NackJobs("w", [2]), on_done=ignore)
    machine.engine.turn()
    assert machine.engine.topics["q"].log.head == 3, "the write still waits"
    machine.run_until_idle()
    before = shown(machine)
    assert before == ([1, 3, 4], [], [2], 1)
    machine.crash("kill")
    assert shown(machine) == before


def test_job_that_was_evicted_before_a_burial_is_not_back() -> None:
    """DURABLE-9: the flag of the buried job is on the disk already, and the cap must not think that there was room."""
    machine = machine_with_jobs()
    machine.engine.topics["q"].archive.shelf.max_events = 1  # type: ignore[union-attr]
    machine.engine.topics["q"].ask_seal()
    machine.checkpoint()
    assert machine.engine.topics["q"].archive.segments
    machine.engine.write("q", numbers(4, 4))
    machine.run_until_idle()
    machine.engine.queues.nack("q", NackJobs("w", [2]))
    machine.run_until_idle()
    before = shown(machine)
    assert before == ([3, 4], [(1, 2, "cap")], [2], 2)
    machine.crash("kill")
    assert shown(machine) == before
