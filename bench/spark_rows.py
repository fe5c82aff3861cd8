"""Rows of `make bench-spark`: works, the contenders for each of them, and one table of what they took.

To add a row, give a work one more contender, or the list of works in `bench.spark` one more work:

    Work("sink", 2_000_000, [Contender("topics", write_to_topic), Contender("Kafka", write_to_kafka)])

A contender does the whole work each time it is called, and gets the number of its turn, for names of its own. The
contenders of a work take turns, so that neither a JVM that is warming up nor a busy moment of the machine hits only one
of them. The first two turns of each warm up and do not count: the second one still takes up to twice as long as the
third, because the JVM compiles what is used often. A figure is the median of the others. What is measured in
another way, or in another process, is a `Row` that is added to those of the works (`bench/row.py`).
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from bench.row import Row, Target

WARM_TURNS = 2
TURNS = 5


class Contender(NamedTuple):
    """One way to do a work."""

    name: str
    run: Callable[[int], object]
    target: Target | None = None


class Work(NamedTuple):
    """Something to do with so many records; `beside` is the contender that the time of the others is divided by."""

    name: str
    records: int
    contenders: list[Contender]
    beside: str | None = None


def measure(work: Work, cpu_s: Callable[[], float], turns: int = TURNS) -> list[Row]:
    """A row for each contender; `cpu_s` is the CPU time of all that takes part, so far."""
    took: dict[str, list[tuple[float, float]]] = {contender.name: [] for contender in work.contenders}
    for turn in range(WARM_TURNS + turns):
        for contender in work.contenders:
            started, spent = time.perf_counter(), cpu_s()
            contender.run(turn)
            took[contender.name].append((time.perf_counter() - started, cpu_s() - spent))
    rows = []
    for contender in work.contenders:
        seconds, cpu = (statistics.median(turn[k] for turn in took[contender.name][WARM_TURNS:]) for k in (0, 1))
        row = Row(work.name, contender.name, records_s=work.records / seconds, seconds=seconds, target=contender.target)
        row.cpu_us = cpu / work.records * 1e6
        rows.append(row)
    return _beside(rows, work.beside)


def over_sessions(found: list[list[Row]], records: int, beside: str) -> list[Row]:
    """The rows of the same contenders in several sessions as one: each figure is the median of theirs."""
    rows = []
    for same in zip(*found, strict=True):
        seconds, cpu_us = (statistics.median(getattr(row, k) for row in same) for k in ("seconds", "cpu_us"))
        rows.append(dataclasses.replace(same[0], seconds=seconds, records_s=records / seconds, cpu_us=cpu_us))
    return _beside(rows, beside)


def _beside(rows: list[Row], name: str | None) -> list[Row]:
    """The rows with the share of their time in that of one of them."""
    reference = next((row.seconds for row in rows if row.title == name), None)
    if reference is None:
        return rows
    return [dataclasses.replace(row, ratio=(row.seconds or 0.0) / reference) for row in rows]


def markdown(rows: Iterable[Row]) -> str:
    """The rows as one table."""
    lines = [
        "| work | by | seconds | records/s | CPU us a record | of Parquet's time | p50 ms | p99 ms | wanted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        wanted = "" if row.target is None else f"{row.target}, {'met' if row.met else 'MISSED'}"
        figures = (
            _shown(row.seconds, ".2f"), _shown(row.records_s, ",.0f"), _shown(row.cpu_us, ".2f"),
            _shown(row.ratio, ".2f"), _shown(row.p50_ms, ".1f"), _shown(row.p99_ms, ".1f"), wanted,
        )  # fmt: skip
        lines.append(f"| {row.name} | {row.title} | " + " | ".join(figures) + " |")
    return "\n".join(lines)


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
