"""Flows on Spark as metrics: the last report of each, bounded, and only what is new is read (PROBE-19)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.server import ManualServer
from topics.client.operations.pipelines import PIPELINES_TOPIC
from topics.server.api import pipeline_metrics
from topics.server.api.pipeline_metrics import TOPIC

KEY = "Authorization: Bearer full"


@pytest.fixture
def manual() -> ManualServer:
    return ManualServer(keys="full,limited::mine.")


def shown(manual: ManualServer, key: str = "full") -> Any:
    headers = ("Accept: application/json", f"Authorization: Bearer {key}")
    (reply,) = manual.send("GET", "/v0/metrics", None, *headers).replies()
    return {name: value for name, value in reply.ok(200).items() if name.startswith("topics_pipeline_")}


def report(manual: ManualServer, *data: Any, **write: Any) -> None:
    body = {"records": [{"data": each} for each in data], **write}
    (reply,) = manual.send("POST", f"/v0/topics/{TOPIC}", body, KEY).replies()
    assert reply.status in (200, 201), reply


def flow(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "kind": "archive", "state": "running", **fields}


def test_the_last_report_of_each_flow_counts(manual: ManualServer) -> None:
    """PROBE-19: rate, lag, rows, restarts, whether it fails, and how old the report is."""
    assert TOPIC == PIPELINES_TOPIC
    assert shown(manual) == {}
    report(manual, flow("a", rate=5.0, lag=7, lag_s=1.5, rows=10), flow("b", state="waiting", restarts=3))
    report(manual, "no report", {"name": 7}, flow("a", rate=6.5, lag=0, lag_s=0.0, rows=20))
    manual.clock.advance(4_000)
    expected = {
        "topics_pipeline_records_per_second": {"a": 6.5, "b": 0},
        "topics_pipeline_lag_records": {"a": 0},
        "topics_pipeline_lag_seconds": {"a": 0},
        "topics_pipeline_rows_total": {"a": 20, "b": 0},
        "topics_pipeline_restarts_total": {"a": 0, "b": 3},
        "topics_pipeline_failing": {"a": 0, "b": 1},
        "topics_pipeline_report_age_seconds": {"a": 4, "b": 4},
    }
    assert shown(manual) == expected
    report(manual, flow("b", state="stopped"))
    assert shown(manual)["topics_pipeline_report_age_seconds"] == {"a": 4}
    (reply,) = manual.send("GET", "/v0/metrics", None, KEY).replies()
    assert 'topics_pipeline_lag_records{pipeline="a"} 0.0' in reply.body.decode()


def test_only_a_key_that_may_read_the_reports_sees_flows(manual: ManualServer) -> None:
    """PROBE-19, AUTH-15."""
    report(manual, flow("a"))
    assert shown(manual, "limited") == {}
    assert shown(manual)["topics_pipeline_failing"] == {"a": 0}


def test_names_and_their_number_are_bounded(manual: ManualServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROBE-19: whoever may write to the topic cannot fill a Prometheus with labels."""
    monkeypatch.setattr(pipeline_metrics, "FLOWS_MAX", 3)
    report(manual, flow("x" * 101), flow("line\nbreak"), flow(""), *(flow(f"f{n}") for n in range(5)))
    assert list(shown(manual)["topics_pipeline_failing"]) == ["f0", "f1", "f2"]


def test_only_what_is_new_is_read(manual: ManualServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROBE-19: a scrape costs what was reported since the last one, and at most LOOKED_MAX reports."""
    monkeypatch.setattr(pipeline_metrics, "LOOKED_MAX", 10)
    report(manual, flow("old"), *(flow("a", rows=n) for n in range(20)))
    assert shown(manual)["topics_pipeline_rows_total"] == {"a": 19}
    asked: list[int] = []
    read = manual.engine.read

    def reading(topic: Any, from_seq: int, window: Any) -> Any:
        asked.append(from_seq)
        return read(topic, from_seq, window)

    monkeypatch.setattr(manual.engine, "read", reading)
    assert shown(manual)["topics_pipeline_rows_total"] == {"a": 19}
    report(manual, flow("a", rows=77))
    assert shown(manual)["topics_pipeline_rows_total"] == {"a": 77}
    assert asked == [21]


def test_what_the_topic_no_longer_holds_is_not_shown(manual: ManualServer) -> None:
    """PROBE-19: a flow that is gone is forgotten with its last report, and a new topic begins anew."""
    report(manual, flow("gone"), config={"cap_records": 2})
    assert "gone" in shown(manual)["topics_pipeline_failing"]
    report(manual, flow("a"), flow("b"))
    assert list(shown(manual)["topics_pipeline_failing"]) == ["a", "b"]
    (reply,) = manual.send("DELETE", f"/v0/topics/{TOPIC}", None, KEY).replies()
    assert json.loads(reply.body)["deleted"]
    assert shown(manual) == {}
    report(manual, flow("c"))
    assert list(shown(manual)["topics_pipeline_failing"]) == ["c"]
