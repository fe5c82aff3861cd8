"""The checks of a write say the same of a record whether it comes alone or among others (WRITE-10)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topics.engine import requests
from topics.engine.limits import Limits
from topics.engine.write import batch
from topics.errors import TopicsError
from topics.storage.block import RECORD_FRAMING_BYTES

LIMITS = Limits(max_record_bytes=40, max_meta_bytes=20, max_tag_bytes=4, max_node_bytes=4)


def _write(records: list[dict[str, Any]], **fields: Any) -> requests.Write:
    return msgspec.json.decode(msgspec.json.encode({"records": records, **fields}), type=requests.Write)


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"data": 1, "tag": "ääb"}, {"field": "records[{i}].tag", "limit": "max_tag_bytes"}),
        ({"data": 1, "node": "abcde"}, {"field": "records[{i}].node", "limit": "max_node_bytes"}),
        ({"data": 1, "meta": {"k": "x" * 20}}, {"field": "records[{i}].meta", "limit": "max_meta_bytes"}),
        ({"data": 1, "meta": {"k": 1}}, {"field": "records[{i}].meta", "key": "k"}),
        ({"data": 1, "meta": [1]}, {"field": "records[{i}].meta"}),
        ({"data": "x" * 39}, {"field": "records[{i}]", "limit": "max_record_bytes"}),
        ({"data": "x" * 25, "meta": {"k": "vvvvvvv"}}, {"field": "records[{i}]", "limit": "max_record_bytes"}),
    ],
)
@pytest.mark.parametrize("before", [0, 2])
def test_record_at_fault_is_named_alone_and_among_others(
    record: dict[str, Any], named: dict[str, str], before: int
) -> None:
    """WRITE-10: an error names the record's index and the limit."""
    with pytest.raises(TopicsError) as raised:
        batch.check(_write([{"data": 1, "tag": "t", "meta": {"a": "b"}}] * before + [record]), LIMITS)
    for key, value in named.items():
        assert raised.value.detail[key] == value.replace("{i}", str(before))


@pytest.mark.parametrize(
    "record",
    [
        {"data": 1},
        {"data": [1], "tag": "ä"},
        {"data": 1, "tag": "", "node": ""},
        {"data": 1, "node": "own"},
        {"data": 1, "meta": {"k": "v"}},
        {"data": 1, "meta": None, "tag": None},
        {"data": 1, "meta": {}, "tag": "t", "node": "n"},
    ],
)
@pytest.mark.parametrize("node", [None, "all"])
def test_one_record_has_the_columns_it_would_have_in_a_batch(record: dict[str, Any], node: str | None) -> None:
    """WRITE-12: the `node` of the write is that of records without one; null means absent."""
    alone = batch.check(_write([record], node=node), LIMITS)
    twice = batch.check(_write([record, record], node=node), LIMITS)
    for name in ("datas", "nodes", "tags", "metas"):
        one, two = getattr(alone, name), getattr(twice, name)
        assert (one is None) == (two is None), name
        assert one is None or [bytes(v) if v is not None else None for v in [*one, *one]] == [
            bytes(v) if v is not None else None for v in two
        ], name
    assert alone.size_bytes * 2 == twice.size_bytes
    assert alone.size_bytes >= RECORD_FRAMING_BYTES
