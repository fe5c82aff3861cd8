"""The leases of a queue go into a checkpoint in pieces while the queue goes on, and a restart finds them (QUEUE-24)."""

from __future__ import annotations

import random

import pytest
from msgspec import Raw

from tests.harness.machine import Machine, numbers
from topics.engine import ConfigPatch, Delete, RecordIn, Write
from topics.engine.queue.event import decode_leases
from topics.engine.queue.lease import DELAYED, FREE, LEASED, READY
from topics.engine.queue.queue import Queue, queue_of
from topics.engine.queue.requests import AckJobs, ClaimJobs, ExtendJobs, NackJobs
from topics.storage.job import run_inline

JOBS = 40
Held = dict[int, tuple[str, str, int, int]]


def queue_in(machine: Machine) -> Queue:
    queue = queue_of(machine.engine.topics["q"])
    assert queue is not None
    return queue


def held(machine: Machine) -> Held:
    """What is known of each job that was delivered or is delayed: a lapsed one is as ready as one that was given back.

    One that is ready and was never delivered may have a lease or none.
    """
    queue = queue_in(machine)
    machine.engine.queues.apply_acks(machine.engine.topics["q"])
    now_ms = machine.clock.steady_ms()
    while queue.advance(now_ms):
        pass
    found: Held = {}
    for lease in queue.leases.values():
        left_ms = lease.due_ms - now_ms if lease.state in (LEASED, DELAYED) else 0
        state = "ready" if lease.state in READY else lease.state
        if state != "ready" or lease.deliveries:
            found[lease.seq] = (state, lease.node if state == LEASED else "", lease.deliveries, left_ms)
    return found


class Story:
    """What workers do to a queue, by chance."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.queues = machine.engine.queues
        self.machine = machine
        self.chance = random.Random(seed)
        self.nodes = ("a", "b")

    def go_on(self) -> None:
        """One thing happens."""
        node = self.chance.choice(self.nodes)
        mine = [lease.seq for lease in queue_in(self.machine).leases.values() if lease.node == node]
        some = self.chance.sample(mine, min(len(mine), self.chance.randint(1, 3)))
        what = self.chance.randrange(7)
        if what == 0 and some:
            self.queues.ack("q", AckJobs(node, some))
        elif what == 1 and some:
            self.queues.nack("q", NackJobs(node, some, self.chance.choice((0, 0, 500))))
        elif what == 2 and some:
            self.queues.extend("q", ExtendJobs(node, some, 9_000))
        elif what == 3:
            self.machine.clock.advance(self.chance.choice((1, 200, 1_100)))
        elif what == 4:
            delay_ms = self.chance.choice((None, 700))
            self.machine.engine.write("q", Write([RecordIn(Raw(b"1"), delay_ms=delay_ms)]))
        else:
            self.queues.claim("q", ClaimJobs(node, self.chance.randint(1, 5), self.chance.choice((1_000, 5_000))))
        self.machine.engine.turn()


@pytest.mark.parametrize("seed", range(40))
def test_what_happens_between_the_pieces_is_found_by_a_restart(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """QUEUE-24: a piece has its leases as they are when it is made, and the log says the rest."""
    monkeypatch.setattr("topics.engine.queue.image.PIECE_LEASES", 3)
    monkeypatch.setattr("topics.engine.restart.checkpoint.SLICE_NS", 0)
    machine = Machine()
    machine.engine.put_topic("q", ConfigPatch(type="queue"))
    machine.engine.write("q", numbers(1, JOBS))
    story = Story(machine, seed)
    for _ in range(30):
        story.go_on()
    while not queue_in(machine).leases:
        story.go_on()
    machine.run_until_idle()
    leases = len(queue_in(machine).leases)
    machine.upkeep.checkpoint()
    machine.clock.advance(100)
    run_inline(machine.store.jobs())
    steps = 0
    while machine.store.checkpoints_total == 0:
        machine.upkeep.step()
        story.go_on()
        run_inline(machine.store.jobs())
        steps += 1
        assert steps < 1_000
    assert steps > leases // 3, "a step for each piece"
    for _ in range(5):
        story.go_on()
    machine.run_until_idle()
    before = held(machine)
    counters = queue_in(machine).in_flight, queue_in(machine).delayed, queue_in(machine).ready
    machine.crash("kill")
    after = held(machine)
    assert after == before
    assert (queue_in(machine).in_flight, queue_in(machine).delayed, queue_in(machine).ready) == counters


def test_very_many_leases_do_not_make_a_step_longer() -> None:
    """STORE-18: a step of the checkpoint has a bound, however many jobs are out."""
    machine = Machine()
    machine.engine.put_topic("q", ConfigPatch(type="queue"))
    for first in range(0, 20_000, 1_000):
        machine.engine.write("q", numbers(first, first + 999))
        machine.engine.queues.claim("q", ClaimJobs("w", 1_000))
        machine.run_until_idle()
    queue = queue_in(machine)
    pieces = list(queue.capture_leases())
    assert len(queue.leases) == 20_000
    assert len(pieces) == 10
    assert len(queue.capture()) < 100
    machine.checkpoint()
    machine.crash("kill")
    assert queue_in(machine).in_flight == 20_000


def test_job_that_is_gone_when_its_piece_is_made_waits_there() -> None:
    """QUEUE-24: should a loss of power take the frame that removed it, nobody is thought to hold it."""
    machine = Machine()
    machine.engine.put_topic("q", ConfigPatch(type="queue"))
    machine.engine.write("q", Write([*numbers(1, 5).records, RecordIn(Raw(b"6"), delay_ms=60_000)]))
    queues, queue = machine.engine.queues, queue_in(machine)
    queues.claim("q", ClaimJobs("w", 5, 3_600_000))
    queues.nack("q", NackJobs("w", [4, 5]))
    pieces = queue.capture_leases()
    queues.ack("q", AckJobs("w", [1]))
    machine.run_until_idle()
    machine.engine.delete("q", Delete(before_seq=7))
    machine.run_until_idle()
    queue.trim()
    assert not queue.leases
    other = Machine()
    other.engine.put_topic("q", ConfigPatch(type="queue"))
    other.engine.write("q", numbers(1, 6))
    for piece in pieces:
        queue_in(other).restore_leases(decode_leases(piece))
    found = {lease.seq: (lease.state, lease.node, lease.deliveries) for lease in queue_in(other).leases.values()}
    assert found == dict.fromkeys(range(1, 6), (FREE, "", 1)) | {6: (DELAYED, "", 0)}
