"""Two benches in turns: only the one that has the baton measures, and neither waits for one that has ended."""

from __future__ import annotations

import os
from threading import Thread

from bench.baton import Baton, Pair
from bench.bed import Bench


def close(ends: tuple[int, int]) -> None:
    """As the end of a process does."""
    for fd in ends:
        os.close(fd)


def test_two_benches_measure_a_slice_each_in_turn() -> None:
    """Given two benches of three seconds, each slice of one is followed by one of the other."""
    pair, seen = Pair(), []

    def measure(name: str, ends: tuple[int, int]) -> None:
        baton = Baton(*ends)
        baton.await_turn()
        for seconds in Bench(seconds=3.0, baton=baton).slices():
            seen.append((name, seconds))
        close(ends)

    threads = [Thread(target=measure, args=(name, ends)) for name, ends in zip("ab", pair.ends, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [name for name, _ in seen] == ["a", "b"] * 3
    assert {seconds for _, seconds in seen} == {1.0}


def test_a_bench_goes_on_alone_when_the_other_has_ended() -> None:
    """Given a bench whose partner has closed its ends, every slice is its own."""
    pair = Pair()
    (take, give), other = pair.ends
    close(other)
    baton = Baton(take, give)
    baton.await_turn()
    assert list(Bench(seconds=2.0, baton=baton).slices()) == [1.0, 1.0]
    close((take, give))


def test_a_bench_alone_measures_in_one_go() -> None:
    """Without a baton nothing is cut."""
    assert list(Bench(seconds=2.5).slices()) == [2.5]
