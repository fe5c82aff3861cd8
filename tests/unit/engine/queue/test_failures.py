"""Jobs that fail: why, when they are tried again, and how they end (QUEUE-14, QUEUE-32, QUEUE-33)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.harness.memory import OneQueue
from topics.engine import ConfigPatch, Delete, Diff
from topics.engine.config import TopicConfig
from topics.engine.queue import failures as failures_module
from topics.engine.queue.backoff import pause_ms
from topics.engine.queue.burials import BURIED_MAX
from topics.engine.queue.claim import Worker
from topics.engine.queue.queue import Queue, queue_of
from topics.engine.queue.requests import NackJobs, RedriveJobs


def mortal(**config: Any) -> OneQueue:
    return OneQueue(**{"max_deliveries": 1, "dead_letter": "dlq", "lease_ms": 1000, **config})


def nack(queue: OneQueue, *seqs: int, reason: str = "", delay_ms: int | None = None) -> None:
    queue.queues.nack("q", NackJobs("w", list(seqs), delay_ms, None, reason))


def letters(queue: OneQueue) -> list[dict[str, Any]]:
    if "dlq" not in queue.engine.topics:
        return []
    return queue.engine.diff("dlq", Diff(limit=1000)).records


def of(queue: OneQueue) -> Queue:
    found = queue_of(queue.engine.topics["q"])
    assert found is not None
    return found


def test_last_nack_makes_a_dead_letter_at_once() -> None:
    """QUEUE-14: without a claim, and whatever delay was asked for."""
    queue = mortal(max_deliveries=2)
    queue.produce(2)
    queue.seqs()
    nack(queue, 1, 2)
    assert queue.counters() == (2, 0, 0)
    queue.seqs()
    nack(queue, 2, delay_ms=5000)
    assert queue.counters() == (0, 1, 1)
    assert [letter["data"] for letter in letters(queue)] == [1]


def test_last_expiry_makes_a_dead_letter_without_a_claim() -> None:
    """QUEUE-14: right after the deadline, and no earlier."""
    queue = mortal()
    queue.produce(2)
    queue.seqs()
    queue.ack(1)
    queue.pass_time(1000)
    assert (queue.counters(), letters(queue)) == ((0, 1, 0), [])
    queue.pass_time(1)
    assert queue.counters() == (0, 0, 1)
    assert [letter["data"] for letter in letters(queue)] == [1]
    assert queue.ack(2).skipped == [2]


def test_extend_postpones_the_end() -> None:
    """QUEUE-14."""
    queue = mortal()
    queue.produce()
    queue.claim()
    queue.extend(1, lease_ms=5000)
    queue.pass_time(1001)
    assert letters(queue) == []
    queue.pass_time(4000)
    assert len(letters(queue)) == 1


def test_closed_stream_returns_a_job_for_the_last_time() -> None:
    """QUEUE-14, WORK-3."""
    queue = mortal()
    queue.produce()
    worker = Worker("w", 5, None, lambda leased: None, lambda error: None)
    topic = queue.queues.work("q", worker)
    queue.engine.run_until_idle()
    queue.queues.stop_work(topic, worker)
    queue.engine.run_until_idle()
    assert len(letters(queue)) == 1


def test_server_is_woken_for_the_last_expiry_only() -> None:
    """QUEUE-14, QUEUE-23: a queue is looked at when a last lease runs out, and one without any is not."""
    queue = mortal(max_deliveries=2)
    queue.produce()
    queue.claim()
    assert queue.engine.next_due_ns() is None
    queue.pass_time(1001)
    queue.claim()
    due_ns = queue.engine.next_due_ns()
    assert due_ns is not None
    assert due_ns - queue.clock.elapsed_ns() == 1001 * 1_000_000
    queue.ack(1)
    queue.pass_time(1001)
    assert queue.engine.next_due_ns() is None


def test_many_jobs_end_in_slices() -> None:
    """QUEUE-14: however many leases run out at the same time."""
    queue = mortal()
    count = 2 * BURIED_MAX + 500
    queue.produce(count)
    while queue.seqs(max=1000):
        pass
    queue.clock.advance(1001)
    queue.engine.turn()
    assert 0 < len(of(queue).failures.spent) <= count - BURIED_MAX
    queue.engine.run_until_idle()
    assert queue.counters() == (0, 0, count)


def test_full_dead_letter_topic_leaves_the_rest_to_the_next_claim() -> None:
    """QUEUE-16."""
    queue = mortal()
    queue.engine.put_topic("dlq", ConfigPatch(cap_records=1, discard="reject"))
    queue.produce(2)
    nack(queue, *queue.seqs())
    assert (len(letters(queue)), queue.counters()) == (1, (1, 0, 1))
    queue.engine.delete("dlq", Delete(before_seq=2))
    assert queue.seqs() == []
    assert (len(letters(queue)), queue.counters()) == (1, (0, 0, 2))


def test_raised_limit_spares_a_job() -> None:
    """QUEUE-14: what counts is the config at the end of the lease."""
    queue = mortal()
    queue.produce()
    queue.claim()
    queue.engine.put_topic("q", ConfigPatch(max_deliveries=2))
    queue.pass_time(1001)
    assert letters(queue) == []
    assert queue.seqs() == [1]


def test_reason_of_the_last_nack_is_in_the_dead_letter() -> None:
    """QUEUE-32: it is kept over a delivery that says nothing, and a redrive takes it off."""
    queue = mortal(max_deliveries=3)
    queue.produce(2)
    for reason in ("first", "no disk é", ""):
        queue.seqs()
        nack(queue, 1, reason=reason)
        nack(queue, 2)
    metas = {letter["data"]: letter["meta"] for letter in letters(queue)}
    assert metas[0]["$dead_letter_reason"] == "no disk é"
    assert "$dead_letter_reason" not in metas[1]
    queue.queues.redrive("q", RedriveJobs())
    (job, _) = queue.claim(max=2)
    assert "meta" not in job
    assert of(queue).failures.reasons == {}


def test_long_reason_is_cut() -> None:
    """QUEUE-32: to 1024 bytes, between characters."""
    queue = mortal()
    queue.produce()
    queue.claim()
    nack(queue, 1, reason="x" + "é" * 1000)
    assert letters(queue)[0]["meta"]["$dead_letter_reason"] == "x" + "é" * 511


def test_what_is_kept_of_reasons_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """QUEUE-32: and there is room again once jobs are gone."""
    monkeypatch.setattr(failures_module, "REASONS_BYTES_MAX", 2 * failures_module.ENTRY_BYTES + 20)
    queue = OneQueue()
    queue.produce(3)
    queue.seqs()
    nack(queue, 1, 2, 3, reason="12345")
    assert of(queue).failures.reasons == {1: "12345", 2: "12345"}
    queue.seqs()
    queue.ack(1)
    nack(queue, 3, reason="67890")
    assert of(queue).failures.reasons == {2: "12345", 3: "67890"}


@pytest.mark.parametrize("deliveries", [1, 2, 3, 4, 5, 50, 10_000])
def test_pause_doubles_up_to_the_longest(deliveries: int) -> None:
    """QUEUE-33: and is up to a quarter shorter, by the job."""
    config = TopicConfig(type="queue", backoff_ms=100, backoff_max_ms=1000)
    longest = min(1000, 100 * 2 ** min(deliveries - 1, 20))
    pauses = [pause_ms(config, seq, deliveries) for seq in range(1, 1000)]
    assert max(pauses) <= longest
    assert min(pauses) > longest * 3 // 4 - 1
    assert len(set(pauses)) > longest // 5
    assert pauses == [pause_ms(config, seq, deliveries) for seq in range(1, 1000)]


def test_nack_without_a_delay_backs_off() -> None:
    """QUEUE-33: a delay in the nack wins, also one of 0."""
    queue = OneQueue(backoff_ms=1000, backoff_max_ms=10_000)
    config = queue.engine.topics["q"].config
    queue.produce(3)
    queue.seqs()
    nack(queue, 1, 2)
    nack(queue, 3, delay_ms=0)
    assert queue.seqs() == [3]
    first, second = sorted((pause_ms(config, seq, 1), seq) for seq in (1, 2))
    queue.pass_time(first[0] - 1)
    assert queue.seqs() == []
    queue.pass_time(1)
    assert queue.seqs(lease_ms=60_000) == [first[1]]
    queue.pass_time(second[0] - first[0])
    assert queue.seqs(lease_ms=60_000) == [second[1]]
    nack(queue, first[1])
    queue.pass_time(1400)
    assert queue.seqs() == []
    queue.pass_time(600)
    assert queue.seqs() == [first[1]]


def test_without_the_setting_a_nack_is_ready_at_once() -> None:
    """QUEUE-33, QUEUE-12."""
    queue = OneQueue()
    queue.produce()
    queue.claim()
    nack(queue, 1)
    assert queue.seqs() == [1]


def test_backoff_is_clamped_to_a_day() -> None:
    """QUEUE-33."""
    queue = OneQueue(backoff_ms=10**12, backoff_max_ms=10**12)
    config = queue.engine.topics["q"].config
    assert (config.backoff_ms, config.backoff_max_ms) == (86_400_000, 86_400_000)
    assert TopicConfig().backoff_max_ms == 3_600_000


def test_a_field_of_that_name_in_the_job_is_replaced() -> None:
    """QUEUE-32."""
    queue = mortal()
    queue.produce(meta=msgspec.Raw(b'{"k":"v","$dead_letter_reason":"mine"}'))
    nack(queue, *queue.seqs(), reason="theirs")
    meta = letters(queue)[0]["meta"]
    assert (meta["k"], meta["$dead_letter_reason"]) == ("v", "theirs")
