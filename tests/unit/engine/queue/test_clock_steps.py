"""A step of the wall clock, in either direction, changes no duration: these are counted in elapsed time (QUEUE-30)."""

from __future__ import annotations

import pytest

from tests.harness.memory import OneQueue
from topics.engine import Delete

HOUR_MS = 3_600_000
STEPS = pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS], ids=["back", "forward"])


def stepped(queue: OneQueue, step_ms: int) -> None:
    queue.clock.set(queue.clock.now_ms() + step_ms)


@STEPS
def test_lease_lasts_as_long_as_it_was_given_for(step_ms: int) -> None:
    """QUEUE-30: neither an hour longer nor an hour shorter."""
    queue = OneQueue(lease_ms=30_000)
    queue.produce()
    assert queue.seqs("a") == [1]
    stepped(queue, step_ms)
    queue.clock.advance(30_000)
    assert queue.counters() == (0, 1, 0)
    queue.clock.advance(1)
    assert queue.counters() == (1, 0, 0)
    assert queue.seqs("b") == [1]


@STEPS
def test_extended_lease_and_its_deadline_are_of_the_clock_as_it_is(step_ms: int) -> None:
    """QUEUE-30: `deadline` is what the wall clock will show when the lease runs out."""
    queue = OneQueue(lease_ms=30_000)
    queue.produce()
    stepped(queue, step_ms)
    (job,) = queue.claim()
    assert job["deadline"] == queue.clock.now_ms() + 30_000
    assert queue.extend(1, lease_ms=60_000).deadlines == {"1": queue.clock.now_ms() + 60_000}
    stepped(queue, step_ms)
    queue.clock.advance(60_000)
    assert queue.counters() == (0, 1, 0)
    queue.clock.advance(1)
    assert queue.counters() == (1, 0, 0)


@STEPS
def test_delays_last_as_long_as_they_were_asked_for(step_ms: int) -> None:
    """QUEUE-30: `delay_ms` of a write and of a nack."""
    queue = OneQueue()
    queue.produce()
    assert queue.seqs() == [1]
    queue.nack(1, delay_ms=5000)
    queue.produce(delay_ms=5000)
    stepped(queue, step_ms)
    queue.clock.advance(4999)
    assert queue.counters() == (0, 0, 0)
    queue.clock.advance(1)
    assert queue.seqs() == [1, 2]


def test_delay_of_a_write_after_the_clock_was_set_back_is_not_longer() -> None:
    """QUEUE-30: `$ts` stands still then, but the delay does not wait for it."""
    queue = OneQueue()
    queue.produce()
    stepped(queue, -HOUR_MS)
    queue.produce(delay_ms=5000)
    assert queue.seqs() == [1]
    queue.clock.advance(5000)
    assert queue.seqs() == [2]


def test_job_with_a_date_is_delivered_when_the_clock_shows_it() -> None:
    """QUEUE-26: `deliver_at` is a time of the wall clock, whatever is done to that."""
    queue = OneQueue()
    date_ms = queue.clock.now_ms() + 2 * HOUR_MS
    queue.produce(deliver_at=date_ms)
    stepped(queue, -HOUR_MS)
    queue.clock.advance(2 * HOUR_MS)
    assert queue.counters() == (0, 0, 0)
    stepped(queue, HOUR_MS - 1)
    assert queue.counters() == (0, 0, 0)
    queue.clock.advance(1)
    assert queue.seqs() == [1]


def test_claim_that_waits_gets_a_job_whose_date_the_clock_has_jumped_to() -> None:
    """QUEUE-26: no later than a second after the step."""
    queue = OneQueue()
    queue.produce(deliver_at=queue.clock.now_ms() + HOUR_MS)
    claim = queue.start("w", 1, wait_ms=20_000)
    stepped(queue, HOUR_MS)
    queue.pass_time(1000)
    assert [job["$seq"] for job in claim.claimed] == [1]


def test_deleted_job_with_a_date_is_forgotten() -> None:
    """QUEUE-26: a delete cancels it, also where the clock is stepped afterwards."""
    queue = OneQueue()
    queue.produce(2, deliver_at=queue.clock.now_ms() + HOUR_MS)
    queue.engine.delete("q", Delete(before_seq=2))
    stepped(queue, HOUR_MS)
    assert queue.seqs() == [2]
    stepped(queue, HOUR_MS)
    assert queue.counters() == (0, 1, 0)


@STEPS
def test_claim_waits_as_long_as_it_asked_to(step_ms: int) -> None:
    """QUEUE-30: `wait_ms` and `claim_jitter_ms` are durations, too."""
    queue = OneQueue(claim_jitter_ms=100)
    claim = queue.start("w", 1, wait_ms=5000)
    stepped(queue, step_ms)
    queue.pass_time(4999)
    assert not claim.done
    queue.pass_time(200)
    assert claim.done
    assert claim.claimed == []
