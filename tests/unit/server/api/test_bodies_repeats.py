"""A key that is given twice is refused wherever it is, however little it adds (HTTP-14); a number is a u64 (HTTP-8)."""

from __future__ import annotations

import msgspec
import pytest

from topics.errors import InvalidRequest
from topics.server.api import bodies
from topics.server.api.records import write_body
from topics.server.delivery import commands

RECORD = b'{"data":1}'
SMALLEST = (b'"data":0,', b'"tag":"",', b'"node":"",', b'"meta":{},')


@pytest.mark.parametrize("extra", SMALLEST)
@pytest.mark.parametrize("count", [1, 2, 100])
@pytest.mark.parametrize("at", ["first", "last"])
def test_smallest_repeat_is_refused_in_any_record(extra: bytes, count: int, at: str) -> None:
    """HTTP-14: the field that came first would be dropped in silence."""
    named = extra.replace(b"0,", b"7,").replace(b'"",', b'"x",').rstrip(b",")
    doubled = b"{" + extra + named + (b"" if b"data" in extra else b',"data":1') + b"}"
    records = [RECORD] * count
    records[0 if at == "first" else -1] = doubled
    with pytest.raises(InvalidRequest, match="is given twice"):
        write_body(b'{"records":[' + b",".join(records) + b"]}")


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[],"records":[{"data":1}]}',
        b'{"node":"","node":"n","records":[{"data":1}]}',
        b'{"records":[{"data":1,"t\\u0061g":"a","t\\u0061g":"b"}]}',
        b'{"create":true,"create":true,"records":[{"data":1}]}',
    ],
)
def test_repeats_beside_the_records_are_refused(body: bytes) -> None:
    """HTTP-14: at the top of a write, and under another spelling of the same key."""
    with pytest.raises(InvalidRequest, match="is given twice"):
        write_body(body)


def test_whole_write_without_repeats_is_taken_with_any_spacing() -> None:
    """HTTP-14: every field of a record once, compact or spread out; `data` may repeat its own keys."""
    tight = b'{"records":[{"data":{"tag":1,"tag":2},"tag":"\xc3\xa4","node":"n","meta":{"node":"x"}}],"node":"b"}'
    wide = tight.replace(b":", b" : ").replace(b",", b" , ")
    for body in (tight, wide):
        write = write_body(body)
        assert (write.records[0].tag, write.records[0].node, write.node) == ("ä", "n", "b")
        assert msgspec.json.decode(write.records[0].data) == {"tag": 2}


@pytest.mark.parametrize("extra", SMALLEST)
@pytest.mark.parametrize("value", [b'"a b  c"', b'{ "k" : " " }', b"1"])
def test_spaces_hide_no_repeat(extra: bytes, value: bytes) -> None:
    """HTTP-14: however a body is spread out, and wherever its spaces are."""
    spread = b' { "records" : [ { "tag" : " x " , "node" : "   " , "meta" : { "m" : "  " } , %b "data" : %b } ] } '
    assert len(write_body(spread % (b"", value)).records) == 1
    with pytest.raises(InvalidRequest, match="is given twice"):
        write_body(spread % (extra, value))
    with pytest.raises(InvalidRequest, match="is given twice"):
        write_body((spread % (extra, value)).replace(b" ", b""))


