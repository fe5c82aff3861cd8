"""Against: the rows of this tree and of another one, measured alternately in one run.

A shared machine swings by more than any change worth finding, so two runs of `make bench` an hour apart say nothing
about a change. Here the two trees are measured at the same time, by two benches that take turns of a second (`Baton`),
the first one changing places each round. What is compared is the ratio within a round, since both of its measurements
met the machine in the same mood; the row's verdict is the median of these ratios. A row that looks worse is measured
again, up to three times as often, because no two processes are equally fast, whatever they run: what is noise goes
away, and what is not stays. The bench is this tree's for both; only the package under measurement differs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from bench.baton import ENVIRONMENT, Pair
from bench.sections import SECTIONS

PEERS: Final = frozenset(("redis", "nats"))
FIGURES: Final = ("requests_s", "records_s", "seconds", "mib", "p50_ms", "p99_ms", "ratio")
"""The figure that is compared: the first of these that a row has. A ratio comes last: it is of two measurements of one
tree, and varies with both."""
MORE_IS_BETTER: Final = ("requests_s", "records_s")
TOLERANCE: Final = 0.05
PATIENCE: Final = 3
"""A row that looks worse gets this many times the rounds."""

Measured = dict[str, Any]


@dataclass
class Comparison:
    """The rounds of one row, on this tree and on the other one."""

    name: str
    figure: str
    this: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """How much processor time the other tree took in a round for what this one took one second for."""

    def add(self, this: Measured, other: Measured) -> None:
        """Add a round that both trees have measured."""
        if this[self.figure] and other[self.figure]:
            self.this.append(this[self.figure])
            self.other.append(other[self.figure])
        if this["cpu_us"] and other["cpu_us"]:
            self.cpu.append(other["cpu_us"] / this["cpu_us"])

    @property
    def ratios(self) -> list[float]:
        """How much better this tree was in each round: above 1, it was."""
        pairs = zip(self.this, self.other, strict=True)
        return [this / other if self.figure in MORE_IS_BETTER else other / this for this, other in pairs]

    @property
    def is_worse(self) -> bool:
        """Whether this tree is worse than the other one by more than the tolerance, by its figure and by CPU time."""
        best = max(statistics.median(each) for each in (self.ratios, self.cpu) if each)
        return best < 1 - TOLERANCE

    def line(self) -> str:
        """The row as it is printed."""
        ratios = sorted(self.ratios)
        by_cpu = f"{statistics.median(self.cpu):.3f}" if self.cpu else ""
        return (
            f"{self.name:<28} {self.figure:<10} {statistics.median(self.other):>12,.2f}"
            f" {statistics.median(self.this):>12,.2f} {statistics.median(ratios):>6.3f} {by_cpu:>7}"
            f"   {ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)}{'  WORSE' if self.is_worse else ''}"
        )


def compare(other: Path, only: Sequence[str], seconds: float, rounds: int) -> bool:
    """Print a line for each row, this tree beside the other; whether no row is more than 5 percent worse."""
    print(f"{'row':<28} {'figure':<10} {'other':>12} {'this':>12} {'ratio':>6} {'by CPU':>7}   ratios of the rounds")
    worse: list[str] = []
    for name, module in SECTIONS.items():
        if name in PEERS or not hasattr(module, "ROWS"):
            continue
        rows = [row for row in module.ROWS if not only or any(fnmatch(row, pattern) for pattern in only)]
        comparisons: dict[str, Comparison] = {}
        for i in range(rounds * PATIENCE):
            if i >= rounds:
                rows = [row for row, comparison in comparisons.items() if comparison.is_worse]
            if rows:
                _measure_round(other, rows, seconds, i, comparisons)
        for comparison in comparisons.values():
            print(comparison.line(), flush=True)
        worse += [row for row, comparison in comparisons.items() if comparison.is_worse]
    print(f"worse by more than {TOLERANCE:.0%}: {', '.join(worse) or 'none'}")
    return not worse


def _measure_round(
    other: Path, rows: Sequence[str], seconds: float, i: int, comparisons: dict[str, Comparison]
) -> None:
    """Measure rows once on each tree, the other one first in every second round, and add them to the comparisons."""
    here = Path(__file__).resolve().parents[1]
    trees = (here, other) if i % 2 else (other, here)
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as scratch:
        files = [Path(scratch) / f"figures-{n}.json" for n in range(2)]
        pair = Pair()
        benches = [
            _start(here, tree, rows, seconds, file, ends)
            for tree, file, ends in zip(trees, files, pair.ends, strict=True)
        ]
        pair.close()
        for bench in benches:
            bench.wait()
        measured = {tree: _figures(file, tree, rows) for tree, file in zip(trees, files, strict=True)}
    for name, this in measured[here].items():
        that = measured[other].get(name)
        figure = next((each for each in FIGURES if this[each] and that and that[each]), None)
        if that is not None and figure is not None:
            comparisons.setdefault(name, Comparison(name, figure)).add(this, that)
        elif i == 0:
            print(f"{name:<28} not measured on both", flush=True)


def _start(
    here: Path, tree: Path, rows: Sequence[str], seconds: float, file: Path, ends: tuple[int, int]
) -> subprocess.Popen[bytes]:
    only = [part for row in rows for part in ("--only", row)]
    return subprocess.Popen(
        [sys.executable, "-m", "bench", "--seconds", str(seconds), "--rounds", "1", "--json", str(file), *only],
        cwd=here,
        env=os.environ | {"PYTHONPATH": f"{tree / 'src'}:{here}", ENVIRONMENT: "{},{}".format(*ends)},
        stdout=subprocess.DEVNULL,
        pass_fds=ends,
    )


def _figures(file: Path, tree: Path, rows: Sequence[str]) -> dict[str, Measured]:
    if not file.exists():
        # The other tree may lack what a row needs: what was measured on both is compared.
        print(f"{', '.join(rows)}: not measured on {tree}", flush=True)
        return {}
    measured: list[Measured] = json.loads(file.read_text())["rows"]
    return {row["name"]: row for row in measured}
