"""Metrics that look at every topic: what a key sees, how many, the lag, and whose time it takes (PROBE-8, PROBE-13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.connection import Client, request
from tests.harness.server import ManualServer
from topics.engine import Engine
from topics.engine.router.forward import forward_of
from topics.server.api import metrics, topic_metrics
from topics.server.api.exposition import Family
from topics.server.api.principal import Principal


def shown(manual: ManualServer, key: str = "full") -> Any:
    headers = ("Accept: application/json", f"Authorization: Bearer {key}")
    (reply,) = manual.send("GET", "/v0/metrics", None, *headers).replies()
    return reply.ok(200)


def route(manual: ManualServer, name: str, source: str, dest: str) -> None:
    body = {"source": source, "dest": dest}
    (reply,) = manual.send("PUT", f"/v0/routers/{name}", body, "Authorization: Bearer full").replies()
    reply.ok(201)


@pytest.fixture
def manual() -> ManualServer:
    return ManualServer(keys="full,limited::mine.")


def test_a_key_sees_routers_whose_ends_it_may_touch(manual: ManualServer) -> None:
    """AUTH-15: as in the list of routers."""
    route(manual, "mine.inside", "mine.a", "mine.b")
    route(manual, "mine.out", "mine.a", "other.b")
    route(manual, "other.in", "mine.c", "mine.d")
    assert shown(manual)["topics_router_lag_records"] == {"mine.inside": 0, "mine.out": 0, "other.in": 0}
    assert shown(manual, "limited")["topics_router_lag_records"] == {"mine.inside": 0}


def test_routers_are_bounded_as_topics_are(manual: ManualServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROBE-8."""
    for n in range(3):
        route(manual, f"r{n}", "from", f"to{n}")
    assert shown(manual)["topics_topic_metrics_truncated"] == 0
    monkeypatch.setattr(metrics, "TOPICS_SHOWN_MAX", 2)
    found = shown(manual)
    assert len(found["topics_router_lag_records"]) == 2
    assert found["topics_topic_metrics_truncated"] == 1


def test_the_lag_of_a_router_is_what_it_has_not_looked_at(manual: ManualServer) -> None:
    """PROBE-8: and to ask for it copies nothing."""
    route(manual, "r", "from", "to")
    for _ in range(3):
        manual.send("POST", "/v0/topics/from", {"records": [{"data": 1}]}, "Authorization: Bearer full")
    assert shown(manual)["topics_router_lag_records"] == {"r": 0}
    forward_of(manual.engine.routers.graph.by_name["r"]).backlog.cursor = 1
    for _ in range(2):
        assert shown(manual)["topics_router_lag_records"] == {"r": 2}


def test_metrics_that_take_long_are_made_seldom(manual: ManualServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROBE-13: however often they are asked for, they take a twentieth of the time at most; the others are current."""
    monkeypatch.setattr(metrics, "TOPICS_SHOWN_MAX", 0)
    route(manual, "r", "from", "to")
    made: list[int] = []
    all_of_them = metrics.topic_metrics

    def slowly(engine: Engine, principal: Principal, shown_max: int) -> Iterator[Family | None]:
        made.append(engine.clock.now_ms())
        manual.clock.advance(50)
        yield from all_of_them(engine, principal, shown_max)

    monkeypatch.setattr(metrics, "topic_metrics", slowly)
    for _ in range(100):
        shown(manual)
    assert len(made) == 1
    manual.overload()
    assert shown(manual)["topics_pressure_level"] > 0
    assert len(made) == 1
    manual.clock.advance(1001)
    shown(manual)
    assert len(made) == 2


def test_others_are_answered_between_the_pieces(manual: ManualServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROBE-13: metrics of many topics are made a piece per turn, once for all that ask for them meanwhile."""
    for n in range(5):
        route(manual, f"r{n}", f"from{n}", f"to{n}")
    monkeypatch.setattr(topic_metrics, "PIECE", 1)
    looks = 0
    pieces = topic_metrics.pieces

    def slowly(all_of_them: list[Any]) -> Iterator[list[Any]]:
        nonlocal looks
        for piece in pieces(all_of_them):
            looks += 1
            manual.clock.advance(2)
            yield piece

    monkeypatch.setattr(topic_metrics, "pieces", slowly)
    asks = [Client(manual.app) for _ in range(3)]
    for client in asks:
        client.send(request("GET", "/v0/metrics", None, "Authorization: Bearer full"))
    for _ in range(4):
        manual.loop.turn()
        health = Client(manual.app)
        health.send(request("GET", "/v0/health", None))
        assert len(health.replies()) == 1
        assert not any(client.replies() for client in asks)
    manual.loop.run_until_idle()
    assert looks == 10 + 5, "ten topics and five routers, looked at once"
    for client in asks:
        (reply,) = client.replies()
        assert b'topics_router_lag_records{router="r4"} 0.0' in reply.body


def test_a_failure_while_they_are_made_is_an_answer(manual: ManualServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROBE-13: and the next that asks is not answered with it."""

    def broken(engine: Engine, principal: Principal, shown_max: int) -> Iterator[Family | None]:
        yield None
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(metrics, "topic_metrics", broken)
        (reply,) = manual.send("GET", "/v0/metrics", None, "Authorization: Bearer full").replies()
        assert reply.status == 500
    assert shown(manual)["topics_topics"] == 0
