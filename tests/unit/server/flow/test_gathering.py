"""Small writes of one turn go to the engine together; each is answered as if it were alone."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.harness.loop import ManualLoop
from tests.harness.machine import Machine
from topics.engine import ConfigPatch, Delete, Diff, Engine, Limits, RecordIn, Write
from topics.engine.journal import Ticket
from topics.errors import TopicsError
from topics.server.driver import Driver, Wakeup
from topics.server.flow.admission import GATHERED_RECORDS_MAX, Admission
from topics.server.flow.parking import Parking
from topics.server.flow.pressure import Pressure
from topics.testing import ManualClock
from topics.testing.fault_disk import FaultDisk


class Sender:
    """Sends one write, and remembers what came of it."""

    def __init__(self) -> None:
        self.throttled_ns = 0
        self.tickets: list[Ticket] = []
        self.errors: list[TopicsError] = []

    def written(self, ticket: Ticket) -> None:
        if ticket.error is not None:
            self.errors.append(ticket.error)
        else:
            self.tickets.append(ticket)

    def fail(self, error: TopicsError) -> None:
        self.errors.append(error)


class Intake:
    """An engine on a disk with a topic `t`, and the admission that writes to it pass."""

    def __init__(self, limits: Limits | None = None, **config: Any) -> None:
        self.machine = Machine(limits=limits)
        self.engine = self.machine.engine
        loop: Any = ManualLoop(ManualClock())
        self.parking = Parking(loop, self.engine.clock, Pressure())
        self.admission = Admission(self.engine, self.parking, lambda: None)
        self.engine.put_topic("t", ConfigPatch(**config))
        self.run_until_idle()

    def run_until_idle(self) -> None:
        self.admission.flush()
        self.machine.run_until_idle()

    def write(self, data: Any, topic: str = "t", **fields: Any) -> Sender:
        record = {name: fields.pop(name) for name in ("tag", "node", "meta", "delay_ms") if name in fields}
        sender = Sender()
        write = Write([RecordIn(msgspec.Raw(msgspec.json.encode(data)), **record)], **fields)
        try:
            self.admission.write(topic, write, sender.written, sender)
        except TopicsError as error:
            sender.fail(error)
        return sender

    @property
    def frames(self) -> int:
        return self.machine.store.shards[0].frames_total


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_writes_of_a_turn_are_one_frame_and_have_their_own_seqs(durability: str) -> None:
    """HTTP-25: seqs rise in the order of the writes; each answer names its own, once its class is satisfied."""
    intake = Intake(durability=durability)
    intake.write(0)
    intake.run_until_idle()
    before = intake.frames
    senders = [intake.write(i) for i in range(1, 6)]
    assert not any(sender.tickets for sender in senders)
    intake.run_until_idle()
    assert intake.frames - before == (0 if durability == "ephemeral" else 1)
    assert [(t.first_seq, t.last_seq, t.count, t.head_seq) for sender in senders for t in sender.tickets] == [
        (i, i, 1, 6) for i in range(2, 7)
    ]
    records = intake.engine.diff("t", Diff()).records
    assert [(record["$seq"], record["data"]) for record in records] == [(i + 1, i) for i in range(6)]
    if durability != "ephemeral":
        intake.machine.crash("kill")
        assert intake.machine.read("t")[0] == [1, 2, 3, 4, 5, 6]


def test_labels_stay_with_their_records() -> None:
    """HTTP-25: node, tag and meta belong to one record, also where its neighbours have none."""
    intake = Intake()
    intake.write(1, tag="a")
    intake.write(2)
    intake.write(3, node="n", meta=msgspec.Raw(b'{"k":"v"}'))
    intake.run_until_idle()
    records = intake.engine.diff("t", Diff(include_tags=True)).records
    assert [(r.get("$tag"), r.get("meta")) for r in records] == [("a", None), (None, None), (None, {"k": "v"})]
    assert [r["$seq"] for r in intake.engine.diff("t", Diff(node="n")).records] == [1, 2]
    assert intake.engine.delete("t", Delete(match="a")).result.deleted == 1


def test_write_that_cannot_wait_comes_after_those_that_do() -> None:
    """CONN-2: one connection's writes keep their order, whatever each of them asks for."""
    intake = Intake()
    first = intake.write("first")
    second = intake.write("second", idempotency_key="k")
    third = intake.write("third")
    intake.run_until_idle()
    assert [sender.tickets[0].first_seq for sender in (first, second, third)] == [1, 2, 3]


