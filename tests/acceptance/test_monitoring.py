"""`deploy/alerts.yml`, `deploy/grafana.json` and `docs/metrics.md` say what a real server says (PROOF-4)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.testing import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
ALERTS = (ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8")
BOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text(encoding="utf-8"))
METRIC = re.compile(r"\b(?:topics|process)_[a-z0-9_]+")
PARTS = ("_bucket", "_sum", "_count")


@pytest.fixture(scope="module")
def exposition() -> Iterator[str]:
    """The metrics of a server that has answered something."""
    with ServerProcess() as server:
        server.request("POST", "/v0/topics/t", json={"records": [{"data": 1}]})
        yield server.request("GET", "/v0/metrics").body.decode()


def exposed(exposition: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+) ", exposition, re.MULTILINE))


def named(text: str) -> set[str]:
    """The metrics that a text names, by the name of their family."""
    found = set(METRIC.findall(text))
    return {next((name.removesuffix(part) for part in PARTS if name.endswith(part)), name) for name in found}


def expressions() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])]


def test_every_metric_of_the_alerts_is_exposed(exposition: str) -> None:
    found = named(re.sub(r"(?m)^ *(?:annotations|#).*$", "", ALERTS))
    assert len(found) > 15
    assert found <= exposed(exposition)


def test_every_metric_of_the_dashboard_is_exposed(exposition: str) -> None:
    found = named("\n".join(expressions()))
    assert len(found) > 30
    assert found <= exposed(exposition)


def test_labels_of_the_alerts_and_the_dashboard_are_real(exposition: str) -> None:
    """What Prometheus adds, and what the server has."""
    used = set(re.findall(r"[{,](\w+)[=!]~?\"", ALERTS + "\n".join(expressions())))
    for group in re.findall(r"by \(([\w, ]+)\)", ALERTS + "\n".join(expressions())):
        used |= set(group.split(", "))
    real = set(re.findall(r"[{,](\w+)=\"", exposition)) | {"instance", "job", "topic", "router"}
    assert used <= real


def test_the_page_of_metrics_is_complete(exposition: str) -> None:
    """Every metric is on it, and none besides."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`((?:topics|process)_[a-z0-9_]+)`", page)) == exposed(exposition)


