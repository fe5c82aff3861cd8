"""Several flows in one application: `topics pipeline run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import Api, free_port, until
from tests.harness.commands import Shell
from topics.testing import ServerProcess

pytestmark = pytest.mark.spark

START_S = 300
HEALTHY = ("orders-lake", "clicks-lake", "copies")
FILE = """
server: {{url: "{url}", token: "${{FLOWS_KEY}}"}}
spark: {{master: "local[2]", conf: {{spark.sql.shuffle.partitions: 2}}}}
restart: {{first: 200 milliseconds, most: 1 second}}
flows:
  orders-lake: {{kind: archive, topics: orders, to: lake-orders, interval: 200 milliseconds}}
  clicks-lake: {{kind: archive, prefix: cli, to: lake-clicks, interval: 200 milliseconds, max_offsets: 150}}
  copies:
    kind: transform
    topics: orders
    to: copies
    checkpoint: state/copies
    interval: 200 milliseconds
    sql: SELECT data FROM orders
  wrong-key:
    kind: archive
    topics: orders
    to: lake-wrong
    server: {{token: "${{WRONG_KEY}}"}}
  no-rights: {{kind: archive, topics: orders, to: /proc/lake}}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that comes back at the same address."""
    keys = "all-of-it,only-other:read:other."
    with ServerProcess(data_dir=tmp_path / "data", port=free_port(), api_keys=keys) as running:
        yield running


class Application:
    """`topics pipeline run` in a process."""

    def __init__(self, directory: Path, url: str) -> None:
        file = directory / "pipelines.yml"
        file.write_text(FILE.format(url=url))
        environ = {**os.environ, "FLOWS_KEY": "all-of-it", "WRONG_KEY": "only-other", "TOPICS_PROFILES": "/none"}
        self.shell = Shell(url, TOPICS_TOKEN="all-of-it")
        self.output = directory / "output"
        with self.output.open("w") as output:
            command = [sys.executable, "-m", "topics", "pipeline", "run", str(file)]
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ)

    def flows(self) -> dict[str, dict[str, Any]]:
        """What `topics pipeline status` says, by name; nothing while the server is away."""
        out, _ = self.shell.run("pipeline", "status", "--json", exit_code=None)
        return {each["name"]: each for each in map(json.loads, out.splitlines())}

    def until(self, check: Any, what: str) -> None:
        def checked() -> bool:
            assert self.process.poll() is None, self.output.read_text()
            return bool(check(self.flows()))

        until(checked, f"{what}\n{self.output.read_text()}", START_S)


def seqs(lake: Path) -> list[int]:
    """What a lake holds, or nothing before its first batch."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(lake / "events")):
        return []
    found: list[int] = DeltaTable(str(lake / "events")).to_pyarrow_table(columns=["seq"])["seq"].to_pylist()
    return sorted(found)


def test_flows_hold_every_record_once_beside_one_that_fails(server: ServerProcess, tmp_path: Path) -> None:
    """PIPELINE-21, PIPELINE-22, PIPELINE-23: two archives and a transform beside two flows that cannot run.

    The server is killed in the middle, and comes back.
    """
    api = Api(server.host, server.port, "all-of-it")
    api.fill("orders", 300)
    api.fill("clicks", 400)
    application = Application(tmp_path, server.url)
    try:
        application.until(
            lambda flows: (
                flows.get("wrong-key", {}).get("restarts", 0) > 1
                and flows["no-rights"]["restarts"] > 1
                and len(seqs(tmp_path / "lake-orders")) == 300
            ),
            "the failing ones were begun again, and an archive has done its work",
        )
        api.close()
        server.kill()
        server.start()
        api = Api(server.host, server.port, "all-of-it")
        api.fill("orders", 200)
        api.fill("clicks", 100)
        application.until(
            lambda flows: (
                len(flows) == 5
                and all(flows[name]["state"] == "running" and flows[name]["lag"] == 0 for name in HEALTHY)
                and flows["orders-lake"]["seq"] == 500
            ),
            "everything is done after the server came back",
        )
        application.process.send_signal(signal.SIGTERM)
        code = application.process.wait(START_S)
    finally:
        application.process.kill()
        application.process.wait()
    printed = application.output.read_text()
    assert code == 0, printed
    assert seqs(tmp_path / "lake-orders") == list(range(1, 501))
    assert seqs(tmp_path / "lake-clicks") == list(range(1, 501))
    assert api.call("GET", "/v0/topics/copies").ok(200)["count"] == 500
    flows = application.flows()
    assert {flows[name]["state"] for name in HEALTHY} == {"stopped"}
    assert "only-other" not in printed
    assert "all-of-it" not in printed
    assert "wrong-key: failed, begins again in" in printed
    assert "the name is outside its prefixes" in flows["wrong-key"]["error"]
    assert "/proc/lake" in flows["no-rights"]["error"]
    assert flows["orders-lake"]["rows"] >= 500 - 300
    assert "Traceback" not in printed
    api.close()