def test_bad_write_costs_its_neighbours_nothing() -> None:
    """HTTP-25: the error is that of the write at fault, and only of it."""
    intake = Intake(Limits(max_record_bytes=20, max_tag_bytes=4))
    good, large, long, last = intake.write(1), intake.write("x" * 50), intake.write(2, tag="12345"), intake.write(3)
    intake.run_until_idle()
    assert [error.code for sender in (large, long) for error in sender.errors] == [
        "record_too_large",
        "invalid_request",
    ]
    assert [sender.tickets[0].first_seq for sender in (good, last)] == [1, 2]


def test_refused_frame_is_reported_to_each_and_takes_no_seq() -> None:
    """A shard that takes nothing refuses every write of the turn; no seq is used up."""
    intake = Intake()
    intake.write(1)
    intake.run_until_idle()
    disk = FaultDisk(intake.machine.disk)
    intake.machine.store.shards[0]._disk = disk
    disk.fail("write")
    lost = [intake.write(2), intake.write(3)]
    intake.admission.flush()
    intake.engine.turn()
    refused = [intake.write(4), intake.write(5)]
    intake.admission.flush()
    intake.engine.turn()
    assert [error.status for sender in (*lost, *refused) for error in sender.errors] == [503] * 4
    assert intake.engine.topics["t"].pending_records == 0
    intake.machine.crash("kill")
    assert intake.machine.read("t")[0] == [1]


def test_full_queue_makes_gathered_writes_wait_one_by_one() -> None:
    """PRESSURE-5: a write that finds no room waits, and `throttle_wait_ms` reports it."""
    intake = Intake()
    shard = intake.machine.store.shards[0]
    limit, shard._queue_bytes_max = shard._queue_bytes_max, 1
    intake.engine.write("t", Write.of([0]), on_done=lambda ticket: None)
    senders = [intake.write(1), intake.write(2)]
    intake.admission.flush()
    intake.engine.prepare()
    assert len(intake.parking.waiting) == 2
    shard._queue_bytes_max = limit
    intake.admission.flush()
    intake.engine.turn()
    intake.parking.pump()
    intake.run_until_idle()
    assert [sender.tickets[0].first_seq for sender in senders] == [2, 3]


def test_gathering_is_bounded() -> None:
    """What waits for the end of a turn never grows beyond its bound, however long the turn."""
    intake = Intake()
    senders = [intake.write(i) for i in range(GATHERED_RECORDS_MAX + 1)]
    assert len(intake.admission.gathered["t"]) == 1
    intake.run_until_idle()
    assert all(sender.tickets for sender in senders)


@pytest.mark.parametrize(
    "fields",
    [
        {"idempotency_key": "k"},
        {"producer_id": "p", "producer_seq": 1},
        {"expected_head_seq": 0},
        {"topic": "fresh"},
    ],
)
def test_write_that_asks_for_more_is_taken_alone(fields: dict[str, Any]) -> None:
    """Keys, conditions and topics that have to be created are looked at in the order of the writes."""
    intake = Intake()
    intake.write(1, **fields)
    assert not intake.admission.gathered


def test_topic_that_rejects_looks_at_each_write() -> None:
    """HTTP-25: `discard: reject` refuses the write that does not fit, and no other."""
    intake = Intake(cap_records=2, discard="reject")
    senders = [intake.write(i) for i in range(4)]
    intake.run_until_idle()
    assert [bool(sender.tickets) for sender in senders] == [True, True, False, False]
    assert {error.code for sender in senders[2:] for error in sender.errors} == {"topic_full"}


def test_defect_in_writing_together_is_reported_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-20: whatever goes wrong is answered, and no client waits for ever."""
    intake = Intake()

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(intake.engine, "write_together", broken)
    senders = [intake.write(1), intake.write(2)]
    intake.admission.flush()
    intake.engine.turn()
    assert [error.code for sender in senders for error in sender.errors] == ["internal", "internal"]


def test_turns_go_on_after_one_that_failed() -> None:
    """A defect in what was gathered for one turn costs that turn, not every write from then on."""

    async def scene() -> bool:
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[dict[str, Any]] = loop.create_future()
        loop.set_exception_handler(lambda _, context: failed.set_result(context))
        wakeup = Wakeup(loop)
        engine = Engine(ManualClock(), wake=wakeup.wake)
        flushes = iter(range(2))

        def fail_once() -> None:
            if next(flushes, 1) == 0:
                raise ZeroDivisionError

        driver = Driver(loop, wakeup, engine, fail_once)
        done: asyncio.Future[Ticket] = loop.create_future()
        engine.write("t", Write.of([1]), on_done=lambda _: None)
        await asyncio.wait_for(failed, 10)
        engine.write("t", Write.of([2]), on_done=done.set_result)
        ticket = await asyncio.wait_for(done, 10)
        driver.stop()
        return ticket.error is None and ticket.first_seq == 2

    assert asyncio.run(scene())
