"""Two trees compared row by row: what is a difference, and what is noise."""

from __future__ import annotations

import pytest

from bench.against import Comparison


def compared(
    figure: str, rounds: list[tuple[float, float]], cpu: list[tuple[float, float]] | None = None
) -> Comparison:
    """A comparison of these rounds, each (this, other)."""
    comparison = Comparison("row", figure)
    for i, (this, other) in enumerate(rounds):
        this_cpu, other_cpu = cpu[i] if cpu else (None, None)
        comparison.add({figure: this, "cpu_us": this_cpu}, {figure: other, "cpu_us": other_cpu})
    return comparison


def test_a_round_is_compared_with_itself_because_the_machine_swings() -> None:
    """The medians of the two trees differ by half here, and in every round they were level."""
    comparison = compared("requests_s", [(100, 100), (60, 60), (61, 60), (100, 101), (58, 60)])
    assert not comparison.is_worse
    assert comparison.ratios[0] == 1


@pytest.mark.parametrize(
    ("figure", "rounds"),
    [("requests_s", [(90, 100), (54, 60), (99, 100)]), ("seconds", [(1.1, 1.0), (2.2, 2.0), (1.0, 1.0)])],
)
def test_a_median_round_beyond_the_tolerance_is_worse(figure: str, rounds: list[tuple[float, float]]) -> None:
    """Fewer requests and more seconds are both worse."""
    comparison = compared(figure, rounds)
    assert comparison.is_worse
    assert comparison.line().endswith("WORSE")
    assert not compared(figure, [(other, this) for this, other in rounds]).is_worse


def test_a_row_that_takes_no_more_processor_time_is_not_worse() -> None:
    """What waits for the disk or the generator says little; processor time is the server's own."""
    assert not compared("requests_s", [(90, 100)] * 3, cpu=[(20, 20)] * 3).is_worse
    assert compared("requests_s", [(90, 100)] * 3, cpu=[(22, 20)] * 3).is_worse
