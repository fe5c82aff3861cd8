"""The pauses of a machine are those of all its cores, and only what is in a wait is taken off it."""

from __future__ import annotations

from tests.hostile.pauses import joined, within


def test_a_moment_in_which_several_cores_stood_still_counts_once() -> None:
    assert joined([(5.0, 6.0), (1.0, 2.0), (1.5, 3.0), (1.6, 1.7)]) == [(1.0, 3.0), (5.0, 6.0)]


def test_only_the_part_of_a_pause_that_is_in_a_wait_is_taken_off_it() -> None:
    paused = [(1.0, 3.0), (5.0, 6.0)]
    assert within(paused, 2.5, 5.5) == 1000
    assert within(paused, 0.0, 10.0) == 3000
    assert within(paused, 3.0, 5.0) == 0