def test_repeat_in_a_diff_is_refused() -> None:
    """HTTP-14, on a read."""
    with pytest.raises(InvalidRequest, match="from_seq is given twice"):
        bodies.diff(b'{"from_seq":1,"limit":5,"from_seq":2}')


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"records":[{"data":1,"delay_ms":5,"delay_ms":6}]}', "records[0].delay_ms"),
        (b'{"records":[{"data":1},{"data":1,"deliver_at":5,"deliver_at":null}]}', "records[1].deliver_at"),
        (b'{"records":[{"data":1}],"disable_backpressure":true,"disable_backpressure":false}', "disable_backpressure"),
        (b'{"records":[{"data":1}],"config":{"ttl_ms":1,"ttl_ms":2}}', "config.ttl_ms"),
        (
            b'{"idempotency_key":"a","records":[{"data":"' + b"x" * 9000 + b'"}],"idempotency_key":"b"}',
            "idempotency_key",
        ),
        (b'{"records":[{"data":' + b"1" * 5000 + b',"tag":"a","tag":"b"}]}', "records[0].tag"),
    ],
)
def test_every_field_of_a_write_is_held_to_it(body: bytes, field: str) -> None:
    """HTTP-14: rare fields, the config, large bodies and numbers of any length make no difference."""
    with pytest.raises(InvalidRequest, match="is given twice") as refused:
        write_body(body)
    assert refused.value.detail["field"] == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (b'{"op":"ping","op":"ping"}', "op"),
        (b'{"op":"ping","request_id":1,"request_id":2}', "request_id"),
        (b'{"op":"publish","op":"publish","topic":"a","records":[{"data":1}]}', "op"),
        (b'{"op":"publish","topic":"a","topic":"b","records":[{"data":1}]}', "topic"),
        (b'{"op":"publish","topic":"a","records":[{"data":1}],"records":[{"data":2}]}', "records"),
        (b'{"op":"publish","topic":"a","request_id":"r","records":[{"data":0,"data":1}]}', "records[0].data"),
        (b'{"op":"publish","topic":"a","records":[{"data":1}],"config":{"ttl_ms":1,"ttl_ms":2}}', "config.ttl_ms"),
        (b'{"op":"subscribe","topic":"a","topic":"b"}', "topic"),
        (b'{"op":"subscribe","topics":{"a":{"from_seq":1,"from_seq":2}}}', "topics.a.from_seq"),
        (b'{"op":"subscribe","topics":{"records":{},"records":{"tail":true}}}', "topics.records"),
        (b'{"op":"unsubscribe","topic":"a","topic":"b"}', "topic"),
    ],
)
def test_commands_of_a_websocket_are_held_to_it_too(message: bytes, field: str) -> None:
    """HTTP-14, WS-6: the same as over HTTP."""
    with pytest.raises(InvalidRequest, match="is given twice") as refused:
        commands.decode(message)
    assert refused.value.detail["field"] == field


@pytest.mark.parametrize(
    "message",
    [
        b'{"op":"publish","topic":"a","records":[{"data":{"op":1,"op":2,"topic":"b","data":3}}]}',
        b'{"op": "publish", "request_id": 7, "topic": "op", "records": [{"data": "tag", "tag": "op"}]}',
        b'{"op":"subscribe","topics":{"topics":{"from_seq":1},"config":{"from_seq":2}},"node":"topics"}',
    ],
)
def test_commands_without_repeats_are_taken(message: bytes) -> None:
    """HTTP-14: `data` may repeat its own keys, and a name may look like a field."""
    commands.decode(message)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (b'{"op":"publish","topic":"a","records":[{"data":1}],"producer_id":"p","producer_seq":%d}', "producer_seq"),
        (b'{"op":"publish","topic":"a","records":[{"data":1}],"expected_head_seq":%d}', "expected_head_seq"),
        (b'{"op":"publish","topic":"a","records":[{"data":1}],"config":{"ttl_ms":%d}}', "config.ttl_ms"),
        (b'{"op":"subscribe","topic":"a","from_seq":%d}', "from_seq"),
        (b'{"op":"subscribe","topic":"a","from_ts":%d}', "from_ts"),
        (b'{"op":"subscribe","topic":"a","max_batch_bytes":%d}', "max_batch_bytes"),
        (b'{"op":"subscribe","topics":{"a":{"from_seq":%d}}}', "topics.a.from_seq"),
        (b'{"op":"subscribe","topics":{"a":{"from_ts":%d}}}', "topics.a.from_ts"),
    ],
)
def test_number_of_a_command_is_a_u64(message: bytes, field: str) -> None:
    """HTTP-8, WS-6: the largest u64 is taken, the next number is refused by name, as over HTTP."""
    commands.decode(message % (2**64 - 1))
    for number in (2**64, 10**30):
        with pytest.raises(InvalidRequest, match="out of range") as refused:
            commands.decode(message % number)
        assert refused.value.detail["field"] == field
