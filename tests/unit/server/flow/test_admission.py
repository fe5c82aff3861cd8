"""Writes under pressure: waiting, 429, and opting out (the PRESSURE rules)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.connection import Client, Reply, request
from tests.harness.loop import ManualLoop
from topics.engine import ConfigPatch, Engine, Write
from topics.server.app import READY, App
from topics.server.auth import Keys
from topics.server.flow.admission import OPTED_OUT_WAIT_MS_MAX, PARKED_MAX, WAIT_MS_MAX
from topics.settings import Settings
from topics.storage.wal.shard import QueueFull
from topics.testing import ManualClock


class World:
    """A server without sockets or threads, whose time is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.engine = Engine(self.clock)
        self.engine.on_pending = lambda: self.loop.call_soon(self.engine.turn)
        self.app = App(Settings(), Keys(), self.engine, self.loop)  # type: ignore[arg-type]
        self.app.phase = READY
        self.governor = self.app.governor

    def post(self, **fields: Any) -> Client:
        client = Client(self.app)
        body = json.dumps({"records": [{"data": 1}], **fields}).encode()
        client.send(request("POST", "/v0/topics/t", body, "Content-Type: application/json"))
        self.loop.settle()
        return client

    def overload(self) -> None:
        for _ in range(20):
            self.governor.observe(5_000.0)

    def calm(self) -> None:
        for _ in range(100):
            self.governor.observe(0.0)


@pytest.fixture
def world() -> World:
    return World()


def only(client: Client) -> tuple[Reply, Any]:
    (reply,) = client.replies()
    return reply, json.loads(reply.body)


def test_calm_writes_do_not_wait(world: World) -> None:
    reply, body = only(world.post())
    assert reply.status == 201
    assert body["performance"]["throttle_wait_ms"] == 0.0


def test_overload_is_429_with_retry_after(world: World) -> None:
    """PRESSURE-2."""
    world.overload()
    client = world.post()
    assert client.replies() == []
    world.loop.advance(WAIT_MS_MAX + 50)
    reply, body = only(client)
    assert reply.status == 429
    assert body["error"]["code"] == "throttled"
    assert body["error"]["detail"]["retry_after_ms"] >= 250
    assert int(reply.headers["retry-after"]) >= 1
    assert "limit" not in body["error"]["detail"], "that is what tells it from a resource cap"
    assert "t" not in world.engine.topics, "nothing of a refused write is there"


def test_wait_that_helps_is_told(world: World) -> None:
    """PRESSURE-4."""
    world.overload()
    client = world.post()
    world.loop.advance(200)
    world.calm()
    world.loop.advance(50)
    reply, body = only(client)
    assert reply.status == 201
    assert 200 <= body["performance"]["throttle_wait_ms"] <= 300


def test_opted_out_writes_are_admitted(world: World) -> None:
    """PRESSURE-3."""
    world.overload()
    reply, body = only(world.post(disable_backpressure=True))
    assert reply.status == 201
    assert body["first_seq"] == 1


def test_full_storage_queue_makes_writers_wait_in_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRESSURE-5."""
    world.post()
    shard = world.engine.store.shard_of(1)
    submit, full = shard.submit, True

    def refuse_while_full(*args: Any) -> None:
        if full:
            raise QueueFull(retry_after_ms=100)
        submit(*args)

    monkeypatch.setattr(shard, "submit", refuse_while_full)
    plain, patient, later = world.post(), world.post(disable_backpressure=True), world.post(disable_backpressure=True)
    world.loop.advance(WAIT_MS_MAX + 50)
    assert only(plain)[0].status == 429
    assert patient.replies() == []
    full = False
    world.loop.advance(50)
    assert [only(client)[1]["first_seq"] for client in (patient, later)] == [2, 3]
    full = True
    never = world.post(disable_backpressure=True)
    world.loop.advance(OPTED_OUT_WAIT_MS_MAX + 50, step_ms=100)
    assert only(never)[0].status == 429


def test_parking_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every queue has a bound: the one too many is refused at once."""
    world.overload()
    monkeypatch.setattr("topics.server.flow.admission.PARKED_MAX", 2)
    waiting = [world.post() for _ in range(2)]
    assert only(world.post())[0].status == 429
    assert all(client.replies() == [] for client in waiting)
    assert PARKED_MAX > 2


def test_levels_reach_everybody(world: World) -> None:
    """The ladder: coalesce, widen commits, pause low priority, refuse writes; and back."""
    windows: list[float] = []
    world.governor.widen = windows.append
    seen = set()
    for _ in range(20):
        world.governor.observe(5_000.0)
        seen.add((world.app.delivery.level, world.governor.admission.shut))
    assert seen == {(1, False), (2, False), (3, False), (4, True)}
    assert windows[0] == 0.0
    assert windows[-1] > 0.0
    world.calm()
    assert (world.app.delivery.level, world.governor.admission.shut, windows[-1]) == (0, False, 0.0)


def test_governor_measures_how_late_it_is(world: World) -> None:
    """Pressure comes from loop lag, ten times a second."""
    world.governor.start()
    for _ in range(30):
        world.clock.advance(3_000)
        world.loop.turn()
    assert world.governor.pressure.level == 4
    world.loop.advance(8_000, step_ms=100)
    assert world.governor.pressure.level == 0
    world.governor.stop()


def claim(world: World) -> Client:
    client = Client(world.app)
    body = json.dumps({"node": "w"}).encode()
    client.send(request("POST", "/v0/topics/q/claim", body, "Content-Type: application/json"))
    world.loop.settle()
    return client


def test_claim_waits_under_pressure_and_is_then_429(world: World) -> None:
    """PRESSURE-2: `429 throttled`, and `throttle_wait_ms` in its performance."""
    world.engine.put_topic("q", ConfigPatch(type="queue"))
    world.engine.write("q", Write.of([1]))
    world.overload()
    client = claim(world)
    assert client.replies() == []
    world.loop.advance(WAIT_MS_MAX + 50)
    reply, body = only(client)
    assert reply.status == 429
    assert body["error"]["detail"]["retry_after_ms"] >= 250
    client = claim(world)
    world.loop.advance(50)
    world.calm()
    world.loop.advance(50)
    reply, body = only(client)
    assert (reply.status, body["count"]) == (200, 1)
    assert body["performance"]["throttle_wait_ms"] >= 50


def test_claim_whose_client_goes_away_under_pressure_leases_nothing(world: World) -> None:
    """PRESSURE-2: no job is leased to a client that is gone."""
    world.engine.put_topic("q", ConfigPatch(type="queue"))
    world.engine.write("q", Write.of([1]))
    world.overload()
    client = claim(world)
    client.lose()
    world.calm()
    world.loop.advance(100)
    state = world.engine.state("q").queue
    assert (state.ready, state.in_flight) == (1, 0)  # type: ignore[union-attr]


def test_work_stream_is_refused_under_pressure_and_acks_are_not(world: World) -> None:
    """PRESSURE-6."""
    world.engine.put_topic("q", ConfigPatch(type="queue"))
    world.engine.write("q", Write.of([1]))
    claim(world)
    world.overload()
    client = Client(world.app)
    client.send(request("GET", "/v0/topics/q/work?node=w", b"", "Accept: text/event-stream"))
    world.loop.settle()
    assert only(client)[0].status == 429
    client = Client(world.app)
    body = json.dumps({"node": "w", "seqs": [1]}).encode()
    client.send(request("POST", "/v0/topics/q/ack", body, "Content-Type: application/json"))
    world.loop.settle()
    reply, answer = only(client)
    assert (reply.status, answer["acked"]) == (200, 1)
