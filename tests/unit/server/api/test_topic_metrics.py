"""Metrics that name topics and routers: which of them a key sees, how many, and the lag (PROBE-8, AUTH-15)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.server import ManualServer
from topics.engine.router.forward import forward_of
from topics.server.api import metrics


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
