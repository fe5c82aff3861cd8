"""HTTP/2 with prior knowledge against the real server, on the port of HTTP/1.1."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from topics.testing import ServerProcess

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(server: ServerProcess, path: str, body: object = None, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The status and the JSON of one request over HTTP/2."""
    command = ["curl", "-sS", "--max-time", "60", "--http2-prior-knowledge", "-w", "\n%{http_version} %{http_code}"]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    url = f"http://{server.host}:{server.port}{path}"
    output = subprocess.run([*command, *arguments, url], capture_output=True, check=True, timeout=90).stdout
    text, _, last = output.decode().rpartition("\n")
    version, status = last.split()
    assert version == "2"
    return int(status), json.loads(text)


def test_write_read_and_long_poll_over_http2(server: ServerProcess, topic_name: str) -> None:
    """CONN-1: as on HTTP/1.1."""
    topic = f"/v0/topics/{topic_name}"
    status, written = curl(server, topic, {"records": [{"data": 1}, {"data": 2}]})
    assert (status, written["seqs"]) == (201, [1, 2])
    status, read = curl(server, f"{topic}/diff", {"from_seq": 0})
    assert [record["data"] for record in read["records"]] == [1, 2]
    status, read = curl(server, f"{topic}/diff", {"from_seq": 2, "wait_ms": 50})
    assert (status, read["records"], read["caught_up"]) == (200, [], True)


def test_errors_over_http2_have_their_envelope(server: ServerProcess) -> None:
    """CONN-1. An answer that comes before a body is sent is not curl's to show: `tests/unit` has it."""
    status, answer = curl(server, "/v0/topics/http2-nowhere")
    assert (status, answer["error"]["code"]) == (404, "topic_not_found")
    status, answer = curl(server, "/v0/topics/http2-nowhere/diff", {"from_seq": "x"})
    assert (status, answer["error"]["code"]) == (400, "invalid_request")
