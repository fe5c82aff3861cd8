"""Every endpoint, driven with generated bodies: a documented answer, nothing changed by a refusal, the server alive.

HTTP-10, HTTP-21: every refusal has the same shape. Bodies are made in three ways: valid ones with
one field spoilt, arbitrary JSON in place of fields, and bytes that are hardly JSON at all.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.api import Api, Reply
from topics.testing import ServerProcess

CODES = {
    400: {"invalid_request", "batch_too_large", "record_too_large"},
    404: {"topic_not_found", "not_found"},
    405: {"method_not_allowed"},
    409: {"topic_exists_incompatible", "topic_not_empty", "head_mismatch"},
    413: {"payload_too_large"},
    415: {"unsupported_media_type"},
    422: {"topic_full"},
}
"""The refusals that these endpoints document, by status."""

_serial = itertools.count(1)

quick = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def api(server: ServerProcess) -> Iterator[Api]:
    """The shared server."""
    client = Api(server.host, server.port)
    yield client
    client.close()


class Raw(str):
    """JSON text to be put in as it is, such as a number that Python cannot hold."""

    def __repr__(self) -> str:
        return f"Raw({self[:40]!r}... {len(self)})" if len(self) > 40 else f"Raw({str(self)!r})"


def encode(value: Any) -> str:
    """JSON text of `value`, with `Raw` parts as they are."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{encode(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(encode(item) for item in value) + "]"
    return json.dumps(value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)

spoilt_values = json_values | st.sampled_from(
    [
        Raw("1e400"),
        Raw("-1e400"),
        Raw("1e-400"),
        Raw("9" * 400),
        Raw("-" + "9" * 400),
        Raw("18446744073709551615"),
        Raw("18446744073709551616"),
        Raw("9223372036854775808"),
        Raw("4294967296"),
        Raw("-1"),
        Raw("-0"),
        Raw("1.0"),
        Raw("1E2"),
        Raw('"\\ud800"'),
        Raw('"\\u0000"'),
        Raw("[" * 3000 + "]" * 3000),
        Raw('{"a":' * 3000 + "1" + "}" * 3000),
        Raw('{"a":1,"a":2}'),
        Raw('"' + "x" * 70_000 + '"'),
        Raw('"' + "é" * 300 + '"'),
    ]
)

CONFIG_FIELDS = [
    "type",
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "discard",
    "durable",
    "durability",
    "priority",
    "auto_priority",
    "auto_create",
    "idempotency_window_ms",
    "dedupe_node",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
    "dead_letter",
    "leases_durable",
]
WRITE_FIELDS = [
    "records",
    "node",
    "idempotency_key",
    "create",
    "config",
    "disable_backpressure",
    "producer_id",
    "producer_seq",
    "expected_head_seq",
]
RECORD_FIELDS = ["data", "tag", "node", "meta"]
DIFF_FIELDS = [
    "from_seq",
    "limit",
    "node",
    "include_tags",
    "include_meta",
    "wait_ms",
    "max_batch_bytes",
    "from_ts",
    "match",
]
DELETE_FIELDS = ["before_seq", "match"]


