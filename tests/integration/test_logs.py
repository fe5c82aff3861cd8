"""The log of a real server: what it says of requests, and what it never says (the LOG rules)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.harness.api import Api, until
from tests.harness.events import Events, watch
from topics.testing import ServerProcess

FULL = "full-key-5ecret-0001"
READER = "reader-key-5ecret-0002"
WRONG = "wrong-key-5ecret-0003"
DATA = "record-data-5ecret-0004"


def use_keys(api: Api) -> None:
    """Present keys in every way there is, right and wrong ones."""
    api.with_key(READER).put("x").refused(403, "forbidden")
    api.with_key(WRONG).topics().refused(401, "unauthorized")
    api.get(f"/v0/topics?token={FULL}").ok(200)
    api.get(f"/v0/topics/{DATA}%20%00?token={WRONG}").refused(400, "invalid_request")
    api.call("PUT", f"/v0/topics/{DATA}/", {}).refused(404, "not_found")
    for token in (FULL, WRONG):
        offered = base64.urlsafe_b64encode(token.encode()).rstrip(b"=").decode()
        protocols = [Subprotocol("topics"), Subprotocol(f"topics.bearer.{offered}")]
        try:
            with connect(f"ws://{api.host}:{api.port}/v0/ws", subprotocols=protocols) as socket:
                socket.send(json.dumps({"op": "publish", "topic": "ws", "records": [{"data": DATA}]}))
                socket.recv(timeout=30)
                socket.send('{"op": "' + DATA)
                socket.recv(timeout=30)
        except WebSocketException:
            assert token == WRONG


def use_odd_data(api: Api) -> None:
    """Records that are taken and records that are not, with the text in every place that a client has."""
    odd = {"data": DATA, "tag": DATA, "node": DATA, "meta": {DATA: DATA}}
    api.write("t", odd)
    api.post("t", {"records": [{**odd, "meta": {DATA: 1}}]}).refused(400, "invalid_request")
    api.post("t", {"records": [odd], DATA: DATA}).ok(200)
    api.call("POST", "/v0/topics/t", raw=b'{"records":[{"data":"' + DATA.encode() + b'\xff"}]}').refused(
        400, "invalid_request"
    )
    api.call("POST", "/v0/topics/t", raw=DATA.encode(), content_type=DATA).refused(415, "unsupported_media_type")
    api.post("t", {"records": [odd]}, headers={"Idempotency-Key": DATA, "X-Request-Id": f"no id {DATA}"}).ok(200)
    api.read("t")
    url = watch(api, "t")["stream_url"]
    with Events(Api(api.host, api.port), f"{url}?token={FULL}") as events:
        events.until("caught-up")
    api.get(url.replace("wid_", f"wid_{DATA}")).refused(404, "not_found")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_log_line_holds_a_key_a_token_or_data(log_format: str) -> None:
    """LOG-4, AUTH-6: at the most verbose level, over HTTP/1.1, HTTP/2, SSE and WebSockets."""
    keys = f"{FULL},{READER}:read"
    with ServerProcess(api_keys=keys, log_level="debug", access_log="all", log_format=log_format) as running:
        api = Api(running.host, running.port, FULL)
        use_keys(api)
        use_odd_data(api)
        wid = watch(api, "t")["wid"]
        if shutil.which("curl"):
            command = ["curl", "-s", "--http2-prior-knowledge", "-H", f"Authorization: Bearer {FULL}"]
            for path in ("topics", f"watch/{wid}-{DATA}"):
                subprocess.run([*command, f"{running.url}/v0/{path}"], check=True, capture_output=True, timeout=60)
        api.close()
        running.stop()
        log = running.log()
    assert log.count("/v0/topics/:topic") >= 5
    for secret in (FULL, READER, WRONG, DATA, wid):
        assert secret not in log
        assert base64.urlsafe_b64encode(secret.encode()).rstrip(b"=").decode() not in log
    assert "5ecret" not in log


def test_json_lines_and_the_id_of_a_request() -> None:
    """LOG-1, LOG-2, LOG-3: every line is an object, and a failed request is found by the id that its client got."""
    with ServerProcess(log_format="json", access_log="errors") as running:
        api = Api(running.host, running.port)
        api.write("orders", {"data": 1})
        reply = api.get("/v0/topics/orders/leases", headers={"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"})
        reply.refused(409, "not_a_queue")
        api.close()
        running.stop()
        lines = [json.loads(line) for line in running.log().splitlines()]
    (found,) = [line for line in lines if line["logger"] == "topics.access"]
    assert found["request_id"] == reply.headers["x-request-id"]
    expected = {
        "level": "warning",
        "method": "GET",
        "route": "/v0/topics/:topic/leases",
        "name": "orders",
        "status": 409,
        "code": "not_a_queue",
        "peer": "127.0.0.1",
        "traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01",
    }
    assert expected.items() <= found.items()
    assert [line for line in lines if "listens on" in line["message"]]


def test_keys_are_read_again_on_sighup(tmp_path: Path) -> None:
    """AUTH-29: what a removed or changed key has open ends, what stays the same goes on."""
    file = tmp_path / "keys"
    file.write_text("# who may do what\nstays-k1\n\nleaves-k2:read\nchanges-k3:rw\n")
    with ServerProcess(api_keys="fixed-k0", api_keys_file=file, slow_consumer_timeout_ms=5_000) as running:
        stays, leaves, changes, fixed = (
            Api(running.host, running.port, key) for key in ("stays-k1", "leaves-k2", "changes-k3", "fixed-k0")
        )
        stays.put("t").ok(201)
        streams = {api: Events(api, watch(api, "t")["stream_url"]) for api in (stays, leaves, changes)}
        for events in streams.values():
            events.until("caught-up")
        leaves.read("t")

        file.write_text("stays-k1\nchanges-k3:read\ncomes-k4\n")
        os.kill(running.pid, signal.SIGHUP)
        comes = Api(running.host, running.port, "comes-k4")
        until(lambda: comes.topics().status == 200, "the new key is known")

        leaves.diff("t").refused(401, "unauthorized")
        changes.post("t", {"records": [{"data": 1}]}).refused(403, "forbidden")
        changes.read("t")
        fixed.write("t", {"data": 1})
        stays.write("t", {"data": 2})
        for api in (leaves, changes):
            assert streams[api].until("error")[-1].json["code"] == 401
            assert streams[api].next_or_end() is None
        assert len(streams[stays].records(2)) == 2

        # One at a time: two signals that arrive together are one to the process.
        for refused, bad in enumerate(("stays-k1:bogus\n", "# nothing\n")):
            file.write_text(bad)
            os.kill(running.pid, signal.SIGHUP)
            until(lambda before=refused: running.log().count("the keys stay as they were") > before, "it is refused")
        stays.topics().ok(200)
        comes.topics().ok(200)
        for client in (*streams.values(), stays, leaves, changes, fixed, comes):
            client.close()
        running.stop()
        assert not [key for key in ("stays-k1", "leaves-k2", "changes-k3", "comes-k4") if key in running.log()]


def test_waiting_requests_of_a_removed_key_end(tmp_path: Path) -> None:
    """AUTH-29: on HTTP/1.1 and on WebSockets; a claim that waits gets no job any more."""
    file = tmp_path / "keys"
    file.write_text("admin-k1\nworker-k2:rw\n")
    with ServerProcess(api_keys_file=file) as running, ThreadPoolExecutor(1) as pool:
        admin, worker = (Api(running.host, running.port, key) for key in ("admin-k1", "worker-k2"))
        admin.put("q", type="queue").ok(201)
        before = _connections(admin)
        claim = pool.submit(worker.call, "POST", "/v0/topics/q/claim", {"node": "w", "wait_ms": 30_000})
        headers = {"Authorization": "Bearer worker-k2"}
        with connect(f"ws://{admin.host}:{admin.port}/v0/ws", additional_headers=headers) as socket:
            socket.send('{"op":"ping"}')
            socket.recv(timeout=30)
            until(lambda: _connections(admin) > before, "the claim is on its way")
            file.write_text("admin-k1\n")
            os.kill(running.pid, signal.SIGHUP)
            claim.result(60).refused(401, "unauthorized")
            assert json.loads(socket.recv(timeout=30))["code"] == "unauthorized"
            with pytest.raises(WebSocketException):
                socket.recv(timeout=30)
            assert socket.close_code == 1008
        admin.write("q", {"data": 1})
        assert admin.state("q")["queue"]["in_flight"] == 0
        for client in (admin, worker):
            client.close()


def _connections(api: Api) -> int:
    gauges = api.get("/v0/metrics", headers={"Accept": "application/json"}).ok(200)
    return int(gauges["topics_connections"]["http1"])
