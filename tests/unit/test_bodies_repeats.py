"""A key that is given twice in a write is refused wherever it stands, however little it adds (API §0.3)."""

from __future__ import annotations

import msgspec
import pytest

from topics.errors import InvalidRequest
from topics.server import bodies

RECORD = b'{"data":1}'
SMALLEST = (b'"data":0,', b'"tag":"",', b'"node":"",', b'"meta":{},')


@pytest.mark.parametrize("extra", SMALLEST)
@pytest.mark.parametrize("count", [1, 2, 100])
@pytest.mark.parametrize("at", ["first", "last"])
def test_smallest_repeat_is_refused_in_any_record(extra: bytes, count: int, at: str) -> None:
    """API §0.3: the field that came first would be dropped in silence."""
    named = extra.replace(b"0,", b"7,").replace(b'"",', b'"x",').rstrip(b",")
    doubled = b"{" + extra + named + (b"" if b"data" in extra else b',"data":1') + b"}"
    records = [RECORD] * count
    records[0 if at == "first" else -1] = doubled
    with pytest.raises(InvalidRequest, match="is given twice"):
        bodies.write(b'{"records":[' + b",".join(records) + b"]}")


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
    """API §0.3: at the top of a write, and under another spelling of the same key."""
    with pytest.raises(InvalidRequest, match="is given twice"):
        bodies.write(body)


def test_whole_write_without_repeats_is_taken_with_any_spacing() -> None:
    """API §2: every field of a record once, compact or spread out; `data` may repeat its own keys."""
    tight = b'{"records":[{"data":{"tag":1,"tag":2},"tag":"\xc3\xa4","node":"n","meta":{"node":"x"}}],"node":"b"}'
    wide = tight.replace(b":", b" : ").replace(b",", b" , ")
    for body in (tight, wide):
        write = bodies.write(body)
        assert (write.records[0].tag, write.records[0].node, write.node) == ("ä", "n", "b")
        assert msgspec.json.decode(write.records[0].data) == {"tag": 2}


def test_repeat_in_a_diff_is_refused() -> None:
    """API §0.3, on a read."""
    with pytest.raises(InvalidRequest, match="from_seq is given twice"):
        bodies.diff(b'{"from_seq":1,"limit":5,"from_seq":2}')
