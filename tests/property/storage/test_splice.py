"""Blocks taken apart and put together by column hold the records that went in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.storage import block, splice
from topics.storage.block import Block
from topics.storage.flags import DELETED
from topics.storage.splice import blanked, cut, erased, merge, readdress, walk

TEXT = st.one_of(st.none(), st.binary(max_size=6))
RECORD = st.tuples(
    st.integers(0, 3), st.binary(min_size=1, max_size=9), TEXT, TEXT, st.one_of(st.none(), st.binary(min_size=1))
)
RECORDS = st.lists(RECORD, min_size=1, max_size=8)


def made_of(rows: list[Any], first_seq: int = 5) -> Block:
    times = [1000 + sum(row[0] for row in rows[: i + 1]) for i in range(len(rows))]
    columns = [[row[k] for row in rows] for k in (2, 3, 4)]
    optional = [column if any(text is not None for text in column) else None for column in columns]
    return block.encode(7, first_seq, times, [row[1] for row in rows], *optional)


def content(found: Block, i: int = 0, j: int | None = None) -> list[tuple[Any, ...]]:
    return [
        (found.first_seq + k, found.ts_at(k), found.data(k), found.node(k), found.tag(k), found.meta(k))
        for k in range(i, found.n if j is None else j)
    ]


@given(RECORDS, st.data())
def test_a_slice_holds_its_records_and_slices_merge_to_the_whole(rows: list[Any], data: Any) -> None:
    whole = made_of(rows)
    middle = data.draw(st.integers(0, whole.n))
    ends = [(i, j) for i, j in ((0, middle), (middle, whole.n)) if i < j]
    parts = [cut(whole, i, j) for i, j in ends]
    assert [content(part) for part in parts] == [content(whole, i, j) for i, j in ends]
    merged = merge(parts)
    assert content(merged) == content(whole)
    assert (merged.topic_id, merged.live_bytes) == (whole.topic_id, whole.live_bytes)
    assert block.decode(merged.raw, with_flags=False)[1] == len(merged.raw)


@given(RECORDS, st.integers(990, 1020))
def test_a_copy_for_another_topic_differs_in_topic_seqs_and_time_only(rows: list[Any], ts_min: int) -> None:
    whole = made_of(rows)
    copy = block.decode(readdress(whole, 9, 31, ts_min).raw, with_flags=False)[0]
    assert copy.topic_id == 9
    expected = [(seq - 5 + 31, max(ts, ts_min), *texts) for seq, ts, *texts in content(whole)]
    assert content(copy) == expected


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_spans_and_blanks_agree_with_the_codec(groups: list[list[Any]], data: Any) -> None:
    blocks = [made_of(rows, 100 * k) for k, rows in enumerate(groups, 1)]
    flags = [bytes(data.draw(st.lists(st.sampled_from((0, DELETED)), min_size=b.n, max_size=b.n))) for b in blocks]
    buffer = b"".join(blanked(found, dead) + dead for found, dead in zip(blocks, flags, strict=True))
    for found, dead, spans in zip(blocks, flags, walk(memoryview(buffer)), strict=True):
        assert (spans.first_seq, spans.n, bytes(spans.flags)) == (found.first_seq, found.n, dead)
        datas = [b" " * len(text) if dead[i] else text for i, text in enumerate(found.datas())]
        assert buffer[slice(*spans.data)] == b"".join(datas)
        live = [i for i in range(found.n) if not dead[i]]
        kept = block.decode(blanked(found, dead), with_flags=False)[0]
        assert [content(kept)[i] for i in live] == [content(found)[i] for i in live]


@given(RECORDS, st.data())
def test_what_is_erased_has_no_text_and_everything_else_stays(rows: list[Any], data: Any) -> None:
    """SPACE-5: the dead keep their seqs and times, or are left out in long runs; the live are what they were."""
    whole = made_of(rows)
    dead = bytes(data.draw(st.lists(st.sampled_from((0, DELETED)), min_size=whole.n, max_size=whole.n)))
    live = [row for i, row in enumerate(content(whole)) if not dead[i]]
    kept = erased(whole, dead)
    read = block.decode(kept.encoded())[0]
    assert [row for i, row in enumerate(content(read)) if not dead[i]] == live
    assert all(row[2:] == (b"", None, None, None) for i, row in enumerate(content(read)) if dead[i])
    assert bytes(read.flags or bytes(read.n)) == dead
    assert read.erased() == (dead if DELETED in dead else b"")
    assert (read.live, read.live_bytes) == (
        len(live),
        sum(whole.size_bytes(i, i + 1) for i in range(whole.n) if not dead[i]),
    )
    again = erased(read, dead)
    assert again.raw == read.raw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splice, "LEAVE_OUT_RECORDS", 2)
        pieces = splice.without(whole, dead)
    rows_left = [
        row for piece in pieces for i, row in enumerate(content(piece)) if not (piece.flags and piece.flags[i])
    ]
    assert rows_left == live
    assert sum(piece.n for piece in pieces) <= whole.n
    assert all(piece.live for piece in pieces)
