"""`make bench` measures what it says: a row of the table counts requests that the server has answered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _bench(json_file: Path, *arguments: str, path: str | None = None) -> tuple[dict[str, Any], str]:
    environ = os.environ | ({} if path is None else {"PATH": path})
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--seconds", "1", "--rounds", "1", "--json", str(json_file), *arguments],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(json_file.read_text())["rows"]}, done.stdout


def test_row_has_every_figure_and_its_target(tmp_path: Path) -> None:
    """bench/README.md: requests/s, records/s, p50/p99, CPU per request, and the budget's target."""
    rows, printed = _bench(tmp_path / "figures.json", "--only", "post-disk")
    row = rows["post-disk"]
    assert list(rows) == ["post-disk"]
    assert min(row[figure] for figure in ("requests_s", "records_s", "p50_ms", "p99_ms", "cpu_us")) > 0
    assert row["target"] == ">= 35,000 req/s"
    assert row["met"] == (row["requests_s"] >= 35_000)
    assert "REFUSED" not in row["note"]
    assert "post-disk" in printed


def test_figures_without_wrk_are_marked(tmp_path: Path) -> None:
    """bench/README.md: without wrk the figures are marked generator-bound."""
    rows, _ = _bench(tmp_path / "figures.json", "--only", "post-ephemeral", path=str(tmp_path))
    assert "generator-bound" in rows["post-ephemeral"]["note"]
    assert rows["post-ephemeral"]["requests_s"] > 0


@pytest.mark.parametrize("name", ["writes", "reads", "growth", "restart", "sustained", "redis", "nats", "clients"])
def test_every_section_is_listed(name: str) -> None:
    """A row that can be measured can be asked for."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"{name}: " in done.stdout


def test_the_comparison_does_its_work(tmp_path: Path) -> None:
    """PROOF-11: on whatever is installed; topics always is. One claim, one ack and one heard record are enough."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench.compare", "--seconds", "0.1", "--rounds", "1", "--no-page"]
    choice = ["--only", "jobs", "--only", "hear", "--figures", str(figures)]
    done = subprocess.run([*command, *choice], cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    rows = {(row["work"], row["system"]): row for row in json.loads(figures.read_text())["rows"]}
    assert min(rows["jobs", "topics"]["records_s"] + rows["hear", "topics"]["p50_ms"]) > 0
    assert len(rows) == 2 * len({system for _, system in rows})


def test_the_rows_of_kafka_are_skipped_with_a_reason_where_maven_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from bench import kafka, spark_kafka

    monkeypatch.setenv("PATH", str(tmp_path))
    spark_kafka.beside("http://127.0.0.1:1", tmp_path, "events", 1)
    assert "skipped: there is no mvn" in capsys.readouterr().out
    monkeypatch.setattr(kafka, "CACHE", tmp_path / "cache")
    with pytest.raises(kafka.Missing, match="there is no mvn"):
        kafka.connector("4.3.0")
