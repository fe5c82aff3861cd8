"""docs/benchmarks.md: the page and its plots are those of the kept figures, and losses are said (PROOF-11)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from bench.compare import report


@pytest.fixture
def figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report.FIGURES.read_text(encoding="utf-8"))
    return found


def test_the_page_is_what_the_figures_render_to(figures: dict[str, Any]) -> None:
    """PROOF-11: after a change of its words run `.venv/bin/python -m bench.compare --render`."""
    made = report.render(figures)
    assert len(made) == 1 + len(report.CHAPTERS)
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, path


def test_every_system_was_in_the_run(figures: dict[str, Any]) -> None:
    """PROOF-11: with its version, in rounds that took turns."""
    assert set(figures["about"]["versions"]) == {"topics", "Redis Streams", "NATS JetStream"}
    done = {(row["work"], row["system"]): row for row in figures["rows"]}
    for chapter in report.CHAPTERS:
        for system in figures["about"]["versions"]:
            if (chapter.work, system) != ("append-synced", "NATS JetStream"):
                assert chapter.figures[0].name in done[chapter.work, system]
    assert all(len(row["records_s"]) == figures["about"]["rounds"] for row in done.values() if "records_s" in row)


def test_a_loss_is_said_in_the_direction_of_its_figure(figures: dict[str, Any]) -> None:
    """PROOF-11: whoever is ahead is named, by how much, and nobody else."""
    about = copy.deepcopy(figures["about"])
    rows: list[dict[str, Any]] = [
        {"work": "append", "system": "topics", "records_s": [90.0, 100.0, 110.0], "cpu_us": [10.0]},
        {"work": "append", "system": "Redis Streams", "records_s": [150.0], "cpu_us": [20.0]},
        {"work": "append", "system": "NATS JetStream", "records_s": [50.0], "cpu_us": [5.0]},
    ]
    page = report.render({"about": about, "rows": rows})[report.DOCS / "benchmarks.md"]
    assert "Redis Streams does 1.5 times as many a second." in page
    assert "NATS JetStream takes 50% of the processor time." in page
    assert "| topics | 100 (90 to 110) | 10 |" in page
    for row in rows[1:]:
        row.update(records_s=[10.0], cpu_us=[100.0])
    assert "In none of these works." in report.render({"about": about, "rows": rows})[report.DOCS / "benchmarks.md"]


@pytest.mark.parametrize(
    ("value", "shown"), [(1234567.0, "1,230,000"), (99.96, "100"), (0.04618, "0.0462"), (5.0, "5")]
)
def test_a_number_has_three_digits_that_count(value: float, shown: str) -> None:
    """PROOF-11."""
    assert report.number(value) == shown
