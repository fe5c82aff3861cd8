"""The WRITE and RETRY rules: appending records, seqs, verbatim payloads, atomic batches, limits, safe retries."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from typing import Any

import pytest

from tests.harness.api import DEADLINE_S, Api, StartApi, until

MIB = 1024 * 1024


def test_first_write_creates_the_topic(api: Api, topic_name: str) -> None:
    """WRITE-1, WRITE-2, WRITE-15: 201, and seqs start at 1."""
    body = api.post(topic_name, {"records": [{"data": "a"}, {"data": "b"}, {"data": "c"}]}).ok(201)
    body.pop("performance")
    assert body == {
        "topic": topic_name,
        "first_seq": 1,
        "last_seq": 3,
        "seqs": [1, 2, 3],
        "head_seq": 3,
        "count": 3,
        "created": True,
        "deduped": False,
    }


def test_later_write_continues_contiguously(api: Api, topic_name: str) -> None:
    """WRITE-1, WRITE-3: `count` is that of the write."""
    api.fill(topic_name, 3)
    body = api.post(topic_name, {"records": [{"data": "d"}, {"data": "e"}]}).ok(200)
    body.pop("performance")
    assert body == {
        "topic": topic_name,
        "first_seq": 4,
        "last_seq": 5,
        "seqs": [4, 5],
        "head_seq": 5,
        "count": 2,
        "created": False,
        "deduped": False,
    }


def test_write_to_a_topic_made_by_put_is_not_created(api: Api, topic_name: str) -> None:
    """TOPIC-4."""
    api.put(topic_name).ok(201)
    assert api.post(topic_name, {"records": [{"data": 1}]}).ok(200)["created"] is False


def test_seqs_follow_array_order(api: Api, topic_name: str) -> None:
    """WRITE-3."""
    values = list(range(50, 0, -1))
    api.write(topic_name, *({"data": value} for value in values))
    assert [(r["$seq"], r["data"]) for r in api.read(topic_name)["records"]] == list(enumerate(values, 1))


def test_each_topic_has_its_own_counter(api: Api, topic_name: str) -> None:
    """WRITE-2."""
    api.fill(topic_name + ":a", 5)
    assert api.write(topic_name + ":b", {"data": 1})["seqs"] == [1]


def test_return_seqs_false_leaves_first_and_last(api: Api, topic_name: str) -> None:
    """WRITE-1."""
    body = api.post(topic_name, {"records": [{"data": 1}, {"data": 2}]}, "?return_seqs=false").ok(201)
    assert "seqs" not in body
    assert (body["first_seq"], body["last_seq"], body["count"]) == (1, 2, 2)
    assert api.post(topic_name, {"records": [{"data": 1}]}, "?return_seqs=true").ok(200)["seqs"] == [3]
    with api.unchanged(topic_name):
        reply = api.post(topic_name, {"records": [{"data": 1}]}, "?return_seqs=maybe")
        reply.refused_naming("return_seqs")


VERBATIM = [
    "1.10",
    "1e400",
    "-1E-400",
    "-0",
    "-0.0",
    "12345678901234567890",
    "123456789012345678901234567890.5",
    "1.000000000000000000000001",
    '{"b":1,"a":2}',
    '{"a":1,"a":2,"a":1}',
    '{ "a" : [ 1 ,\t2 ] ,\n "b" : { } }',
    '{"":""}',
    '{"":{"":[]}}',
    '"\\u00e9\\u0000\\ud83d\\ude00"',
    '"\\/\\b\\f\\n\\r\\t\\"\\\\"',
    '"é😀\u2028\u007f"',
    '""',
    "[]",
    "{}",
    "null",
    "true",
    "false",
    "[[[[[[[[]]]]]]]]",
    '{"$seq":99,"$ts":1,"$type":"tombstone","data":"inner"}',
    '"<script>&amp;</script>"',
]


@pytest.mark.parametrize("text", VERBATIM)
def test_data_comes_back_byte_for_byte(api: Api, topic_name: str, text: str) -> None:
    """HTTP-4: it is never parsed."""
    raw = b'{"records":[{"data":' + text.encode() + b"}]}"
    api.post(topic_name, raw=raw).ok(201)
    body = api.diff(topic_name).body
    assert b'"data":' + text.encode() + b"}" in body or b'"data":' + text.encode() + b"," in body, body
    json.loads(body, parse_float=str, parse_int=str)


def test_data_of_a_whole_batch_comes_back_byte_for_byte(api: Api, topic_name: str) -> None:
    """HTTP-4: verbatim, also between other fields in any order and with white space around."""
    records = [f'{{ "tag" : "t" ,"data" : {text}\n, "node":"n","meta":{{"k":"v"}} }}' for text in VERBATIM]
    api.post(topic_name, raw=('{\n"records" : [ ' + " , ".join(records) + " ] }").encode()).ok(201)
    body = api.diff(topic_name, include_tags=True).text
    position = 0
    for text in VERBATIM:
        found = max(body.find(f'"data":{text}}}', position), body.find(f'"data":{text},', position))
        assert found >= position, text
        position = found + 1
    assert len(json.loads(body)["records"]) == len(VERBATIM)


def test_meta_comes_back_verbatim(api: Api, topic_name: str) -> None:
    """WRITE-13."""
    text = '{"b":"1","a":"\\u00e9\\/\\n","":"","$x":"é"}'
    api.post(topic_name, raw=('{"records":[{"data":1,"meta":' + text + "}]}").encode()).ok(201)
    reply = api.diff(topic_name)
    assert f'"meta":{text}' in reply.text
    assert list(reply.json["records"][0]["meta"]) == ["b", "a", "", "$x"]


def test_record_node_overrides_batch_node(api: Api, topic_name: str) -> None:
    """WRITE-12."""
    api.write(topic_name, {"data": 1}, {"data": 2, "node": "own"}, {"data": 3}, node="batch")
    assert [r["$node"] for r in api.read(topic_name)["records"]] == ["batch", "own", "batch"]


def test_tag_and_node_are_kept_byte_exact(api: Api, topic_name: str) -> None:
    """WRITE-13."""
    tag, node = 'é"\\\n\t\u0001 😀*', "  spaced é \\ "
    api.write(topic_name, {"data": 1, "tag": tag, "node": node})
    (record,) = api.read(topic_name, include_tags=True)["records"]
    assert (record["$tag"], record["$node"]) == (tag, node)


def test_empty_tag_node_and_meta_are_not_absent_ones(api: Api, topic_name: str) -> None:
    """WRITE-13: an empty string or object is a value, and is returned."""
    api.write(topic_name, {"data": 1, "tag": "", "node": "", "meta": {}}, {"data": 2})
    empty, absent = api.read(topic_name, include_tags=True)["records"]
    empty.pop("$ts")
    assert empty == {"$seq": 1, "$tag": "", "$node": "", "meta": {}, "data": 1}
    assert set(absent) == {"$seq", "$ts", "data"}
    assert api.seqs(topic_name, node="") == [2]
    assert api.erase(topic_name, match=["tag", "Eq", ""]).ok(200)["deleted"] == 1
    assert api.seqs(topic_name) == [2]


def test_ts_never_decreases_with_seq(api: Api, topic_name: str) -> None:
    """WRITE-17."""
    for _ in range(20):
        api.fill(topic_name, 3)
    stamps = [r["$ts"] for r in api.read(topic_name)["records"]]
    assert len(stamps) == 60
    assert stamps == sorted(stamps)


def test_records_are_immutable(api: Api, topic_name: str) -> None:
    """WRITE-14."""
    api.write(topic_name, {"data": {"v": 1}, "tag": "t", "node": "n", "meta": {"m": "1"}})
    before = api.read(topic_name, include_tags=True)["records"][0]
    api.write(topic_name, {"data": {"v": 2}, "tag": "t", "node": "n"})
    api.erase(topic_name, match="other").ok(200)
    assert api.read(topic_name, include_tags=True)["records"][0] == before


@pytest.mark.parametrize(
    ("records", "named"),
    [
        ([], "records"),
        (None, "records"),
        ({}, "records"),
        ("x", "records"),
        ([1], "records"),
        ([None], "records"),
        ([[]], "records"),
        ([{}], "data"),
        ([{"tag": "t"}], "data"),
        ([{"data": 1, "tag": 5}], "tag"),
        ([{"data": 1, "tag": ["t"]}], "tag"),
        ([{"data": 1, "node": 5}], "node"),
        ([{"data": 1, "node": {}}], "node"),
        ([{"data": 1, "meta": "x"}], "meta"),
        ([{"data": 1, "meta": ["x"]}], "meta"),
        ([{"data": 1, "meta": {"speed": 5}}], "speed"),
        ([{"data": 1, "meta": {"speed": None}}], "speed"),
        ([{"data": 1, "meta": {"speed": {"a": "b"}}}], "speed"),
        ([{"data": 1, "meta": {"ok": "1", "speed": True}}], "speed"),
    ],
)
def test_bad_records_are_refused_by_name(api: Api, topic_name: str, records: Any, named: str) -> None:
    """WRITE-5, WRITE-6, WRITE-8."""
    api.post(topic_name, {"records": records}).refused_naming(named)
    assert not api.exists(topic_name)
    api.fill(topic_name, 1)
    with api.unchanged(topic_name):
        api.post(topic_name, {"records": records}).refused_naming(named)


def test_write_without_records_is_refused(api: Api, topic_name: str) -> None:
    """WRITE-5."""
    for body in ({}, {"node": "n"}, {"record": [{"data": 1}]}):
        api.post(topic_name, body).refused_naming("records")
    assert not api.exists(topic_name)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node", 5),
        ("node", ["a"]),
        ("idempotency_key", 5),
        ("idempotency_key", {}),
        ("create", "yes"),
        ("create", 1),
        ("config", []),
        ("config", "x"),
        ("config", {"ttl_ms": -1}),
        ("config", {"discard": "new"}),
        ("config", {"dead_letter": "no spaces"}),
        ("disable_backpressure", "yes"),
        ("disable_backpressure", 0),
        ("producer_id", 5),
        ("producer_seq", "5"),
        ("producer_seq", -1),
    ],
)
def test_bad_write_field_is_refused_by_name(api: Api, topic_name: str, field: str, value: Any) -> None:
    """HTTP-12: also where it would not be used, as the config of a topic that exists."""
    extra = {"producer_seq": 1} if field == "producer_id" else {"producer_id": "p"} if field == "producer_seq" else {}
    named = next(iter(value)) if field == "config" and isinstance(value, dict) else field
    body = {"records": [{"data": 1}], **extra, field: value}
    api.post(topic_name, body).refused_naming(named)
    assert not api.exists(topic_name)
    api.fill(topic_name, 1)
    with api.unchanged(topic_name):
        api.post(topic_name, body).refused_naming(named)


def test_write_is_atomic(api: Api, topic_name: str) -> None:
    """WRITE-4: no partial append, and the bad record is named by its index."""
    api.fill(topic_name, 2)
    for bad in ({"tag": "no data"}, {"data": 1, "tag": "t" * 257}, {"data": 1, "meta": {"k": 5}}):
        with api.unchanged(topic_name):
            api.post(topic_name, {"records": [{"data": 1}, {"data": 2}, bad]}).refused_naming("2")
    assert api.write(topic_name, {"data": "next"})["seqs"] == [3]


def test_refused_first_write_creates_nothing(api: Api, topic_name: str) -> None:
    """WRITE-4."""
    api.post(topic_name, {"records": [{"data": 1}, {"data": 1, "node": "n" * 129}]}).refused(400, "invalid_request")
    api.post(topic_name, {"records": [{"data": 1}], "config": {"type": "heap"}}).refused(400, "invalid_request")
    assert not api.exists(topic_name)


def test_batch_of_10000_is_the_most(api: Api, topic_name: str) -> None:
    """WRITE-5."""
    body = api.write(topic_name, *({"data": n} for n in range(10000)))
    assert (body["first_seq"], body["last_seq"], body["count"], len(body["seqs"])) == (1, 10000, 10000, 10000)
    assert body["seqs"] == list(range(1, 10001))
    with api.unchanged(topic_name):
        reply = api.post(topic_name, {"records": [{"data": n} for n in range(10001)]})
        reply.refused_naming(10000, code="batch_too_large")


@pytest.mark.parametrize(("unit", "fits"), [("x", 256), ("é", 128), ("😀", 64)])
def test_tag_limit_is_256_bytes(api: Api, topic_name: str, unit: str, fits: int) -> None:
    """WRITE-7, WRITE-10."""
    api.write(topic_name, {"data": 1, "tag": unit * fits})
    assert api.read(topic_name, include_tags=True)["records"][0]["$tag"] == unit * fits
    with api.unchanged(topic_name):
        reply = api.post(topic_name, {"records": [{"data": 0}, {"data": 1, "tag": unit * fits + "x"}]})
        detail = reply.refused_naming("records[1].tag")
        assert (detail["index"], detail["limit"], detail["max"]) == (1, "max_tag_bytes", 256)


@pytest.mark.parametrize(("unit", "fits"), [("x", 128), ("é", 64)])
@pytest.mark.parametrize("place", ["record", "batch"])
def test_node_limit_is_128_bytes(api: Api, topic_name: str, unit: str, fits: int, place: str) -> None:
    """WRITE-7, WRITE-10."""

    def body(node: str) -> dict[str, Any]:
        if place == "batch":
            return {"records": [{"data": 0}, {"data": 1}], "node": node}
        return {"records": [{"data": 0}, {"data": 1, "node": node}]}

    api.post(topic_name, body(unit * fits)).ok(201)
    assert api.read(topic_name)["records"][1]["$node"] == unit * fits
    with api.unchanged(topic_name):
        named = "records[1].node" if place == "record" else "node"
        assert 128 in api.post(topic_name, body(unit * fits + "x")).refused_naming(named).values()


def test_meta_limit_is_64_keys(api: Api, topic_name: str) -> None:
    """WRITE-8, WRITE-10."""
    api.write(topic_name, {"data": 1, "meta": {f"k{n}": "v" for n in range(64)}})
    with api.unchanged(topic_name):
        bad = {"data": 1, "meta": {f"k{n}": "v" for n in range(65)}}
        reply = api.post(topic_name, {"records": [{"data": 0}, bad]})
        assert 64 in reply.refused_naming("records[1].meta", code="record_too_large").values()


def test_meta_limit_is_16_kib_of_json_text(api: Api, topic_name: str) -> None:
    """WRITE-8, WRITE-10."""

    def raw(size: int) -> bytes:
        meta = b'{"k":"' + b"v" * (size - 8) + b'"}'
        assert len(meta) == size
        return b'{"records":[{"data":0},{"data":1,"meta":' + meta + b"}]}"

    api.post(topic_name, raw=raw(16384)).ok(201)
    with api.unchanged(topic_name):
        reply = api.post(topic_name, raw=raw(16385))
        assert 16384 in reply.refused_naming("records[1].meta", code="record_too_large").values()


def test_record_limit_is_1_mib_of_data_and_meta(api: Api, topic_name: str) -> None:
    """WRITE-9, WRITE-10."""

    def raw(data_bytes: int, meta: bytes = b"") -> bytes:
        data = b'"' + b"d" * (data_bytes - 2) + b'"'
        return b'{"records":[{"data":0},{"data":' + data + (b',"meta":' + meta if meta else b"") + b"}]}"

    meta = b'{"k":"' + b"v" * 992 + b'"}'
    assert len(meta) == 1000
    api.post(topic_name, raw=raw(MIB)).ok(201)
    api.post(topic_name, raw=raw(MIB - 1000, meta)).ok(200)
    with api.unchanged(topic_name):
        for body in (raw(MIB + 1), raw(MIB - 999, meta)):
            reply = api.post(topic_name, raw=body)
            assert MIB in reply.refused_naming("records[1]", code="record_too_large").values()


def test_idempotency_key_limit_is_256_chars(api: Api, topic_name: str) -> None:
    """RETRY-3."""
    api.write(topic_name, {"data": 1}, idempotency_key="k" * 256)
    with api.unchanged(topic_name):
        reply = api.post(topic_name, {"records": [{"data": 1}], "idempotency_key": "k" * 257})
        reply.refused_naming("idempotency_key", 256)
        header = {"Idempotency-Key": "k" * 257}
        api.post(topic_name, {"records": [{"data": 1}]}, headers=header).refused(400, "invalid_request")


def test_body_over_64_mib_is_refused_from_its_length_alone(api: Api, topic_name: str) -> None:
    """HTTP-18."""
    head = (
        f"POST /v0/topics/{topic_name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {64 * MIB + 1}\r\n\r\n"
    )
    with socket.create_connection((api.host, api.port), timeout=DEADLINE_S) as connection:
        connection.sendall(head.encode())
        response = http.client.HTTPResponse(connection)
        response.begin()
        body = json.loads(response.read())
        response.close()
    assert response.status == 413
    assert body["error"]["code"] == "payload_too_large"
    assert str(64 * MIB) in json.dumps(body["error"])
    assert not api.exists(topic_name)


def test_limits_follow_their_variables(start_api: StartApi, topic_name: str) -> None:
    """WRITE-11."""
    api = start_api(
        max_batch_records=2,
        max_record_bytes=40,
        max_meta_bytes=20,
        max_tag_bytes=4,
        max_node_bytes=5,
        max_body_bytes=400,
    )
    ok = {"data": "d" * 18, "meta": {"k": "v" * 11}, "tag": "abcd", "node": "abcde"}
    api.write(topic_name, ok, ok)
    with api.unchanged(topic_name):
        reply = api.post(topic_name, {"records": [{"data": 1}] * 3})
        assert 2 in reply.refused_naming(code="batch_too_large").values()
        reply = api.post(topic_name, {"records": [{"data": "d" * 39}]})
        assert 40 in reply.refused_naming(code="record_too_large").values()
        reply = api.post(topic_name, {"records": [{"data": 1, "meta": {"k": "v" * 12}}]})
        assert 20 in reply.refused_naming("meta", code="record_too_large").values()
        reply = api.post(topic_name, {"records": [{"data": 1, "tag": "abcde"}]})
        assert 4 in reply.refused_naming("tag").values()
        reply = api.post(topic_name, {"records": [{"data": 1, "node": "abcdef"}]})
        assert 5 in reply.refused_naming("node").values()
        reply = api.post(topic_name, {"records": [{"data": 1}], "pad": "p" * 400})
        reply.refused_naming(400, status=413, code="payload_too_large")


def test_chunked_body_is_held_to_the_limit_while_it_streams(start_api: StartApi, topic_name: str) -> None:
    """HTTP-18: 413 also if no Content-Length gives the size beforehand."""
    api = start_api(max_body_bytes=1000)
    connection = http.client.HTTPConnection(api.host, api.port, timeout=DEADLINE_S)
    try:
        connection.putrequest("POST", f"/v0/topics/{topic_name}")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        for _ in range(3):
            connection.send(b"200\r\n" + b" " * 512 + b"\r\n")
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["error"]["code"] == "payload_too_large"
    finally:
        connection.close()
    assert not api.exists(topic_name)


def test_chunked_body_is_accepted(api: Api, topic_name: str) -> None:
    """CONN-4."""
    connection = http.client.HTTPConnection(api.host, api.port, timeout=DEADLINE_S)
    try:
        chunks = iter([b'{"records":[{"da', b'ta":1.', b"10}]}"])
        headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        connection.request("POST", f"/v0/topics/{topic_name}", chunks, headers, encode_chunked=True)
        response = connection.getresponse()
        response.read()
        assert response.status == 201
    finally:
        connection.close()
    assert '"data":1.10' in api.diff(topic_name).text


def test_create_false_refuses_a_missing_topic(api: Api, topic_name: str) -> None:
    """WRITE-15: the detail names the topic."""
    reply = api.post(topic_name, {"records": [{"data": 1}], "create": False})
    assert reply.refused(404, "topic_not_found")["topic"] == topic_name
    assert not api.exists(topic_name)


def test_create_false_writes_to_an_existing_topic(api: Api, topic_name: str) -> None:
    """WRITE-15: `create` only decides about an absent topic."""
    api.put(topic_name).ok(201)
    assert api.post(topic_name, {"records": [{"data": 1}], "create": False}).ok(200)["seqs"] == [1]


def test_create_true_creates(api: Api, topic_name: str) -> None:
    """WRITE-15."""
    assert api.post(topic_name, {"records": [{"data": 1}], "create": True}).ok(201)["created"] is True


def test_inline_auto_create_false_refuses_a_missing_topic(api: Api, topic_name: str) -> None:
    """WRITE-16: only the inline config can say so for a missing topic."""
    body = {"records": [{"data": 1}], "config": {"auto_create": False}}
    api.post(topic_name, body).refused(404, "topic_not_found")
    assert not api.exists(topic_name)


def test_topic_with_auto_create_false_still_takes_writes(api: Api, topic_name: str) -> None:
    """WRITE-16: it is about whether a write may *create* the topic."""
    api.put(topic_name, auto_create=False).ok(201)
    assert api.write(topic_name, {"data": 1})["seqs"] == [1]


def test_inline_config_is_applied_on_create(api: Api, topic_name: str) -> None:
    """WRITE-15."""
    config = {"ttl_ms": 600000, "cap_records": 5, "durability": "memory", "priority": 2000}
    api.post(topic_name, {"records": [{"data": 1}], "config": config}).ok(201)
    stored = api.state(topic_name)["config"]
    assert (stored["ttl_ms"], stored["cap_records"], stored["durability"]) == (600000, 5, "memory")
    assert (stored["priority"], stored["discard"]) == (1000, "old")


def test_inline_config_is_ignored_on_an_existing_topic(api: Api, topic_name: str) -> None:
    """WRITE-15."""
    api.put(topic_name, cap_records=10).ok(201)
    before = api.state(topic_name)["config"]
    body = {"records": [{"data": 1}], "config": {"cap_records": 1, "type": "queue"}}
    assert api.post(topic_name, body).ok(200)["created"] is False
    assert api.state(topic_name)["config"] == before


def test_inline_cap_already_holds_for_the_creating_write(api: Api, topic_name: str) -> None:
    """WRITE-15: the config is in force from the first write on."""
    body = {"records": [{"data": n} for n in range(5)], "config": {"cap_records": 2}}
    assert api.post(topic_name, body).ok(201)["seqs"] == [1, 2, 3, 4, 5]
    assert (api.state(topic_name)["count"], api.state(topic_name)["earliest_seq"]) == (2, 4)


def test_disable_backpressure_is_accepted(api: Api, topic_name: str) -> None:
    """PRESSURE-3."""
    assert api.write(topic_name, {"data": 1}, disable_backpressure=True)["seqs"] == [1]
    assert api.write(topic_name, {"data": 1}, disable_backpressure=False)["seqs"] == [2]


def test_idempotent_retry_returns_the_original_seqs(api: Api, topic_name: str) -> None:
    """RETRY-1."""
    first = api.post(topic_name, {"records": [{"data": 1}, {"data": 2}], "idempotency_key": "k"}).ok(201)
    assert first["deduped"] is False
    api.fill(topic_name, 3)
    with api.unchanged(topic_name):
        again = api.post(topic_name, {"records": [{"data": 1}, {"data": 2}], "idempotency_key": "k"}).ok(200)
    assert (again["deduped"], again["created"]) == (True, False)
    assert (again["seqs"], again["first_seq"], again["last_seq"]) == ([1, 2], 1, 2)
    assert again["head_seq"] == 5
    assert api.seqs(topic_name) == [1, 2, 3, 4, 5]


def test_idempotency_key_alone_decides(api: Api, topic_name: str) -> None:
    """RETRY-1."""
    api.write(topic_name, {"data": "first"}, idempotency_key="k")
    again = api.write(topic_name, {"data": "other"}, {"data": "more"}, idempotency_key="k")
    assert (again["deduped"], again["seqs"]) == (True, [1])
    assert [r["data"] for r in api.read(topic_name)["records"]] == ["first"]


def test_reused_idempotency_key_is_marked(api: Api, topic_name: str) -> None:
    """RETRY-10: a retry is not."""
    first = api.write(topic_name, {"data": "first"}, idempotency_key="k")
    retry = api.write(topic_name, {"data": "first"}, idempotency_key="k")
    other = api.write(topic_name, {"data": "other"}, idempotency_key="k")
    assert "key_reused" not in first | retry
    assert (retry["deduped"], other["deduped"], other["key_reused"]) == (True, True, True)
    assert other["seqs"] == [1]


def test_idempotency_key_as_header_and_body_wins(api: Api, topic_name: str) -> None:
    """RETRY-4."""
    one = {"records": [{"data": 1}]}
    header = {"Idempotency-Key": "h"}
    assert api.post(topic_name, one, headers=header).ok(201)["seqs"] == [1]
    again = api.post(topic_name, one, headers=header).ok(200)
    assert (again["deduped"], again["seqs"]) == (True, [1])
    assert api.write(topic_name, {"data": 1}, idempotency_key="h")["deduped"] is True
    both = api.post(topic_name, {**one, "idempotency_key": "b"}, headers=header).ok(200)
    assert (both["deduped"], both["seqs"]) == (False, [2])
    both = api.post(topic_name, {**one, "idempotency_key": "b"}, headers={"Idempotency-Key": "unseen"}).ok(200)
    assert (both["deduped"], both["seqs"]) == (True, [2])
    assert api.post(topic_name, one, headers={"Idempotency-Key": "unseen"}).ok(200)["deduped"] is False


def test_idempotency_key_is_scoped_to_its_topic(api: Api, topic_name: str) -> None:
    """RETRY-3."""
    api.write(topic_name + ":a", {"data": 1}, idempotency_key="k")
    assert api.write(topic_name + ":b", {"data": 1}, idempotency_key="k")["deduped"] is False


def test_idempotency_window_ends(api: Api, topic_name: str) -> None:
    """RETRY-2."""
    api.put(topic_name, idempotency_window_ms=50).ok(201)
    api.write(topic_name, {"data": 1}, idempotency_key="k")
    again = until(
        lambda: (body := api.write(topic_name, {"data": 1}, idempotency_key="k"))["deduped"] is False and body,
        "the key is forgotten",
    )
    assert again["seqs"] == [2]


def test_retry_of_a_refused_write_is_not_deduped(api: Api, topic_name: str) -> None:
    """RETRY-5: the server remembers *assigned seqs*; a refused write assigned none, so its key is still free."""
    bad = {"records": [{"data": 1}, {"tag": "no data"}], "idempotency_key": "k"}
    api.post(topic_name, bad).refused(400, "invalid_request")
    body = api.write(topic_name, {"data": 1}, idempotency_key="k")
    assert (body["deduped"], body["seqs"]) == (False, [1])


def test_idempotent_retry_with_return_seqs_false(api: Api, topic_name: str) -> None:
    """WRITE-1: `return_seqs=false` leaves first_seq/last_seq, also on a deduped answer."""
    body = {"records": [{"data": 1}, {"data": 2}], "idempotency_key": "k"}
    api.post(topic_name, body, "?return_seqs=false").ok(201)
    again = api.post(topic_name, body, "?return_seqs=false").ok(200)
    assert "seqs" not in again
    assert (again["deduped"], again["first_seq"], again["last_seq"]) == (True, 1, 2)


def test_idempotency_survives_deletion_of_its_records(api: Api, topic_name: str) -> None:
    """RETRY-1."""
    api.write(topic_name, {"data": 1}, idempotency_key="k")
    api.erase(topic_name, before_seq=2).ok(200)
    again = api.write(topic_name, {"data": 1}, idempotency_key="k")
    assert (again["deduped"], again["seqs"]) == (True, [1])
    assert api.seqs(topic_name) == []


def test_concurrent_retries_append_once(api: Api, topic_name: str) -> None:
    """RETRY-6: one key, one append, also if the retries race each other."""
    api.put(topic_name, durability="fsync").ok(201)
    answers: list[dict[str, Any]] = []

    def retry() -> None:
        answers.append(api.write(topic_name, {"data": 1}, {"data": 2}, idempotency_key="k"))

    threads = [threading.Thread(target=retry) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer["seqs"] for answer in answers] == [[1, 2]] * 8
    assert [answer["deduped"] for answer in answers].count(False) == 1
    assert api.state(topic_name)["head_seq"] == 2


def test_concurrent_writes_get_contiguous_seqs(api: Api, topic_name: str) -> None:
    """WRITE-3, WRITE-4: no gaps, and the seqs of one write are together."""
    taken: list[list[int]] = []

    def produce(producer: int) -> None:
        for turn in range(25):
            records = ({"data": [producer, turn, n]} for n in range(3))
            taken.append(api.write(topic_name, *records)["seqs"])

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seq for seqs in taken for seq in seqs) == list(range(1, 301))
    records = {r["$seq"]: r["data"] for r in api.read(topic_name, limit=1000)["records"]}
    for seqs in taken:
        assert seqs == list(range(seqs[0], seqs[0] + 3))
        assert [records[seq][2] for seq in seqs] == [0, 1, 2]
        assert len({tuple(records[seq][:2]) for seq in seqs}) == 1


def test_producer_seq_dedupes_without_time(api: Api, topic_name: str) -> None:
    """RETRY-7: per producer and topic."""

    def publish(producer: str, seq: int) -> dict[str, Any]:
        return api.write(topic_name, {"data": [producer, seq]}, producer_id=producer, producer_seq=seq)

    assert [publish("p", n)["deduped"] for n in (0, 1, 2, 5)] == [False] * 4
    for stale in (5, 4, 3, 0):
        assert publish("p", stale)["deduped"] is True
    assert publish("q", 1)["deduped"] is False
    assert publish("p", 2**64 - 1)["deduped"] is False
    data = [r["data"] for r in api.read(topic_name)["records"]]
    assert data == [["p", 0], ["p", 1], ["p", 2], ["p", 5], ["q", 1], ["p", 2**64 - 1]]


def test_producer_retry_returns_the_original_seqs(api: Api, topic_name: str) -> None:
    """RETRY-7: a repeat of the producer's last write answers as a deduplicated write does."""
    first = api.write(topic_name, {"data": 1}, {"data": 2}, producer_id="p", producer_seq=4)
    api.fill(topic_name, 2)
    again = api.post(topic_name, {"records": [{"data": 1}], "producer_id": "p", "producer_seq": 4}).ok(200)
    assert (again["deduped"], again["created"], again["seqs"], again["head_seq"]) == (True, False, first["seqs"], 4)
    stale = api.post(topic_name, {"records": [{"data": 1}], "producer_id": "p", "producer_seq": 1}).ok(200)
    assert (stale["deduped"], stale["head_seq"]) == (True, 4)
    assert all(1 <= seq <= 4 for seq in stale["seqs"])
    assert min(stale["first_seq"], stale["last_seq"]) >= 0


