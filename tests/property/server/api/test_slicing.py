"""A write that is decoded in slices is the write that is decoded whole, however it is cut (HTTP-13 to HTTP-15)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topics.engine.limits import Limits
from topics.engine.requests import Write
from topics.engine.write import batch as batches
from topics.errors import TopicsError
from topics.server.api.records import write_body
from topics.server.api.slicing import Slicing

LIMITS = Limits(max_batch_records=20, max_record_bytes=60, max_tag_bytes=5, max_meta_bytes=30)
ENVELOPE_MAX_BYTES = 400

spaces = st.sampled_from(["", "", "", " ", "\n\t", "  "])
names = st.sampled_from(["data", "tag", "node", "meta", "records", "config", "d\\u0061ta", "x", "tags", "é", ""])
values = st.sampled_from(
    ["1", "-2.5e3", "null", "true", '""', '"a"', '"a b"', '"\\u00e9\\n"', '"é"', "[]", "{}", '{"data":1, "data":2}',
     '[{"data":1},{"data":2}]', '{"a":"},{\\"data\\":"}', '"' + "x" * 70 + '"', '{"a":"b"}', "[1 , 2]", '"\\\\"', "NaN"]
)  # fmt: skip


@st.composite
def objects(draw: st.DrawFn, fields: st.SearchStrategy[tuple[str, str]], must: str = "") -> str:
    pairs = draw(st.lists(fields, max_size=3))
    if must and draw(st.integers(0, 9)):
        pairs.insert(draw(st.integers(0, len(pairs))), ("data", draw(values)))
    gap = draw(spaces)
    inner = f"{gap},{gap}".join([f'"{name}"{gap}:{gap}{value}' for name, value in pairs])
    return f"{{{gap}{inner}{gap}}}"


records = objects(
    st.one_of(
        st.tuples(st.just("tag"), st.sampled_from(['"t"', "null", '"toolong"', "5"])),
        st.tuples(st.just("meta"), st.sampled_from(['{"k":"v"}', "null", "{}", "5"])),
        st.tuples(st.sampled_from(["x", "tags", "node", "t\\u0061g"]), st.sampled_from(['"n"', '"x"'])),
    ),
    must="data",
)
arrays = st.lists(st.one_of(records, records, records, values), max_size=25).map(lambda items: f"[{','.join(items)}]")
writes = st.one_of(
    objects(st.one_of(st.tuples(st.just("records"), arrays), st.tuples(names, values))),
    st.tuples(arrays, spaces, st.one_of(st.just(""), st.tuples(names, values).map(lambda f: f',"{f[0]}":{f[1]}'))).map(
        lambda parts: f'{parts[1]}{{"records":{parts[0]}{parts[2]}}}{parts[1]}'
    ),
)
cuts = st.lists(st.integers(0, 2000), max_size=12)


def outcome(body: bytes) -> Any:
    write = write_body(body)
    batches.check(write, LIMITS)
    return said(write, set(write_body.unknown(body)))


def said(write: Write, unknown: set[str]) -> Any:
    shown = [msgspec.structs.asdict(record) for record in write.records]
    for record in shown:
        record["data"], record["meta"] = bytes(record["data"]), bytes(record["meta"])
    fields = {name: getattr(write, name) for name in Write.__struct_fields__ if name not in ("records", "config")}
    return shown, fields, unknown


def sliced(body: bytes, places: list[int]) -> Any:
    slicing = Slicing(LIMITS, ENVELOPE_MAX_BYTES)
    at = 0
    for place in [*sorted(place % (len(body) + 1) for place in places), len(body)]:
        slicing.feed(body[at:place])
        at = place
    write, unknown = write_body.envelope(slicing.finish())
    write.records = slicing.records
    if write.node is not None:
        batches.add_node(slicing.columns, write.node, LIMITS)
    if slicing.columns:
        joined, whole = batches.join(slicing.columns), batches.check(write, LIMITS)
        assert [bytes(data) for data in joined.datas] == [bytes(data) for data in whole.datas]
        columns = (joined.nodes, joined.tags, joined.metas, joined.size_bytes)
        assert columns == (whole.nodes, whole.tags, whole.metas, whole.size_bytes)
    else:
        batches.check(write, LIMITS)
    return said(write, {*unknown, *slicing.unknown})


@given(writes.map(str.encode), cuts)
@example(b'{"records":[{"data":1}  ', [3])
@example(b'{"records":[{"data":[{"data":1},{"data":2}]},{"data":3}]}', [45])
@example(b'{"records":[{"data":1},]}', [24])
@example(b'{"records":[{"data":1} {"data":1}]}', [30])
@example(b'{"records":[{"data":1}%b,{"data":2}, {"data":3}]}' % (b" " * 150), [190, 200])
@example(b'{"records":[{"data":1}]]', [])
@example(b'{"records":[{"data":1}],}', [])
@example(b'{"records":[{"data":1}]} x', [])
def test_slices_make_the_same_write_as_the_whole(body: bytes, places: list[int]) -> None:
    """HTTP-13, HTTP-14, HTTP-15: the same records, fields and unknown names, or a refusal of both."""
    check_same(body, places)


def check_same(body: bytes, places: list[int]) -> None:
    try:
        expected = outcome(body)
    except TopicsError:
        with pytest.raises(TopicsError) as refused:
            sliced(body, places)
        assert 400 <= refused.value.status < 500
    else:
        assert sliced(body, places) == expected


@given(writes.map(str.encode), cuts, st.integers(0, 2000), st.binary(min_size=0, max_size=2))
def test_broken_text_is_refused_by_both(body: bytes, places: list[int], at: int, put: bytes) -> None:
    """HTTP-13: no mistake in the text goes unnoticed because of where the body was cut."""
    at %= len(body) + 1
    check_same(body[:at] + put + body[at + 1 :], places)


@given(writes.map(str.encode))
def test_repeats_are_those_that_a_parser_finds(body: bytes) -> None:
    """HTTP-14: told by lengths alone, and exactly."""
    try:
        msgspec.json.decode(body, type=Write)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    try:
        write_body(body)
        refused = False
    except TopicsError as error:
        refused = "is given twice" in error.message
    assert refused == repeats(body)


def repeats(body: bytes) -> bool:
    """Whether the write, a record of it or its config names a field twice, told by a parser that keeps all pairs."""
    pairs = json.loads(body, object_pairs_hook=tuple)

    def twice(found: Any) -> bool:
        return isinstance(found, tuple) and len({name for name, _ in found}) < len(found)

    if twice(pairs):
        return True
    fields = dict(pairs)
    return twice(fields.get("config")) or any(map(twice, fields["records"]))
