"""How a replay is cut into slices: everything once, in order, and none too large."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from topics.pipeline.lake.files import Written
from topics.pipeline.replay import Slice, slices


def file(topic: str, first: int, last: int, size: int = 1) -> Written:
    return Written("p", topic, "d", size, last - first + 1, first, last, 0, 0, None)


def cut(*files: Written, seq_from: int | None = None, seq_to: int | None = None, bytes_max: int = 1000) -> list[Slice]:
    return list(slices(list(files), seq_from, seq_to, 10, bytes_max))


def test_small_files_are_put_together_and_large_ones_are_cut() -> None:
    small = [file("a", n * 4 + 1, n * 4 + 4) for n in range(4)]
    assert [(one.seq_from, one.seq_to, one.records) for one in cut(*small)] == [(0, 8, 8), (9, 16, 8)]
    assert [one.seq_to for one in cut(file("a", 1, 40))] == [10, 20, 30, 40]
    assert [one.seq_to for one in cut(file("a", 1, 8, size=4000))] == [2, 4, 6, 8], "by bytes too"


def test_topics_follow_each_other_and_bounds_cut_off() -> None:
    found = cut(file("b", 1, 5), file("a", 1, 25), seq_from=4, seq_to=20)
    assert [(one.topic, one.seq_from, one.seq_to) for one in found] == [
        ("a", 4, 8),
        ("a", 9, 16),
        ("a", 17, 20),
        ("b", 4, 5),
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 60), st.integers(0, 40), st.integers(1, 5000)), max_size=12
    ),
    st.none() | st.integers(1, 80),
    st.none() | st.integers(1, 80),
)
def test_every_seq_of_every_file_is_in_exactly_one_slice(
    drawn: list[tuple[str, int, int, int]], seq_from: int | None, seq_to: int | None
) -> None:
    files = [file(topic, first, first + more, size) for topic, first, more, size in drawn]
    found = cut(*files, seq_from=seq_from, seq_to=seq_to)
    for one in files:
        for seq in range(one.seq_min, one.seq_max + 1):
            wanted = (seq_from is None or seq >= seq_from) and (seq_to is None or seq <= seq_to)
            holding = [s for s in found if s.topic == one.topic and s.seq_from <= seq <= s.seq_to]
            assert len(holding) == wanted
    assert found == sorted(found, key=lambda one: (one.topic, one.seq_from))