def test_every_alert_has_an_entry_in_the_runbook() -> None:
    """And there is none for an alert that is gone."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    runbook = page.partition("## When an alert fires\n")[2].partition("\n## ")[0]
    alerts = re.findall(r"- alert: (\w+)", ALERTS)
    assert re.findall(r"^### (\w+)$", runbook, re.MULTILINE) == alerts
    assert all(len(entry.strip()) > 40 for entry in re.split(r"^### \w+$", runbook, flags=re.MULTILINE)[1:])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with the prometheus package")
def test_promtool_accepts_the_alerts_and_the_dashboard(tmp_path: Path) -> None:
    shown = [each.replace("$__rate_interval", "5m").replace("$instance", ".*") for each in expressions()]
    rules = [{"record": f"panel:{i}", "expr": each} for i, each in enumerate(shown)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    for file in (ROOT / "deploy" / "alerts.yml", tmp_path / "panels.yml"):
        checked = subprocess.run(
            ["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


# For each alert, series of a server that is in trouble: values of one minute each, for half an hour.
TROUBLE = {
    "TopicsDown": {'up{job="topics"}': "0x30"},
    "TopicsNotReady": {"topics_ready": "0x30"},
    "TopicsReadOnly": {"topics_wal_read_only": "1x30"},
    "TopicsCorruption": {"topics_corruption_total": "1x30"},
    "TopicsRecordsLost": {'topics_lost_records_total{reason="crash"}': "7x30"},
    "TopicsDiskFillsUp": {"topics_disk_free_bytes": "1000000x30", "topics_unsealed_bytes": "0x30"},
    "TopicsServerErrors": {'topics_http_requests_total{status="503"}': "0+10x30"},
    "TopicsSlowRequests": {
        'topics_http_request_duration_seconds_bucket{route="/v0/topics",method="GET",le="1"}': "0+10x30",
        'topics_http_request_duration_seconds_bucket{route="/v0/topics",method="GET",le="2"}': "0+100x30",
        'topics_http_request_duration_seconds_bucket{route="/v0/topics",method="GET",le="+Inf"}': "0+100x30",
    },
    "TopicsPressure": {"topics_pressure_level": "4x30"},
    "TopicsRefuses": {"topics_requests_refused_total": "0+1x30"},
    "TopicsUnsealed": {"topics_unsealed_bytes": "150000000x30", "topics_disk_free_bytes": "9000000000x30"},
    "TopicsSlowSyncs": {
        'topics_wal_fsync_latency_us_bucket{le="200000"}': "0+10x30",
        'topics_wal_fsync_latency_us_bucket{le="500000"}': "0+100x30",
        'topics_wal_fsync_latency_us_bucket{le="+Inf"}': "0+100x30",
    },
    "TopicsUpkeepFails": {"topics_checkpoint_failures_total": "0+1x30"},
    "TopicsQueueWaits": {
        'topics_topic_queue_oldest_age_seconds{topic="q"}': "7200+60x30",
        'topics_topic_queue_ready{topic="q"}': "3x30",
    },
    "TopicsDeadLetters": {'topics_topic_queue_dead{topic="q"}': "0+1x30"},
    "TopicsRouterLags": {'topics_router_lag_records{router="r"}': "20000x30"},
    "TopicsPipelineFails": {'topics_pipeline_failing{pipeline="p"}': "1x30"},
    "TopicsPipelineLags": {'topics_pipeline_lag_seconds{pipeline="p"}': "900+60x30"},
    "TopicsPipelineSilent": {'topics_pipeline_report_age_seconds{pipeline="p"}': "0+60x30"},
    "TopicsDeliveryLags": {
        'topics_delivery_lag_seconds_bucket{le="1"}': "0+1x30",
        'topics_delivery_lag_seconds_bucket{le="5"}': "0+100x30",
        'topics_delivery_lag_seconds_bucket{le="+Inf"}': "0+100x30",
    },
    "TopicsSlowStreams": {"topics_delivery_slow_streams_closed_total": "0+5x30"},
    "TopicsFilesRunOut": {'process_open_fds{job="topics"}': "900x30", 'process_max_fds{job="topics"}': "1000x30"},
    # The clock of Prometheus begins at 0 here: this one is an hour ahead.
    "TopicsClockWrong": {"topics_time_seconds": "3600+60x30"},
}
# The same of a server that is well, and busy.
WELL = {
    'up{job="topics"}': "1x30",
    "topics_ready": "1x30",
    "topics_wal_read_only": "0x30",
    "topics_corruption_total": "0x30",
    'topics_lost_records_total{reason="crash"}': "0x30",
    'topics_lost_records_total{reason="source_trim"}': "5x30",
    "topics_disk_free_bytes": "9000000000x30",
    "topics_disk_full": "0x30",
    "topics_unsealed_bytes": "50000000x30",
    'topics_http_requests_total{status="200"}': "0+5000x30",
    'topics_http_requests_total{status="503"}': "0+1x30",
    'topics_http_request_duration_seconds_bucket{route="/v0/topics",method="GET",le="0.1"}': "0+100x30",
    'topics_http_request_duration_seconds_bucket{route="/v0/topics",method="GET",le="+Inf"}': "0+100x30",
    "topics_pressure_level": "1x30",
    "topics_requests_refused_total": "3x30",
    'topics_wal_fsync_latency_us_bucket{le="5000"}': "0+100x30",
    'topics_wal_fsync_latency_us_bucket{le="+Inf"}': "0+100x30",
    "topics_checkpoint_failures_total": "1x30",
    'topics_topic_queue_oldest_age_seconds{topic="q"}': "60x30",
    'topics_topic_queue_ready{topic="q"}': "3x30",
    'topics_topic_queue_dead{topic="q"}': "9x30",
    'topics_router_lag_records{router="r"}': "20x30",
    'topics_pipeline_failing{pipeline="p"}': "0x30",
    'topics_pipeline_lag_seconds{pipeline="p"}': "5x30",
    'topics_pipeline_report_age_seconds{pipeline="p"}': "5x30",
    "topics_delivery_slow_streams_closed_total": "1x30",
    'process_open_fds{job="topics"}': "90x30",
    'process_max_fds{job="topics"}': "1000x30",
    "topics_time_seconds": "0+60x30",
}
FULL = {"topics_disk_free_bytes": "400000000x30", "topics_unsealed_bytes": "150000000x30", "topics_disk_full": "1x30"}


def case(alert: str, series: dict[str, str], *, fires: bool) -> dict[str, object]:
    """What promtool is to find: whether `alert` fires with these series."""
    given = [{"series": name, "values": values} for name, values in series.items()]
    return {
        "interval": "1m",
        "input_series": given,
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) by (alertname)',
                "eval_time": "29m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if fires else [],
            }
        ],
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with the prometheus package")
def test_every_alert_fires_in_its_trouble_and_none_for_a_server_that_is_well(tmp_path: Path) -> None:
    """PROOF-4: promtool evaluates the rules over series, as Prometheus would."""
    alerts = re.findall(r"- alert: (\w+)", ALERTS)
    assert list(TROUBLE) == alerts
    cases = [case(name, series, fires=True) for name, series in TROUBLE.items()]
    cases += [case(name, WELL, fires=False) for name in alerts]
    cases.append(case("TopicsDiskFillsUp", FULL, fires=True))
    (tmp_path / "cases.yml").write_text(
        json.dumps({"rule_files": [str(ROOT / "deploy" / "alerts.yml")], "evaluation_interval": "1m", "tests": cases})
    )
    tested = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "cases.yml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with the prometheus package")
def test_promtool_accepts_what_is_exposed(exposition: str) -> None:
    """PROOF-4: the two names that it does not like are given by the specification."""
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=exposition, capture_output=True, text=True, timeout=60, check=False
    )
    found = {line.split()[0] for line in checked.stderr.splitlines()}
    assert found <= {"topics_uptime_ms", "topics_wal_fsync_latency_us"}, checked.stderr


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    """Ids are unique, panels do not overlap, and every query goes to the chosen data source."""
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    cells = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & mine, panel["title"]
        cells |= mine
        assert at["x"] + at["w"] <= 24
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel.get("targets", []))
