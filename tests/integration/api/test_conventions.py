"""The HTTP rules: common to all endpoints: addresses, bodies, encodings, the error envelope, `performance`."""

from __future__ import annotations

import gzip
import re
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.api import Api, Reply

ENDPOINTS: dict[str, Callable[[Api, str], Reply]] = {
    "put": lambda api, topic: api.put(topic),
    "state": lambda api, topic: api.get(f"/v0/topics/{topic}"),
    "list": lambda api, topic: api.topics(prefix=topic),
    "write": lambda api, topic: api.post(topic, {"records": [{"data": 1}]}),
    "diff": lambda api, topic: api.diff(topic),
    "delete records": lambda api, topic: api.erase(topic, before_seq=1),
    "delete topic": lambda api, topic: api.remove(topic),
    "health": lambda api, topic: api.get("/v0/health"),
    "ready": lambda api, topic: api.get("/v0/ready"),
}
"""One successful call of every JSON endpoint, on a topic that exists."""


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_success_is_bare_json_with_performance(api: Api, topic_name: str, endpoint: str) -> None:
    """HTTP-3, HTTP-11, HTTP-24: bare JSON with `performance`, and no envelope around it."""
    api.put(topic_name)
    body = ENDPOINTS[endpoint](api, topic_name).ok()
    assert "error" not in body
    assert body["performance"]["server_total_ms"] >= 0


@pytest.mark.parametrize(
    "prefix", ["/v1/topics", "/topics", "/v0", "/v0/", "/v0/nothing", "/v0/topics/a/b/c", "/v00/topics"]
)
def test_unknown_address_is_not_found(api: Api, prefix: str) -> None:
    """HTTP-1: the version is the first path segment; an unknown route is 404 `not_found`."""
    api.get(prefix).refused(404, "not_found")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v0/topics/", "there is nothing at /v0/topics/: leave out the / at the end"),
        ("/v0/topics/t/", "there is nothing at /v0/topics/t/: leave out the / at the end"),
        ("/topics/t", "there is nothing at /topics/t: paths begin with /v0"),
        ("/nowhere", "there is nothing at /nowhere"),
    ],
)
def test_unknown_address_that_is_nearly_one_is_answered_with_that_one(api: Api, path: str, expected: str) -> None:
    """HTTP-1: a message for people."""
    reply = api.get(path)
    reply.refused(404, "not_found")
    assert reply.json["error"]["message"] == expected


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PATCH", "/v0/topics/{topic}"),
        ("POST", "/v0/topics"),
        ("PUT", "/v0/topics"),
        ("DELETE", "/v0/topics"),
        ("GET", "/v0/topics/{topic}/diff"),
        ("PUT", "/v0/topics/{topic}/diff"),
        ("DELETE", "/v0/topics/{topic}/diff"),
        ("GET", "/v0/topics/{topic}/delete"),
        ("PUT", "/v0/topics/{topic}/delete"),
        ("POST", "/v0/health"),
        ("DELETE", "/v0/ready"),
        ("POST", "/v0/metrics"),
    ],
)
def test_wrong_method_is_method_not_allowed(api: Api, topic_name: str, method: str, path: str) -> None:
    """HTTP-17. RFC 9110 §15.5.6 asks for `Allow` too."""
    api.put(topic_name)
    with api.unchanged(topic_name):
        reply = api.call(method, path.format(topic=topic_name))
    reply.refused(405, "method_not_allowed")
    allowed = {name.strip() for name in reply.headers["allow"].split(",")}
    assert allowed
    assert method not in allowed


BODY_CALLS = [
    ("PUT", "/v0/topics/{topic}", b"{}"),
    ("POST", "/v0/topics/{topic}", b'{"records":[{"data":1}]}'),
    ("POST", "/v0/topics/{topic}/diff", b"{}"),
    ("POST", "/v0/topics/{topic}/delete", b'{"before_seq":1}'),
]


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"]
)
@pytest.mark.parametrize(("method", "path", "raw"), BODY_CALLS)
def test_body_needs_content_type_json(
    api: Api, topic_name: str, method: str, path: str, raw: bytes, content_type: str | None
) -> None:
    """HTTP-2: required on every POST and PUT with a body; 415 otherwise."""
    api.put(topic_name)
    with api.unchanged(topic_name):
        reply = api.call(method, path.format(topic=topic_name), raw=raw, content_type=content_type)
        reply.refused(415, "unsupported_media_type")


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", "application/json;charset=UTF-8", "Application/JSON"],
)
@pytest.mark.parametrize(("method", "path", "raw"), BODY_CALLS)
def test_content_type_json_is_accepted_with_and_without_charset(
    api: Api, topic_name: str, method: str, path: str, raw: bytes, content_type: str
) -> None:
    """HTTP-2."""
    api.put(topic_name)
    api.call(method, path.format(topic=topic_name), raw=raw, content_type=content_type).ok(200)