def objects(fields: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of these fields, each with a value that may or may not be right, and perhaps a stranger."""
    return st.dictionaries(st.sampled_from(fields) | st.text(max_size=10), spoilt_values, max_size=4)


def look(api: Api, topic: str) -> Any:
    """What a topic's state shows, without recency."""
    reply = api.get(f"/v0/topics/{topic}?touch=false")
    if reply.status == 404:
        return None
    body = reply.ok(200)
    return {
        k: v
        for k, v in body.items()
        if k not in ("performance", "effective_priority", "last_read_ts", "erased_before_ts")
    }


def check(api: Api, method: str, path: str, topic: str, raw: bytes, content_type: str = "application/json") -> Reply:
    """Send `raw`, and hold the answer to the contract."""
    before = look(api, topic)
    reply = api.call(method, path.format(topic=topic), raw=raw, content_type=content_type)
    if reply.status in (200, 201):
        reply.ok()
        return reply
    assert reply.status in CODES, reply
    reply.refused(reply.status, reply.json["error"]["code"])
    assert reply.json["error"]["code"] in CODES[reply.status], reply
    assert len(reply.body) < 20_000
    assert look(api, topic) == before, f"a refused request changed the topic: {reply}"
    return reply


def fresh(api: Api) -> str:
    """A topic with three records."""
    topic = f"bad-input.{next(_serial)}"
    api.write(topic, {"data": 1, "tag": "a:1"}, {"data": 2, "node": "n"}, {"data": 3, "meta": {"k": "v"}})
    return topic


def no_wait(body: dict[str, Any]) -> dict[str, Any]:
    """The same body, but with no long-poll in it that the test would have to sit out."""
    wait = body.get("wait_ms")
    return {**body, "wait_ms": 0} if isinstance(wait, Raw | int) and not isinstance(wait, bool) else body


@quick
@given(body=objects(CONFIG_FIELDS))
def test_put_with_generated_config(api: Api, body: dict[str, Any]) -> None:
    """HTTP-21: a config is taken whole or refused whole; what is echoed is within its documented range."""
    topic = fresh(api)
    reply = check(api, "PUT", "/v0/topics/{topic}", topic, encode(body).encode())
    if reply.status == 200:
        config = reply.json["config"]
        assert config["type"] == "log"
        assert config["discard"] in ("old", "reject")
        assert config["durability"] in ("ephemeral", "memory", "disk", "fsync")
        assert config["durable"] is (config["durability"] == "fsync")
        assert config["priority"] is None or -1000 <= config["priority"] <= 1000
        assert 100 <= config["lease_ms"] <= 86_400_000
        assert 0 <= config["claim_jitter_ms"] <= 5000
        for field in ("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries"):
            assert isinstance(config[field], int)
            assert 0 <= config[field] < 2**64
        for field in ("auto_priority", "auto_create", "dedupe_node", "leases_durable"):
            assert isinstance(config[field], bool)
        assert look(api, topic)["config"] == config
    api.remove(topic)


@quick
@given(body=objects(CONFIG_FIELDS))
def test_put_of_a_missing_topic_with_generated_config(api: Api, body: dict[str, Any]) -> None:
    """HTTP-21: a refused PUT creates nothing."""
    topic = f"bad-input.{next(_serial)}"
    reply = check(api, "PUT", "/v0/topics/{topic}", topic, encode(body).encode())
    assert (look(api, topic) is not None) is (reply.status == 201)
    api.remove(topic)


@quick
@given(body=objects(WRITE_FIELDS), record=objects(RECORD_FIELDS), good=st.booleans(), missing=st.booleans())
def test_write_with_generated_body(
    api: Api, body: dict[str, Any], record: dict[str, Any], good: bool, missing: bool
) -> None:
    """HTTP-21: a write is all or nothing, and its answer says how many seqs it took."""
    topic = f"bad-input.{next(_serial)}" if missing else fresh(api)
    if good:
        body = {**body, "records": [{"data": 0}, record]}
    head = 0 if missing else 3
    reply = check(api, "POST", "/v0/topics/{topic}", topic, encode(body).encode())
    if reply.status in (200, 201):
        answer = reply.json
        assert answer["seqs"] == list(range(head + 1, head + 1 + answer["count"]))
        assert answer["head_seq"] == look(api, topic)["head_seq"] == head + answer["count"]
        api.diff(topic, include_tags=True).ok(200)
    else:
        assert not missing or look(api, topic) is None
    api.remove(topic)


@quick
@given(text=json_values.map(json.dumps) | st.sampled_from(["1.10", "1e400", "9" * 400, '{"a":1,"a":2}', "[ 1 ,\t2]"]))
def test_any_json_data_comes_back_byte_for_byte(api: Api, text: str) -> None:
    """HTTP-4."""
    topic = f"verbatim.{next(_serial)}"
    api.post(topic, raw=b'{"records":[{"data":' + text.encode() + b"}]}").ok(201)
    body = api.diff(topic).text
    assert f'"data":{text}}}' in body or f'"data":{text},' in body
    api.remove(topic)


@quick
@given(body=objects(DIFF_FIELDS))
def test_diff_with_generated_body(api: Api, body: dict[str, Any]) -> None:
    """HTTP-21, READ-4: whatever is asked, the answer keeps the cursor rules."""
    topic = fresh(api)
    reply = check(api, "POST", "/v0/topics/{topic}/diff", topic, encode(no_wait(body)).encode())
    assert reply.status in (200, 400)
    if reply.status == 200:
        answer = reply.json
        seqs = [record["$seq"] for record in answer["records"]]
        assert seqs == sorted(set(seqs))
        assert set(seqs) <= {1, 2, 3}
        assert not seqs or seqs[-1] <= answer["next_from_seq"]
        assert answer["lag"] == answer["head_seq"] - answer["next_from_seq"]
        assert answer["caught_up"] is (answer["next_from_seq"] == answer["head_seq"])
    api.remove(topic)


@quick
@given(body=objects(DELETE_FIELDS))
def test_delete_with_generated_body(api: Api, body: dict[str, Any]) -> None:
    """HTTP-21: what is deleted is counted, and the head never moves."""
    topic = fresh(api)
    reply = check(api, "POST", "/v0/topics/{topic}/delete", topic, encode(body).encode())
    assert reply.status in (200, 400)
    if reply.status == 200:
        assert reply.json["deleted"] == 3 - reply.json["count"]
        assert reply.json["head_seq"] == 3
    api.remove(topic)


ENDPOINTS = [
    ("PUT", "/v0/topics/{topic}"),
    ("POST", "/v0/topics/{topic}"),
    ("POST", "/v0/topics/{topic}/diff"),
    ("POST", "/v0/topics/{topic}/delete"),
    ("GET", "/v0/topics/{topic}"),
    ("GET", "/v0/topics"),
    ("PATCH", "/v0/topics/{topic}"),
]

VALID = b'{"records":[{"data":{"a":[1,2]},"tag":"t","node":"n","meta":{"k":"v"}}],"limit":5,"before_seq":2,"ttl_ms":0}'


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid body with a few bytes cut out, put in or replaced."""
    raw = bytearray(VALID)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(raw)))
        cut = draw(st.integers(0, 3))
        raw[at : at + cut] = draw(
            st.binary(max_size=3) | st.sampled_from([b"[", b"{", b'"', b"\\", b",", b"\xff", b"\x00"])
        )
    return bytes(raw)


@quick
@given(
    endpoint=st.sampled_from(ENDPOINTS),
    raw=st.binary(max_size=200) | damaged(),
    content_type=st.sampled_from(["application/json"] * 8 + ["text/plain", "application/json; charset=utf-8", "x"]),
)
def test_arbitrary_bytes_never_break_the_server(
    api: Api, endpoint: tuple[str, str], raw: bytes, content_type: str
) -> None:
    """HTTP-13, HTTP-21: bytes that mean nothing are a 4xx; a 5xx would be a bug."""
    topic = fresh(api)
    method, path = endpoint
    check(api, method, path, topic, raw, content_type)
    assert api.get("/v0/health").ok(200)["status"] == "ok"
    api.remove(topic)


@quick
@given(
    depth=st.sampled_from([100, 1000, 10_000, 200_000]),
    opening=st.sampled_from(["[", '{"a":', '[{"":']),
    closed=st.booleans(),
    place=st.sampled_from(["@", '{"records":@}', '{"records":[{"data":@}]}', '{"match":@}', '{"node":@}']),
    endpoint=st.sampled_from(ENDPOINTS[:4]),
)
def test_deep_nesting_never_breaks_the_server(
    api: Api, depth: int, opening: str, closed: bool, place: str, endpoint: tuple[str, str]
) -> None:
    """HTTP-21, LIMIT-14: depth is bad input, or opaque data; it is never the end of a server."""
    closing = {"[": "]", '{"a":': "}", '[{"":': "}]"}[opening]
    text = opening * depth + "0" + (closing * depth if closed else "")
    raw = place.replace("@", text).encode()
    topic = fresh(api)
    check(api, endpoint[0], endpoint[1], topic, raw)
    assert api.get("/v0/health").ok(200)["status"] == "ok"
    api.remove(topic)


@quick
@given(
    name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30) | st.binary(min_size=1, max_size=20),
    method=st.sampled_from(["GET", "PUT", "DELETE", "POST"]),
)
def test_arbitrary_names_are_refused_or_valid(api: Api, name: str | bytes, method: str) -> None:
    """HTTP-21, TOPIC-2: `^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$`, and nothing else is a topic."""
    raw = name.encode() if isinstance(name, str) else name
    path = "/v0/topics/" + "".join(f"%{byte:02X}" for byte in raw)
    body = b'{"records":[{"data":1}]}' if method == "POST" else b"{}" if method == "PUT" else None
    reply = api.call(method, path, raw=body)
    plain = raw.decode("latin-1")
    valid = plain.isascii() and plain[0].isalnum() and all(c.isalnum() or c in "._:-" for c in plain)
    if valid:
        assert reply.status in (200, 201, 404), reply
        api.remove(plain)
    else:
        reply.refused(400, "invalid_request")
