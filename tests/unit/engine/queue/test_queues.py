"""The QUEUE and WORK rules on an engine in memory with a clock that the test moves: the life of jobs and leases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topics.engine import ConfigPatch, Delete, Diff, Engine, Limits, RecordIn, Write
from topics.engine.queue.claim import Claim, Hand, shares
from topics.engine.queue.lease import GONE, TRANSITIONS
from topics.engine.queue.redrive import redrive
from topics.engine.queue.requests import AckJobs, ClaimJobs, ExtendJobs, NackJobs, RedriveJobs
from topics.engine.queue.worker import Worker
from topics.engine.router.router import PutRouter
from topics.errors import BatchTooLarge, InvalidRequest, NotAQueue, TopicNotFound, TopicsError
from topics.testing import ManualClock

START_MS = 1_750_000_000_000


class Bench:
    """A queue `q` on an engine in memory, and a clock."""

    def __init__(self, limits: Limits | None = None, **config: Any) -> None:
        self.clock = ManualClock(START_MS)
        self.engine = Engine(self.clock, limits=limits)
        self.queues = self.engine.queues
        self.engine.put_topic("q", ConfigPatch(type="queue", **config))

    def produce(self, count: int = 1, **fields: Any) -> None:
        self.engine.write("q", Write([RecordIn(msgspec.Raw(b"%d" % i), **fields) for i in range(count)]))

    def claim(self, node: str = "w", max: int = 1, **fields: Any) -> list[dict[str, Any]]:
        return self.queues.claim("q", ClaimJobs(node, max, **fields)).claimed

    def seqs(self, node: str = "w", max: int = 100, **fields: Any) -> list[int]:
        return [job["$seq"] for job in self.claim(node, max, **fields)]

    def ack(self, *seqs: int, node: str = "w", ids: list[str] | None = None) -> Any:
        return self.queues.ack("q", AckJobs(node, list(seqs), ids)).result

    def nack(self, *seqs: int, node: str = "w", delay_ms: int = 0, ids: list[str] | None = None) -> Any:
        return self.queues.nack("q", NackJobs(node, list(seqs), delay_ms, ids)).result

    def extend(self, *seqs: int, lease_ms: int, node: str = "w", ids: list[str] | None = None) -> Any:
        return self.queues.extend("q", ExtendJobs(node, list(seqs), lease_ms, ids)).result

    def counters(self) -> tuple[int, int, int]:
        state = self.engine.state("q").queue
        assert not isinstance(state, msgspec.UnsetType)
        return state.ready, state.in_flight, state.dead_lettered

    def start(self, node: str, max: int, wait_ms: int = 0) -> Claim:
        """A claim that may wait."""
        return self.queues.claim("q", ClaimJobs(node, max, None, wait_ms), on_done=lambda claim: None)

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.engine.settle()


class Stream:
    """A /work stream that remembers what was pushed."""

    def __init__(self, bench: Bench, node: str, max: int, lease_ms: int | None = None) -> None:
        self.bench = bench
        self.jobs: list[dict[str, Any]] = []
        self.ended: TopicsError | None = None
        self.worker = Worker(node, max, lease_ms, self._pushed, self._end)
        self.topic = bench.queues.work("q", self.worker)
        bench.engine.settle()

    def _pushed(self, hand: Hand) -> None:
        self.jobs += [msgspec.json.decode(text) for text in hand.texts]

    def _end(self, error: TopicsError) -> None:
        self.ended = error

    @property
    def seqs(self) -> list[int]:
        return [job["$seq"] for job in self.jobs]

    def close(self) -> None:
        self.bench.queues.stop_work(self.topic, self.worker)
        self.bench.engine.settle()


def test_claim_leases_jobs_in_order_and_counts_the_delivery() -> None:
    """QUEUE-2: the shape of a claimed job; `deadline = claim_ts + lease_ms`, `deliveries` starts at 1."""
    bench = Bench()
    bench.produce(3, tag="t", meta=msgspec.Raw(b'{"k": "v"}'))
    (job,) = bench.claim()
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
    assert bench.counters() == (2, 1, 0)
    assert bench.seqs() == [2, 3]


def test_claim_of_an_empty_queue_is_empty_and_no_error() -> None:
    """QUEUE-2."""
    bench = Bench()
    assert bench.claim(max=5) == []


def test_ack_deletes_the_job() -> None:
    """QUEUE-7: the ack is the delete."""
    bench = Bench()
    bench.produce(2)
    bench.claim(max=2)
    result = bench.ack(1, 2)
    assert (result.acked, result.skipped, result.ready, result.in_flight) == (2, [], 0, 0)
    assert bench.engine.diff("q", Diff()).records == []
    assert bench.engine.diff("q", Diff()).tombstone is None


def test_ack_by_anybody_else_is_skipped_and_repeats_are_harmless() -> None:
    """QUEUE-8: not the holder, never claimed, already acked."""
    bench = Bench()
    bench.produce(3)
    bench.claim("w", 2)
    result = bench.ack(1, 2, 3, 99, node="other")
    assert (result.acked, result.skipped) == (0, [1, 2, 3, 99])
    result = bench.ack(1, 1, 3)
    assert (result.acked, result.skipped) == (1, [1, 3])
    assert bench.ack(1).skipped == [1]
    assert bench.counters() == (1, 1, 0)


def test_expired_lease_is_ready_again_strictly_after_its_deadline() -> None:
    """QUEUE-5."""
    bench = Bench(lease_ms=1000)
    bench.produce()
    bench.claim("w")
    bench.clock.advance(1000)
    assert bench.counters() == (0, 1, 0)
    assert bench.seqs("v") == []
    bench.clock.advance(1)
    assert bench.counters() == (1, 0, 0)
    (job,) = bench.claim("v")
    assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_reclaimed_jobs_come_before_fresh_ones() -> None:
    """QUEUE-6."""
    bench = Bench(lease_ms=1000)
    bench.produce(6)
    assert bench.seqs("w", 3) == [1, 2, 3]
    bench.nack(3)
    bench.clock.advance(1001)
    assert sorted(bench.seqs("v", 3)) == [1, 2, 3]
    assert bench.seqs("v", 3) == [4, 5, 6]


def test_lapsed_lease_belongs_to_its_holder_until_somebody_claims_it() -> None:
    """QUEUE-9: ack, nack and extend count until another claim takes the job."""
    for act in ("ack", "nack", "extend"):
        bench = Bench(lease_ms=1000)
        bench.produce()
        bench.claim("w")
        bench.clock.advance(5000)
        assert bench.counters() == (1, 0, 0)
        if act == "ack":
            assert bench.ack(1).acked == 1
            assert bench.counters() == (0, 0, 0)
        elif act == "nack":
            assert bench.nack(1).nacked == 1
            assert bench.counters() == (1, 0, 0)
        else:
            assert bench.extend(1, lease_ms=2000).extended == 1
            assert bench.counters() == (0, 1, 0)
            assert bench.seqs("v") == []


def test_reclaimed_job_is_no_longer_its_first_holders() -> None:
    """QUEUE-8: for ack and extend alike."""
    bench = Bench(lease_ms=1000)
    bench.produce()
    bench.claim("w")
    bench.clock.advance(1001)
    bench.claim("v")
    assert bench.ack(1).skipped == [1]
    assert bench.nack(1).skipped == [1]
    assert bench.extend(1, lease_ms=1000).skipped == [1]
    assert bench.ack(1, node="v").acked == 1


def test_lease_ids_fence_a_stale_delivery_of_the_same_node() -> None:
    """QUEUE-10: for ack, nack and extend alike."""
    bench = Bench(lease_ms=1000)
    bench.produce(2)
    stale = bench.claim("w")[0]["lease_id"]
    bench.clock.advance(1001)
    (current,) = bench.claim("w")
    assert current["lease_id"] != stale
    assert bench.ack(1, ids=[stale]).skipped == [1]
    assert bench.nack(1, ids=[stale]).skipped == [1]
    assert bench.extend(1, lease_ms=500, ids=[stale]).skipped == [1]
    assert bench.ack(1, ids=["nonsense"]).skipped == [1]
    assert bench.ack(1, ids=[current["lease_id"]]).acked == 1


def test_nack_makes_a_job_claimable_at_once() -> None:
    """QUEUE-12: the delivery counter rises with the next claim."""
    bench = Bench()
    bench.produce(2)
    bench.claim("w")
    result = bench.nack(1)
    assert (result.nacked, result.skipped, result.ready, result.in_flight) == (1, [], 2, 0)
    (job,) = bench.claim("v")
    assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_delayed_nack_hides_the_job_until_its_time() -> None:
    """QUEUE-12: it counts neither as ready nor as in flight."""
    bench = Bench()
    bench.produce()
    bench.claim("w")
    result = bench.nack(1, delay_ms=5000)
    assert (result.ready, result.in_flight) == (0, 0)
    bench.clock.advance(4999)
    assert bench.seqs() == []
    assert bench.counters() == (0, 0, 0)
    bench.clock.advance(1)
    assert bench.counters() == (1, 0, 0)
    assert bench.seqs() == [1]


def test_nack_delay_is_clamped_to_a_day() -> None:
    """QUEUE-12."""
    bench = Bench()
    bench.produce()
    bench.claim("w")
    bench.nack(1, delay_ms=10**15)
    bench.clock.advance(86_400_000)
    assert bench.seqs() == [1]


def test_extend_sets_the_deadline_from_now() -> None:
    """QUEUE-13: it sets and does not add."""
    bench = Bench(lease_ms=1000)
    bench.produce(2)
    bench.claim("w", 2)
    bench.clock.advance(900)
    result = bench.extend(1, 77, lease_ms=1000)
    assert (result.extended, result.skipped) == (1, [77])
    assert result.deadlines == {"1": START_MS + 1900}
    bench.clock.advance(200)
    assert bench.seqs("v") == [2]
    bench.clock.advance(900)
    (job,) = bench.claim("v")
    assert (job["$seq"], job["deliveries"]) == (1, 2)


@pytest.mark.parametrize(("asked", "granted"), [(1, 100), (5_000, 5_000), (10**12, 86_400_000)])
def test_lease_ms_of_a_claim_is_clamped(asked: int, granted: int) -> None:
    """QUEUE-3: the same for extend."""
    bench = Bench()
    bench.produce()
    (job,) = bench.claim(lease_ms=asked)
    assert job["deadline"] == START_MS + granted
    assert bench.extend(1, lease_ms=asked).deadlines == {"1": START_MS + granted}


def test_counters_follow_every_way_a_job_can_leave() -> None:
    """QUEUE-19: `ready` and `in_flight` add up to `count`, also after deletes, caps and TTL took jobs."""
    bench = Bench(lease_ms=1000)
    bench.produce(10, tag="t")
    bench.claim("w", 4)
    bench.engine.delete("q", Delete(before_seq=3))
    assert bench.counters() == (6, 2, 0)
    bench.engine.delete("q", Delete(match="t", before_seq=4))
    assert bench.counters() == (6, 1, 0)
    bench.engine.put_topic("q", ConfigPatch(cap_records=3))
    assert bench.counters() == (3, 0, 0)
    bench.engine.put_topic("q", ConfigPatch(ttl_ms=100))
    bench.claim("w", 1)
    bench.clock.advance(101)
    assert bench.counters() == (0, 0, 0)
    assert bench.ack(8).skipped == [8]
    assert bench.seqs() == []


def test_diff_reads_a_queue_without_touching_its_leases() -> None:
    """QUEUE-22."""
    bench = Bench()
    bench.produce(3)
    bench.claim("w")
    assert [record["$seq"] for record in bench.engine.diff("q", Diff()).records] == [1, 2, 3]
    assert bench.counters() == (2, 1, 0)


def test_router_into_a_queue_is_a_producer() -> None:
    """QUEUE-22: a router into a queue is a producer; a claim sees what was written to the source before."""
    bench = Bench()
    bench.engine.routers.put("r", PutRouter("in", "q"))
    bench.engine.write("in", Write.of(["job"]), on_done=lambda ticket: None)
    bench.engine.store.write()
    (job,) = bench.claim()
    assert job["data"] == "job"
    assert bench.ack(1).acked == 1


def test_poison_job_moves_to_the_dead_letters_instead_of_a_further_delivery() -> None:
    """QUEUE-14."""
    bench = Bench(max_deliveries=2, dead_letter="q.dlq", lease_ms=1000)
    bench.produce(1, tag="t", node="n", meta=msgspec.Raw(b'{"k":"v"}'))
    bench.produce(1)
    for _ in range(2):
        bench.claim("w")
        bench.nack(1)
    assert bench.counters() == (2, 0, 0)
    assert bench.seqs("w", 1) == [2]
    assert bench.counters() == (0, 1, 1)
    (letter,) = bench.engine.diff("q.dlq", Diff(include_tags=True)).records
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
    assert [record["$seq"] for record in bench.engine.diff("q", Diff()).records] == [2]


def test_log_accepts_the_fields_of_queues_and_ignores_them() -> None:
    """TOPIC-14: whatever they would mean on a queue."""
    engine = Engine(ManualClock())
    assert engine.put_topic("t", ConfigPatch(dead_letter="t", max_deliveries=1, lease_ms=5)).result.created
    with pytest.raises(InvalidRequest):
        engine.put_topic("q", ConfigPatch(type="queue", dead_letter="q"))


def test_without_a_dead_letter_topic_jobs_are_delivered_for_ever() -> None:
    """QUEUE-15."""
    for config in ({"max_deliveries": 1}, {"dead_letter": "dlq"}):
        bench = Bench(**config)
        bench.produce()
        for delivery in range(1, 6):
            assert bench.claim("w")[0]["deliveries"] == delivery
            bench.nack(1)
        assert bench.counters() == (1, 0, 0)


def test_dead_letter_topic_may_be_a_queue() -> None:
    """QUEUE-16."""
    bench = Bench(max_deliveries=1, dead_letter="dlq")
    bench.engine.put_topic("dlq", ConfigPatch(type="queue"))
    bench.produce()
    bench.claim("w")
    bench.nack(1)
    assert bench.seqs() == []
    assert bench.queues.claim("dlq", ClaimJobs("x", 5)).claimed[0]["data"] == 0


def test_full_dead_letter_topic_keeps_the_job() -> None:
    """QUEUE-16: a move that cannot be made is not half made, and nothing is lost."""
    bench = Bench(max_deliveries=1, dead_letter="dlq")
    bench.engine.put_topic("dlq", ConfigPatch(cap_records=1, discard="reject"))
    bench.engine.write("dlq", Write.of(["full"]))
    bench.produce()
    bench.claim("w")
    bench.nack(1)
    assert bench.seqs() == []
    assert bench.counters() == (1, 0, 0)
    bench.engine.delete("dlq", Delete(before_seq=2))
    assert bench.seqs() == []
    assert bench.counters() == (0, 0, 1)


def test_dead_letter_topic_takes_as_many_as_fit() -> None:
    """QUEUE-16: a letter moves as soon as there is room for it, however many others there are."""
    bench = Bench(max_deliveries=1, dead_letter="d")
    bench.engine.put_topic("d", ConfigPatch(cap_records=2, discard="reject"))
    bench.produce(5)
    bench.nack(*bench.seqs())
    assert bench.seqs() == []
    assert bench.engine.state("d").count == 2
    bench.engine.delete("d", Delete(before_seq=3))
    assert bench.seqs() == []
    assert (bench.engine.state("d").count, bench.counters()) == (2, (1, 0, 4))


def test_full_dead_letter_topic_drops_no_letter_for_another() -> None:
    """QUEUE-16: `discard: "reject"` counts a letter with its provenance, and evicts nothing."""
    bench = Bench(max_deliveries=1, dead_letter="d")
    bench.engine.put_topic("d", ConfigPatch(cap_bytes=300, discard="reject"))
    bench.produce(5)
    bench.nack(*bench.seqs())
    assert bench.seqs() == []
    log = bench.engine.topics["d"].log
    assert 0 < log.count < 5
    assert (log.start, log.evict_floor) == (1, 1)
    assert log.bytes <= 300


def test_dead_lettered_counts_start_anew_with_the_topic() -> None:
    """QUEUE-19."""
    bench = Bench(max_deliveries=1, dead_letter="dlq")
    bench.produce()
    bench.claim("w")
    bench.nack(1)
    bench.claim("w")
    assert bench.counters() == (0, 0, 1)
    bench.engine.delete_topic("q")
    bench.engine.put_topic("q", ConfigPatch(type="queue"))
    assert bench.counters() == (0, 0, 0)


def test_log_is_not_a_queue() -> None:
    """QUEUE-1."""
    bench = Bench()
    bench.engine.put_topic("log", ConfigPatch())
    calls = (
        lambda name: bench.queues.claim(name, ClaimJobs("w")),
        lambda name: bench.queues.ack(name, AckJobs("w", [1])),
        lambda name: bench.queues.nack(name, NackJobs("w", [1])),
        lambda name: bench.queues.extend(name, ExtendJobs("w", [1], 1000)),
        lambda name: bench.queues.work(name, Worker("w", 1, None, print, print)),
    )
    for call in calls:
        with pytest.raises(NotAQueue):
            call("log")
        with pytest.raises(TopicNotFound):
            call("missing")
    assert "missing" not in bench.engine.topics


def test_bad_requests_are_refused() -> None:
    """QUEUE-3, QUEUE-4."""
    bench = Bench(Limits(max_claim=3, max_node_bytes=8))
    bench.produce(5)
    for call in (
        lambda: bench.claim(max=0),
        lambda: bench.claim(node=""),
        lambda: bench.claim(node="n" * 9),
        lambda: bench.ack(),
        lambda: bench.ack(1, 2, ids=["lease_1"]),
    ):
        with pytest.raises(InvalidRequest):
            call()
    for call in (lambda: bench.ack(1, 2, 3, 4), lambda: bench.nack(1, 2, 3, 4)):
        with pytest.raises(BatchTooLarge) as refused:
            call()
        assert refused.value.detail["max"] == 3
    assert len(bench.claim(max=1000)) == 3


# Coalescing


def test_cohort_divides_evenly() -> None:
    """QUEUE-21: ten workers that ask for 10 of 50 jobs get 5 each."""
    bench = Bench(claim_jitter_ms=50)
    bench.produce(50)
    claims = [bench.start(f"w{i}", 10) for i in range(10)]
    bench.pass_time(49)
    assert not any(claim.done for claim in claims)
    bench.pass_time(1)
    assert [len(claim.claimed) for claim in claims] == [5] * 10
    assert sorted(job["$seq"] for claim in claims for job in claim.claimed) == list(range(1, 51))
    for claim in claims:
        seqs = [job["$seq"] for job in claim.claimed]
        assert seqs == sorted(seqs)


def test_cohort_is_proportional_to_max() -> None:
    """QUEUE-21: the remainder goes to the longest waiting."""
    bench = Bench(claim_jitter_ms=50)
    bench.produce(10)
    claims = [bench.start("a", 10), bench.start("b", 5), bench.start("c", 5)]
    bench.pass_time(50)
    assert [len(claim.claimed) for claim in claims] == [5, 3, 2]
    assert shares(10, [10, 5, 5]) == [5, 3, 2]
    assert shares(30, [10, 5, 5]) == [10, 5, 5]
    assert shares(0, [3, 4]) == [0, 0]


def test_window_opens_with_the_first_claim_and_closes_for_all() -> None:
    """QUEUE-21: a later claim waits no longer than the first one."""
    bench = Bench(claim_jitter_ms=100)
    bench.produce(4)
    first = bench.start("a", 4)
    bench.pass_time(60)
    second = bench.start("b", 4)
    bench.pass_time(40)
    assert (len(first.claimed), len(second.claimed)) == (2, 2)


def test_empty_window_answers_empty() -> None:
    """QUEUE-21: fewer jobs or none is no error, also with a window."""
    bench = Bench(claim_jitter_ms=100)
    claim = bench.start("a", 4)
    bench.pass_time(100)
    assert claim.done
    assert claim.claimed == []


def test_streams_and_polls_share_a_window() -> None:
    """QUEUE-21."""
    bench = Bench(claim_jitter_ms=50)
    stream = Stream(bench, "s", 10)
    bench.produce(8)
    poll = bench.start("p", 10)
    bench.pass_time(50)
    assert (len(stream.jobs), len(poll.claimed)) == (4, 4)


# Waiting


def test_claim_with_wait_ms_is_answered_when_a_job_comes() -> None:
    """QUEUE-25."""
    bench = Bench()
    claim = bench.start("w", 5, wait_ms=1000)
    bench.pass_time(500)
    assert not claim.done
    bench.produce(2)
    assert [job["$seq"] for job in claim.claimed] == [1, 2]
    assert bench.counters() == (0, 2, 0)


def test_claim_with_wait_ms_ends_empty_when_time_is_up() -> None:
    """QUEUE-25: nothing came."""
    bench = Bench()
    claim = bench.start("w", 5, wait_ms=1000)
    bench.pass_time(999)
    assert not claim.done
    bench.pass_time(1)
    assert claim.done
    assert claim.claimed == []
    bench.produce(1)
    assert bench.counters() == (1, 0, 0)


def test_waiting_claim_gets_a_job_whose_lease_runs_out() -> None:
    """QUEUE-25: expiry needs no other claim to be noticed."""
    bench = Bench(lease_ms=1000)
    bench.produce()
    bench.claim("w")
    waiting = bench.start("v", 1, wait_ms=5000)
    bench.pass_time(1000)
    assert not waiting.done
    bench.pass_time(1)
    assert waiting.claimed[0]["deliveries"] == 2


def test_waiting_claim_fails_with_its_queue() -> None:
    """QUEUE-25: the topic is gone, and every claim that waited learns it."""
    bench = Bench()
    claim = bench.start("w", 1, wait_ms=5000)
    bench.engine.delete_topic("q")
    assert isinstance(claim.error, TopicNotFound)


def test_claim_that_was_given_up_takes_no_job() -> None:
    """A client that went away must not hold jobs."""
    bench = Bench()
    claim = bench.start("w", 1, wait_ms=5000)
    bench.queues.give_up("q", claim)
    bench.produce()
    assert bench.counters() == (1, 0, 0)


# Produced for later


def test_delayed_job_is_in_the_log_and_hidden_until_its_time() -> None:
    """QUEUE-26."""
    bench = Bench()
    bench.produce(1, delay_ms=1000)
    bench.produce(1, deliver_at=START_MS + 500)
    bench.produce(1, delay_ms=0)
    bench.produce(1, deliver_at=START_MS - 5)
    assert bench.counters() == (2, 0, 0)
    assert bench.seqs() == [3, 4]
    assert bench.engine.state("q").count == 4
    bench.clock.advance(499)
    assert bench.seqs() == []
    bench.clock.advance(1)
    (job,) = bench.claim()
    assert (job["$seq"], job["deliveries"]) == (2, 1)
    bench.clock.advance(500)
    assert bench.seqs() == [1]


def test_delayed_job_is_cancelled_by_a_delete() -> None:
    """QUEUE-26: cancel by delete."""
    bench = Bench()
    bench.produce(1, delay_ms=1000, tag="x")
    bench.engine.delete("q", Delete(match="x"))
    bench.clock.advance(2000)
    assert bench.counters() == (0, 0, 0)
    assert bench.seqs() == []


def test_waiting_worker_gets_a_delayed_job_when_it_falls_due() -> None:
    """QUEUE-26: a delay ends without anyone asking."""
    bench = Bench()
    bench.produce(1, delay_ms=1000)
    stream = Stream(bench, "s", 1)
    bench.pass_time(999)
    assert stream.seqs == []
    bench.pass_time(1)
    assert stream.seqs == [1]


def test_two_times_for_one_job_are_refused() -> None:
    """QUEUE-26."""
    bench = Bench()
    with pytest.raises(InvalidRequest):
        bench.produce(1, delay_ms=1, deliver_at=START_MS)
    assert bench.counters() == (0, 0, 0)


# Redrive


def poison(bench: Bench, count: int, tag: str | None = None) -> None:
    """Produce jobs and have them dead-lettered."""
    bench.produce(count, tag=tag, meta=msgspec.Raw(b'{"k":"v"}'))
    seqs = bench.seqs("w", 100)
    bench.nack(*seqs)
    assert bench.seqs("w", 100) == []


def test_redrive_puts_dead_letters_back_with_a_fresh_count() -> None:
    """QUEUE-27: redrive from the dead-letter topic back to its queue, delivery count reset."""
    bench = Bench(max_deliveries=1, dead_letter="dlq")
    poison(bench, 3, tag="t")
    result = redrive(bench.engine, "q", RedriveJobs(limit=2)).result
    assert (result.redriven, result.seqs, result.dead_letter) == (2, [1, 2], "dlq")
    jobs = bench.claim(max=10)
    assert [(job["deliveries"], job["data"], job["$tag"], job["meta"]) for job in jobs] == [
        (1, 0, "t", {"k": "v"}),
        (1, 1, "t", {"k": "v"}),
    ]
    assert [record["$seq"] for record in bench.engine.diff("dlq", Diff()).records] == [3]


def test_redrive_takes_seqs_or_a_match_and_can_be_tried() -> None:
    """QUEUE-27: by seqs or match, dry_run, limit; letters of other queues stay."""
    bench = Bench(max_deliveries=1, dead_letter="dlq")
    poison(bench, 1, tag="a:1")
    poison(bench, 1, tag="b:1")
    poison(bench, 1, tag="a:2")
    bench.engine.write("dlq", Write.of(["not a letter"]))
    dry = redrive(bench.engine, "q", RedriveJobs(match=["tag", "Glob", "a:*"], dry_run=True)).result
    assert (dry.redriven, dry.seqs, dry.dry_run) == (2, [1, 3], True)
    assert bench.counters() == (0, 0, 3)
    assert redrive(bench.engine, "q", RedriveJobs(seqs=[2, 99])).result.seqs == [2]
    assert redrive(bench.engine, "q", RedriveJobs()).result.seqs == [1, 3]
    assert [record["data"] for record in bench.engine.diff("dlq", Diff()).records] == ["not a letter"]
    assert bench.counters() == (3, 0, 3)


def test_redrive_needs_a_dead_letter_topic() -> None:
    """QUEUE-27: a queue without `dead_letter` has nothing to put back."""
    bench = Bench()
    with pytest.raises(InvalidRequest):
        redrive(bench.engine, "q", RedriveJobs())
    bench = Bench(dead_letter="none.yet")
    assert redrive(bench.engine, "q", RedriveJobs()).result.redriven == 0


# Streams


def test_stream_is_kept_at_max_in_flight() -> None:
    """WORK-2."""
    bench = Bench()
    bench.produce(5)
    stream = Stream(bench, "s", 2)
    assert stream.seqs == [1, 2]
    bench.ack(1, node="s")
    bench.engine.settle()
    assert stream.seqs == [1, 2, 3]
    bench.nack(2, node="s", delay_ms=1000)
    bench.engine.settle()
    assert stream.seqs == [1, 2, 3, 4]
    assert bench.counters() == (1, 2, 0)


def test_stream_gets_jobs_as_they_are_produced() -> None:
    """WORK-2."""
    bench = Bench()
    stream = Stream(bench, "s", 3, lease_ms=700)
    bench.produce(1)
    assert stream.seqs == [1]
    assert stream.jobs[0]["deadline"] == START_MS + 700


def test_closed_stream_releases_what_was_pushed_on_it_and_nothing_else() -> None:
    """WORK-3."""
    bench = Bench()
    bench.produce(4)
    assert bench.seqs("s", 1) == [1]
    stream = Stream(bench, "s", 2)
    assert stream.seqs == [2, 3]
    bench.extend(2, node="s", lease_ms=60_000)
    stream.close()
    assert bench.counters() == (3, 1, 0)
    assert sorted(bench.seqs("v")) == [2, 3, 4]
    assert bench.ack(1, node="s").acked == 1


def test_streams_share_what_comes() -> None:
    """QUEUE-21."""
    bench = Bench()
    streams = [Stream(bench, f"s{i}", 5) for i in range(3)]
    bench.produce(9)
    assert [len(stream.jobs) for stream in streams] == [3, 3, 3]


def test_job_that_expires_on_a_stream_makes_room_for_its_redelivery() -> None:
    """WORK-4: at most `max` are *leased*; an expired one is not, and is pushed again."""
    bench = Bench(lease_ms=1000)
    bench.produce(1)
    stream = Stream(bench, "s", 1)
    bench.pass_time(1001)
    assert [job["deliveries"] for job in stream.jobs] == [1, 2]


def test_stream_ends_with_its_queue() -> None:
    """WORK-5."""
    bench = Bench()
    stream = Stream(bench, "s", 1)
    bench.engine.delete_topic("q")
    assert isinstance(stream.ended, TopicNotFound)
    stream.close()


# Cost


def test_claim_does_not_walk_the_queue() -> None:
    """QUEUE-23: with a million jobs a claim looks at as many as it takes."""
    bench = Bench()
    for _ in range(5):
        bench.produce(1000)
    queue = bench.engine.topics["q"].queue
    assert queue is not None
    assert len(bench.claim(max=8)) == 8
    assert len(queue.leases) == 8
    bench.ack(*range(1, 9))
    assert not queue.leases
    assert not queue.free


def test_heaps_do_not_grow_with_history() -> None:
    """QUEUE-23: what is over leaves no trace that grows."""
    bench = Bench()
    bench.produce(5000)
    queue = bench.engine.topics["q"].queue
    assert queue is not None
    for _ in range(625):
        bench.ack(*bench.seqs(max=8))
    assert len(queue._deadlines) < 5000


def test_every_transition_ends_in_a_known_state() -> None:
    """QUEUE-20: nothing leaves GONE."""
    states = {state for state, _ in TRANSITIONS} | set(TRANSITIONS.values())
    assert states == {"leased", "lapsed", "free", "delayed", "gone"}
    assert all(state is not GONE for state, _ in TRANSITIONS)
