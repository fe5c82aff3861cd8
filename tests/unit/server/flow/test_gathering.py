"""Small writes of one turn go to the engine together; each is answered as if it were alone."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.durability.engine.test_restart import Machine
from topics.engine import ConfigPatch, Delete, Diff, Engine, Limits, RecordIn, Write
from topics.engine.write.ticket import Ticket
from topics.errors import TopicsError
from topics.server.driver import Driver
from topics.server.flow.admission import Admission
from topics.server.flow.gathering import GATHERED_RECORDS_MAX
from topics.server.flow.pressure import Pressure
from topics.testing import ManualClock
from topics.testing.disk import FaultDisk


class Client:
    """Somebody who writes, and remembers what came of it."""

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


class House:
    """An engine on a disk with a topic `t`, and the way of writes to it."""

    def __init__(self, limits: Limits | None = None, **config: Any) -> None:
        self.machine = Machine()
        self.engine = self.machine.engine
        if limits is not None:
            self.engine.limits = limits
        self.admission = Admission(self.engine, Pressure(), lambda: None)
        self.engine.put_topic("t", ConfigPatch(**config))
        self.machine.settle()

    def write(self, data: Any, topic: str = "t", **fields: Any) -> Client:
        record = {name: fields.pop(name) for name in ("tag", "node", "meta", "delay_ms") if name in fields}
        client = Client()
        write = Write([RecordIn(msgspec.Raw(msgspec.json.encode(data)), **record)], **fields)
        try:
            self.admission.write(topic, write, client.written, client)
        except TopicsError as error:
            client.fail(error)
        return client

    @property
    def frames(self) -> int:
        return self.machine.store.shards[0].frames_total


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_writes_of_a_turn_are_one_frame_and_have_their_own_seqs(durability: str) -> None:
    """HTTP-25: seqs rise in the order of the writes; each answer names its own, once its class is satisfied."""
    house = House(durability=durability)
    house.write(0)
    house.machine.settle()
    before = house.frames
    clients = [house.write(i) for i in range(1, 6)]
    assert not any(client.tickets for client in clients)
    house.machine.settle()
    assert house.frames - before == (0 if durability == "ephemeral" else 1)
    assert [(t.first_seq, t.last_seq, t.count, t.head_seq) for c in clients for t in c.tickets] == [
        (i, i, 1, 6) for i in range(2, 7)
    ]
    records = house.engine.diff("t", Diff()).records
    assert [(record["$seq"], record["data"]) for record in records] == [(i + 1, i) for i in range(6)]
    if durability != "ephemeral":
        house.machine.crash("kill")
        assert house.machine.read("t")[0] == [1, 2, 3, 4, 5, 6]


def test_labels_stay_with_their_records() -> None:
    """HTTP-25: node, tag and meta belong to one record, also where its neighbours have none."""
    house = House()
    house.write(1, tag="a")
    house.write(2)
    house.write(3, node="n", meta=msgspec.Raw(b'{"k":"v"}'))
    house.machine.settle()
    records = house.engine.diff("t", Diff(include_tags=True)).records
    assert [(r.get("$tag"), r.get("meta")) for r in records] == [("a", None), (None, None), (None, {"k": "v"})]
    assert [r["$seq"] for r in house.engine.diff("t", Diff(node="n")).records] == [1, 2]
    assert house.engine.delete("t", Delete(match="a")).result.deleted == 1


def test_write_that_cannot_wait_comes_behind_those_that_do() -> None:
    """CONN-2: one connection's writes keep their order, whatever each of them asks for."""
    house = House()
    first = house.write("first")
    second = house.write("second", idempotency_key="k")
    third = house.write("third")
    house.machine.settle()
    assert [client.tickets[0].first_seq for client in (first, second, third)] == [1, 2, 3]


