"""Hosts and origins against the real server, on every protocol that it speaks."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.harness.api import Api, StartApi, StartServer
from topics.testing import ServerProcess

APP = "https://app.example"
FOREIGN = {"Origin": "https://evil.example"}
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(server: ServerProcess, path: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """The status, the JSON and the head of one request over HTTP/2."""
    command = ["curl", "-sS", "-D", "-", "--max-time", "60", "--http2-prior-knowledge", *arguments]
    output = subprocess.run([*command, f"{server.url}{path}"], capture_output=True, check=True, timeout=90).stdout
    head, _, body = output.decode().replace("\r\n", "\n").partition("\n\n")
    return int(head.split()[1]), json.loads(body) if body else {}, head.lower()


@needs_curl
def test_another_host_is_misdirected_on_every_protocol(server: ServerProcess, api: Api) -> None:
    """AUTH-21: HTTP/1.1, HTTP/2 and WebSocket."""
    host = f"evil.example:{server.port}"
    api.get("/v0/topics", headers={"Host": host}).refused_naming(host, status=421, code="misdirected_request")
    status, answer, _ = curl(server, "/v0/topics", "-H", f"Host: {host}")
    assert (status, answer["error"]["code"]) == (421, "misdirected_request")
    for origin in (None, f"http://{host}"):
        with (
            pytest.raises(InvalidStatus) as refused,
            socket.create_connection((server.host, server.port)) as tcp,
            connect(f"ws://{host}/v0/ws", sock=tcp, origin=origin),  # type: ignore[arg-type]
        ):
            pass
        assert refused.value.response.status_code == 421
    assert api.get("/v0/topics", headers={"Host": f"localhost:{server.port}"}).status == 200
    assert curl(server, "/v0/topics", "-H", "Host: localhost")[0] == 200


def test_foreign_page_takes_no_jobs_and_redrives_nothing(api: Api, topic_name: str) -> None:
    """AUTH-22: neither by an image whose address is a work stream, nor by a form without fields."""
    dead = f"{topic_name}.dead"
    api.put(topic_name, type="queue", max_deliveries=1, dead_letter=dead, lease_ms=100)
    api.fill(topic_name, 3)
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Accept": "image/*,*/*"}
    with api.unchanged(topic_name):
        for _ in range(3):
            api.get(f"/v0/topics/{topic_name}/work?node=x&max=3", headers=image).refused(403, "forbidden")
        api.call("POST", f"/v0/topics/{topic_name}/redrive", headers=FOREIGN).refused(403, "forbidden")
    assert not api.exists(dead)


def test_websocket_follows_the_list(start_api: StartApi) -> None:
    """AUTH-20."""
    api = start_api(cors_origins=APP)
    url = f"ws://{api.host}:{api.port}/v0/ws"
    with connect(url, origin=APP) as room:  # type: ignore[arg-type]
        room.send('{"op": "ping"}')
        assert json.loads(room.recv(30)) == {"op": "pong"}
    with pytest.raises(InvalidStatus) as refused, connect(url, origin="https://evil.example"):  # type: ignore[arg-type]
        pass
    assert refused.value.response.status_code == 403


@needs_curl
def test_listed_origin_over_http2(start_server: StartServer) -> None:
    """AUTH-24."""
    server = start_server(cors_origins=APP)
    status, _, head = curl(server, "/v0/topics", "-H", f"Origin: {APP}")
    assert status == 200
    assert f"access-control-allow-origin: {APP}" in head
    asked = ("-X", "OPTIONS", "-H", "Access-Control-Request-Method: PUT")
    status, _, head = curl(server, "/v0/topics/t", "-H", f"Origin: {APP}", *asked)
    assert status == 204
    assert "access-control-allow-methods: get, head, post, put, delete" in head
    assert curl(server, "/v0/topics/t", "-H", "Origin: https://evil.example", *asked)[0] == 403


def test_every_origin_without_keys_refuses_to_start(start_server: StartServer) -> None:
    """AUTH-25."""
    with pytest.raises(AssertionError, match=r"TOPICS_CORS_ORIGINS is '\*' and there are no keys"):
        start_server(cors_origins="*")
    server = start_server(cors_origins="*", api_keys="k")
    answer = server.request("GET", "/v0/topics", headers={**FOREIGN, "Authorization": "Bearer k"})
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
