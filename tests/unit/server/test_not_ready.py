"""What a server answers while it replays its log (PROBE-3): not ready, how far it is, and nothing else.

And while it drains (PROBE-4), also where it has seen the head of the request while it was ready.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from h2.connection import H2Connection
from h2.events import ResponseReceived

from tests.harness.connection import Client, connections_of, request
from tests.harness.server import ManualServer
from topics.server.http.http2 import Http2

BODY = b'{"records":[{"data":1}]}'
WRITE = request("POST", "/v0/topics/t", BODY, "Content-Type: application/json")


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


def test_writes_whose_head_was_resolved_before_are_taken_once_the_log_is_replayed() -> None:
    """PROBE-3: on the same connection, with the same bytes."""
    server = starting()
    client = Client(server.app)
    client.send(WRITE)
    server.assembly.phase.serve()
    client.send(WRITE)
    server.loop.run_until_idle()
    assert [reply.status for reply in client.replies()] == [503, 201]


@pytest.mark.parametrize("cut", [0, len(WRITE) - len(BODY), len(WRITE) - 1])
def test_write_whose_head_was_resolved_before_is_refused_while_the_server_drains(cut: int) -> None:
    """PROBE-4: a head that repeats, and one whose body is still awaited when the server begins to stop."""
    server = ManualServer()
    client = Client(server.app)
    client.send(WRITE, WRITE)
    server.loop.run_until_idle()
    assert [reply.status for reply in client.replies()] == [201, 200]
    client.send(WRITE[:cut])
    server.assembly.phase.drain()
    client.send(WRITE[cut:])
    server.loop.run_until_idle()
    (reply,) = client.replies()
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (503, "shutting_down")
    assert server.engine.topics["t"].log.head == 2


def test_write_on_http2_whose_head_was_resolved_before_is_refused_while_the_server_drains() -> None:
    """PROBE-4, with the body still to come."""
    server = ManualServer()
    client = Client(server.app, connections=connections_of(server.app, Http2))
    h2 = H2Connection()
    h2.initiate_connection()
    fields = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", "/v0/topics/t")]
    h2.send_headers(1, [*fields, ("content-type", "application/json")])
    client.send(h2.data_to_send())
    server.assembly.phase.drain()
    h2.send_data(1, BODY, end_stream=True)
    client.send(h2.data_to_send())
    server.loop.run_until_idle()
    heads = [event.headers for event in h2.receive_data(client.received()) if isinstance(event, ResponseReceived)]
    assert [dict(head)[b":status"] for head in heads] == [b"503"]
    assert not server.engine.topics