def test_bad_write_costs_its_neighbours_nothing() -> None:
    """HTTP-25: the error is that of the write at fault, and only of it."""
    house = House(Limits(max_record_bytes=20, max_tag_bytes=4))
    good, large, long, last = house.write(1), house.write("x" * 50), house.write(2, tag="12345"), house.write(3)
    house.machine.settle()
    assert [error.code for client in (large, long) for error in client.errors] == [
        "record_too_large",
        "invalid_request",
    ]
    assert [client.tickets[0].first_seq for client in (good, last)] == [1, 2]


def test_refused_frame_is_told_to_each_and_takes_no_seq() -> None:
    """A shard that takes nothing refuses every write of the turn; no seq is used up."""
    house = House()
    house.write(1)
    house.machine.settle()
    disk = FaultDisk(house.machine.disk)
    house.machine.store.shards[0]._disk = disk
    disk.fail("write")
    lost = [house.write(2), house.write(3)]
    house.engine.turn()
    refused = [house.write(4), house.write(5)]
    house.engine.turn()
    assert [error.status for client in (*lost, *refused) for error in client.errors] == [503] * 4
    assert house.engine.topics["t"].pending == 0
    house.machine.crash("kill")
    assert house.machine.read("t")[0] == [1]


def test_full_queue_makes_gathered_writes_wait_one_by_one() -> None:
    """PRESSURE-5: a write that finds no room waits, and `throttle_wait_ms` reports it."""
    house = House()
    shard = house.machine.store.shards[0]
    limit, shard._queue_bytes_max = shard._queue_bytes_max, 1
    house.engine.write("t", Write.of([0]), on_done=lambda ticket: None)
    clients = [house.write(1), house.write(2)]
    house.engine.prepare()
    assert house.admission.parked == 2
    shard._queue_bytes_max = limit
    house.engine.turn()
    house.admission.pump()
    house.machine.settle()
    assert [client.tickets[0].first_seq for client in clients] == [2, 3]


def test_gathering_is_bounded() -> None:
    """What waits for the end of a turn never grows beyond its bound, however long the turn."""
    house = House()
    clients = [house.write(i) for i in range(GATHERED_RECORDS_MAX + 1)]
    assert len(house.admission.gathering.waiting["t"]) == 1
    house.machine.settle()
    assert all(client.tickets for client in clients)


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
    house = House()
    house.write(1, **fields)
    assert not house.admission.gathering.waiting


def test_topic_that_rejects_looks_at_each_write() -> None:
    """HTTP-25: `discard: reject` refuses the write that does not fit, and no other."""
    house = House(cap_records=2, discard="reject")
    clients = [house.write(i) for i in range(4)]
    house.machine.settle()
    assert [bool(client.tickets) for client in clients] == [True, True, False, False]
    assert {error.code for client in clients[2:] for error in client.errors} == {"topic_full"}


def test_defect_in_writing_together_is_told_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-20: whatever goes wrong is answered, and no client waits for ever."""
    house = House()

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(house.engine, "write_together", broken)
    clients = [house.write(1), house.write(2)]
    house.engine.turn()
    assert [error.code for client in clients for error in client.errors] == ["internal", "internal"]


def test_turns_go_on_behind_one_that_failed() -> None:
    """A defect in what was gathered for one turn costs that turn, not every write from then on."""

    async def scene() -> bool:
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[dict[str, Any]] = loop.create_future()
        loop.set_exception_handler(lambda _, context: failed.set_result(context))
        engine = Engine(ManualClock())
        driver = Driver(engine, loop)

        def fail_once() -> None:
            engine.on_turn = None
            raise ZeroDivisionError

        engine.on_turn = fail_once
        done: asyncio.Future[Ticket] = loop.create_future()
        engine.write("t", Write.of([1]), on_done=lambda _: None)
        await asyncio.wait_for(failed, 10)
        engine.write("t", Write.of([2]), on_done=done.set_result)
        ticket = await asyncio.wait_for(done, 10)
        driver.stop()
        return ticket.error is None and ticket.first_seq == 2

    assert asyncio.run(scene())
