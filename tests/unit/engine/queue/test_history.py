"""The history of a job that was not done at its first delivery (QUEUE-41)."""

from __future__ import annotations

from typing import Any

from tests.harness.memory import OneQueue
from topics.engine import Delete
from topics.engine.queue.event import Claimed, Released
from topics.engine.queue.history import JOBS_MAX, REASON_CHARS_MAX, STEPS_MAX
from topics.engine.queue.queue import queue_of
from topics.engine.queue.requests import NackJobs


def nack(queue: OneQueue, seq: int, node: str, reason: str = "", delay_ms: int = 0) -> None:
    queue.queues.nack("q", NackJobs(node, [seq], delay_ms, None, reason))


def steps(queue: OneQueue, seq: int) -> list[tuple[Any, ...]]:
    return [(step.step, step.node, step.delivery, step.reason) for step in queue.queues.job("q", seq).steps]


def test_a_job_is_followed_from_its_first_failure_to_its_end() -> None:
    """QUEUE-41: who had it, why it came back, that a lease ran out, and where it went."""
    queue = OneQueue(lease_ms=1000, max_deliveries=3, dead_letter="dlq")
    queue.produce()
    queue.claim("a")
    nack(queue, 1, "a", "no answer", delay_ms=500)
    released = queue.queues.job("q", 1)
    assert (released.state, released.reason, released.until) == ("delayed", "no answer", queue.clock.now_ms() + 500)
    queue.pass_time(500)
    assert queue.queues.job("q", 1).state == "ready"
    queue.claim("b")
    held = queue.queues.job("q", 1)
    assert (held.state, held.node, held.deliveries) == ("leased", "b", 2)
    queue.pass_time(1001)
    queue.claim("c")
    nack(queue, 1, "c", "no answer again")
    queue.engine.run_until_idle()
    assert steps(queue, 1) == [
        ("released", "a", 1, "no answer"),
        ("claimed", "b", 2, ""),
        ("lapsed", "b", 2, ""),
        ("claimed", "c", 3, ""),
        ("released", "c", 3, "no answer again"),
        ("dead", "c", 3, ""),
    ]
    assert queue.queues.job("q", 1).state == "dead"
    assert [job.seq for job in queue.queues.troubled("q", 10)] == [1]


def test_a_job_that_is_done_at_once_leaves_nothing() -> None:
    """QUEUE-41: so it costs nothing."""
    queue = OneQueue()
    queue.produce(2)
    queue.claim(max=2)
    queue.ack(1)
    queue.engine.run_until_idle()
    assert queue.queues.job("q", 1).state == "gone"
    assert queue.queues.job("q", 2).state == "leased"
    assert queue.queues.troubled("q", 10) == []


def test_an_ack_is_the_last_step_and_a_delete_leaves_nothing() -> None:
    """QUEUE-41: what a worker has said about a record goes with the record."""
    queue = OneQueue()
    queue.produce(2)
    for seq in (1, 2):
        queue.claim("a")
        nack(queue, seq, "a", "later", delay_ms=1)
    queue.pass_time(2)
    queue.claim("b", max=1)
    queue.ack(1, node="b")
    queue.engine.delete("q", Delete(before_seq=3))
    queue.engine.run_until_idle()
    assert steps(queue, 1)[-1] == ("acked", "b", 2, "")
    assert queue.queues.job("q", 1).state == "acked"
    assert queue.queues.job("q", 2).state == "gone"
    assert steps(queue, 2) == []


def test_it_has_a_bound() -> None:
    """QUEUE-41: of jobs, of steps, and of what a worker says."""
    queue = OneQueue()
    queue.produce(JOBS_MAX + 3)
    seqs = queue.seqs(max=JOBS_MAX + 3)
    queue.queues.nack("q", NackJobs("w", seqs, 0, None, "x" * 1000))
    kept = queue_of(queue.engine.topics["q"])
    assert kept is not None
    assert len(kept.history.jobs) == JOBS_MAX
    assert steps(queue, 3) == []
    assert steps(queue, 4) == [("released", "w", 1, "x" * REASON_CHARS_MAX)]
    again = OneQueue()
    again.produce()
    for _ in range(STEPS_MAX):
        again.claim()
        nack(again, 1, "w")
    assert len(steps(again, 1)) == STEPS_MAX


def test_a_restart_knows_what_the_log_has() -> None:
    """QUEUE-41."""
    queue = OneQueue()
    queue.produce()
    restored = queue_of(queue.engine.topics["q"])
    assert restored is not None
    now = queue.clock.now_ms()
    restored.apply(Claimed("a", [1], [1], 7, now + 1000, now))
    restored.apply(Released("a", [1], now, now, "no answer"))
    restored.apply(Claimed("b", [1], [2], 8, now + 1000, now))
    assert steps(queue, 1) == [("released", "a", 1, "no answer"), ("claimed", "b", 2, "")]