def test_put_without_body_needs_no_content_type(api: Api, topic_name: str) -> None:
    """HTTP-2, TOPIC-6: without a body there is no type to ask for, and no body means `{}`."""
    api.call("PUT", f"/v0/topics/{topic_name}").ok(201)


def test_error_envelope_is_exactly_the_documented_one(api: Api, topic_name: str) -> None:
    """HTTP-10: code, message and detail, with `performance` beside them."""
    reply = api.get(f"/v0/topics/{topic_name}")
    assert reply.refused(404, "topic_not_found")["topic"] == topic_name
    assert set(reply.json) == {"error", "performance"}
    assert set(reply.json["error"]) == {"code", "message", "request_id", "detail"}
    assert topic_name in reply.json["error"]["message"]
    assert reply.json["performance"]["server_total_ms"] >= 0


def test_gzip_request_body_is_honoured(api: Api, topic_name: str) -> None:
    """HTTP-5."""
    raw = gzip.compress(b'{"records":[{"data":"squeezed"}]}')
    api.post(topic_name, raw=raw, headers={"Content-Encoding": "gzip"}).ok(201)
    assert api.read(topic_name)["records"][0]["data"] == "squeezed"


@pytest.mark.parametrize("damage", ["not gzip", "truncated", "bad checksum"])
def test_damaged_gzip_body_is_refused(api: Api, topic_name: str, damage: str) -> None:
    """HTTP-5: 400."""
    whole = gzip.compress(b'{"records":[{"data":"squeezed"}]}')
    raw = {"not gzip": b'{"records":[{"data":1}]}', "truncated": whole[:-12], "bad checksum": whole[:-8] + bytes(8)}[
        damage
    ]
    api.post(topic_name, raw=raw, headers={"Content-Encoding": "gzip"}).refused(400, "invalid_request")
    assert not api.exists(topic_name)


def test_unknown_content_encoding_is_unsupported(api: Api, topic_name: str) -> None:
    """HTTP-5: anything but gzip is 415."""
    reply = api.post(topic_name, raw=b"{}", headers={"Content-Encoding": "br"})
    reply.refused(415, "unsupported_media_type")
    assert not api.exists(topic_name)


def test_gzip_bomb_is_bounded_by_the_body_limit(api: Api, topic_name: str) -> None:
    """HTTP-5, LIMIT-14: the limit of 64 MiB holds for the inflated body too: 413 `payload_too_large`."""
    squeezed = zlib.compressobj(9, zlib.DEFLATED, 31)
    raw = squeezed.compress(b'{"records":[{"data":1}')
    raw += b"".join(squeezed.compress(b" " * 1048576) for _ in range(65)) + squeezed.compress(b"]}") + squeezed.flush()
    assert len(raw) < 1_000_000
    api.post(topic_name, raw=raw, headers={"Content-Encoding": "gzip"}).refused(413, "payload_too_large")
    assert not api.exists(topic_name)


