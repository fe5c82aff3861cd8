"""API §10 and DESIGN §10 on an engine in memory with a clock that the test moves: the life of jobs and leases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.harness.memory import OneQueue
from topics.engine import ConfigPatch, Delete, Diff, Engine, Limits, Write
from topics.engine.queue.claim import Hand, shares
from topics.engine.queue.lease import GONE, TRANSITIONS
from topics.engine.queue.requests import AckJobs, ClaimJobs, ExtendJobs, NackJobs, RedriveJobs
from topics.engine.queue.worker import Worker
from topics.engine.router.router import PutRouter
from topics.errors import BatchTooLarge, InvalidRequest, NotAQueue, TopicNotFound, TopicsError
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

    def _pushed(self, hand: Hand) -> None:
        self.jobs += [msgspec.json.decode(text) for text in hand.texts]

    def _end(self, error: TopicsError) -> None:
        self.ended = error

    @property
    def seqs(self) -> list[int]:
        return [job["$seq"] for job in self.jobs]

    def close(self) -> None:
        self.queue.queues.stop_work(self.topic, self.worker)
        self.queue.engine.run_until_idle()


def test_claim_leases_jobs_in_order_and_counts_the_delivery() -> None:
    """API §10.2: the shape of a claimed job; `deadline = claim_ts + lease_ms`, `deliveries` starts at 1."""
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
    """API §10.2: "count < max is the reliable queue-empty signal, never an error"."""
    queue = OneQueue()
    assert queue.claim(max=5) == []


def test_ack_deletes_the_job() -> None:
    """API §10.4: "the ack is the delete"."""
    queue = OneQueue()
    queue.produce(2)
    queue.claim(max=2)
    result = queue.ack(1, 2)
    assert (result.acked, result.skipped, result.ready, result.in_flight) == (2, [], 0, 0)
    assert queue.engine.diff("q", Diff()).records == []
    assert queue.engine.diff("q", Diff()).tombstone is None


def test_ack_by_anybody_else_is_skipped_and_repeats_are_harmless() -> None:
    """API §10.4: not the holder, never claimed, already acked: "silently skipped and reported in skipped"."""
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
    """API §10.3: "Once now > deadline the job's lease is expired and the seq becomes claimable again"."""
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
    """API §10.3: "a reclaimed job jumps the queue ahead of never-delivered ones"."""
    queue = OneQueue(lease_ms=1000)
    queue.produce(6)
    assert queue.seqs("w", 3) == [1, 2, 3]
    queue.nack(3)
    queue.clock.advance(1001)
    assert sorted(queue.seqs("v", 3)) == [1, 2, 3]
    assert queue.seqs("v", 3) == [4, 5, 6]


def test_lapsed_lease_belongs_to_its_holder_until_somebody_claims_it() -> None:
    """Decision 25: "ack, nack and extend count until another claim takes the job"."""
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
    """API §10.4: "its lease expired and was reclaimed/leased to someone else": skipped; §10.6 likewise for extend."""
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
    """API §10.4: "a stale token is rejected and that seq is skipped", for ack, nack and extend alike."""
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
    """API §10.5: "delay_ms 0 = claimable immediately"; the delivery counter rises on its next claim."""
    queue = OneQueue()
    queue.produce(2)
    queue.claim("w")
    result = queue.nack(1)
    assert (result.nacked, result.skipped, result.ready, result.in_flight) == (1, [], 2, 0)
    (job,) = queue.claim("v")
    assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_delayed_nack_hides_the_job_until_its_time() -> None:
    """API §10.5: "does not count toward ready until delay_ms elapses"; §10.7: counted in neither."""
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
    """API §10.5: "Clamped [0, 86400000]"."""
    queue = OneQueue()
    queue.produce()
    queue.claim("w")
    queue.nack(1, delay_ms=10**15)
    queue.clock.advance(86_400_000)
    assert queue.seqs() == [1]


def test_extend_sets_the_deadline_from_now() -> None:
    """API §10.6: "Extend sets, not adds"; the delivery counter is not touched."""
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
    """API §10.2: per-claim `lease_ms` "Clamped [100, 86400000]"; the same for extend."""
    queue = OneQueue()
    queue.produce()
    (job,) = queue.claim(lease_ms=asked)
    assert job["deadline"] == START_MS + granted
    assert queue.extend(1, lease_ms=asked).deadlines == {"1": START_MS + granted}


def test_counters_follow_every_way_a_job_can_leave() -> None:
    """API §10.7: ready + in_flight equals count, also after deletes, caps and TTL took jobs."""
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
    """DESIGN §10.5: diff is read-only on the jobs log."""
    queue = OneQueue()
    queue.produce(3)
    queue.claim("w")
    assert [record["$seq"] for record in queue.engine.diff("q", Diff()).records] == [1, 2, 3]
    assert queue.counters() == (2, 1, 0)


def test_router_into_a_queue_is_a_producer() -> None:
    """DESIGN §10.5: "a router into a queue is a producer"; a claim sees what was written to the source before."""
    queue = OneQueue()
    queue.engine.routers.put("r", PutRouter("in", "q"))
    queue.engine.write("in", Write.of(["job"]), on_done=lambda ticket: None)
    queue.engine.store.write()
    (job,) = queue.claim()
    assert job["data"] == "job"
    assert queue.ack(1).acked == 1


def test_poison_job_moves_to_the_dead_letters_instead_of_a_further_delivery() -> None:
    """API §10.6: "about to be delivered for the (max_deliveries + 1)-th time"; its record is kept, provenance added."""
    queue = OneQueue(max_deliveries=2, dead_letter="q.dlq", lease_ms=1000)
    queue.produce(1, tag="t", node="n", meta=msgspec.Raw(b'{"k":"v"}'))
    queue.produce(1)
    for _ in range(2):
        queue.claim("w")
        queue.nack(1)
    assert queue.counters() == (2, 0, 0)
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
    """API §0.10: the five fields are "ignored, but accepted" on a log, whatever they would mean on a queue."""
    engine = Engine(ManualClock())
    assert engine.put_topic("t", ConfigPatch(dead_letter="t", max_deliveries=1, lease_ms=5)).result.created
    with pytest.raises(InvalidRequest):
        engine.put_topic("q", ConfigPatch(type="queue", dead_letter="q"))


def test_without_a_dead_letter_topic_jobs_are_delivered_for_ever() -> None:
    """API §10.6: "With max_deliveries = 0 or dead_letter = null a job is reclaimed forever"."""
    for config in ({"max_deliveries": 1}, {"dead_letter": "dlq"}):
        queue = OneQueue(**config)
        queue.produce()
        for delivery in range(1, 6):
            assert queue.claim("w")[0]["deliveries"] == delivery
            queue.nack(1)
        assert queue.counters() == (1, 0, 0)


def test_dead_letter_topic_may_be_a_queue() -> None:
    """DESIGN §10.7: "The dead-letter topic is an ordinary topic (log or queue)"."""
    queue = OneQueue(max_deliveries=1, dead_letter="dlq")
    queue.engine.put_topic("dlq", ConfigPatch(type="queue"))
    queue.produce()
    queue.claim("w")
    queue.nack(1)
    assert queue.seqs() == []
    assert queue.queues.claim("dlq", ClaimJobs("x", 5)).claimed[0]["data"] == 0


def test_full_dead_letter_topic_keeps_the_job() -> None:
    """API §10.6 with `discard: reject`: a move that cannot be made is not half made, and nothing is lost."""
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
    """DESIGN §10.7: a letter moves as soon as there is room for it, however many others there are."""
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
    """DESIGN §5.3: `discard: "reject"` counts a letter with its provenance, and evicts nothing."""
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
    """API §10.7: "resets on delete+recreate"."""
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
    """API §10: "A non-queue topic rejects every endpoint in this section with 409 not_a_queue"; missing is 404."""
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
    """Decision 26: other length of lease_ids, empty seqs, `max: 0`; API §11: too many seqs is batch_too_large."""
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
    """DESIGN §10.3: "ten workers each asking for max:10 against 50 available jobs get ~5 each"."""
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
    """API §10.2: "round-robin, proportional to each claimer's max"; decision 28: remainder to the longest waiting."""
    queue = OneQueue(claim_jitter_ms=50)
    queue.produce(10)
    claims = [queue.start("a", 10), queue.start("b", 5), queue.start("c", 5)]
    queue.pass_time(50)
    assert [len(claim.claimed) for claim in claims] == [5, 3, 2]
    assert shares(10, [10, 5, 5]) == [5, 3, 2]
    assert shares(30, [10, 5, 5]) == [10, 5, 5]
    assert shares(0, [3, 4]) == [0, 0]


def test_window_opens_with_the_first_claim_and_closes_for_all() -> None:
    """API §10.2: a claim "waits up to that window"; who comes later is not made to wait longer than the first."""
    queue = OneQueue(claim_jitter_ms=100)
    queue.produce(4)
    first = queue.start("a", 4)
    queue.pass_time(60)
    second = queue.start("b", 4)
    queue.pass_time(40)
    assert (len(first.claimed), len(second.claimed)) == (2, 2)


def test_empty_window_answers_empty() -> None:
    """API §10.2: fewer or zero is no error, also with a window."""
    queue = OneQueue(claim_jitter_ms=100)
    claim = queue.start("a", 4)
    queue.pass_time(100)
    assert claim.done
    assert claim.claimed == []


def test_streams_and_polls_share_a_window() -> None:
    """DESIGN §10.3: "/work SSE topics participate in the same cohort"."""
    queue = OneQueue(claim_jitter_ms=50)
    stream = Stream(queue, "s", 10)
    queue.produce(8)
    poll = queue.start("p", 10)
    queue.pass_time(50)
    assert (len(stream.jobs), len(poll.claimed)) == (4, 4)


# Waiting


def test_claim_with_wait_ms_is_answered_when_a_job_comes() -> None:
    """Issue 5: `wait_ms` on claim (long-poll)."""
    queue = OneQueue()
    claim = queue.start("w", 5, wait_ms=1000)
    queue.pass_time(500)
    assert not claim.done
    queue.produce(2)
    assert [job["$seq"] for job in claim.claimed] == [1, 2]
    assert queue.counters() == (0, 2, 0)


def test_claim_with_wait_ms_ends_empty_when_time_is_up() -> None:
    """Issue 5: `wait_ms` on claim: nothing came."""
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
    """API §10.3 meets `wait_ms`: expiry needs no other claim to be noticed."""
    queue = OneQueue(lease_ms=1000)
    queue.produce()
    queue.claim("w")
    waiting = queue.start("v", 1, wait_ms=5000)
    queue.pass_time(1000)
    assert not waiting.done
    queue.pass_time(1)
    assert waiting.claimed[0]["deliveries"] == 2


def test_waiting_claim_fails_with_its_queue() -> None:
    """API §1.4: the topic is gone, and whoever waited learns it."""
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
    """Issue 5: "`delay_ms` / `deliver_at` on a produced record (a queue hides the job until then)"."""
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
    """Issue 5: "cancel by delete"."""
    queue = OneQueue()
    queue.produce(1, delay_ms=1000, tag="x")
    queue.engine.delete("q", Delete(match="x"))
    queue.clock.advance(2000)
    assert queue.counters() == (0, 0, 0)
    assert queue.seqs() == []


def test_waiting_worker_gets_a_delayed_job_when_it_falls_due() -> None:
    """Issue 5: a delay ends without anybody asking."""
    queue = OneQueue()
    queue.produce(1, delay_ms=1000)
    stream = Stream(queue, "s", 1)
    queue.pass_time(999)
    assert stream.seqs == []
    queue.pass_time(1)
    assert stream.seqs == [1]


def test_two_times_for_one_job_are_refused() -> None:
    """Issue 5: `delay_ms` and `deliver_at` say the same thing; together they are 400."""
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
    """Issue 5: "redrive from the dead-letter topic back to its queue, delivery count reset"."""
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
    """Issue 5: "by seqs or match, dry_run, limit"; letters of other queues stay."""
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
    """Issue 5: a queue without `dead_letter` has nothing to put back."""
    queue = OneQueue()
    with pytest.raises(InvalidRequest):
        queue.queues.redrive("q", RedriveJobs())
    queue = OneQueue(dead_letter="none.yet")
    assert queue.queues.redrive("q", RedriveJobs()).result.redriven == 0


# Streams


def test_stream_is_kept_at_max_in_flight() -> None:
    """API §10.8: "keeps up to max jobs leased-and-pushed, claiming more as the worker acks"."""
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
    """API §10.8: jobs are "auto-claimed and pushed"."""
    queue = OneQueue()
    stream = Stream(queue, "s", 3, lease_ms=700)
    queue.produce(1)
    assert stream.seqs == [1]
    assert stream.jobs[0]["deadline"] == START_MS + 700


def test_closed_stream_releases_what_was_pushed_on_it_and_nothing_else() -> None:
    """API §10.8: "immediately releases all of that node's leases that were delivered on this connection"."""
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
    """API §10.8: "feeds connected /work streams fairly"."""
    queue = OneQueue()
    streams = [Stream(queue, f"s{i}", 5) for i in range(3)]
    queue.produce(9)
    assert [len(stream.jobs) for stream in streams] == [3, 3, 3]


def test_job_that_expires_on_a_stream_makes_room_for_its_redelivery() -> None:
    """API §10.8: at most `max` are *leased*; an expired one is not, and is pushed again."""
    queue = OneQueue(lease_ms=1000)
    queue.produce(1)
    stream = Stream(queue, "s", 1)
    queue.pass_time(1001)
    assert [job["deliveries"] for job in stream.jobs] == [1, 2]


def test_stream_ends_with_its_queue() -> None:
    """API §10.8: terminal errors close the stream."""
    queue = OneQueue()
    stream = Stream(queue, "s", 1)
    queue.engine.delete_topic("q")
    assert isinstance(stream.ended, TopicNotFound)
    stream.close()


# Cost


def test_claim_does_not_walk_the_queue() -> None:
    """Issue 5: "A queue of 10^6 jobs: claim cost does not grow": a claim looks at as many jobs as it takes."""
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
    """DESIGN §10.6: no per-job timers; and what is over leaves no trace that grows."""
    queue = OneQueue()
    queue.produce(5000)
    kept = queue.engine.topics["q"].queue
    assert kept is not None
    for _ in range(625):
        queue.ack(*queue.seqs(max=8))
    assert len(kept._deadlines) < 5000


def test_every_transition_ends_in_a_known_state() -> None:
    """Issue 5: "The lease lifecycle is a table in the code": only an ack that failed brings a job back."""
    states = {state for state, _ in TRANSITIONS} | set(TRANSITIONS.values())
    assert states == {"fresh", "leased", "lapsed", "free", "delayed", "gone"}
    assert {step for state, step in TRANSITIONS if state is GONE} == {"ack_failed", "remove"}
    assert all((state, "remove") in TRANSITIONS for state in states)
