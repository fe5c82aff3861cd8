"""Queues across crashes of every kind: no job is lost, none comes back, none is in two places (QUEUE-17, QUEUE-24).

Random claims, acks, nacks, dead letters and forwards, a crash at any of the disk calls they make, and then the books:
on `fsync` every job whose write was acked is in exactly one place: waiting, among the dead letters, or acked.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest

from tests.harness.oracle import read_all
from tests.harness.story import Story, ignore
from topics.engine import ConfigPatch, RecordIn, Write
from topics.engine.queue.claim import Claim
from topics.engine.queue.queue import queue_of
from topics.engine.queue.requests import AckJobs, ClaimJobs, NackJobs
from topics.engine.router.router import PutRouter
from topics.errors import TopicsError
from topics.storage.job import Miss, run_inline
from topics.testing.fake_disk import DAMAGES

MAX_DELIVERIES = 2


class Books:
    """What clients were answered, apart from what the engine believes."""

    def __init__(self) -> None:
        self.sent: set[int] = set()
        self.written: set[int] = set()
        self.asked: set[int] = set()
        self.acked: set[int] = set()
        self.reasons: dict[int, set[str]] = {}


class JobStory(Story):
    """A queue with a dead-letter topic, fed directly and by a router."""

    def __init__(self, seed: int, durability: str, shards: int) -> None:
        super().__init__(seed, segment_max_events=15, shards=shards)
        self.books = Books()
        engine = self.engine
        config = {
            "type": "queue",
            "durability": durability,
            "max_deliveries": MAX_DELIVERIES,
            "dead_letter": "dlq",
            "backoff_ms": 20,
        }
        engine.put_topic("q", ConfigPatch(**config))  # type: ignore[arg-type]
        engine.put_topic("in", ConfigPatch(durability=durability))  # type: ignore[arg-type]
        engine.put_topic("dlq", ConfigPatch(durability=durability))  # type: ignore[arg-type]
        engine.routers.put("in->q", PutRouter("in", "q"))
        self.machine.run_until_idle()
        self.held: dict[int, tuple[str, int]] = {}

    def step(self) -> None:
        engine, rng = self.engine, self.rng
        kind = self.choose(write=6, claim=8, ack=6, nack=5, turn=6, sync=6, time=1, checkpoint=1)
        if kind == "write":
            self._write(rng.choice(("q", "in")))
        elif kind == "claim":
            node = rng.choice(("w1", "w2"))
            engine.queues.claim("q", ClaimJobs(node, rng.randrange(1, 5)), on_done=self._claimed)
        elif kind in ("ack", "nack") and self.held:
            seqs = rng.sample(sorted(self.held), min(len(self.held), rng.randrange(1, 4)))
            node = self.held[seqs[0]][0]
            seqs = [seq for seq in seqs if self.held[seq][0] == node]
            if kind == "nack":
                self._nack(node, seqs)
            else:
                self._ack(node, seqs)
            for seq in seqs:
                del self.held[seq]
        elif kind == "time":
            self.machine.clock.advance(rng.choice((40, 40_000)))
        elif kind == "checkpoint":
            self.machine.checkpoint()
        elif kind == "sync":
            run_inline(self.machine.store.jobs())
        else:
            engine.prepare()
            engine.turn()

    def _write(self, topic: str) -> None:
        self.serial += 1
        job = self.serial
        self.books.sent.add(job)

        def done(ticket: Any) -> None:
            if ticket.error is None:
                self.books.written.add(job)

        self.engine.write(topic, Write([RecordIn(msgspec.Raw(b"%d" % job))]), on_done=done)

    def _claimed(self, claim: Claim) -> None:
        for job in claim.claimed:
            self.held[job["$seq"]] = (claim.node, job["data"])

    def _ack(self, node: str, seqs: list[int]) -> None:
        jobs = {seq: self.held[seq][1] for seq in seqs}
        self.books.asked |= set(jobs.values())

        def done(receipt: Any) -> None:
            if receipt.error is None:
                self.books.acked |= {job for seq, job in jobs.items() if seq not in receipt.result.skipped}

        self.engine.queues.ack("q", AckJobs(node, seqs), on_done=done)

    def _nack(self, node: str, seqs: list[int]) -> None:
        reason = self.rng.choice(("", f"reason {self.serial}"))
        for seq in seqs:
            self.books.reasons.setdefault(self.held[seq][1], set()).add(reason)
        self.engine.queues.nack("q", NackJobs(node, seqs, self.rng.choice((None, 0, 50)), None, reason), on_done=ignore)

    def live_until_crash(self, calls_max: int, damage: Any = None) -> None:
        self.run_until_crash(200, 5, calls_max)
        self.machine.crash(damage or self.rng.choice(DAMAGES))
        self.held = {}

    def check(self, lossless: bool) -> None:
        engine, datas = self.engine, self.machine.datas
        waiting, dead, source = Counter(datas("q")), Counter(datas("dlq")), set(datas("in"))
        assert max([*waiting.values(), *dead.values()], default=0) <= 1, "a job is there twice"
        assert not waiting.keys() & dead.keys(), "a dead-letter move is all or nothing"
        books = self.books
        assert waiting.keys() | dead.keys() <= books.sent
        if lossless:
            missing = books.written - waiting.keys() - dead.keys() - books.asked
            assert not missing, f"lost {missing}"
            assert not books.acked & (waiting.keys() | dead.keys()), "an acked job came back"
            assert source <= waiting.keys() | dead.keys() | books.asked
        queue = engine.topics["q"].queue
        assert queue is not None
        state = engine.state("q").queue
        assert not isinstance(state, msgspec.UnsetType)
        assert state.ready + state.in_flight + queue.delayed == len(waiting)
        assert state.dead_lettered >= len(dead) or not lossless
        self._check_letters()

    def _check_letters(self) -> None:
        """Every reason was given, and what nobody holds after its last delivery does not wait for a claim."""
        for record in read_all(self.engine, "dlq")[0].values():
            meta, job = json.loads(record.meta or b"{}"), json.loads(record.data)
            assert meta.get("$dead_letter_reason", "") in self.books.reasons.get(job, set()) | {""}
        self.machine.clock.advance(100_000)
        self.machine.run_until_idle()
        queue = queue_of(self.engine.topics["q"])
        assert queue is not None
        assert not [lease for lease in queue.leases.values() if lease.deliveries >= MAX_DELIVERIES]
        assert not queue.failures.spent


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("seed", range(12))
def test_every_job_is_in_one_place_after_a_crash(seed: int, durability: str, damage: str) -> None:
    """QUEUE-17, QUEUE-24: no job is lost, none comes back, and a dead-letter move is all or nothing."""
    tell(seed, durability, damage)


def test_job_that_a_router_brought_and_that_is_dead_is_not_brought_again() -> None:
    """QUEUE-17: a loss of power takes frames before that of the move, which says itself how far the router was."""
    tell(10302, "disk", "torn")


def tell(seed: int, durability: str, damage: str) -> None:
    story = JobStory(seed, durability, shards=1 + seed % 3)
    for _ in range(3):
        story.live_until_crash(120, damage)
        lossless = durability == "fsync" or damage == "kill"
        story.check(lossless)
        if not lossless:
            return


@pytest.mark.parametrize("seed", range(6))
def test_everything_produced_ends_acked_or_dead(seed: int) -> None:
    """QUEUE-24: at the end the sum of acked and dead-lettered equals what was produced, and nothing is left."""
    story = JobStory(seed, "fsync", shards=1 + seed % 2)
    machine = story.machine
    for _ in range(4):
        story.live_until_crash(150)
    done: set[int] = set()
    for _ in range(200):
        machine.clock.advance(60_000)
        try:
            jobs = machine.engine.queues.claim("q", ClaimJobs("last", 50)).claimed
        except Miss as miss:
            run_inline([miss.job])
            continue
        except TopicsError as error:
            pytest.fail(str(error))
        if not jobs:
            break
        result = machine.engine.queues.ack("q", AckJobs("last", [job["$seq"] for job in jobs])).result
        assert result.acked == len(jobs)
        done |= {job["data"] for job in jobs}
    assert machine.datas("q") == []
    assert story.books.written <= done | set(machine.datas("dlq")) | story.books.asked
