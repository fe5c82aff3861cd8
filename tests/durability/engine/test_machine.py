"""A state machine over everything that clients, time, upkeep and misfortune do to a durable engine, against a model.

Unlike the sweep, which ends the world at every point of one path, this looks for a path: Hypothesis chooses what
happens next, and shrinks what breaks to the shortest story. After each step the engine shows exactly what the plain
model of tests.harness.model says; after each crash the oracle judges.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from hypothesis import Phase, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from msgspec import Raw

from tests.harness.machine import small
from tests.harness.model import ModelRecord
from tests.harness.oracle import Broken, read_all, text
from tests.harness.storage import resolve
from tests.harness.world import CLASSES, PATCHES, World
from topics.engine import ConfigPatch, Delete, RecordIn, Write
from topics.engine.log.log import Log
from topics.engine.queue.claim import Claim
from topics.engine.queue.requests import AckJobs, ClaimJobs, NackJobs
from topics.engine.restart.derivation import Derivation
from topics.engine.restart.recovery import Recovery
from topics.engine.router.router import PutRouter
from topics.errors import TopicsError
from topics.testing.fake_disk import DAMAGES, Damage

NAMES = strategies.sampled_from(["capped", "capped", "common", "mixed", "kept", "scratch", "passing"])
TAGS = strategies.sampled_from([None, "a", "ab", "b"])


class DurableEngine(RuleBasedStateMachine):
    """One world; each rule is something that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._stack.enter_context(small())
        self.world = World()

    def teardown(self) -> None:
        """Let the next example begin as this one did."""
        self._stack.close()

    @rule(
        name=NAMES,
        n=strategies.sampled_from([1, 5, 13]),
        tag=TAGS,
        size=strategies.sampled_from([0, 0, 700]),
        waits=strategies.booleans(),
    )
    def write(self, name: str, n: int, tag: str | None, size: int, waits: bool) -> None:
        """A client writes, and may wait for the ack."""
        self.world.write(name, n, tag=tag, size=size, **CLASSES[name])
        if waits:
            self.world.run_until_idle()

    @rule(name=NAMES, n=strategies.sampled_from([5, 13]), tag=TAGS)
    def write_and_wait(self, name: str, n: int, tag: str | None) -> None:
        """What clients mostly do."""
        self.write(name, n, tag, 0, True)

    @rule(name=NAMES, key=strategies.sampled_from(["k1", "k2"]))
    def write_with_a_key(self, name: str, key: str) -> None:
        """A client writes, or repeats itself."""
        self.world.write(name, 1, key=key, **CLASSES[name])

    @rule(name=NAMES, back=strategies.integers(0, 20))
    def delete_below(self, name: str, back: int) -> None:
        """A client deletes by seq."""
        if name in self.world.engine.topics:
            self.world.delete(name, max(0, self.world.engine.topics[name].log.head - back))

    @rule(name=NAMES, n=strategies.sampled_from([2, 5]), damage=strategies.sampled_from(DAMAGES))
    def delete_and_crash(self, name: str, n: int, damage: Damage) -> None:
        """The last thing that a client heard of is a delete."""
        self.write(name, n, None, 0, True)
        self.delete_below(name, 0)
        self.world.run_until_idle()
        self.world.crash(damage)

    @rule(name=NAMES, tag=strategies.sampled_from(["a", "ab", "b"]), glob=strategies.booleans())
    def delete_by_tag(self, name: str, tag: str, glob: bool) -> None:
        """A client deletes by tag."""
        self.world.delete(name, tag=tag, glob=glob)

    @rule(name=NAMES, patch=strategies.sampled_from(PATCHES))
    def configure(self, name: str, patch: dict[str, Any]) -> None:
        """An operator changes retention."""
        self.world.put(name, **patch)

    @rule(durability=strategies.sampled_from(["memory", "disk", "fsync"]))
    def change_class(self, durability: str) -> None:
        """An operator changes the class of a topic."""
        self.world.put("mixed", durability=durability)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        """An operator deletes a topic."""
        self.world.drop(name)

    @rule(ms=strategies.sampled_from([1, 60, 6000]))
    def wait(self, ms: int) -> None:
        """Time passes."""
        self.world.clock.advance(ms)

    @rule()
    def turn(self) -> None:
        """The loop turns."""
        self.world.turn()

    @rule(index=strategies.integers(0, 5))
    def run_job(self, index: int) -> None:
        """The disk does something."""
        self.world.run_job(index)

    @rule(index=strategies.integers(0, 5))
    def finish_job(self, index: int) -> None:
        """The engine hears of it."""
        self.world.finish_job(index)

    @rule()
    def idle(self) -> None:
        """Everything that is due is done."""
        self.world.run_until_idle()

    @rule()
    def checkpoint(self) -> None:
        """A whole checkpoint."""
        self.world.checkpoint()

    @rule(damage=strategies.sampled_from(DAMAGES))
    def crash(self, damage: Damage) -> None:
        """The world ends, and begins again."""
        self.world.crash(damage)

    @rule()
    def stop(self) -> None:
        """An orderly stop and a start."""
        self.world.stop()

    @invariant()
    def shows_what_the_model_says(self) -> None:
        """The same records and floors as the model, at every step."""
        world = self.world
        for name, topic in world.engine.topics.items():
            if name in world.oracle.derived:
                continue
            model = world.oracle.instance(topic).model
            model.expire(world.clock.now_ms())
            records, gaps = read_all(world.engine, name)
            if records != model.live:
                raise Broken(f"topic {name} shows {sorted(records)}, the model {sorted(model.live)}")
            log = topic.log
            shown = (log.head, log.start, log.evict_floor, log.count, log.bytes)
            expected = (model.head, model.earliest_seq, model.evict_floor, len(model.live), model.bytes)
            if shown != expected:
                raise Broken(f"topic {name} has {shown}, the model {expected}, gaps {gaps}")