def test_gzip_response_only_when_asked_for(api: Api, topic_name: str) -> None:
    """HTTP-6."""
    api.write(topic_name, *({"data": "x" * 500} for _ in range(100)))
    path = f"/v0/topics/{topic_name}/diff"
    plain = api.call("POST", path, {})
    assert "content-encoding" not in plain.headers
    packed = api.call("POST", path, {}, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body) / 5
    unpacked = gzip.decompress(packed.body)
    assert Reply(200, {}, unpacked).json["records"] == plain.json["records"]
    refused = api.call("POST", path, {}, headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers


def test_times_are_integer_milliseconds(api: Api, topic_name: str) -> None:
    """HTTP-7: `$ts` is the wall clock at commit."""
    before = time.time_ns() // 1_000_000
    api.write(topic_name, {"data": 1})
    after = time.time_ns() // 1_000_000
    text = api.diff(topic_name).text
    found = re.search(r'"\$ts":\s*(\d+)[,}]', text)
    assert found, text
    assert before <= int(found[1]) <= after
    state = api.state(topic_name, touch=True)
    assert state["last_write_ts"] == int(found[1])


def test_seq_is_a_json_number(api: Api, topic_name: str) -> None:
    """HTTP-8."""
    assert re.search(r'"first_seq":\s*1[,}]', api.post(topic_name, {"records": [{"data": 1}]}).text)
    text = api.diff(topic_name).text
    for field in (r"\$seq", "next_from_seq", "head_seq", "earliest_seq"):
        assert re.search(rf'"{field}":\s*1[,}}]', text), text


def test_plain_record_carries_exactly_seq_ts_data(api: Api, topic_name: str) -> None:
    """HTTP-9, WRITE-6: absent fields are left out and not null; `data` is always there and may be null."""
    api.write(topic_name, {"data": None})
    (record,) = api.read(topic_name, include_tags=True, include_meta=True)["records"]
    assert set(record) == {"$seq", "$ts", "data"}
    assert record["data"] is None


def test_full_record_carries_dollar_fields_and_no_others(api: Api, topic_name: str) -> None:
    """HTTP-9: a client writes `node` and `tag` and reads `$node` and `$tag`."""
    api.write(topic_name, {"data": {"a": 1}, "tag": "t:1", "node": "n1", "meta": {"k": "v"}})
    (record,) = api.read(topic_name, include_tags=True)["records"]
    ts = record.pop("$ts")
    assert isinstance(ts, int)
    assert record == {"$seq": 1, "$node": "n1", "$tag": "t:1", "meta": {"k": "v"}, "data": {"a": 1}}


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk"])
def test_fsync_ms_is_zero_on_classes_that_do_not_wait(api: Api, topic_name: str, durability: str) -> None:
    """HTTP-24: ephemeral, memory, disk."""
    api.put(topic_name, durability=durability).ok(201)
    performance = api.write(topic_name, {"data": 1})["performance"]
    assert performance.get("fsync_ms", 0.0) == 0.0


def test_write_performance_names_wal_and_fsync_times(api: Api, topic_name: str) -> None:
    """HTTP-24, DURABLE-4: a write's `performance` carries `wal_append_ms` and `fsync_ms` beside `server_total_ms`."""
    api.put(topic_name, durability="fsync").ok(201)
    performance = api.write(topic_name, {"data": 1})["performance"]
    for field in ("server_total_ms", "wal_append_ms", "fsync_ms"):
        assert isinstance(performance[field], int | float), performance
        assert performance[field] >= 0, performance


def test_records_scanned_counts_examined_seqs(api: Api, topic_name: str) -> None:
    """HTTP-24: silently skipped ones included."""
    api.fill(topic_name, 6, node="me")
    assert api.read(topic_name)["performance"]["records_scanned"] == 6
    filtered = api.read(topic_name, node="me")
    assert filtered["records"] == []
    assert filtered["performance"]["records_scanned"] == 6
    assert api.read(topic_name, 4)["performance"]["records_scanned"] == 2


def test_errors_carry_performance(api: Api, topic_name: str) -> None:
    """HTTP-24: `performance` is beside `error`."""
    replies: list[Any] = [
        api.get(f"/v0/topics/{topic_name}"),
        api.post(topic_name, {"records": []}),
        api.call("PATCH", f"/v0/topics/{topic_name}"),
        api.get("/v0/nothing"),
        api.post(topic_name, raw=b"{"),
        api.post(topic_name, raw=b"{}", content_type="text/plain"),
    ]
    for reply in replies:
        assert reply.status >= 400
        assert reply.json["performance"]["server_total_ms"] >= 0, reply


def test_identical_control_calls_are_idempotent(api: Api, topic_name: str) -> None:
    """HTTP-23: an identical PUT is a no-op 200, a DELETE of what is absent is 200 with `deleted: false`."""
    api.put(topic_name, ttl_ms=5000).ok(201)
    again = api.put(topic_name, ttl_ms=5000).ok(200)
    assert again["created"] is False
    assert api.remove(topic_name).ok(200)["deleted"] is True
    assert api.remove(topic_name).ok(200)["deleted"] is False
