"""Redrives of letters that are sealed: what has to be read from the disk first holds up nobody else."""

from __future__ import annotations

from typing import Any

from tests.harness.machine import Machine, uncached
from topics.engine import ConfigPatch, Write
from topics.engine.queue.requests import ClaimJobs, NackJobs, RedriveJobs

LETTERS = 60


def test_letters_that_have_left_memory_since_they_were_found_are_read_again() -> None:
    """QUEUE-27: the redrive waits for the read, and whatever shares a sync with its jobs is answered."""
    machine = Machine()
    engine = machine.engine
    engine.put_topic("dlq", ConfigPatch(durability="fsync"))
    engine.put_topic("q", ConfigPatch(type="queue", durability="fsync", max_deliveries=1, dead_letter="dlq"))
    engine.write("q", Write.of(range(LETTERS)))
    jobs = engine.queues.claim("q", ClaimJobs("w", LETTERS)).claimed
    engine.queues.nack("q", NackJobs("w", [job["$seq"] for job in jobs]))
    machine.checkpoint()
    letters = engine.topics["dlq"]
    assert letters.log.count == LETTERS
    assert letters.log.tail_records == 0

    answers: list[Any] = []
    engine.queues.redrive("q", RedriveJobs(), answers.append)
    engine.write("q", Write.of(["another"]), answers.append)
    engine.turn()
    assert answers == [], "both wait for a sync"
    uncached(machine, "dlq")
    machine.run_until_idle()

    assert [answer.error for answer in answers] == [None, None]
    assert letters.log.count == 0
    machine.disk.uncached = set()
    assert machine.datas("q") == [*range(LETTERS), "another"]