def test_producer_fields_come_as_a_pair(api: Api, topic_name: str) -> None:
    """RETRY-7: one without the other is 400."""
    for half in ({"producer_id": "p"}, {"producer_seq": 1}):
        api.post(topic_name, {"records": [{"data": 1}], **half}).refused_naming("producer")
    assert not api.exists(topic_name)


def test_expected_head_seq_makes_the_append_conditional(api: Api, topic_name: str) -> None:
    """WRITE-18: 409 `head_mismatch` reports the current head."""
    reply = api.post(topic_name, {"records": [{"data": 1}], "expected_head_seq": 1})
    assert reply.refused(409, "head_mismatch")["head_seq"] == 0
    assert not api.exists(topic_name)
    assert api.write(topic_name, {"data": 1}, expected_head_seq=0)["seqs"] == [1]
    assert api.write(topic_name, {"data": 2}, expected_head_seq=1)["seqs"] == [2]
    with api.unchanged(topic_name):
        for stale in (0, 1, 3):
            reply = api.post(topic_name, {"records": [{"data": 3}], "expected_head_seq": stale})
            assert reply.refused(409, "head_mismatch")["head_seq"] == 2
        reply = api.post(topic_name, {"records": [{"data": 3}], "expected_head_seq": "2"})
        reply.refused_naming("expected_head_seq")
