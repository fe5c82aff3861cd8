"""HTTP-21: whatever arrives, the answer is a documented 4xx in the envelope, and nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.api import Api, Reply

PATHS = [
    ("PUT", "/v0/topics/{topic}"),
    ("POST", "/v0/topics/{topic}"),
    ("POST", "/v0/topics/{topic}/diff"),
    ("POST", "/v0/topics/{topic}/delete"),
]

NOT_JSON_OBJECTS = {
    "white space": b" \n\t ",
    "open brace": b"{",
    "open string": b'{"records":[{"data":"abc',
    "trailing comma": b'{"a":1,}',
    "single quotes": b"{'a':1}",
    "bare word": b"hello",
    "bare key": b"{a:1}",
    "comment": b"{/* */}",
    "trailing garbage": b"{} x",
    "two values": b"{}{}",
    "array": b"[]",
    "string": b'"x"',
    "number": b"5",
    "null": b"null",
    "true": b"true",
    "NaN": b'{"records":[{"data":NaN}],"limit":NaN,"before_seq":NaN,"ttl_ms":NaN}',
    "Infinity": b'{"records":[{"data":Infinity}],"limit":-Infinity,"before_seq":Infinity,"ttl_ms":Infinity}',
    "leading zero": b'{"records":[{"data":01}],"limit":01,"before_seq":01,"ttl_ms":01}',
    "plus sign": b'{"records":[{"data":+1}],"limit":+1,"before_seq":+1,"ttl_ms":+1}',
    "hex": b'{"records":[{"data":0x10}],"limit":0x10,"before_seq":0x10,"ttl_ms":0x10}',
    "bare point": b'{"records":[{"data":1.}],"limit":1.,"before_seq":1.,"ttl_ms":1.}',
    "bad escape": b'{"records":[{"data":"\\x41"}],"node":"\\x41","match":"\\x41","discard":"\\x41"}',
    "newline in string": b'{"records":[{"data":"a\nb"}],"node":"a\nb","match":"a\nb","discard":"a\nb"}',
    "NUL": b'{"records":[{"data":"a\x00b"}],"node":"a\x00b","match":"a\x00b","discard":"a\x00b"}',
    "bad UTF-8 in a value": b'{"records":[{"data":"\xff"}],"node":"\xff","match":"\xff","discard":"\xff"}',
    "bad UTF-8 in a key": b'{"records":[{"data":{"\xc3\x28":1}}],"before_seq":1,"\xc3\x28":1}',
    "overlong UTF-8": b'{"records":[{"data":"\xc0\xaf"}],"before_seq":1,"x":"\xc0\xaf"}',
    "UTF-8 surrogate": b'{"records":[{"data":"\xed\xa0\x80"}],"before_seq":1,"x":"\xed\xa0\x80"}',
    "cut UTF-8": b'{"records":[{"data":"\xe2\x82"}],"before_seq":1,"x":"\xe2\x82"}',
    "UTF-16": '{"records":[{"data":1}]}'.encode("utf-16"),
    "a megabyte of [": b"[" * 1048576,
    "a megabyte of [ as data": b'{"records":[{"data":' + b"[" * 1048500,
    "a megabyte of {": b'{"a":' * 209715,
    "closing brackets": b"]" * 1000,
}


@pytest.mark.parametrize("case", NOT_JSON_OBJECTS)
@pytest.mark.parametrize(("method", "path"), PATHS)
def test_body_that_is_no_json_object_is_refused(api: Api, topic_name: str, method: str, path: str, case: str) -> None:
    """HTTP-13: 400 `invalid_request`, and nothing has changed."""
    address = path.format(topic=topic_name)
    api.call(method, address, raw=NOT_JSON_OBJECTS[case]).refused(400, "invalid_request")
    assert not api.exists(topic_name)
    api.fill(topic_name, 2)
    with api.unchanged(topic_name):
        api.call(method, address, raw=NOT_JSON_OBJECTS[case]).refused(400, "invalid_request")
    api.get("/v0/health").ok(200)


@pytest.mark.parametrize(("method", "path"), PATHS[1:2] + PATHS[3:])
def test_missing_body_is_refused(api: Api, topic_name: str, method: str, path: str) -> None:
    """HTTP-13: `records`, and one of `before_seq` and `match`, are required."""
    api.fill(topic_name, 1)
    with api.unchanged(topic_name):
        reply = api.call(method, path.format(topic=topic_name), raw=b"")
        assert reply.status in (400, 415)
        reply.refused(reply.status, {400: "invalid_request", 415: "unsupported_media_type"}[reply.status])


DEEP = 100_000


@pytest.mark.parametrize(
    "text",
    ["[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, '[{"":' * 1000 + "0" + "}]" * 1000],
    ids=["arrays", "objects", "both"],
)
def test_deep_data_is_kept_verbatim_or_refused(api: Api, topic_name: str, text: str) -> None:
    """HTTP-4: data is opaque; so depth either comes back byte for byte, or is refused with nothing changed."""
    reply = api.post(topic_name, raw=b'{"records":[{"data":' + text.encode() + b"}]}")
    if reply.status == 201:
        assert f'"data":{text}' in api.diff(topic_name).text
    else:
        reply.refused(400, "invalid_request")
        assert not api.exists(topic_name)
    api.get("/v0/health").ok(200)


@pytest.mark.parametrize("digits", [20, 309, 5000, 100_000])
@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("PUT", "/v0/topics/{topic}", "ttl_ms"),
        ("PUT", "/v0/topics/{topic}", "priority"),
        ("POST", "/v0/topics/{topic}/diff", "from_seq"),
        ("POST", "/v0/topics/{topic}/diff", "limit"),
        ("POST", "/v0/topics/{topic}/delete", "before_seq"),
    ],
)
def test_huge_integer_is_refused_by_name(
    api: Api, topic_name: str, method: str, path: str, field: str, digits: int
) -> None:
    """HTTP-12: out of range is 400."""
    api.fill(topic_name, 1)
    raw = f'{{"{field}":{"9" * digits}}}'.encode()
    with api.unchanged(topic_name):
        reply = api.call(method, path.format(topic=topic_name), raw=raw)
        if field == "limit" and reply.status == 200:
            return
        reply.refused_naming(field)


def test_huge_integer_in_data_is_data(api: Api, topic_name: str) -> None:
    """HTTP-4: data is never parsed, so no number in it is out of range."""
    digits = "9" * 100_000
    api.post(topic_name, raw=f'{{"records":[{{"data":{digits}}}]}}'.encode()).ok(201)
    assert f'"data":{digits}' in api.diff(topic_name).text


@pytest.mark.parametrize(
    "raw",
    [
        b'{"records":[{"data":1}],"records":[{"data":2}]}',
        b'{"records":[{"data":1,"data":2}]}',
        b'{"records":[{"data":1,"tag":"a","tag":"b"}]}',
        b'{"records":[{"data":1,"meta":{"k":"a","k":"b"}}]}',
    ],
)
def test_duplicate_keys_append_one_record_or_nothing(api: Api, topic_name: str, raw: bytes) -> None:
    """HTTP-21: whichever way a doubled field is read, the write is one record, or is refused whole."""
    reply = api.post(topic_name, raw=raw)
    if reply.status == 201:
        assert api.state(topic_name)["count"] == 1
        assert len(api.read(topic_name, include_tags=True)["records"]) == 1
    else:
        reply.refused(400, "invalid_request")
        assert not api.exists(topic_name)


@pytest.mark.parametrize("text", ['"\\ud800"', '"\\udc00\\ud800"', '"a\\ud83d"'])
@pytest.mark.parametrize("place", ["data", "tag", "node", "meta value", "meta key", "idempotency_key"])
def test_lone_surrogate_escape_never_breaks_a_response(api: Api, topic_name: str, place: str, text: str) -> None:
    """HTTP-21: a lone surrogate cannot be written in UTF-8: it stays an escape inside `data`, or is refused."""
    record = {
        "data": f'{{"data":{text}}}',
        "tag": f'{{"data":1,"tag":{text}}}',
        "node": f'{{"data":1,"node":{text}}}',
        "meta value": f'{{"data":1,"meta":{{"k":{text}}}}}',
        "meta key": f'{{"data":1,"meta":{{{text}:"v"}}}}',
        "idempotency_key": '{"data":1}',
    }[place]
    tail = f',"idempotency_key":{text}' if place == "idempotency_key" else ""
    reply = api.post(topic_name, raw=f'{{"records":[{record}]{tail}}}'.encode())
    if reply.status == 201:
        answer = api.diff(topic_name, include_tags=True)
        answer.ok(200)
        answer.body.decode("utf-8")
    else:
        reply.refused(400, "invalid_request")
        assert not api.exists(topic_name)


@pytest.mark.parametrize(
    "query",
    [
        "?prefix=%FF",
        "?prefix=%00",
        "?prefix=a&prefix=b",
        "?page_size=999999999999999999999999",
        "?page_size=%31%30",
        "?cursor=" + "A" * 5000,
        "?&&&=&=",
        "?touch",
        "?touch=%FF",
        "?" + "a=1&" * 2000,
    ],
)
def test_odd_query_is_answered_in_the_envelope(api: Api, query: str) -> None:
    """HTTP-21: a success or an error of the documented shape, never a 5xx."""
    reply = api.get("/v0/topics" + query)
    if reply.status == 200:
        reply.ok(200)
    else:
        assert 400 <= reply.status < 500
        assert set(reply.json["error"]) <= {"code", "message", "request_id", "detail"}


def test_error_never_echoes_the_whole_payload(api: Api, topic_name: str) -> None:
    """HTTP-10: a message is for people; a megabyte of bad input must not come back as a megabyte of error."""
    replies: list[Reply] = [
        api.put(topic_name, discard="x" * 1_000_000),
        api.post(topic_name, {"records": [{"data": 1, "tag": "t" * 1_000_000}]}),
        api.post(topic_name, {"records": [{"data": 1, "meta": {"k" * 10_000: 5}}]}),
        api.diff(topic_name, from_seq="9" * 1_000_000),
        api.erase(topic_name, match=["tag", "x" * 1_000_000, "a"]),
        api.get("/v0/topics/" + "x" * 5000),
    ]
    for reply in replies:
        assert 400 <= reply.status < 500, reply
        assert len(reply.body) < 20_000


def test_no_refusal_shows_the_inside_of_the_server(api: Api, topic_name: str) -> None:
    """HTTP-10: messages speak of fields and limits; no traceback, no path, no module of the implementation."""
    bodies: list[Any] = [[], 5, "x", {"records": 5}, {"records": [5]}, {"records": [{"data": 1, "meta": 5}]}]
    for body in bodies:
        said = api.post(topic_name, body).text
        for word in ("Traceback", ".py", "msgspec", "Error(", "object at 0x"):
            assert word not in said
