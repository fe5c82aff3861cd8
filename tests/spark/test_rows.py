"""Rows become records: a whole batch at once where nothing is wrong with it, row by row otherwise, with one result."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.options import WriteOptions
from topics.spark.rows import RECORD_BYTES_MAX, Rows

pytestmark = pytest.mark.spark

TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", 'q"', "\n", "é", "x" * 200, "x" * 300]))
DATAS = st.sampled_from(
    [b"1", b' {"a": [2]} ', b'"\xc3\xa9"', b'"\xff"', b"{x", b'1,"tag":"t"', b"", b'"a', b'b"', b"1,2", b"],[", None]
)


def rendered(names: list[str], *columns: pa.Array) -> list[tuple[str, bytes]]:
    options = WriteOptions({"url": "http://127.0.0.1:1", "topic": "t", "errorTopic": "errors"})
    batch = pa.RecordBatch.from_arrays(list(columns), names=names)
    found = []
    for topic, text, ends in Rows(options, 0).render(batch):
        for start, end in pairwise((0, *ends)):
            found.append((topic, bytes(text[start : end - 1])))
            assert bytes(text[end - 1 : end]) == b","
    return found


@given(st.lists(st.tuples(DATAS, TEXTS, TEXTS), min_size=1, max_size=5))
def test_a_batch_gives_the_records_of_its_rows(rows: list[tuple[bytes | None, str | None, str | None]]) -> None:
    """A column of topics, although it names none, has each row looked at by itself."""
    raw = pa.array([row[0] for row in rows], pa.binary())
    data = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    others = [pa.array([row[k] for row in rows], pa.string()) for k in (1, 2)]
    nowhere = pa.nulls(len(rows), pa.string())
    at_once = rendered(["data", "tag", "node"], data, *others)
    one_by_one = rendered(["data", "tag", "node", "topic"], data, *others, nowhere)
    assert at_once == one_by_one
    assert len(at_once) == len(rows)


def test_a_record_that_is_too_large_is_one_bad_row_among_good_ones() -> None:
    texts = pa.array(["1", f'"{"x" * RECORD_BYTES_MAX}"', "3"], pa.string())
    assert [topic for topic, _ in rendered(["data"], texts)] == ["t", "errors", "t"]


def test_what_is_not_text_or_too_deep_is_a_bad_row_with_its_reason() -> None:
    """Spark's strings hold any bytes; none of this is a bare stack trace from a worker."""
    raw = pa.array([b"x", b"\xff"], pa.binary())
    odd = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    fine = pa.array(["1", "2"], pa.string())
    for name in ("tag", "node", "topic"):
        first, second = rendered(["data", name], fine, odd)
        assert first[0] != "errors"
        assert second[0] == "errors"
        assert f'"{name} is not UTF-8"'.encode() in second[1]
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["k", "k"]), odd)
    assert b"meta is not UTF-8" in rendered(["data", "meta"], fine, maps)[1][1]
    deep = pa.array(["1", "[" * 100_000 + "]" * 100_000], pa.string())
    assert b"data is nested too deeply" in rendered(["data"], deep)[1][1]


def test_decimals_are_numbers() -> None:
    (record,) = rendered(["data"], pa.array([{"price": Decimal("1.50")}]))
    assert record == ("t", b'{"data":{"price":1.50}}')
