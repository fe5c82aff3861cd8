"""The QUEUE and WORK rules on an engine in memory with a clock that the test moves: the life of jobs and leases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.harness.memory import OneQueue
from topics.engine import ConfigPatch, Delete, Diff, Engine, Limits, Write
from topics.engine.promise import Receipt
from topics.engine.queue.claim import LeasedJobs, Worker, shares
from topics.engine.queue.dispatch import CLAIM_BYTES_MAX, Dispatch
from topics.engine.queue.event import Claimed, Event
from topics.engine.queue.lease import GONE, TRANSITIONS
from topics.engine.queue.requests import AckJobs, ClaimJobs, ExtendJobs, NackJobs, RedriveJobs
from topics.engine.router.router import PutRouter
from topics.engine.topic import Topic
from topics.errors import BatchTooLarge, InvalidRequest, NotAQueue, TopicNotFound, TopicsError
from topics.storage.wal.shard import QueueFull
from topics.testing import ManualClock
from topics.testing.clock import START_MS


class Stream:
    """A /work stream that remembers what was pushed."""

    def __init__(self, queue: OneQueue, node: str, max: int, lease_ms: int | None = None) -> None:
        self.queue = queue
        self.jobs: list[dict[str, Any]] = []
        self.ended: TopicsError | None = None
        self.worker = Worker(node, max, lease_ms, self._pushed, self._end)
        self.topic = queue.queues.work("q", self.worker)
        queue.engine.run_until_idle()

    def _pushed(self, leased: LeasedJobs) -> None:
        self.jobs += [msgspec.json.decode(text) for text in leased.texts]

    def _end(self, error: TopicsError) -> None:
        self.ended = error

    @property
    def seqs(self) -> list[int]:
        return [job["$seq"] for job in self.jobs]

    def close(self) -> None:
        self.queue.queues.stop_work(self.topic, self.worker)
        self.queue.engine.run_until_idle()


def test_claim_leases_jobs_in_order_and_counts_the_delivery() -> None:
    """QUEUE-2: the shape of a claimed job; `deadline = claim_ts + lease_ms`, `deliveries` starts at 1."""
    queue = OneQueue()
    queue.produce(3, tag="t", meta=msgspec.Raw(b'{"k": "v"}'))
    (job,) = queue.claim()
    lease_id = job.pop("lease_id")
    assert lease_id.startswith("lease_")
    assert int(lease_id[6:], 16) > 0
    assert job == {
        "$seq": 1,
        "$ts": START_MS,
        "$tag": "t",
        "deadline": START_MS + 30_000,
        "deliveries": 1,
        "data": 0,
        "meta": {"k": "v"},
    }
    assert queue.counters() == (2, 1, 0)
    assert queue.seqs() == [2, 3]


def test_claim_of_an_empty_queue_is_empty_and_no_error() -> None:
    """QUEUE-2."""
    queue = OneQueue()
    assert queue.claim(max=5) == []


def test_ack_deletes_the_job() -> None:
    """QUEUE-7: the ack is the delete."""
    queue = OneQueue()
    queue.produce(2)
    queue.claim(max=2)
    result = queue.ack(1, 2)
    assert (result.acked, result.skipped, result.ready, result.in_flight) == (2, [], 0, 0)
    assert queue.engine.diff("q", Diff()).records == []
    assert queue.engine.diff("q", Diff()).tombstone is None


def test_ack_by_anybody_else_is_skipped_and_repeats_are_harmless() -> None:
    """QUEUE-8: not the holder, never claimed, already acked."""
    queue = OneQueue()
    queue.produce(3)
    queue.claim("w", 2)
    result = queue.ack(1, 2, 3, 99, node="other")
    assert (result.acked, result.skipped) == (0, [1, 2, 3, 99])
    result = queue.ack(1, 1, 3)
    assert (result.acked, result.skipped) == (1, [1, 3])
    assert queue.ack(1).skipped == [1]
    assert queue.counters() == (1, 1, 0)


def test_expired_lease_is_ready_again_strictly_after_its_deadline() -> None:
    """QUEUE-5."""
    queue = OneQueue(lease_ms=1000)
    queue.produce()
    queue.claim("w")
    queue.clock.advance(1000)
    assert queue.counters() == (0, 1, 0)
    assert queue.seqs("v") == []
    queue.clock.advance(1)
    assert queue.counters() == (1, 0, 0)
    (job,) = queue.claim("v")
    assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_reclaimed_jobs_come_before_fresh_ones() -> None:
    """QUEUE-6."""
    queue = OneQueue(lease_ms=1000)
    queue.produce(6)
    assert queue.seqs("w", 3) == [1, 2, 3]
    queue.nack(3)
    queue.clock.advance(1001)
    assert sorted(queue.seqs("v", 3)) == [1, 2, 3]
    assert queue.seqs("v", 3) == [4, 5, 6]


def test_lapsed_lease_belongs_to_its_holder_until_somebody_claims_it() -> None:
    """QUEUE-9: ack, nack and extend count until another claim takes the job."""
    for act in ("ack", "nack", "extend"):
        queue = OneQueue(lease_ms=1000)
        queue.produce()
        queue.claim("w")
        queue.clock.advance(5000)
        assert queue.counters() == (1, 0, 0)
        if act == "ack":
            assert queue.ack(1).acked == 1
            assert queue.counters() == (0, 0, 0)
        elif act == "nack":
            assert queue.nack(1).nacked == 1
            assert queue.counters() == (1, 0, 0)
        else:
            assert queue.extend(1, lease_ms=2000).extended == 1
            assert queue.counters() == (0, 1, 0)
            assert queue.seqs("v") == []


def test_reclaimed_job_is_no_longer_its_first_holders() -> None:
    """QUEUE-8: for ack and extend alike."""
    queue = OneQueue(lease_ms=1000)
    queue.produce()
    queue.claim("w")
    queue.clock.advance(1001)
    queue.claim("v")
    assert queue.ack(1).skipped == [1]
    assert queue.nack(1).skipped == [1]
    assert queue.extend(1, lease_ms=1000).skipped == [1]
    assert queue.ack(1, node="v").acked == 1


def test_lease_ids_fence_a_stale_delivery_of_the_same_node() -> None:
    """QUEUE-10: for ack, nack and extend alike."""
    queue = OneQueue(lease_ms=1000)
    queue.produce(2)
    stale = queue.claim("w")[0]["lease_id"]
    queue.clock.advance(1001)
    (current,) = queue.claim("w")
    assert current["lease_id"] != stale
    assert queue.ack(1, ids=[stale]).skipped == [1]
    assert queue.nack(1, ids=[stale]).skipped == [1]
    assert queue.extend(1, lease_ms=500, ids=[stale]).skipped == [1]
    assert queue.ack(1, ids=["nonsense"]).skipped == [1]
    assert queue.ack(1, ids=[current["lease_id"]]).acked == 1


def test_nack_makes_a_job_claimable_at_once() -> None:
    """QUEUE-12: the delivery counter rises with the next claim."""
    queue = OneQueue()
    queue.produce(2)
    queue.claim("w")
    result = queue.nack(1)
    assert (result.nacked, result.skipped, result.ready, result.in_flight) == (1, [], 2, 0)
    (job,) = queue.claim("v")
    assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_delayed_nack_hides_the_job_until_its_time() -> None:
    """QUEUE-12: it counts neither as ready nor as in flight."""
    queue = OneQueue()
    queue.produce()
    queue.claim("w")
    result = queue.nack(1, delay_ms=5000)
    assert (result.ready, result.in_flight) == (0, 0)
    queue.clock.advance(4999)
    assert queue.seqs() == []
    assert queue.counters() == (0, 0, 0)
    queue.clock.advance(1)
    assert queue.counters() == (1, 0, 0)
    assert queue.seqs() == [1]


def test_nack_delay_is_clamped_to_a_day() -> None:
    """QUEUE-12."""
    queue = OneQueue()
    queue.produce()
    queue.claim("w")
    queue.nack(1, delay_ms=10**15)
    queue.clock.advance(86_400_000)
    assert queue.seqs() == [1]


def test_extend_sets_the_deadline_from_now() -> None:
    """QUEUE-13: it sets and does not add."""
    queue = OneQueue(lease_ms=1000)
    queue.produce(2)
    queue.claim("w", 2)
    queue.clock.advance(900)
    result = queue.extend(1, 77, lease_ms=1000)
    assert (result.extended, result.skipped) == (1, [77])
    assert result.deadlines == {"1": START_MS + 1900}
    queue.clock.advance(200)
    assert queue.seqs("v") == [2]
    queue.clock.advance(900)
    (job,) = queue.claim("v")
    assert (job["$seq"], job["deliveries"]) == (1, 2)


@pytest.mark.parametrize(("asked", "granted"), [(1, 100), (5_000, 5_000), (10**12, 86_400_000)])
def test_lease_ms_of_a_claim_is_clamped(asked: int, granted: int) -> None:
    """QUEUE-3: the same for extend."""
    queue = OneQueue()
    queue.produce()
    (job,) = queue.claim(lease_ms=asked)
    assert job["deadline"] == START_MS + granted
    assert queue.extend(1, lease_ms=asked).deadlines == {"1": START_MS + granted}


def test_counters_follow_every_way_a_job_can_leave() -> None:
    """QUEUE-19: `ready` and `in_flight` add up to `count`, also after deletes, caps and TTL took jobs."""
    queue = OneQueue(lease_ms=1000)
    queue.produce(10, tag="t")
    queue.claim("w", 4)
    queue.engine.delete("q", Delete(before_seq=3))
    assert queue.counters() == (6, 2, 0)
    queue.engine.delete("q", Delete(match="t", before_seq=4))
    assert queue.counters() == (6, 1, 0)
    queue.engine.put_topic("q", ConfigPatch(cap_records=3))
    assert queue.counters() == (3, 0, 0)
    queue.engine.put_topic("q", ConfigPatch(ttl_ms=100))
    queue.claim("w", 1)
    queue.clock.advance(101)
    assert queue.counters() == (0, 0, 0)
    assert queue.ack(8).skipped == [8]
    assert queue.seqs() == []


def test_diff_reads_a_queue_without_touching_its_leases() -> None:
    """QUEUE-22."""
    queue = OneQueue()
    queue.produce(3)
    queue.claim("w")
    assert [record["$seq"] for record in queue.engine.diff("q", Diff()).records] == [1, 2, 3]
    assert queue.counters() == (2, 1, 0)


def test_router_into_a_queue_is_a_producer() -> None:
    """QUEUE-22: a router into a queue is a producer; a claim sees what was written to the source before."""
    queue = OneQueue()
    queue.engine.routers.put("r", PutRouter("in", "q"))
    queue.engine.write("in", Write.of(["job"]), on_done=lambda ticket: None)
    queue.engine.store.write()
    (job,) = queue.claim()
    assert job["data"] == "job"
    assert queue.ack(1).acked == 1


def test_poison_job_moves_to_the_dead_letters_instead_of_a_further_delivery() -> None:
    """QUEUE-14."""
    queue = OneQueue(max_deliveries=2, dead_letter="q.dlq", lease_ms=1000)
    queue.produce(1, tag="t", node="n", meta=msgspec.Raw(b'{"k":"v"}'))
    queue.produce(1)
    for _ in range(2):
        queue.claim("w")
        queue.nack(1)
    assert queue.counters() == (1, 0, 1)
    assert queue.seqs("w", 1) == [2]
    assert queue.counters() == (0, 1, 1)
    (letter,) = queue.engine.diff("q.dlq", Diff(include_tags=True)).records
    assert letter == {
        "$seq": 1,
        "$ts": START_MS,
        "$node": "n",
        "$tag": "t",
        "data": 0,
        "meta": {
            "k": "v",
            "$dead_letter_from": "q",
            "$dead_letter_deliveries": "2",
            "$dead_letter_src_seq": "1",
        },
    }
    assert [record["$seq"] for record in queue.engine.diff("q", Diff()).records] == [2]


def test_log_accepts_the_fields_of_queues_and_ignores_them() -> None:
    """TOPIC-14: whatever they would mean on a queue; no topic is its own dead letter (TOPIC-13)."""
    engine = Engine(ManualClock())
    assert engine.put_topic("t", ConfigPatch(dead_letter="u", max_deliveries=1, lease_ms=5)).result.created
    for type in ("log", "queue"):
        with pytest.raises(InvalidRequest):
            engine.put_topic("q", ConfigPatch(type=type, dead_letter="q"))  # type: ignore[arg-type]


def test_without_a_dead_letter_topic_jobs_are_delivered_for_ever() -> None:
    """QUEUE-15."""
    for config in ({"max_deliveries": 1}, {"dead_letter": "dlq"}):
        queue = OneQueue(**config)
        queue.produce()
        for delivery in range(1, 6):
            assert queue.claim("w")[0]["deliveries"] == delivery
            queue.nack(1)
        assert queue.counters() == (1, 0, 0)


def test_dead_letter_topic_may_be_a_queue() -> None:
    """QUEUE-16."""
    queue = OneQueue(max_deliveries=1, dead_letter="dlq")
    queue.engine.put_topic("dlq", ConfigPatch(type="queue"))
    queue.produce()
    queue.claim("w")
    queue.nack(1)
    assert queue.seqs() == []
    assert queue.queues.claim("dlq", ClaimJobs("x", 5)).claimed[0]["data"] == 0


def test_full_dead_letter_topic_keeps_the_job() -> None:
    """QUEUE-16: a move that cannot be made is not half made, and nothing is lost."""
    queue = OneQueue(max_deliveries=1, dead_letter="dlq")
    queue.engine.put_topic("dlq", ConfigPatch(cap_records=1, discard="reject"))
    queue.engine.write("dlq", Write.of(["full"]))
    queue.produce()
    queue.claim("w")
    queue.nack(1)
    assert queue.seqs() == []
    assert queue.counters() == (1, 0, 0)
    queue.engine.delete("dlq", Delete(before_seq=2))
    assert queue.seqs() == []
    assert queue.counters() == (0, 0, 1)


def test_dead_letter_topic_takes_as_many_as_fit() -> None:
    """QUEUE-16: a letter moves as soon as there is room for it, however many others there are."""
    queue = OneQueue(max_deliveries=1, dead_letter="d")
    queue.engine.put_topic("d", ConfigPatch(cap_records=2, discard="reject"))
    queue.produce(5)
    queue.nack(*queue.seqs())
    assert queue.seqs() == []
    assert queue.engine.state("d").count == 2
    queue.engine.delete("d", Delete(before_seq=3))
    assert queue.seqs() == []
    assert (queue.engine.state("d").count, queue.counters()) == (2, (1, 0, 4))


def test_full_dead_letter_topic_drops_no_letter_for_another() -> None:
    """QUEUE-16: `discard: "reject"` counts a letter with its provenance, and evicts nothing."""
    queue = OneQueue(max_deliveries=1, dead_letter="d")
    queue.engine.put_topic("d", ConfigPatch(cap_bytes=300, discard="reject"))
    queue.produce(5)
    queue.nack(*queue.seqs())
    assert queue.seqs() == []
    log = queue.engine.topics["d"].log
    assert 0 < log.count < 5
    assert (log.start, log.evict_floor) == (1, 1)
    assert log.bytes <= 300


def test_dead_lettered_counts_start_anew_with_the_topic() -> None:
    """QUEUE-19."""
    queue = OneQueue(max_deliveries=1, dead_letter="dlq")
    queue.produce()
    queue.claim("w")
    queue.nack(1)
    queue.claim("w")
    assert queue.counters() == (0, 0, 1)
    queue.engine.delete_topic("q")
    queue.engine.put_topic("q", ConfigPatch(type="queue"))
    assert queue.counters() == (0, 0, 0)


def test_log_is_not_a_queue() -> None:
    """QUEUE-1."""
    queue = OneQueue()
    queue.engine.put_topic("log", ConfigPatch())
    calls = (
        lambda name: queue.queues.claim(name, ClaimJobs("w")),
        lambda name: queue.queues.ack(name, AckJobs("w", [1])),
        lambda name: queue.queues.nack(name, NackJobs("w", [1])),
        lambda name: queue.queues.extend(name, ExtendJobs("w", [1], 1000)),
        lambda name: queue.queues.work(name, Worker("w", 1, None, print, print)),
    )
    for call in calls:
        with pytest.raises(NotAQueue):
            call("log")
        with pytest.raises(TopicNotFound):
            call("missing")
    assert "missing" not in queue.engine.topics


def test_bad_requests_are_refused() -> None:
    """QUEUE-3, QUEUE-4."""
    queue = OneQueue(Limits(max_claim=3, max_node_bytes=8))
    queue.produce(5)
    for call in (
        lambda: queue.claim(max=0),
        lambda: queue.claim(node=""),
        lambda: queue.claim(node="n" * 9),
        lambda: queue.ack(),
        lambda: queue.ack(1, 2, ids=["lease_1"]),
    ):
        with pytest.raises(InvalidRequest):
            call()
    for call in (lambda: queue.ack(1, 2, 3, 4), lambda: queue.nack(1, 2, 3, 4)):
        with pytest.raises(BatchTooLarge) as refused:
            call()
        assert refused.value.detail["max"] == 3
    assert len(queue.claim(max=1000)) == 3


# Coalescing


def test_cohort_divides_evenly() -> None:
    """QUEUE-21: ten workers that ask for 10 of 50 jobs get 5 each."""
    queue = OneQueue(claim_jitter_ms=50)
    queue.produce(50)
    claims = [queue.start(f"w{i}", 10) for i in range(10)]
    queue.pass_time(49)
    assert not any(claim.done for claim in claims)
    queue.pass_time(1)
    assert [len(claim.claimed) for claim in claims] == [5] * 10
    assert sorted(job["$seq"] for claim in claims for job in claim.claimed) == list(range(1, 51))
    for claim in claims:
        seqs = [job["$seq"] for job in claim.claimed]
        assert seqs == sorted(seqs)


def test_cohort_is_proportional_to_max() -> None:
    """QUEUE-21: the remainder goes to the longest waiting."""
    queue = OneQueue(claim_jitter_ms=50)
    queue.produce(10)
    claims = [queue.start("a", 10), queue.start("b", 5), queue.start("c", 5)]
    queue.pass_time(50)
    assert [len(claim.claimed) for claim in claims] == [5, 3, 2]
    assert shares(10, [10, 5, 5]) == [5, 3, 2]
    assert shares(30, [10, 5, 5]) == [10, 5, 5]
    assert shares(0, [3, 4]) == [0, 0]


def test_window_opens_with_the_first_claim_and_closes_for_all() -> None:
    """QUEUE-21: a later claim waits no longer than the first one."""
    queue = OneQueue(claim_jitter_ms=100)
    queue.produce(4)
    first = queue.start("a", 4)
    queue.pass_time(60)
    second = queue.start("b", 4)
    queue.pass_time(40)
    assert (len(first.claimed), len(second.claimed)) == (2, 2)


def test_empty_window_answers_empty() -> None:
    """QUEUE-21: fewer jobs or none is no error, also with a window."""
    queue = OneQueue(claim_jitter_ms=100)
    claim = queue.start("a", 4)
    queue.pass_time(100)
    assert claim.done
    assert claim.claimed == []


def test_jobs_of_a_claim_that_the_log_refuses_go_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """QUEUE-21: also those between the jobs that another claim of the cohort got."""
    queue = OneQueue(claim_jitter_ms=50)
    queue.produce(6)
    log = Dispatch.log

    def full(self: Dispatch, topic: Topic, event: Event, receipt: Receipt | None = None) -> None:
        if isinstance(event, Claimed) and event.node == "b":
            raise QueueFull(retry_after_ms=1)
        log(self, topic, event, receipt)

    claims = [queue.start(node, 3) for node in ("a", "b")]
    with monkeypatch.context() as patched:
        patched.setattr(Dispatch, "log", full)
        queue.pass_time(50)
    assert [job["$seq"] for job in claims[0].claimed] == [1, 3, 5]
    assert isinstance(claims[1].error, QueueFull)
    assert queue.counters() == (3, 3, 0)
    jobs = queue.claim("c", 10)
    assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(2, 1), (4, 1), (6, 1)]
    assert queue.counters() == (0, 6, 0)


def test_streams_and_polls_share_a_window() -> None:
    """QUEUE-21."""
    queue = OneQueue(claim_jitter_ms=50)
    stream = Stream(queue, "s", 10)
    queue.produce(8)
    poll = queue.start("p", 10)
    queue.pass_time(50)
    assert (len(stream.jobs), len(poll.claimed)) == (4, 4)


# Waiting


def test_claim_with_wait_ms_is_answered_when_a_job_comes() -> None:
    """QUEUE-25."""
    queue = OneQueue()
    claim = queue.start("w", 5, wait_ms=1000)
    queue.pass_time(500)
    assert not claim.done
    queue.produce(2)
    assert [job["$seq"] for job in claim.claimed] == [1, 2]
    assert queue.counters() == (0, 2, 0)


def test_claim_with_wait_ms_ends_empty_when_time_is_up() -> None:
    """QUEUE-25: nothing came."""
    queue = OneQueue()
    claim = queue.start("w", 5, wait_ms=1000)
    queue.pass_time(999)
    assert not claim.done
    queue.pass_time(1)
    assert claim.done
    assert claim.claimed == []
    queue.produce(1)
    assert queue.counters() == (1, 0, 0)


def test_waiting_claim_gets_a_job_whose_lease_runs_out() -> None:
    """QUEUE-25: expiry needs no other claim to be noticed."""
    queue = OneQueue(lease_ms=1000)
    queue.produce()
    queue.claim("w")
    waiting = queue.start("v", 1, wait_ms=5000)
    queue.pass_time(1000)
    assert not waiting.done
    queue.pass_time(1)
    assert waiting.claimed[0]["deliveries"] == 2


def test_waiting_claim_fails_with_its_queue() -> None:
    """QUEUE-25: the topic is gone, and every claim that waited learns it."""
    queue = OneQueue()
    claim = queue.start("w", 1, wait_ms=5000)
    queue.engine.delete_topic("q")
    assert isinstance(claim.error, TopicNotFound)


def test_claim_that_was_given_up_takes_no_job() -> None:
    """A client that went away must not hold jobs."""
    queue = OneQueue()
    claim = queue.start("w", 1, wait_ms=5000)
    queue.queues.give_up("q", claim)
    queue.produce()
    assert queue.counters() == (1, 0, 0)


# Produced for later


def test_delayed_job_is_in_the_log_and_hidden_until_its_time() -> None:
    """QUEUE-26."""
    queue = OneQueue()
    queue.produce(1, delay_ms=1000)
    queue.produce(1, deliver_at=START_MS + 500)
    queue.produce(1, delay_ms=0)
    queue.produce(1, deliver_at=START_MS - 5)
    assert queue.counters() == (2, 0, 0)
    assert queue.seqs() == [3, 4]
    assert queue.engine.state("q").count == 4
    queue.clock.advance(499)
    assert queue.seqs() == []
    queue.clock.advance(1)
    (job,) = queue.claim()
    assert (job["$seq"], job["deliveries"]) == (2, 1)
    queue.clock.advance(500)
    assert queue.seqs() == [1]


def test_delayed_job_is_cancelled_by_a_delete() -> None:
    """QUEUE-26: cancel by delete."""
    queue = OneQueue()
    queue.produce(1, delay_ms=1000, tag="x")
    queue.engine.delete("q", Delete(match="x"))
    queue.clock.advance(2000)
    assert queue.counters() == (0, 0, 0)
    assert queue.seqs() == []


def test_waiting_worker_gets_a_delayed_job_when_it_falls_due() -> None:
    """QUEUE-26: a delay ends without anyone asking."""
    queue = OneQueue()
    queue.produce(1, delay_ms=1000)
    stream = Stream(queue, "s", 1)
    queue.pass_time(999)
    assert stream.seqs == []
    queue.pass_time(1)
    assert stream.seqs == [1]


def test_two_times_for_one_job_are_refused() -> None:
    """QUEUE-26."""
    queue = OneQueue()
    with pytest.raises(InvalidRequest):
        queue.produce(1, delay_ms=1, deliver_at=START_MS)
    assert queue.counters() == (0, 0, 0)


# Redrive


def poison(queue: OneQueue, count: int, tag: str | None = None) -> None:
    """Produce jobs and have them dead-lettered."""
    queue.produce(count, tag=tag, meta=msgspec.Raw(b'{"k":"v"}'))
    seqs = queue.seqs("w", 100)
    queue.nack(*seqs)
    assert queue.seqs("w", 100) == []


def test_redrive_puts_dead_letters_back_with_a_fresh_count() -> None:
    """QUEUE-27: redrive from the dead-letter topic back to its queue, delivery count reset."""
    queue = OneQueue(max_deliveries=1, dead_letter="dlq")
    poison(queue, 3, tag="t")
    result = queue.queues.redrive("q", RedriveJobs(limit=2)).result
    assert (result.redriven, result.seqs, result.dead_letter) == (2, [1, 2], "dlq")
    jobs = queue.claim(max=10)
    assert [(job["deliveries"], job["data"], job["$tag"], job["meta"]) for job in jobs] == [
        (1, 0, "t", {"k": "v"}),
        (1, 1, "t", {"k": "v"}),
    ]
    assert [record["$seq"] for record in queue.engine.diff("dlq", Diff()).records] == [3]


def test_redrive_takes_seqs_or_a_match_and_can_be_tried() -> None:
    """QUEUE-27: by seqs or match, dry_run, limit; letters of other queues stay."""
    queue = OneQueue(max_deliveries=1, dead_letter="dlq")
    poison(queue, 1, tag="a:1")
    poison(queue, 1, tag="b:1")
    poison(queue, 1, tag="a:2")
    queue.engine.write("dlq", Write.of(["not a letter"]))
    dry = queue.queues.redrive("q", RedriveJobs(match=["tag", "Glob", "a:*"], dry_run=True)).result
    assert (dry.redriven, dry.seqs, dry.dry_run) == (2, [1, 3], True)
    assert queue.counters() == (0, 0, 3)
    assert queue.queues.redrive("q", RedriveJobs(seqs=[2, 99])).result.seqs == [2]
    assert queue.queues.redrive("q", RedriveJobs()).result.seqs == [1, 3]
    assert [record["data"] for record in queue.engine.diff("dlq", Diff()).records] == ["not a letter"]
    assert queue.counters() == (3, 0, 3)


def test_redrive_needs_a_dead_letter_topic() -> None:
    """QUEUE-27: a queue without `dead_letter` has nothing to put back."""
    queue = OneQueue()
    with pytest.raises(InvalidRequest):
        queue.queues.redrive("q", RedriveJobs())
    queue = OneQueue(dead_letter="none.yet")
    assert queue.queues.redrive("q", RedriveJobs()).result.redriven == 0


# Streams


def test_stream_is_kept_at_max_in_flight() -> None:
    """WORK-2."""
    queue = OneQueue()
    queue.produce(5)
    stream = Stream(queue, "s", 2)
    assert stream.seqs == [1, 2]
    queue.ack(1, node="s")
    queue.engine.run_until_idle()
    assert stream.seqs == [1, 2, 3]
    queue.nack(2, node="s", delay_ms=1000)
    queue.engine.run_until_idle()
    assert stream.seqs == [1, 2, 3, 4]
    assert queue.counters() == (1, 2, 0)


def test_stream_gets_jobs_as_they_are_produced() -> None:
    """WORK-2."""
    queue = OneQueue()
    stream = Stream(queue, "s", 3, lease_ms=700)
    queue.produce(1)
    assert stream.seqs == [1]
    assert stream.jobs[0]["deadline"] == START_MS + 700


def test_closed_stream_releases_what_was_pushed_on_it_and_nothing_else() -> None:
    """WORK-3."""
    queue = OneQueue()
    queue.produce(4)
    assert queue.seqs("s", 1) == [1]
    stream = Stream(queue, "s", 2)
    assert stream.seqs == [2, 3]
    queue.extend(2, node="s", lease_ms=60_000)
    stream.close()
    assert queue.counters() == (3, 1, 0)
    assert sorted(queue.seqs("v")) == [2, 3, 4]
    assert queue.ack(1, node="s").acked == 1


def test_streams_share_what_comes() -> None:
    """QUEUE-21."""
    queue = OneQueue()
    streams = [Stream(queue, f"s{i}", 5) for i in range(3)]
    queue.produce(9)
    assert [len(stream.jobs) for stream in streams] == [3, 3, 3]


def test_job_that_expires_on_a_stream_makes_room_for_its_redelivery() -> None:
    """WORK-4: at most `max` are *leased*; an expired one is not, and is pushed again."""
    queue = OneQueue(lease_ms=1000)
    queue.produce(1)
    stream = Stream(queue, "s", 1)
    queue.pass_time(1001)
    assert [job["deliveries"] for job in stream.jobs] == [1, 2]


@pytest.mark.parametrize("delete", [Delete(before_seq=2), Delete(match="t")])
def test_job_that_is_deleted_on_a_stream_makes_room_for_the_next(delete: Delete) -> None:
    """WORK-4: a job that is gone is not leased, so the stream is below its `max`."""
    queue = OneQueue(lease_ms=86_400_000)
    queue.produce(1, tag="t")
    queue.produce(1)
    stream = Stream(queue, "s", 1)
    queue.engine.delete("q", delete)
    queue.engine.run_until_idle()
    assert stream.seqs == [1, 2]


@pytest.mark.parametrize("ttl_ms", [500, 5000, 500_000])
def test_job_that_outlives_its_ttl_on_a_stream_makes_room_for_the_next(ttl_ms: int) -> None:
    """WORK-4: no call is needed to notice it."""
    queue = OneQueue(lease_ms=86_400_000, ttl_ms=ttl_ms)
    queue.produce(1)
    queue.pass_time(ttl_ms // 2)
    queue.produce(1)
    stream = Stream(queue, "s", 1)
    queue.pass_time(ttl_ms // 2)
    assert stream.seqs == [1]
    queue.pass_time(min(ttl_ms // 10, 1000) + 1)
    assert stream.seqs == [1, 2]


@pytest.mark.parametrize("patch", [ConfigPatch(cap_records=1), ConfigPatch(ttl_ms=1000)])
def test_job_that_a_tightened_rule_takes_from_a_stream_makes_room_for_the_next(patch: ConfigPatch) -> None:
    """WORK-4, RETAIN-9."""
    queue = OneQueue(lease_ms=86_400_000)
    queue.produce(1)
    queue.pass_time(2000)
    queue.produce(1)
    stream = Stream(queue, "s", 1)
    queue.engine.put_topic("q", patch)
    queue.engine.run_until_idle()
    assert stream.seqs == [1, 2]


def test_stream_ends_with_its_queue() -> None:
    """WORK-5."""
    queue = OneQueue()
    stream = Stream(queue, "s", 1)
    queue.engine.delete_topic("q")
    assert isinstance(stream.ended, TopicNotFound)
    stream.close()


# Cost


def test_claim_does_not_walk_the_queue() -> None:
    """QUEUE-23: with a million jobs a claim looks at as many as it takes."""
    queue = OneQueue()
    for _ in range(5):
        queue.produce(1000)
    kept = queue.engine.topics["q"].queue
    assert kept is not None
    assert len(queue.claim(max=8)) == 8
    assert len(kept.leases) == 8
    queue.ack(*range(1, 9))
    assert not kept.leases
    assert not kept.free


def test_heaps_do_not_grow_with_history() -> None:
    """QUEUE-23: what is over leaves no trace that grows."""
    queue = OneQueue()
    queue.produce(5000)
    kept = queue.engine.topics["q"].queue
    assert kept is not None
    for _ in range(625):
        queue.ack(*queue.seqs(max=8))
    assert kept._deadlines._noted < 5000


def test_every_transition_ends_in_a_known_state() -> None:
    """QUEUE-20: nothing leaves GONE."""
    states = {state for state, _ in TRANSITIONS} | set(TRANSITIONS.values())
    assert states == {"fresh", "leased", "lapsed", "free", "delayed", "gone"}
    assert {step for state, step in TRANSITIONS if state is GONE} == {"ack_failed", "remove"}
    assert all((state, "remove") in TRANSITIONS for state in states)


def test_freelist_is_bounded_by_the_jobs_that_were_delivered() -> None:
    """QUEUE-31: a job that nobody may take at the front of the freelist does not keep every nack behind it."""
    queue = OneQueue(max_deliveries=5000, dead_letter="letters")
    queue.engine.put_topic("letters", ConfigPatch(cap_records=1, discard="reject"))
    queue.engine.write("letters", Write.of([1]))
    queue.produce(2)
    for _ in range(5000):
        assert queue.seqs(max=1) == [1]
        queue.nack(1)
    for _ in range(4000):
        assert queue.seqs(max=1) == [2]
        queue.nack(2)
    assert len(queue.queues.topic("q")[1].free) < 1100


def test_a_claim_holds_a_bounded_number_of_bytes() -> None:
    """QUEUE-35: the rest is ready for the next claim, and every claim gets at least one job."""
    queue = OneQueue()
    for _ in range(12):
        queue.engine.write("q", Write.of(["x" * (1 << 19)] * 4))
    taken = []
    while claimed := queue.claim("w", max=100):
        taken.append(len(claimed))
    assert sum(taken) == 48
    assert max(taken) * (1 << 19) <= CLAIM_BYTES_MAX
    assert taken[0] == 15
