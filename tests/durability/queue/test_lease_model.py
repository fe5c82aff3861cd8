"""The life of jobs against a plain model, under a manual clock, with restarts in between (the QUEUE rules).

The model knows nothing of heaps, cursors and freelists: a job is a record with a holder, a deadline and a time before
which it is hidden. Whatever happens, the queue and the model agree on what is ready, in flight, done and dead.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.harness.machine import Machine
from topics.engine import ConfigPatch, Delete, Diff, RecordIn, Write
from topics.engine.queue.backoff import pause_ms
from topics.engine.queue.requests import AckJobs, ClaimJobs, ExtendJobs, NackJobs

NODES = st.sampled_from(("w1", "w2", "w3"))
MAX_DELIVERIES = 2


class Job:
    """What the model knows about one job."""

    def __init__(self) -> None:
        self.node: str | None = None
        self.lease_id = ""
        self.deadline = 0
        self.hidden_until = 0
        self.deliveries = 0
        self.delayed = False

    def in_flight(self, now: int) -> bool:
        return self.node is not None and now <= self.deadline

    def hidden(self, now: int) -> bool:
        return self.node is None and now < self.hidden_until

    def ready(self, now: int) -> bool:
        return not self.in_flight(now) and not self.hidden(now)


class Leases(RuleBasedStateMachine):
    """One queue with a dead-letter topic, and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine()
        self.jobs: dict[int, Job] = {}
        self.dead: dict[int, int] = {}
        self.produced = 0
        self.acked = 0
        self.removed = 0
        self.machine.engine.put_topic(
            "q",
            ConfigPatch(
                type="queue",
                max_deliveries=MAX_DELIVERIES,
                dead_letter="dlq",
                lease_ms=1000,
                backoff_ms=200,
                backoff_max_ms=300,
            ),
        )
        self.config = self.machine.engine.topics["q"].config

    @property
    def now(self) -> int:
        return self.machine.clock.now_ms()

    @property
    def queues(self) -> Any:
        return self.machine.engine.queues

    @rule(count=st.integers(1, 5), delay_ms=st.sampled_from((None, None, 300)))
    def produce(self, count: int, delay_ms: int | None) -> None:
        self.machine.engine.write("q", Write([RecordIn(msgspec.Raw(b"1"), delay_ms=delay_ms) for _ in range(count)]))
        for _ in range(count):
            self.produced += 1
            job = self.jobs[self.produced] = Job()
            job.hidden_until = self.now + (delay_ms or 0)
            job.delayed = delay_ms is not None

    @rule(node=NODES, max=st.integers(1, 6), lease_ms=st.sampled_from((None, 100, 5000)))
    def claim(self, node: str, max: int, lease_ms: int | None) -> None:
        ready = {seq for seq, job in self.jobs.items() if job.ready(self.now)}
        again = {seq for seq in ready if self.jobs[seq].deliveries or self.jobs[seq].delayed}
        claim = self.queues.claim("q", ClaimJobs(node, max, lease_ms))
        claimed = {job["$seq"]: job for job in claim.claimed}
        assert [job["$seq"] for job in claim.claimed] == sorted(claimed)
        assert len(claimed) == min(max, len(ready))
        assert claimed.keys() <= ready
        if claimed.keys() - again:
            assert again <= claimed.keys(), "reclaimed jobs come before fresh ones"
        for seq, got in claimed.items():
            job = self.jobs[seq]
            job.node = node
            job.lease_id = got["lease_id"]
            job.deadline = got["deadline"]
            job.deliveries += 1
            assert got["deliveries"] == job.deliveries
            assert got["deadline"] == self.now + (lease_ms or 1000)
        assert claim.ready == sum(job.ready(self.now) for job in self.jobs.values())

    def _held(self, node: str, seqs: list[int], stale: bool) -> tuple[list[int], list[str] | None]:
        held = [seq for seq in dict.fromkeys(seqs) if seq in self.jobs and self.jobs[seq].node == node]
        if not stale:
            return held, None
        ids = [self.jobs[seq].lease_id if seq in self.jobs and seq % 2 else "lease_1" for seq in seqs]
        return [seq for seq in held if seq % 2], ids

    @rule(node=NODES, seqs=st.lists(st.integers(1, 40), min_size=1, max_size=5), stale=st.booleans())
    def ack(self, node: str, seqs: list[int], stale: bool) -> None:
        held, ids = self._held(node, seqs, stale)
        result = self.queues.ack("q", AckJobs(node, seqs, ids)).result
        assert result.acked == len(held)
        assert len(result.skipped) == len(seqs) - len(held)
        for seq in held:
            del self.jobs[seq]
        self.acked += len(held)

    @rule(
        node=NODES,
        seqs=st.lists(st.integers(1, 40), min_size=1, max_size=5),
        stale=st.booleans(),
        delay_ms=st.sampled_from((0, 300, None)),
    )
    def nack(self, node: str, seqs: list[int], stale: bool, delay_ms: int | None) -> None:
        held, ids = self._held(node, seqs, stale)
        result = self.queues.nack("q", NackJobs(node, seqs, delay_ms, ids)).result
        assert result.nacked == len(held)
        for seq in held:
            self.jobs[seq].node = None
            pause = pause_ms(self.config, seq, self.jobs[seq].deliveries) if delay_ms is None else delay_ms
            self.jobs[seq].hidden_until = self.now + pause

    @rule(node=NODES, seqs=st.lists(st.integers(1, 40), min_size=1, max_size=5), stale=st.booleans())
    def extend(self, node: str, seqs: list[int], stale: bool) -> None:
        held, ids = self._held(node, seqs, stale)
        result = self.queues.extend("q", ExtendJobs(node, seqs, 700, ids)).result
        assert result.deadlines == {str(seq): self.now + 700 for seq in held}
        for seq in held:
            self.jobs[seq].deadline = self.now + 700

    @rule(ms=st.sampled_from((1, 99, 101, 299, 701, 1001)))
    def pass_time(self, ms: int) -> None:
        self.machine.clock.advance(ms)

    @precondition(lambda self: self.jobs)
    @rule(below=st.integers(1, 8))
    def delete(self, below: int) -> None:
        before_seq = min(self.jobs) + below
        self.machine.engine.delete("q", Delete(before_seq=before_seq))
        for seq in [seq for seq in self.jobs if seq < before_seq]:
            del self.jobs[seq]
            self.removed += 1

    @rule()
    def kill(self) -> None:
        self.machine.engine.prepare()
        self.machine.engine.turn()
        self.machine.crash("kill")

    @rule()
    def checkpoint(self) -> None:
        self.machine.checkpoint()

    def _dead_letters(self) -> dict[int, int]:
        if "dlq" not in self.machine.engine.topics:
            return {}
        letters = self.machine.engine.diff("dlq", Diff(limit=1000)).records
        found = {
            int(letter["meta"]["$dead_letter_src_seq"]): int(letter["meta"]["$dead_letter_deliveries"])
            for letter in letters
        }
        assert len(found) == len(letters)
        return found

    def _bury(self) -> None:
        """What has no delivery left and nobody holds is a dead letter, without anyone asking."""
        for seq in [seq for seq, job in self.jobs.items() if job.deliveries >= MAX_DELIVERIES]:
            if not self.jobs[seq].in_flight(self.now):
                self.dead[seq] = self.jobs.pop(seq).deliveries

    @invariant()
    def counters_agree(self) -> None:
        self.machine.engine.run_until_idle()
        self._bury()
        state = self.machine.engine.state("q").queue
        assert state.ready == sum(job.ready(self.now) for job in self.jobs.values())
        assert state.in_flight == sum(job.in_flight(self.now) for job in self.jobs.values())
        assert state.dead_lettered == len(self.dead)

    @invariant()
    def no_job_is_lost_or_comes_back(self) -> None:
        live = [record["$seq"] for record in self.machine.engine.diff("q", Diff(limit=1000)).records]
        assert live == sorted(self.jobs)
        assert self._dead_letters() == self.dead
        assert self.produced == len(live) + self.acked + len(self.dead) + self.removed


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
