"""Queues across crashes of every kind: no job is lost, none comes back, none is in two places (QUEUE-17, QUEUE-24).

Random claims, acks, nacks, dead letters and forwards, a crash at any of the disk calls they make, and then the books:
on `fsync` every job whose write was acked is in exactly one place: waiting, among the dead letters, or acked.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from tests.durability.engine.test_restart import Machine
from topics.engine import ConfigPatch, Diff, RecordIn, Write
from topics.engine.queue.claim import Claim
from topics.engine.queue.requests import AckJobs, ClaimJobs, NackJobs
from topics.engine.router.router import PutRouter
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.errors import TopicsError
from topics.storage.job import run_inline
from topics.storage.segment.segment import Miss
from topics.testing.disk import DAMAGES, Crashed

SETTINGS = UpkeepSettings(segment_max_events=15, checkpoint_wal_bytes=1 << 40)


class Books:
    """What clients were told, apart from what the engine believes."""

    def __init__(self) -> None:
        self.sent: set[int] = set()
        self.written: set[int] = set()
        self.asked: set[int] = set()
        self.acked: set[int] = set()


class World:
    """A queue with a dead-letter topic, fed directly and by a router, driven at random."""

    def __init__(self, seed: int, durability: str, shards: int) -> None:
        self.rng = random.Random(seed)
        self.machine = Machine(SETTINGS, shards=shards)
        self.books = Books()
        self.serial = 0
        engine = self.machine.engine
        config = {"type": "queue", "durability": durability, "max_deliveries": 2, "dead_letter": "dlq"}
        engine.put_topic("q", ConfigPatch(**config))  # type: ignore[arg-type]
        engine.put_topic("in", ConfigPatch(durability=durability))  # type: ignore[arg-type]
        engine.put_topic("dlq", ConfigPatch(durability=durability))  # type: ignore[arg-type]
        engine.routers.put("in->q", PutRouter("in", "q"))
        self.machine.settle()
        self.held: dict[int, tuple[str, int]] = {}

    def step(self) -> None:
        engine, rng = self.machine.engine, self.rng
        kind = rng.choices(
            ("write", "claim", "ack", "nack", "turn", "sync", "time", "checkpoint"), (6, 8, 6, 5, 6, 6, 1, 1)
        )[0]
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
                engine.queues.nack("q", NackJobs(node, seqs, rng.choice((0, 0, 50))), on_done=lambda receipt: None)
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
            engine.turn()

    def _write(self, topic: str) -> None:
        self.serial += 1
        job = self.serial
        self.books.sent.add(job)

        def done(ticket: Any) -> None:
            if ticket.error is None:
                self.books.written.add(job)

        self.machine.engine.write(topic, Write([RecordIn(msgspec.Raw(b"%d" % job))]), on_done=done)

    def _claimed(self, claim: Claim) -> None:
        for job in claim.claimed:
            self.held[job["$seq"]] = (claim.node, job["data"])

    def _ack(self, node: str, seqs: list[int]) -> None:
        jobs = {seq: self.held[seq][1] for seq in seqs}
        self.books.asked |= set(jobs.values())

        def done(receipt: Any) -> None:
            if receipt.error is None:
                self.books.acked |= {job for seq, job in jobs.items() if seq not in receipt.result.skipped}

        self.machine.engine.queues.ack("q", AckJobs(node, seqs), on_done=done)

    def read(self, topic: str) -> list[int]:
        found: list[int] = []
        from_seq = 0
        while True:
            try:
                got = self.machine.engine.diff(topic, Diff(from_seq=from_seq, limit=1000))
            except Miss as miss:
                run_inline([miss.job])
                continue
            found += [record["data"] for record in got.records]
            from_seq = got.next_from_seq
            if got.caught_up:
                return found

    def check(self, lossless: bool) -> None:
        engine = self.machine.engine
        waiting, dead, source = Counter(self.read("q")), Counter(self.read("dlq")), set(self.read("in"))
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


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("seed", range(12))
def test_every_job_is_in_one_place_after_a_crash(seed: int, durability: str, damage: str) -> None:
    """QUEUE-17, QUEUE-24: no job is lost, none comes back, and a dead-letter move is all or nothing."""
    world = World(seed, durability, shards=1 + seed % 3)
    machine = world.machine
    for _ in range(3):
        machine.disk.crash_at = machine.disk.calls + world.rng.randrange(5, 120)
        try:
            for _ in range(200):
                world.step()
        except Crashed:
            pass
        machine.crash(damage)
        world.held = {}
        lossless = durability == "fsync" or damage == "kill"
        world.check(lossless)
        if not lossless:
            return


@pytest.mark.parametrize("seed", range(6))
def test_everything_produced_ends_acked_or_dead(seed: int) -> None:
    """QUEUE-24: at the end the sum of acked and dead-lettered equals what was produced, and nothing is left."""
    world = World(seed, "fsync", shards=1 + seed % 2)
    machine = world.machine
    for _ in range(4):
        machine.disk.crash_at = machine.disk.calls + world.rng.randrange(5, 150)
        try:
            for _ in range(200):
                world.step()
        except Crashed:
            pass
        machine.crash(world.rng.choice(DAMAGES))
        world.held = {}
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
    assert world.read("q") == []
    assert world.books.written <= done | set(world.read("dlq")) | world.books.asked
