"""Clients that people use, unchanged: curl and httpx-sse (WATCH-35). The `websockets` client is in test_websocket."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing

import httpx
import pytest
from httpx_sse import connect_sse

from tests.harness.api import Api
from tests.harness.events import watch
from topics.testing import ServerProcess


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("version", ["--http1.1", "--http1.0", "--http2-prior-knowledge"])
def test_curl_follows(server: ServerProcess, topic_name: str, version: str) -> None:
    """`curl -N` prints each event as it comes."""
    with closing(Api(server.host, server.port)) as api:
        api.fill(topic_name, 2)
        url = watch(api, topic_name)["stream_url"]
        command = ["curl", "-sSN", version, "--max-time", "60", server.url + url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
            assert curl.stdout is not None
            lines = []
            while not lines or "caught-up" not in lines[-1]:
                lines.append(curl.stdout.readline())
                assert lines[-1], lines
            api.write(topic_name, {"data": "live"})
            while "live" not in lines[-1]:
                lines.append(curl.stdout.readline())
                assert lines[-1], lines
            curl.kill()
        assert lines[0] == "retry: 2000\n"
        assert "event: record\n" in lines


def test_httpx_sse_follows_and_resumes(start_server: Callable[..., ServerProcess]) -> None:
    """The SSE client of the Python world, with its key in a header and its Last-Event-ID on the way back."""
    server = start_server(api_keys="k")
    headers = {"Authorization": "Bearer k"}
    with (
        closing(Api(server.host, server.port, "k")) as api,
        httpx.Client(base_url=server.url, headers=headers) as client,
    ):
        api.fill("t", 5)
        url = watch(api, "t", limit=2)["stream_url"]
        seqs, last_id = [], ""
        for _ in range(5):
            resume = {"Last-Event-ID": last_id} if last_id else {}
            with connect_sse(client, "GET", url, headers=resume) as source:
                assert source.response.status_code == 200
                for event in source.iter_sse():
                    last_id = event.id
                    if event.event == "record":
                        seqs += [record["$seq"] for record in json.loads(event.data)["records"]]
                        break
                    api.fill("t", 1)
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) >= 6
