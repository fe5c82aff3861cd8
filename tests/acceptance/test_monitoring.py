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
