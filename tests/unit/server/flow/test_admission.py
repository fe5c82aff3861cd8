"""Writes under pressure: waiting, 429, and opting out (the PRESSURE rules)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.api import Reply
from tests.harness.connection import Client
from tests.harness.machine import Machine, numbers, uncached
from tests.harness.server import ManualServer
from topics.engine import ConfigPatch, Engine, Limits, Write
from topics.engine.router.router import PutRouter
from topics.engine.write import room
from topics.engine.write.room import CopiesBehind
from topics.errors import TopicsError
from topics.server.flow.parking import OPTED_OUT_WAIT_MS_MAX, PARKED_MAX, WAIT_MS_MAX, Parked
from topics.server.flow.pressure import REFUSE_WRITES
from topics.storage.wal.shard import QueueFull
from topics.testing import ManualClock


@pytest.fixture
def manual() -> ManualServer:
    return ManualServer()


def only(client: Client) -> tuple[Reply, Any]:
    (reply,) = client.replies()
    return reply, json.loads(reply.body)


def test_calm_writes_do_not_wait(manual: ManualServer) -> None:
    reply, body = only(manual.post())
    assert reply.status == 201
    assert body["performance"]["throttle_wait_ms"] == 0.0


def test_overload_is_429_with_retry_after(manual: ManualServer) -> None:
    """PRESSURE-2."""
    manual.overload()
    client = manual.post()
    assert client.replies() == []
    manual.loop.advance(WAIT_MS_MAX + 50)
    reply, body = only(client)
    assert reply.status == 429
    assert body["error"]["code"] == "throttled"
    assert body["error"]["detail"]["retry_after_ms"] >= 250
    assert int(reply.headers["retry-after"]) >= 1
    assert "limit" not in body["error"]["detail"], "that is what tells it from a resource cap"
    assert "t" not in manual.engine.topics, "nothing of a refused write is there"


def test_wait_that_helps_is_reported_in_the_answer(manual: ManualServer) -> None:
    """PRESSURE-4."""
    manual.overload()
    client = manual.post()
    manual.loop.advance(200)
    manual.calm()
    manual.loop.advance(50)
    reply, body = only(client)
    assert reply.status == 201
    assert 200 <= body["performance"]["throttle_wait_ms"] <= 300


def test_opted_out_writes_are_admitted(manual: ManualServer) -> None:
    """PRESSURE-3."""
    manual.overload()
    client = manual.post(disable_backpressure=True)
    manual.loop.advance(10)
    reply, body = only(client)
    assert reply.status == 201
    assert body["first_seq"] == 1


def test_full_storage_queue_makes_writers_wait_in_order(manual: ManualServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRESSURE-5."""
    manual.post()
    shard = manual.engine.store.shard_of(1)
    submit, full = shard.submit, True

    def refuse_while_full(*args: Any) -> None:
        if full:
            raise QueueFull(retry_after_ms=100)
        submit(*args)

    monkeypatch.setattr(shard, "submit", refuse_while_full)
    plain, patient, later = (
        manual.post(),
        manual.post(disable_backpressure=True),
        manual.post(disable_backpressure=True),
    )
    manual.loop.advance(WAIT_MS_MAX + 50)
    assert only(plain)[0].status == 429
    assert patient.replies() == []
    full = False
    manual.loop.advance(50)
    assert [only(client)[1]["first_seq"] for client in (patient, later)] == [2, 3]
    full = True
    never = manual.post(disable_backpressure=True)
    manual.loop.advance(OPTED_OUT_WAIT_MS_MAX + 50, step_ms=100)
    assert only(never)[0].status == 429


