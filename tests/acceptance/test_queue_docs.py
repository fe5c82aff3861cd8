"""The two workers of docs/queues.md, as they stand there, against a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.harness.api import StartServer, until
from topics.testing import ServerProcess

DOC = (Path(__file__).parents[2] / "docs" / "queues.md").read_text()
ADDRESS = "http://127.0.0.1:4000"


def snippet(language: str, server: ServerProcess) -> str:
    """The first code of a language, for this server; it is short, as promised."""
    found = re.search(rf"```{language}\n(.*?)```", DOC, re.DOTALL)
    assert found is not None
    assert len(found[1].strip().splitlines()) <= 15
    assert ADDRESS in found[1]
    return found[1].replace(ADDRESS, server.url)


def jobs(server: ServerProcess) -> dict[str, int]:
    state: dict[str, int] = server.request("GET", "/v0/topics/jobs").json["queue"]
    return state


def test_worker_with_curl_does_every_job(start_server: StartServer) -> None:
    """QUEUE-29: produce, claim, ack with nothing but curl."""
    server = start_server()
    script = snippet("sh", server).replace('"wait_ms":20000', '"wait_ms":0')
    run = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.count("working on") == 2
    assert "s3://b/b.png" in run.stdout
    assert jobs(server) == {"ready": 0, "in_flight": 0, "dead_lettered": 0}


def test_worker_in_python_does_every_job(start_server: StartServer, tmp_path: Path) -> None:
    """QUEUE-29: a worker waits for jobs and acks what it has done."""
    server = start_server()
    server.request("PUT", "/v0/topics/jobs", json={"type": "queue"})
    log = tmp_path / "log"
    with log.open("wb") as output:
        worker = subprocess.Popen([sys.executable, "-uc", snippet("python", server)], stdout=output)
    try:
        records = [{"data": {"n": n}} for n in range(20)]
        server.request("POST", "/v0/topics/jobs", json={"records": records})
        until(lambda: server.request("GET", "/v0/topics/jobs").json["count"] == 0, "every job is acked")
        assert log.read_text().count("working on") == 20
        assert jobs(server) == {"ready": 0, "in_flight": 0, "dead_lettered": 0}
    finally:
        worker.kill()
        worker.wait()
