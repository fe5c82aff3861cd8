"""Against: the rows of this tree and of another one, measured alternately in one run.

A shared machine swings by more than any change worth finding, so two runs of `make bench` an hour apart say nothing
about a change. Here each section is measured by turns on the two trees, the first one changing places each round, and
the medians are compared. The bench is this tree's for both; only the package under measurement differs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.sections import SECTIONS

PEERS = frozenset(("redis", "nats"))
FIGURES = ("requests_s", "records_s", "seconds", "mib", "ratio", "p50_ms", "p99_ms")
"""The figure that is compared: the first of these that a row has."""
TOLERANCE = 0.05

Figures = dict[str, dict[str, list[float]]]


def compare(other: Path, only: Sequence[str], seconds: float, rounds: int) -> bool:
    """Print a line for each row, this tree beside the other; whether no row is more than 5 percent worse."""
    here = Path(__file__).resolve().parents[1]
    print(f"{'row':<28} {'figure':<10} {'other':>12} {'this':>12} {'ratio':>6} {'by CPU':>7}")
    good = True
    for name, module in SECTIONS.items():
        if name in PEERS or not hasattr(module, "ROWS"):
            continue
        patterns = only or module.ROWS
        mine: Figures = {}
        theirs: Figures = {}
        for i in range(rounds):
            order = [(here, mine), (other, theirs)]
            for tree, figures in order if i % 2 else reversed(order):
                for row in _measure(here, tree, [p for p in module.ROWS if _wanted(p, patterns)], seconds):
                    kept = figures.setdefault(row["name"], {})
                    for figure in (*FIGURES, "cpu_us"):
                        if row[figure] is not None:
                            kept.setdefault(figure, []).append(row[figure])
        for row_name, kept in mine.items():
            good = _line(row_name, kept, theirs.get(row_name, {})) and good
    return good


def _wanted(name: str, patterns: Sequence[str]) -> bool:
    return any(Path(name).match(pattern) for pattern in patterns)


def _measure(here: Path, tree: Path, rows: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    if not rows:
        return []
    only = [part for row in rows for part in ("--only", row)]
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as scratch:
        figures = Path(scratch) / "figures.json"
        subprocess.run(
            [sys.executable, "-m", "bench", "--seconds", str(seconds), "--rounds", "1", "--json", str(figures), *only],
            cwd=here,
            env=os.environ | {"PYTHONPATH": f"{tree / 'src'}:{here}"},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if not figures.exists():
            # The other tree may lack what a row needs: what was measured on both is compared.
            print(f"{', '.join(rows)}: not measured on {tree}", flush=True)
            return []
        rows_measured: list[dict[str, Any]] = json.loads(figures.read_text())["rows"]
    return rows_measured


def _line(name: str, mine: dict[str, list[float]], theirs: dict[str, list[float]]) -> bool:
    """Print one row; whether it is no more than the tolerance worse, by its figure or by processor time."""
    figure = next((each for each in FIGURES if each in mine and each in theirs), None)
    if figure is None:
        print(f"{name:<28} not measured on both")
        return True
    this, other = statistics.median(mine[figure]), statistics.median(theirs[figure])
    ratio = (this / other if figure in ("requests_s", "records_s") else other / this) if this and other else 1.0
    by_cpu = None
    if "cpu_us" in mine and "cpu_us" in theirs:
        by_cpu = statistics.median(theirs["cpu_us"]) / statistics.median(mine["cpu_us"])
    good = max(ratio, by_cpu or 0.0) >= 1 - TOLERANCE
    shown = "" if by_cpu is None else f"{by_cpu:.3f}"
    print(
        f"{name:<28} {figure:<10} {other:>12,.2f} {this:>12,.2f} {ratio:>6.3f} {shown:>7}{'' if good else '  WORSE'}",
        flush=True,
    )
    return good