def test_parking_is_bounded(manual: ManualServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every queue has a bound: the one too many is refused at once."""
    manual.overload()
    monkeypatch.setattr("topics.server.flow.parking.PARKED_MAX", 2)
    waiting = [manual.post() for _ in range(2)]
    assert only(manual.post())[0].status == 429
    assert all(client.replies() == [] for client in waiting)
    assert PARKED_MAX > 2


def test_levels_reach_everybody(manual: ManualServer) -> None:
    """The ladder: coalesce, widen commits, pause low priority, refuse writes; and back."""
    assembly = manual.assembly
    wakeup = assembly.driver._wakeup
    seen = set()
    for _ in range(20):
        assembly.governor.observe(5_000.0)
        seen.add((assembly.delivery.level, wakeup._window_s > 0, assembly.parking.shut))
    assert seen == {(1, False, False), (2, True, False), (3, True, False), (4, True, True)}
    manual.calm()
    assert (assembly.delivery.level, wakeup._window_s, assembly.parking.shut) == (0, 0.0, False)


def test_governor_measures_how_late_it_is(manual: ManualServer) -> None:
    """Pressure comes from loop lag, ten times a second."""
    manual.assembly.governor.start()
    for _ in range(30):
        manual.clock.advance(3_000)
        manual.loop.turn()
    assert manual.assembly.pressure.level == 4
    manual.loop.advance(8_000, step_ms=100)
    assert manual.assembly.pressure.level == 0
    manual.assembly.governor.stop()


def claim(manual: ManualServer) -> Client:
    return manual.send("POST", "/v0/topics/q/claim", {"node": "w"})


def test_claim_waits_under_pressure_and_is_then_429(manual: ManualServer) -> None:
    """PRESSURE-2: `429 throttled`, and `throttle_wait_ms` in its performance."""
    manual.engine.put_topic("q", ConfigPatch(type="queue"))
    manual.engine.write("q", Write.of([1]))
    manual.overload()
    client = claim(manual)
    assert client.replies() == []
    manual.loop.advance(WAIT_MS_MAX + 50)
    reply, body = only(client)
    assert reply.status == 429
    assert body["error"]["detail"]["retry_after_ms"] >= 250
    client = claim(manual)
    manual.loop.advance(50)
    manual.calm()
    manual.loop.advance(50)
    reply, body = only(client)
    assert (reply.status, body["count"]) == (200, 1)
    assert body["performance"]["throttle_wait_ms"] >= 50


def test_claim_whose_client_goes_away_under_pressure_leases_nothing(manual: ManualServer) -> None:
    """PRESSURE-2: no job is leased to a client that is gone."""
    manual.engine.put_topic("q", ConfigPatch(type="queue"))
    manual.engine.write("q", Write.of([1]))
    manual.overload()
    client = claim(manual)
    client.lose()
    manual.calm()
    manual.loop.advance(100)
    state = manual.engine.state("q").queue
    assert (state.ready, state.in_flight) == (1, 0)  # type: ignore[union-attr]


def test_work_stream_is_refused_under_pressure_and_acks_are_not(manual: ManualServer) -> None:
    """PRESSURE-6."""
    manual.engine.put_topic("q", ConfigPatch(type="queue"))
    manual.engine.write("q", Write.of([1]))
    claim(manual)
    manual.overload()
    client = manual.send("GET", "/v0/topics/q/work?node=w", None, "Accept: text/event-stream")
    assert only(client)[0].status == 429
    client = manual.send("POST", "/v0/topics/q/ack", {"node": "w", "seqs": [1]})
    manual.loop.advance(10)
    reply, answer = only(client)
    assert (reply.status, answer["acked"]) == (200, 1)


LARGE = [{"data": "x" * 500}] * 40


def fill_memory(manual: ManualServer, part: float = 1.0) -> int:
    """As if so much of the bound were not sealed yet."""
    bound = manual.engine.limits.max_unsealed_bytes
    manual.engine.totals.unsealed.bytes = round(bound * part)
    return bound


def write(manual: ManualServer, topic: str, records: list[Any], **fields: Any) -> Client:
    return manual.send("POST", f"/v0/topics/{topic}", {"records": records, **fields})


def test_large_write_waits_where_too_much_is_not_sealed_and_is_then_429(manual: ManualServer) -> None:
    """PRESSURE-8."""
    bound = fill_memory(manual)
    client = write(manual, "t", LARGE)
    assert client.replies() == []
    manual.loop.advance(WAIT_MS_MAX + 50)
    reply, body = only(client)
    assert reply.status == 429
    assert int(reply.headers["retry-after"]) >= 1
    detail = body["error"]["detail"]
    assert (detail["limit"], detail["max"]) == ("max_unsealed_bytes", bound)
    assert "t" not in manual.engine.topics, "nothing of a refused write is there"


def test_write_that_would_fill_the_memory_waits_and_small_ones_do_not(manual: ManualServer) -> None:
    """PRESSURE-8: what one client writes at once leaves room for what the others write."""
    bound = fill_memory(manual)
    manual.engine.totals.unsealed.bytes = bound - (1 << 20)
    large = write(manual, "t", [{"data": "x" * 64_000}] * 40)
    manual.loop.advance(100)
    assert large.replies() == []
    assert only(write(manual, "small", [{"data": 1}]))[0].status == 201
    fill_memory(manual, 0.9)
    manual.loop.advance(20)
    assert only(large)[0].status == 201


def test_large_write_goes_on_as_soon_as_there_is_room(manual: ManualServer) -> None:
    """PRESSURE-8, PRESSURE-4."""
    fill_memory(manual)
    client = write(manual, "t", LARGE)
    manual.loop.advance(100)
    fill_memory(manual, 0.9)
    manual.loop.advance(20)
    reply, body = only(client)
    assert reply.status == 201
    assert body["performance"]["throttle_wait_ms"] >= 100


def test_room_is_given_to_as_many_as_it_takes(manual: ManualServer) -> None:
    """PRESSURE-8: what is on its way to the log counts, so that those that waited do not all go on at once."""
    fill_memory(manual)
    clients = [write(manual, "t", LARGE) for _ in range(5)]
    bound = manual.engine.limits.max_unsealed_bytes
    manual.engine.totals.unsealed.bytes = bound - 30_000
    manual.assembly.parking.pump()
    assert len(manual.assembly.parking.waiting) == 3, "two are on their way, and with them it is full"
    manual.loop.run_until_idle()
    assert [len(client.replies()) for client in clients] == [1, 1, 0, 0, 0]


def test_opted_out_write_waits_longer_where_too_much_is_not_sealed(manual: ManualServer) -> None:
    """PRESSURE-3, PRESSURE-8: memory is no matter of politeness."""
    fill_memory(manual)
    client = write(manual, "t", LARGE, disable_backpressure=True)
    manual.loop.advance(WAIT_MS_MAX + 500)
    assert client.replies() == []
    fill_memory(manual, 0.5)
    manual.loop.advance(50)
    assert only(client)[0].status == 201


def test_small_writes_pass_those_that_wait_but_not_in_their_own_topic(manual: ManualServer) -> None:
    """PRESSURE-8: a bystander does not wait for the room that others have filled."""
    for topic in ("t", "other"):
        assert only(write(manual, topic, [{"data": 1}]))[0].status == 201
    fill_memory(manual)
    large = write(manual, "t", LARGE)
    behind = write(manual, "t", [{"data": 2}])
    other = write(manual, "other", [{"data": 3}])
    assert only(other)[0].status == 200
    assert large.replies() == behind.replies() == []
    fill_memory(manual, 0.5)
    manual.loop.advance(50)
    assert only(large)[1]["first_seq"] == 2
    assert only(behind)[1]["first_seq"] == 42


def test_small_writes_wait_too_where_there_is_far_too_much(manual: ManualServer) -> None:
    """PRESSURE-8: the bound is one also for many small writes."""
    only(manual.post())
    fill_memory(manual, 1.2)
    client = manual.post()
    manual.loop.advance(WAIT_MS_MAX + 50)
    assert only(client)[0].status == 429


def test_ephemeral_writes_do_not_wait_for_the_sealer(manual: ManualServer) -> None:
    """PRESSURE-8: their topics are never sealed."""
    manual.engine.put_topic("e", ConfigPatch(durability="ephemeral"))
    fill_memory(manual, 1.2)
    assert only(write(manual, "e", LARGE))[0].status == 200


def test_bound_of_zero_is_no_bound() -> None:
    """LIMIT-2."""
    engine = Engine(ManualClock(), limits=Limits(max_unsealed_bytes=0))
    engine.totals.unsealed.bytes = 1 << 50
    engine.write("t", Write.of([1]))
    assert engine.state("t").count == 1


def test_memory_brings_the_pressure_to_all_rungs_but_the_last(manual: ManualServer) -> None:
    """PRESSURE-8: commits widen at half of the bound; writers are slowed down one by one, not shut out together."""
    assembly = manual.assembly
    levels = []
    for part in (0.2, 0.3, 0.5, 0.8, 1.5):
        fill_memory(manual, part)
        for _ in range(10):
            assembly.governor.observe(0.0)
        levels.append(assembly.pressure.level)
    assert levels == [0, 1, 2, 3, 3]
    assert not assembly.parking.shut


def press(manual: ManualServer, part: float) -> int:
    """Let so much of the bound be unsealed for a second; the level that follows."""
    fill_memory(manual, part)
    for _ in range(10):
        manual.assembly.governor.observe(0.0)
    return manual.assembly.pressure.level


def test_a_large_write_does_not_wait_for_others_to_share_its_commit(manual: ManualServer) -> None:
    """PRESSURE-8: alone it is a commit worth making, and it takes along the small writes that wait for one."""
    only(manual.post())
    assert press(manual, 0.6) == 2
    small = manual.post()
    assert small.replies() == []
    large = write(manual, "other", [{"data": "x" * 1000}] * 100)
    assert only(large)[0].status == 201
    assert only(small)[0].status == 200
    assert only(write(manual, "other", [{"data": "x" * 1000}] * 100))[0].status == 200
    later = manual.post()
    assert later.replies() == []
    manual.loop.advance(10)
    assert only(later)[0].status == 200


def test_writes_do_not_wait_for_tails_that_the_sealer_leaves_where_they_are(manual: ManualServer) -> None:
    """PRESSURE-8: what rests in memory after a burst (`engine.upkeep.survey`) is no pressure on commits."""
    only(manual.post())
    assert press(manual, 0.6) == 2
    assert press(manual, 3 / 8) == 1
    assert only(manual.post())[0].status == 200


def test_copies_wait_while_too_much_is_not_sealed(manual: ManualServer) -> None:
    """PRESSURE-8: a fan-out multiplies what is written; a reader of the copies gets them all the same."""
    manual.engine.put_topic("a", ConfigPatch())
    manual.engine.routers.put("r", PutRouter("a", "b"))
    fill_memory(manual)
    assert only(write(manual, "a", [{"data": 1}]))[0].status == 200
    manual.loop.advance(100)
    assert manual.engine.topics["b"].log.head == 0
    assert manual.engine.state("b").count == 1
    assert only(write(manual, "a", [{"data": 2}]))[0].status == 200
    fill_memory(manual, 0.5)
    manual.engine.turn()
    assert manual.engine.topics["b"].log.head == 2


def test_a_source_that_waits_for_its_copies_holds_up_no_other_topic(
    manual: ManualServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ROUTER-34: what is parked for another topic goes on."""
    monkeypatch.setattr(room, "check_copies", lambda topic: (_ for _ in ()).throw(CopiesBehind(limit="copies_behind")))
    manual.engine.routers.put("r", PutRouter("source", "dest"))
    held = manual.send("POST", "/v0/topics/source", {"records": [{"data": 1}]})
    manual.loop.advance(20)
    assert held.replies() == []
    other = manual.send("POST", "/v0/topics/other", {"records": [{"data": 1}, {"data": 2}]})
    manual.loop.advance(20)
    assert only(other)[0].status == 201
    manual.loop.advance(WAIT_MS_MAX)
    reply, body = only(held)
    assert (reply.status, body["error"]["detail"]["limit"]) == (429, "copies_behind")


def test_the_level_of_pressure_is_a_metric(manual: ManualServer) -> None:
    """PROBE-7: as the console shows it."""

    def level() -> float:
        (reply,) = manual.send("GET", "/v0/metrics", None, "Accept: application/json").replies()
        return json.loads(reply.body)["topics_pressure_level"]

    assert level() == 0
    manual.overload()
    assert level() == REFUSE_WRITES


@pytest.fixture
def cold() -> ManualServer:
    """A topic `t` that rejects, and has to expire a part of a Block that is on the disk only before it takes more."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(discard="reject", cap_records=60, ttl_ms=10_000))
    for first in range(1, 51, 10):
        machine.engine.write("t", numbers(first, first + 9))
        machine.clock.advance(10)
    machine.checkpoint()
    server = ManualServer(machine=machine)
    server.loop.run_until_idle()
    (sealed,) = machine.engine.topics["t"].log.retained()
    machine.clock.set(sealed.first_ts + 10_025)
    uncached(machine, "t")
    return server


def test_write_that_needs_a_block_from_the_disk_waits_for_it(cold: ManualServer) -> None:
    """STORE-6: over HTTP, and in the same way on a WebSocket."""
    client = write(cold, "t", [{"data": 1}] * 35)
    assert client.replies() == []
    cold.run_jobs()
    reply, body = only(client)
    assert (reply.status, body["first_seq"]) == (200, 51)


def test_parked_write_that_needs_a_block_from_the_disk_holds_up_no_other(cold: ManualServer) -> None:
    """STORE-6, PRESSURE-5: everything that was parked after it is answered too."""
    cold.overload()
    waits, other = write(cold, "t", [{"data": 1}] * 35), write(cold, "u", [{"data": 2}])
    assert waits.replies() == other.replies() == []
    cold.calm()
    cold.loop.advance(20)
    cold.run_jobs()
    cold.loop.advance(20)
    cold.run_jobs()
    assert only(other)[0].status == 201
    assert only(waits)[1]["first_seq"] == 51


def test_a_parked_request_that_breaks_takes_no_other_with_it(manual: ManualServer) -> None:
    """PRESSURE-2: it is answered with an error, and those after it have their turn."""

    class Asker:
        throttled_ns = 0

        def __init__(self) -> None:
            self.errors: list[TopicsError] = []

        def fail(self, error: TopicsError) -> None:
            self.errors.append(error)

    def breaks() -> None:
        raise RuntimeError("broken")

    parking, first, ran = manual.assembly.parking, Asker(), []
    for run, asker in ((breaks, first), (lambda: ran.append(True), Asker())):
        parking.waiting.append(Parked(run, asker, False, 0, "t"))
    parking.pump()
    assert [error.code for error in first.errors] == ["internal"]
    assert ran == [True]
    assert not parking.waiting