class WholeEngine(DurableEngine):
    """The same with a router and a queue, whose topics hold what follows from others.

    Whatever a reader has seen of them, all of it `fsync`, stays as it was through everything that can happen, and a job
    is in one place: waiting, among the dead letters, or acked.
    """

    def __init__(self) -> None:
        super().__init__()
        world = self.world
        world.oracle.derived = {"origin", "copy", "jobs", "dead"}
        for name in ("origin", "copy", "dead"):
            world.engine.put_topic(name, ConfigPatch(durability="fsync"))
        queue: dict[str, Any] = {"type": "queue", "durability": "fsync", "max_deliveries": 1, "dead_letter": "dead"}
        world.engine.put_topic("jobs", ConfigPatch(**queue))
        world.engine.routers.put("origin->copy", PutRouter("origin", "copy"))
        world.engine.routers.put("origin->jobs", PutRouter("origin", "jobs"))
        world.run_until_idle()
        self.seen: dict[str, dict[int, ModelRecord]] = {"origin": {}, "copy": {}, "dead": {}}
        self.written: set[bytes] = set()
        self.asked: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.held: dict[int, bytes] = {}
        self.serial = 0

    @rule(name=strategies.sampled_from(["origin", "copy", "jobs"]), n=strategies.sampled_from([1, 5, 13]))
    def write_derived(self, name: str, n: int) -> None:
        """A client writes to a source, or straight into a destination."""
        datas = [b"%d" % (self.serial + i) for i in range(n)]
        self.serial += n

        def done(ticket: Any) -> None:
            if ticket.error is None and name == "jobs":
                self.written |= set(datas)

        self.world.engine.write(name, Write([RecordIn(Raw(data)) for data in datas]), done)

    @rule(count=strategies.integers(1, 6))
    def claim(self, count: int) -> None:
        """A worker takes jobs."""

        def done(claim: Claim) -> None:
            self.held |= {job["$seq"]: text(job["data"]) for job in claim.claimed}

        self._patiently(lambda: self.world.engine.queues.claim("jobs", ClaimJobs("w", count), done))

    @rule(count=strategies.integers(1, 4), fails=strategies.booleans())
    def finish(self, count: int, fails: bool) -> None:
        """A worker is done with jobs, or gives them up."""
        seqs = sorted(self.held)[:count]
        if not seqs:
            return
        jobs = {seq: self.held.pop(seq) for seq in seqs}
        queues = self.world.engine.queues
        if fails:
            self._patiently(lambda: queues.nack("jobs", NackJobs("w", seqs), lambda receipt: None))
            return
        self.asked |= set(jobs.values())

        def done(receipt: Any) -> None:
            if receipt.error is None:
                self.acked |= {job for seq, job in jobs.items() if seq not in receipt.result.skipped}

        self._patiently(lambda: queues.ack("jobs", AckJobs("w", seqs), done))

    @rule(waits=strategies.booleans())
    def fail_a_job(self, waits: bool) -> None:
        """A job is given up as often as it may be, and goes to the dead letters."""
        self.write_derived("jobs", 1)
        for _ in range(2):
            self.world.run_until_idle()
            self.claim(1)
            self.world.run_until_idle()
            self.finish(1, True)
        self.claim(1)
        if waits:
            self.world.run_until_idle()

    @staticmethod
    def _patiently(command: Callable[[], object]) -> None:
        with suppress(TopicsError):
            resolve(command)

    @rule(back=strategies.integers(0, 20))
    def trim_the_source(self, back: int) -> None:
        """A client deletes what has been forwarded, or not yet."""
        before = max(1, self.world.engine.topics["origin"].log.head - back)
        self._patiently(lambda: self.world.engine.delete("origin", Delete(before_seq=before), lambda receipt: None))
        self.seen["origin"] = {}

    @invariant()
    def keeps_what_was_seen(self) -> None:
        """A copy or a dead letter that a reader saw is there for good, at its seq."""
        engine = self.world.engine
        for name, seen in self.seen.items():
            records, gaps = read_all(engine, name)
            changed = {seq: records.get(seq) for seq in seen if records.get(seq) != seen[seq]}
            # A loss of power may take a write that was never acknowledged, and leave one after it: that is a gap.
            if changed:
                raise Broken(f"{name}: {changed} were {[seen[seq] for seq in changed]}; gaps {gaps}")
            seen |= records

    @invariant()
    def has_each_job_in_one_place(self) -> None:
        """Waiting, dead or acked."""
        engine = self.world.engine
        waiting = [record.data for record in read_all(engine, "jobs")[0].values()]
        dead = [record.data for record in read_all(engine, "dead")[0].values()]
        places = waiting + dead
        if len(places) != len(set(places)):
            raise Broken(f"a job is there twice: {sorted(places)}")
        back = self.acked & set(places)
        if back:
            raise Broken(f"acked jobs are back: {back}")
        gone = self.written - self.asked - set(places)
        # A dead letter is shown once its move is synced.
        if gone and not engine.topics["dead"].pending_records:
            raise Broken(f"jobs are gone: {gone}")


