"""What a server answers while it replays its log (PROBE-3): not ready, how far it is, and nothing else."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from tests.harness.connection import Client, request
from tests.harness.loop import ManualLoop
from topics.engine import Engine
from topics.server.app import READY, App
from topics.server.auth import Keys
from topics.server.http.connections import Connections
from topics.settings import Settings
from topics.testing import ManualClock


def starting(keys: str = "") -> App:
    clock = ManualClock()
    app = App(Settings(), Keys(keys), Engine(clock), cast("Any", ManualLoop(clock)))
    app.replay_progress = lambda: 0.25
    return app


def ask(app: App, method: str, path: str, *headers: str) -> Any:
    client = Client(cast("Any", app), connections=Connections(cast("Any", app)))
    body = b"{}" if method in ("PUT", "POST") else None
    client.send(request(method, path, body, "Content-Type: application/json", *headers))
    return client.replies()[0]


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_readiness_is_503_with_the_progress(path: str) -> None:
    """PROBE-3."""
    app = starting()
    reply = ask(app, "GET", path)
    error = json.loads(reply.body)["error"]
    assert (reply.status, reply.headers["retry-after"], error["code"]) == (503, "1", "not_ready")
    assert error["detail"]["replay_progress"] == 0.25
    app.phase = READY
    assert ask(app, "GET", path).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v0/topics"), ("GET", "/v0/topics/t"), ("PUT", "/v0/topics/t"), ("POST", "/v0/topics/t"),
        ("POST", "/v0/topics/t/diff"), ("DELETE", "/v0/topics/t"), ("POST", "/v0/topics/t/claim"),
        ("GET", "/v0/topics/t/work?node=n"), ("PUT", "/v0/routers/r"), ("GET", "/v0/routers"), ("POST", "/v0/watch"),
        ("GET", "/v0/watch/wid_BuRguGorNdVFWNQULz-rrw"), ("GET", "/v0/topics/t/plan"),
    ],
)  # fmt: skip
def test_nothing_is_answered_from_half_a_log(method: str, path: str) -> None:
    """PROBE-3: no topic is reported as missing, and none is created."""
    app = starting()
    reply = ask(app, method, path)
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (503, "not_ready")
    assert not app.engine.topics


def test_probes_and_metrics_describe_the_recovering_process() -> None:
    """PROBE-3: health and metrics are 200 also then."""
    app = starting()
    assert ask(app, "GET", "/v0/health").status == 200
    assert ask(app, "GET", "/").status == 200
    metrics = ask(app, "GET", "/v0/metrics")
    assert metrics.status == 200
    assert b"\ntopics_ready 0.0\n" in metrics.body
    assert b"\ntopics_recovery_progress 0.25\n" in metrics.body


def test_keys_are_asked_for_while_the_log_is_replayed() -> None:
    """AUTH-3: without a key, only the open probes show how far the server is."""
    app = starting("k")
    assert ask(app, "GET", "/v0/topics").status == 401
    assert ask(app, "GET", "/v0/topics", "Authorization: Bearer k").status == 503
    assert ask(app, "GET", "/v0/metrics").status == 401
