"""DELETE-10: a delete that takes many turns is one that happens in a moment, whatever happens in between.

The engine is on a fake disk and a clock by which every piece of a delete takes a turn of its own. Writes, seals, caps,
acks and other deletes come between. After every turn a reader sees what the model has, to which a delete happens at
once: in the turn in which its result is there.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec import Raw

from tests.harness.machine import HastyClock, Machine
from tests.harness.model import ModelRecord, ModelTopic
from topics.engine import ConfigPatch, Delete, RecordIn, Write
from topics.engine.journal import Ticket
from topics.engine.promise import Receipt
from topics.engine.queue.requests import AckJobs, ClaimJobs
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.errors import TopicNotFound
from topics.storage.job import Job

TAGS = ("a", "a:1", "a:2", "b", None)


class Bustle:
    """A topic in which everything happens between the pieces of its deletes."""

    def __init__(self, seed: int, **config: Any) -> None:
        self.rng = random.Random(seed)
        settings = UpkeepSettings(segment_max_events=40, checkpoint_wal_bytes=1 << 40)
        self.machine = Machine(settings, clock=HastyClock())
        self.engine = self.machine.engine
        self.engine.put_topic("t", ConfigPatch(**config))
        self.model = ModelTopic()
        self.model.cap_records = config.get("cap_records", 0)
        self.jobs: list[Job] = []
        self.deleting: list[tuple[Receipt, int, str | None, bool]] = []
        self.turns = 0

    def write(self) -> None:
        n = self.rng.choice((1, 1, 7, 30))
        tags = [self.rng.choice(TAGS) for _ in range(n)]
        ts = max(self.machine.clock.now_ms(), self.model.last_ts)
        records = [ModelRecord(ts, b"%d" % i, tag) for i, tag in enumerate(tags)]

        def shown(_: Ticket) -> None:
            self.note()
            self.model.write(records)

        self.engine.write("t", Write([RecordIn(Raw(record.data), tag=record.tag) for record in records]), shown)

    def fill(self) -> None:
        for _ in range(30):
            self.write()
        self.machine.run_until_idle()

    def delete(self) -> None:
        tag, glob = self.rng.choice((("a", True), ("a", False), ("a:1", False), ("", True), (None, False)))
        head = self.model.head
        before_seq = self.rng.randrange(1, head + 10) if tag is None or self.rng.random() < 0.3 else head + 1
        match = None if tag is None else ["tag", "Glob" if glob else "Eq", f"{tag}*" if glob else tag]
        request = Delete(before_seq=before_seq, match=match)
        receipt = self.engine.delete("t", request, id)
        self.deleting.append((receipt, min(before_seq, head + 1), tag, glob))
        self.note()

    def claim_and_ack(self) -> None:
        if self.engine.topics["t"].queue is not None:
            claim = self.engine.queues.claim("t", ClaimJobs("w", 5), id)
            seqs = [lease.seq for lease in claim.leased.leases]
            if seqs:
                self.engine.queues.ack("t", AckJobs("w", seqs[::2]), id)
                for seq in seqs[::2]:
                    self.model.live.pop(seq, None)
                self.turn()

    def turn(self) -> None:
        self.turns += 1
        self.engine.prepare()
        self.engine.turn()
        self.note()
        self.machine.upkeep.step()
        self.jobs += self.machine.store.jobs()

    def run_job(self) -> None:
        if self.jobs:
            job = self.jobs.pop(self.rng.randrange(len(self.jobs)))
            job.run()
            job.done(None)

    def note(self) -> None:
        """Let the deletes that have taken effect by now happen in the model."""
        for each in list(self.deleting):
            receipt, before_seq, tag, glob = each
            assert receipt.error is None
            if receipt.result is not None:
                self.deleting.remove(each)
                assert receipt.result.deleted == self.model.delete(before_seq, tag, glob), each

    def check(self) -> None:
        log = self.engine.topics["t"].log
        visible = self.machine.visible("t")
        assert list(visible) == list(self.model.live)
        assert (log.count, log.bytes) == (len(self.model.live), sum(r.size_bytes for r in self.model.live.values()))
        assert (log.start, log.head) == (self.model.earliest_seq, self.model.head)

    def finish(self) -> None:
        while self.deleting or self.jobs or self.engine.slices.active:
            self.turn()
            self.run_job()
            self.check()


@pytest.mark.parametrize(
    "config", [{}, {"cap_records": 150}, {"durability": "ephemeral"}], ids=["plain", "cap", "memory"]
)
@pytest.mark.parametrize("seed", range(12))
def test_sliced_delete_is_atomic_whatever_comes_between(seed: int, config: dict[str, Any]) -> None:
    """DELETE-10: all of it is there or nothing, `deleted` is exact, and two deletes take nothing twice."""
    bustle = Bustle(seed, **config)
    under_way = 0
    for _ in range(120):
        dice = bustle.rng.random()
        if dice < 0.25:
            bustle.write()
        elif dice < 0.35:
            bustle.delete()
        elif dice < 0.75:
            bustle.turn()
        else:
            bustle.run_job()
        under_way += bool(bustle.deleting)
        bustle.check()
    bustle.finish()
    assert under_way > 15, "nothing came between the pieces"


@pytest.mark.parametrize("seed", range(6))
def test_sliced_delete_in_a_queue(seed: int) -> None:
    """DELETE-10: jobs are claimed and acked between the pieces, and the counters are those of what is left."""
    bustle = Bustle(seed, type="queue")
    for _ in range(100):
        dice = bustle.rng.random()
        if dice < 0.25:
            bustle.write()
        elif dice < 0.33:
            bustle.delete()
        elif dice < 0.45:
            bustle.claim_and_ack()
        elif dice < 0.8:
            bustle.turn()
        else:
            bustle.run_job()
        bustle.check()
    bustle.finish()
    state = bustle.engine.state("t")
    assert state.queue.ready + state.queue.in_flight == state.count == len(bustle.model.live)


def test_topic_is_deleted_under_a_sliced_delete() -> None:
    """DELETE-10: a topic that goes while records of it are being deleted is not found."""
    bustle = Bustle(1)
    bustle.fill()
    receipt = bustle.engine.delete("t", Delete(match=["tag", "Glob", "a*"]), id)
    assert not receipt.done
    bustle.engine.delete_topic("t", on_done=id)
    while not receipt.done:
        bustle.engine.turn()
    assert isinstance(receipt.error, TopicNotFound)


def test_delete_takes_what_there_was_when_it_was_called() -> None:
    """DELETE-7: what is written while it is under way stays."""
    bustle = Bustle(1)
    bustle.fill()
    receipt = bustle.engine.delete("t", Delete(match=["tag", "Glob", "*"]), id)
    head = bustle.model.head
    bustle.engine.write("t", Write([RecordIn(Raw(b"1"), tag="a")]), id)
    while not receipt.done:
        bustle.engine.turn()
    tagged = {seq for seq, record in bustle.machine.visible("t").items() if record[2] is not None}
    assert tagged == {head + 1}
