"""What flows report to a real server, and what is read back: lag, topic, `status`, the library (PIPELINE-23)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.harness.api import Api, StartServer, until
from tests.harness.commands import Shell
from topics.client.client import Client
from topics.client.operations.pipelines import PIPELINES_TOPIC, REPORTS_MAX, PipelineState
from topics.clock import SystemClock
from topics.commands.link import Target
from topics.pipeline.checkpoint import cursors_of
from topics.pipeline.flows.flows import Flow
from topics.pipeline.flows.lag import Lag, Lags
from topics.pipeline.flows.lone_flow import LoneFlow, lone_flow
from topics.pipeline.flows.reporter import reporting
from topics.pipeline.flows.secrets import Secrets
from topics.pipeline.progress import Progress
from topics.testing import ServerProcess


def flow_of(url: str, *topics: str, prefix: str | None = None, token: str | None = None) -> Flow:
    return Flow("flow", "archive", Target(url, token), topics, prefix, "1 second", None, object)


def test_the_lag_is_counted_from_the_cursors_of_a_flow(server: ServerProcess, api: Api, topic_name: str) -> None:
    """PIPELINE-23: in records and in time, for named topics and for a prefix, whether the flow runs or not."""
    one, two = f"{topic_name}.one", f"{topic_name}.two"
    api.fill(one, 10)
    api.put(two, cap_records=2)
    api.fill(two, 5)
    lags = Lags()
    records, seconds = lags.of(flow_of(server.url, one, two, f"{topic_name}.none"), {one: 4, two: 1})
    assert records == 6 + 4
    assert seconds is not None
    assert 0 <= seconds < 60
    assert lags.of(flow_of(server.url, prefix=topic_name), {one: 10, two: 5}) == Lag(0, 0.0)
    assert lags.of(flow_of(server.url, one), {one: 99}).records == 10, "a topic that was created anew"
    assert lags.of(flow_of(server.url, one), {}).records == 10, "nothing is done yet"
    assert lags.of(flow_of(server.url, one), None) == Lag(), "it is not known what is done"
    assert lags.of(flow_of("http://127.0.0.1:1", one), {}) == Lag(), "the server does not answer"
    lags.close()


def test_a_checkpoint_says_how_far_its_last_commit_goes(tmp_path: Path) -> None:
    """PIPELINE-23: a batch that was planned and not committed does not count."""
    assert cursors_of(tmp_path / "none") == {}
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    for batch, seq in ((9, 3), (10, 7), (11, 9)):
        lines = ["v1", '{"batchWatermarkMs":0,"conf":{}}', f'{{"a":{{"epoch":1,"seq":{seq}}}}}', '{"b":{"seq":1}}']
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(lines))
    (tmp_path / "commits" / "9").touch()
    (tmp_path / "commits" / "10").touch()
    (tmp_path / "commits" / ".10.crc").touch()
    assert cursors_of(tmp_path) == {"a": 7, "b": 1}


def test_reports_go_into_a_bounded_topic_and_are_read_back(start_server: StartServer) -> None:
    """PIPELINE-23: the write that creates the topic gives it a cap and a TTL; a key that may only write is enough."""
    server = start_server(api_keys="all,writer:write")
    api = Api(server.host, server.port, "all")
    api.fill("orders", 12)
    said: list[str] = []
    flow = lone_flow("archive", None, {"url": server.url, "token": "writer"}, ["orders"], None, None)
    progress = Progress("archive")
    single = LoneFlow(flow, progress, SystemClock(), Secrets({}))
    with Client(server.url, token="all") as client:
        assert client.pipelines() == []
        with reporting(flow.server, [(flow, single)], SystemClock(), said.append):
            until(client.pipelines, "it has reported")
            single.end("failed", "broken")
        [found] = client.pipelines()
        assert (found.name, found.kind, found.topic, found.state) == ("archive:orders", "archive", "orders", "failed")
        assert (found.error, found.lag) == ("broken", None)
        assert abs(found.ts - time.time() * 1000) < 60_000
        assert client.metrics()["topics_pipeline_failing"] == {"archive:orders": 1}
    config = api.call("GET", f"/v0/topics/{PIPELINES_TOPIC}").ok(200)["config"]
    assert (config["cap_records"], config["ttl_ms"]) == (REPORTS_MAX, 604_800_000)
    assert said == []
    api.close()


def test_reports_that_cannot_be_stored_are_said_once(start_server: StartServer) -> None:
    """PIPELINE-23: the pipeline itself goes on."""
    server = start_server(api_keys="all,reader:read")
    said: list[str] = []
    flow = lone_flow("transform", "mine", {"url": server.url, "token": "reader"}, ["a", "b"], None, None)
    single = LoneFlow(flow, Progress("transform"), SystemClock(), Secrets({}))
    with reporting(flow.server, [(flow, single)], SystemClock(), said.append) as reporter:
        until(lambda: said, "it is said")
        reporter.tick()
    assert said == ["reports are not stored in topics.pipelines: the key lacks the scope write"]


def report(name: str, **fields: Any) -> dict[str, Any]:
    return {"data": {"name": name, "kind": "archive", "topic": "orders", "state": "running", **fields}, "tag": name}


def test_status_shows_the_last_report_of_each_flow(server: ServerProcess, api: Api, topic_name: str) -> None:
    """PIPELINE-23: as a table or JSON, again and again if that is asked for."""
    shell = Shell(server.url)
    command = ("pipeline", "status", "--reports", topic_name)
    assert shell.out(*command).splitlines() == [
        "STATE  ROWS  RATE  LAG  LATE  RESTARTS  REPORT  KIND  TOPIC  FLOW  ERROR"
    ]
    api.write(topic_name, report("b", state="waiting", restarts=3, error="no key"), {"data": "no report"})
    api.write(topic_name, report("a", rows=1), report("a", rows=1_200, rate=5.4, lag=1_500, lag_s=75.0))
    first, second = (line.split() for line in shell.out(*command).splitlines()[1:])
    assert first[:6] == ["running", "1,200", "5/s", "1,500", "1m15s", "0"]
    assert (first[-4:], second[-5:]) == (["archive", "orders", "a", "-"], ["archive", "orders", "b", "no", "key"])
    found = shell.json(*command)
    assert [(each["name"], each["state"], each["restarts"], each["old"]) for each in found] == [
        ("a", "running", 0, False), ("b", "waiting", 3, False),
    ]  # fmt: skip
    looks = shell.out(*command, "--watch", "--interval", "10ms", "--count", "3")
    assert looks.count("STATE") == 3


def test_a_flow_that_does_not_report_any_more_is_old() -> None:
    """PIPELINE-23: unless it has ended."""
    from topics.pipeline.status import OLD_MS, cells

    running = PipelineState(name="a", kind="archive", state="running", ts=1_000)
    assert cells(running, 1_000 + OLD_MS)[0] == "running"
    assert cells(running, 1_001 + OLD_MS)[0] == "running (old)"
    assert cells(PipelineState(name="a", kind="archive", state="done", ts=1_000), 10**9)[0] == "done"


def test_the_file_of_the_documentation_is_right(tmp_path: Path) -> None:
    """PIPELINE-20: docs/pipelines.md."""
    pytest.importorskip("yaml")
    from topics.pipeline.flows.flows import read

    text = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text(encoding="utf-8")
    file = tmp_path / "pipelines.yml"
    file.write_text(text.partition("```yaml\n")[2].partition("```")[0])
    found = read(file, {"TOPICS_TOKEN": "secret"}, Secrets({}))
    assert [flow.name for flow in found.flows] == ["orders-lake", "clicks-lake", "revenue"]


def test_the_mistakes_of_the_documentation_are_named_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PIPELINE-20: docs/pipelines.md, with a mistyped key at the end of one flow and a wrong value in the next."""
    pytest.importorskip("yaml")
    from topics.cli import app

    text = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text(encoding="utf-8")
    file = text.partition("```yaml\n")[2].partition("```")[0]
    wrong = file.replace("  clicks-lake:\n", "    max_ofsets: 5\n  clicks-lake:\n").replace("10 seconds", "soon")
    (tmp_path / "pipelines.yml").write_text(wrong)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOPICS_TOKEN", "secret")
    shown = [line for line in text.splitlines() if line.startswith("topics pipeline: pipelines.yml:")]
    assert len(shown) == 2
    assert CliRunner().invoke(app, ["pipeline", "check", "pipelines.yml"]).output.splitlines() == shown
