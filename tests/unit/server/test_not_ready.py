"""What a server answers while it replays its log (PROBE-3): not ready, how far it is, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.server import ManualServer


def starting(keys: str = "") -> ManualServer:
    return ManualServer(keys, replayed=0.25)


def ask(server: ManualServer, method: str, path: str, *headers: str) -> Any:
    body = {} if method in ("PUT", "POST") else None
    return server.send(method, path, body, *headers).replies()[0]


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_readiness_is_503_with_the_progress(path: str) -> None:
    """PROBE-3."""
    server = starting()
    reply = ask(server, "GET", path)
    error = json.loads(reply.body)["error"]
    assert (reply.status, reply.headers["retry-after"], error["code"]) == (503, "1", "not_ready")
    assert error["detail"]["replay_progress"] == 0.25
    server.assembly.phase.serve()
    assert ask(server, "GET", path).status == 200


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
    server = starting()
    reply = ask(server, method, path)
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (503, "not_ready")
    assert not server.engine.topics


def test_probes_and_metrics_describe_the_recovering_process() -> None:
    """PROBE-3: health and metrics are 200 also then."""
    server = starting()
    assert ask(server, "GET", "/v0/health").status == 200
    assert ask(server, "GET", "/").status == 200
    metrics = ask(server, "GET", "/v0/metrics")
    assert metrics.status == 200
    assert b"\ntopics_ready 0.0\n" in metrics.body
    assert b"\ntopics_recovery_progress 0.25\n" in metrics.body


def test_keys_are_asked_for_while_the_log_is_replayed() -> None:
    """AUTH-3: without a key, only the open probes show how far the server is."""
    server = starting("k")
    assert ask(server, "GET", "/v0/topics").status == 401
    assert ask(server, "GET", "/v0/topics", "Authorization: Bearer k").status == 503
    assert ask(server, "GET", "/v0/metrics").status == 401
