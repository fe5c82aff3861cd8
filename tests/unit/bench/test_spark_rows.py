"""The table of `make bench-spark`: contenders take turns, the first two do not count, a figure is a median."""

from __future__ import annotations

import pytest

from bench import spark_rows
from bench.row import Row, at_least, at_most
from bench.spark_rows import Contender, Work, markdown, measure, over_sessions


class Clock:
    """Time that passes only while a contender works."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns: list[tuple[str, int]] = []

    def contender(self, name: str, *seconds: float) -> Contender:
        """One that takes so long in each of its turns."""

        def run(turn: int) -> None:
            self.turns.append((name, turn))
            self.now_s += seconds[turn]

        return Contender(name, run)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(spark_rows.time, "perf_counter", lambda: made.now_s)
    return made


def test_contenders_take_turns_and_a_figure_is_the_median_of_all_but_those_that_warm_up(clock: Clock) -> None:
    files, topics = clock.contender("Parquet", 90, 80, 2, 9, 1), clock.contender("topics", 80, 70, 3, 3, 4)
    rows = measure(Work("group-by", 600, [files, topics], "Parquet"), lambda: clock.now_s / 2, turns=3)
    assert clock.turns == [(name, turn) for turn in range(5) for name in ("Parquet", "topics")]
    assert [(row.title, row.seconds, row.records_s, row.ratio) for row in rows] == [
        ("Parquet", 2, 300, 1.0),
        ("topics", 3, 200, 1.5),
    ]
    assert rows[0].cpu_us == pytest.approx(1 / 600 * 1e6)


def test_the_figures_of_several_sessions_are_their_medians() -> None:
    def session(parquet: float, topics: float) -> list[Row]:
        return [
            Row("group-by", "Parquet", seconds=parquet, cpu_us=parquet, ratio=1.0),
            Row("group-by", "topics", seconds=topics, cpu_us=topics, ratio=9.0, target=at_most(1.1, "ratio")),
        ]

    rows = over_sessions([session(2, 3), session(1, 9), session(4, 2)], 600, "Parquet")
    assert [(row.title, row.seconds, row.records_s, row.cpu_us, row.ratio) for row in rows] == [
        ("Parquet", 2, 300, 2, 1.0),
        ("topics", 3, 200, 3, 1.5),
    ]
    assert not rows[1].met


def test_a_work_without_a_reference_has_no_ratio(clock: Clock) -> None:
    [row] = measure(Work("sink", 10, [clock.contender("topics", 1, 1, 1)]), lambda: 0.0, turns=1)
    assert row.ratio is None


def test_the_table_says_which_targets_are_met() -> None:
    rows = [
        Row("sink", "topics", records_s=500_000.0, target=at_least(400_000, "records_s")),
        Row("group-by", "topics", ratio=1.2, target=at_most(1.1, "ratio")),
        Row("micro-batch", "topics", p50_ms=180.0, p99_ms=300.0),
    ]
    lines = markdown(rows).splitlines()
    assert {line.count("|") for line in lines} == {10}
    assert lines[2].endswith("| >= 400,000 rec/s, met |")
    assert lines[3].endswith("| <= 1.1 x, MISSED |")
    assert "| 180.0 | 300.0 |" in lines[4]
