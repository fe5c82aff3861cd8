"""QUEUE-34: what happens to many jobs at once happens to some of them at a time, and comes out the same.

The clock is one by which every look at it takes a millisecond, so that every piece of work takes a turn of its own.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.harness.machine import HastyClock
from topics.engine import ConfigPatch, Delete, Engine, Limits, RecordIn, Write
from topics.engine.queue.claim import Claim
from topics.engine.queue.queue import STEP_JOBS, Queue
from topics.engine.queue.ready import DEAD_MAX, STALE_MAX
from topics.engine.queue.redrive import PIECE_RECORDS
from topics.engine.queue.requests import AckJobs, ClaimJobs, NackJobs, RedriveJobs

MANY = 3 * STEP_JOBS


class Crowd:
    """A queue `q` with many jobs; keyword arguments are its config."""

    def __init__(self, **config: Any) -> None:
        self.clock = HastyClock()
        self.engine = Engine(self.clock, limits=Limits(max_claim=0, max_batch_records=100_000))
        self.engine.put_topic("q", ConfigPatch(type="queue", **config))
        queue = self.engine.topics["q"].queue
        assert isinstance(queue, Queue)
        self.queue = queue

    def produce(self, count: int, **fields: Any) -> None:
        self.engine.write("q", Write([RecordIn(msgspec.Raw(b"1"), **fields) for _ in range(count)]))

    def claim(self, max: int, lease_ms: int = 1000) -> list[int]:
        """Claim as a client does; the seqs, once the claim is answered."""
        claim = self.begin(max, lease_ms)
        self.turns_until(lambda: claim.done)
        return [lease.seq for lease in claim.leased.leases]

    def begin(self, max: int, lease_ms: int = 1000) -> Claim:
        return self.engine.queues.claim("q", ClaimJobs("w", max, lease_ms), id)

    def turns_until(self, done: Any) -> int:
        turns = 0
        while not done():
            self.engine.prepare()
            self.engine.turn()
            turns += 1
            assert turns < 1000, "it never ends"
        return turns

    def counters(self) -> tuple[int, int, int]:
        """ready, in_flight and dead_lettered, once the queue is not behind."""
        self.engine.state("q")
        self.engine.run_until_idle()
        state = self.engine.state("q").queue
        assert not isinstance(state, msgspec.UnsetType)
        return state.ready, state.in_flight, state.dead_lettered


def test_many_leases_run_out_together() -> None:
    """QUEUE-34: the next claim gets jobs at once, and in the end all are ready."""
    crowd = Crowd()
    crowd.produce(MANY)
    assert crowd.claim(MANY) == list(range(1, MANY + 1))
    crowd.clock.advance(5000)
    claim = crowd.begin(10)
    assert len(claim.leased.leases) == 10, "it waits for nobody"
    assert crowd.queue.in_flight > MANY // 2, "the others are for later"
    assert crowd.counters() == (MANY - 10, 10, 0)
    claimed = [seq for _ in range(3) for seq in crowd.claim(STEP_JOBS)]
    assert len(set(claimed)) == len(claimed) == MANY - 10


def test_many_delays_end_together() -> None:
    """QUEUE-34: delayed jobs that fall due together are all delivered, once each."""
    crowd = Crowd()
    crowd.produce(MANY, delay_ms=10_000)
    assert crowd.claim(10) == []
    crowd.clock.advance(60_000)
    claimed: list[int] = []
    while seqs := crowd.claim(STEP_JOBS, 1_000_000):
        claimed += seqs
    assert sorted(claimed) == list(range(1, MANY + 1))
    assert len(claimed) == MANY


@pytest.mark.parametrize("seed", range(8))
def test_fresh_jobs_are_found_between_delayed_ones(seed: int) -> None:
    """QUEUE-34, QUEUE-26: claims take the jobs that are not delayed, in order, whatever lies between."""
    dice = random.Random(seed)
    crowd = Crowd()
    fresh: list[int] = []
    head = 0
    for _ in range(60):
        if dice.random() < 0.5:
            count, delayed = dice.choice((1, 1, 3, 40)), dice.random() < 0.6
            crowd.produce(count, delay_ms=10**9 if delayed else None)
            fresh += [] if delayed else range(head + 1, head + count + 1)
            head += count
        elif dice.random() < 0.2 and head:
            gone = dice.randrange(1, head + 1)
            crowd.engine.topics["q"].log.delete_seqs([gone])
            crowd.queue.forget([gone])
            fresh = [seq for seq in fresh if seq != gone]
        else:
            wanted = dice.choice((1, 2, 50))
            assert crowd.claim(wanted, 10**8) == fresh[:wanted]
            del fresh[:wanted]
    assert crowd.claim(10_000, 10**8) == fresh


def test_many_dead_letters_are_moved_a_few_at_a_time() -> None:
    """QUEUE-34, QUEUE-14: a claim that meets many jobs that were delivered too often gets what comes after them."""
    crowd = Crowd(max_deliveries=1, dead_letter="dlq")
    dead = 4 * DEAD_MAX
    crowd.produce(dead)
    crowd.claim(dead)
    crowd.clock.advance(5000)
    crowd.produce(2)
    claim = crowd.begin(2)
    crowd.turns_until(lambda: claim.done)
    assert [lease.seq for lease in claim.leased.leases] == [dead + 1, dead + 2]
    assert crowd.counters() == (0, 2, dead)
    assert crowd.engine.state("dlq").count == dead


def test_full_dead_letter_topic_holds_up_no_job() -> None:
    """QUEUE-34, QUEUE-17: jobs that cannot be moved stay, and those after them are delivered."""
    crowd = Crowd(max_deliveries=1, dead_letter="dlq")
    crowd.engine.put_topic("dlq", ConfigPatch(cap_records=DEAD_MAX + 10, discard="reject"))
    dead = 4 * DEAD_MAX
    crowd.produce(dead)
    crowd.claim(dead)
    crowd.clock.advance(5000)
    crowd.produce(2)
    assert crowd.claim(2) == [dead + 1, dead + 2]
    assert crowd.claim(2) == []
    assert crowd.counters() == (dead - DEAD_MAX - 10, 2, DEAD_MAX + 10)
    crowd.engine.delete("dlq", Delete(before_seq=1000))
    assert crowd.claim(2) == []
    assert crowd.counters()[2] == 2 * (DEAD_MAX + 10), "they move as soon as there is room"


def test_stale_freelist_is_passed_over_in_steps() -> None:
    """QUEUE-34: jobs that were given back and then deleted hold up no claim for long."""
    crowd = Crowd()
    many = STALE_MAX + 500
    crowd.produce(many, tag="a")
    crowd.claim(many)
    crowd.engine.queues.nack("q", NackJobs("w", list(range(1, many + 1))))
    crowd.produce(1)
    crowd.engine.delete("q", Delete(match="a"))
    claim = crowd.begin(1)
    assert not claim.done
    crowd.turns_until(lambda: claim.done)
    assert [lease.seq for lease in claim.leased.leases] == [many + 1]


@pytest.mark.parametrize("by", ["match", "before_seq"])
def test_many_leased_jobs_are_deleted(by: str) -> None:
    """QUEUE-34: a job is gone with its delete, although its lease may be forgotten later."""
    crowd = Crowd()
    crowd.produce(MANY, tag="a")
    crowd.produce(10, tag="b")
    crowd.claim(MANY + 5, 10**7)
    delete = Delete(match="a") if by == "match" else Delete(before_seq=MANY + 1)
    receipt = crowd.engine.delete("q", delete, id)
    crowd.turns_until(lambda: receipt.result is not None)
    assert crowd.queue.leases.keys() & range(1, MANY + 1), "some are still to be forgotten"
    acked = crowd.engine.queues.ack("q", AckJobs("w", [1, MANY, MANY + 1]), id)
    assert (acked.result.acked, acked.result.skipped) == (1, [1, MANY])
    assert crowd.counters() == (5, 4, 0)
    assert crowd.queue.leases.keys() == set(range(MANY + 2, MANY + 6))


def test_redrive_looks_at_many_letters_in_slices() -> None:
    """QUEUE-34, QUEUE-27: what is leased or deleted while others are looked at is not put back."""
    crowd = Crowd(dead_letter="dlq")
    crowd.engine.put_topic("dlq", ConfigPatch(type="queue"))
    meta = msgspec.Raw(b'{"$dead_letter_from":"q"}')
    letters = [RecordIn(msgspec.Raw(b"1"), meta=meta) for _ in range(4 * PIECE_RECORDS)]
    crowd.engine.write("dlq", Write(letters))
    receipt = crowd.engine.queues.redrive("q", RedriveJobs(), id)
    assert not receipt.done
    crowd.engine.queues.claim("dlq", ClaimJobs("other", 3), id)
    crowd.engine.delete("dlq", Delete(before_seq=3), id)
    crowd.turns_until(lambda: receipt.done)
    assert receipt.result.seqs == list(range(4, 4 * PIECE_RECORDS + 1))
    assert crowd.engine.state("dlq").count == 1
    assert crowd.engine.state("q").count == 4 * PIECE_RECORDS - 3