# `make crash-sweep` asks for more.
EXAMPLES = int(os.environ.get("TOPICS_MACHINE_EXAMPLES", "60"))
STEADY = settings(max_examples=max(150, EXAMPLES), stateful_step_count=50)
WHOLE = settings(max_examples=EXAMPLES, stateful_step_count=50)
# What a planted bug must be found within; the shortest story is of no interest there.
BRIEF = settings(max_examples=300, stateful_step_count=50, phases=[Phase.generate], report_multiple_bugs=False)


def test_durable_engine_agrees_with_the_model_whatever_happens() -> None:
    """DURABLE-13: writes, deletes, TTL, caps, seals, restarts and crashes against the model."""
    run_state_machine_as_test(DurableEngine, settings=STEADY)


def test_durable_engine_with_routers_and_queues_agrees_whatever_happens() -> None:
    """ROUTER-15, QUEUE-24: destination seqs and content survive, and no job is lost, doubled or back."""
    run_state_machine_as_test(WholeEngine, settings=WHOLE)


def test_machine_finds_a_cap_that_takes_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROOF-1: for each instrument a planted bug that it catches."""
    evict = Log.evict
    monkeypatch.setattr(Log, "evict", lambda self, records, size: evict(self, max(0, records - 1), size))
    with pytest.raises(Broken):
        run_state_machine_as_test(DurableEngine, settings=BRIEF)


def test_machine_finds_a_restart_that_forgets_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROOF-1: for each instrument a planted bug that it catches."""
    control = Recovery._control

    def forgetful(self: Recovery, event: Any) -> None:
        if event.kind != 5:
            control(self, event)

    monkeypatch.setattr(Recovery, "_control", forgetful)
    with pytest.raises(Broken):
        run_state_machine_as_test(DurableEngine, settings=BRIEF)


def test_machine_finds_a_restart_that_forgets_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROOF-1: for each instrument a planted bug that it catches."""
    monkeypatch.setattr(Derivation, "_bury", lambda self, topic, buried: None)
    with pytest.raises(Broken):
        run_state_machine_as_test(WholeEngine, settings=BRIEF)
