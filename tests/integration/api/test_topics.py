"""The TOPIC rules: topics, their names, their config, their state, the list, their deletion."""

from __future__ import annotations

import base64
import itertools
import time
from typing import Any

import pytest

from tests.harness.api import Api

DEFAULTS: dict[str, Any] = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120000,
    "dedupe_node": True,
    "lease_ms": 30000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
    "backoff_ms": 0,
    "backoff_max_ms": 3_600_000,
}
"""The config object of TOPIC-5 with every default."""

U64_MAX = 2**64 - 1


def test_put_creates_with_every_default(api: Api, topic_name: str) -> None:
    """TOPIC-4, TOPIC-5: the answer echoes the whole config, the queue fields included."""
    body = api.put(topic_name).ok(201)
    assert set(body) == {"topic", "created", "config", "performance"}
    assert body["topic"] == topic_name
    assert body["created"] is True
    assert body["config"] == DEFAULTS


def test_put_with_empty_body_equals_empty_object(api: Api, topic_name: str) -> None:
    """TOPIC-6."""
    body = api.call("PUT", f"/v0/topics/{topic_name}").ok(201)
    assert body["config"] == DEFAULTS
    assert api.call("PUT", f"/v0/topics/{topic_name}", {}).ok(200)["config"] == DEFAULTS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "log"),
        ("type", "queue"),
        ("ttl_ms", 60000),
        ("cap_records", 1000000),
        ("cap_bytes", 123456789),
        ("discard", "old"),
        ("discard", "reject"),
        ("priority", 10),
        ("priority", -1000),
        ("priority", 1000),
        ("priority", 0),
        ("priority", None),
        ("auto_priority", False),
        ("auto_create", False),
        ("idempotency_window_ms", 5),
        ("dedupe_node", False),
        ("lease_ms", 100),
        ("lease_ms", 86400000),
        ("claim_jitter_ms", 5000),
        ("max_deliveries", 5),
        ("dead_letter", "jobs.dlq"),
        ("leases_durable", True),
        ("backoff_ms", 500),
        ("backoff_max_ms", 60_000),
    ],
)
def test_put_echoes_a_named_field_and_defaults_the_rest(api: Api, topic_name: str, field: str, value: Any) -> None:
    """TOPIC-4, TOPIC-5: the config over the defaults, echoed by PUT and by the state."""
    expected = {**DEFAULTS, field: value}
    assert api.put(topic_name, **{field: value}).ok(201)["config"] == expected
    assert api.state(topic_name)["config"] == expected


def test_put_identical_config_is_a_no_op(api: Api, topic_name: str) -> None:
    """HTTP-23, TOPIC-4."""
    first = api.put(topic_name, ttl_ms=60000, durable=True, priority=10).ok(201)
    second = api.put(topic_name, ttl_ms=60000, durable=True, priority=10).ok(200)
    assert second["created"] is False
    assert second["config"] == first["config"]


def test_put_changes_only_the_fields_it_names(api: Api, topic_name: str) -> None:
    """TOPIC-6."""
    api.put(topic_name, ttl_ms=60000, cap_records=7, discard="reject", priority=3).ok(201)
    body = api.put(topic_name, cap_records=8).ok(200)
    assert body["created"] is False
    expected = {**DEFAULTS, "ttl_ms": 60000, "cap_records": 8, "discard": "reject", "priority": 3}
    assert body["config"] == expected
    assert api.put(topic_name).ok(200)["config"] == expected
    assert api.state(topic_name)["config"] == expected


def test_put_null_resets_nullable_fields(api: Api, topic_name: str) -> None:
    """TOPIC-11: null is a value, not an omission."""
    api.put(topic_name, priority=3, dead_letter="dlq").ok(201)
    assert api.put(topic_name, priority=None).ok(200)["config"] == {**DEFAULTS, "dead_letter": "dlq"}
    assert api.put(topic_name, dead_letter=None).ok(200)["config"] == DEFAULTS


def test_put_changes_every_field_but_type_in_place(api: Api, topic_name: str) -> None:
    """TOPIC-8: the queue fields included."""
    api.put(topic_name).ok(201)
    changed = {
        "ttl_ms": 1,
        "cap_records": 2,
        "cap_bytes": 3,
        "discard": "reject",
        "durability": "memory",
        "priority": 4,
        "auto_priority": False,
        "auto_create": False,
        "idempotency_window_ms": 5,
        "dedupe_node": False,
        "lease_ms": 600,
        "claim_jitter_ms": 7,
        "max_deliveries": 8,
        "dead_letter": "other",
        "leases_durable": True,
        "backoff_ms": 250,
        "backoff_max_ms": 8000,
    }
    assert api.put(topic_name, **changed).ok(200)["config"] == {**DEFAULTS, **changed}


def test_put_does_not_rewrite_records(api: Api, topic_name: str) -> None:
    """TOPIC-7."""
    api.write(topic_name, {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": "1"}})
    before = api.read(topic_name, include_tags=True)["records"]
    api.put(topic_name, priority=5, durability="fsync", dedupe_node=False, cap_records=10).ok(200)
    assert api.read(topic_name, include_tags=True)["records"] == before


@pytest.mark.parametrize(
    ("given", "durability"),
    [
        ({}, "disk"),
        ({"durable": False}, "disk"),
        ({"durable": True}, "fsync"),
        ({"durability": "ephemeral"}, "ephemeral"),
        ({"durability": "memory"}, "memory"),
        ({"durability": "disk"}, "disk"),
        ({"durability": "fsync"}, "fsync"),
        ({"durable": True, "durability": "ephemeral"}, "ephemeral"),
        ({"durable": True, "durability": "memory"}, "memory"),
        ({"durable": True, "durability": "disk"}, "disk"),
        ({"durable": False, "durability": "fsync"}, "fsync"),
    ],
)
def test_durability_resolution(api: Api, topic_name: str, given: dict[str, Any], durability: str) -> None:
    """TOPIC-12."""
    config = api.put(topic_name, **given).ok(201)["config"]
    assert config["durability"] == durability
    assert config["durable"] is (durability == "fsync")
    assert api.state(topic_name)["config"] == config


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_durability_class_is_fully_queryable(api: Api, topic_name: str, durability: str) -> None:
    """DURABLE-1: by state, diff and stream, while the process runs."""
    api.put(topic_name, durability=durability).ok(201)
    api.fill(topic_name, 3)
    assert api.seqs(topic_name) == [1, 2, 3]
    state = api.state(topic_name)
    assert (state["head_seq"], state["earliest_seq"], state["count"]) == (3, 1, 3)
    assert api.erase(topic_name, before_seq=2).ok(200)["deleted"] == 1
    assert api.seqs(topic_name) == [2, 3]


def test_durability_is_mutable_in_place_and_never_weakened_by_omission(api: Api, topic_name: str) -> None:
    """TOPIC-6, TOPIC-12."""
    api.put(topic_name, durability="fsync").ok(201)
    assert api.put(topic_name, ttl_ms=1000).ok(200)["config"]["durability"] == "fsync"
    assert api.put(topic_name, durability="memory").ok(200)["config"]["durability"] == "memory"
    assert api.put(topic_name, cap_records=10).ok(200)["config"]["durability"] == "memory"
    resolved = api.put(topic_name, durable=True).ok(200)["config"]
    assert (resolved["durability"], resolved["durable"]) == ("fsync", True)
    resolved = api.put(topic_name, durable=False).ok(200)["config"]
    assert (resolved["durability"], resolved["durable"]) == ("disk", False)


@pytest.mark.parametrize(("first", "second"), [("log", "queue"), ("queue", "log")])
def test_type_is_immutable(api: Api, topic_name: str, first: str, second: str) -> None:
    """TOPIC-8: log to queue and queue to log."""
    api.put(topic_name, type=first).ok(201)
    with api.unchanged(topic_name):
        api.put(topic_name, type=second, ttl_ms=9999).refused(409, "topic_exists_incompatible")
    assert api.put(topic_name, type=first).ok(200)["config"]["type"] == first


@pytest.mark.parametrize(
    ("field", "given", "stored"),
    [
        ("priority", 1001, 1000),
        ("priority", 2**31 - 1, 1000),
        ("priority", -1001, -1000),
        ("priority", -(2**31), -1000),
        ("lease_ms", 0, 100),
        ("lease_ms", 99, 100),
        ("lease_ms", 86400001, 86400000),
        ("claim_jitter_ms", 5001, 5000),
    ],
)
def test_clamped_values_are_stored_and_echoed_clamped(
    api: Api, topic_name: str, field: str, given: int, stored: int
) -> None:
    """TOPIC-10."""
    assert api.put(topic_name, **{field: given}).ok(201)["config"][field] == stored
    assert api.state(topic_name)["config"][field] == stored


U64_FIELDS = [
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
]
BAD_CONFIG: list[tuple[str, Any]] = [
    ("type", "stream"),
    ("type", 1),
    ("type", None),
    ("ttl_ms", None),
    ("cap_records", None),
    ("discard", None),
    ("durable", None),
    ("auto_create", None),
    ("discard", "new"),
    ("discard", True),
    ("durability", "disc"),
    ("durability", "FSYNC"),
    ("durability", 2),
    ("durable", "yes"),
    ("durable", 1),
    ("auto_priority", 0),
    ("auto_create", "false"),
    ("dedupe_node", []),
    ("leases_durable", "x"),
    ("backoff_ms", -1),
    ("backoff_max_ms", "x"),
    ("priority", "high"),
    ("priority", 1.5),
    ("priority", True),
    ("dead_letter", 5),
    ("dead_letter", ""),
    ("dead_letter", "no spaces allowed"),
    ("dead_letter", "x" * 256),
    *(
        (field, value)
        for field in U64_FIELDS
        for value in (-1, 1.5, "5", True, [], {}, U64_MAX + 1)
        if value != U64_MAX + 1 or field not in ("lease_ms", "claim_jitter_ms")
    ),
]


@pytest.mark.parametrize(("field", "value"), BAD_CONFIG)
def test_put_refuses_a_bad_value_and_names_the_field(api: Api, topic_name: str, field: str, value: Any) -> None:
    """HTTP-12, TOPIC-13."""
    api.put(topic_name, **{field: value}).refused_naming(field)
    assert not api.exists(topic_name)
    api.put(topic_name, ttl_ms=1234).ok(201)
    with api.unchanged(topic_name):
        api.put(topic_name, **{"ttl_ms": 5, "discard": "reject", field: value}).refused_naming(field)


@pytest.mark.parametrize("field", ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries"])
def test_put_takes_the_whole_u64_range(api: Api, topic_name: str, field: str) -> None:
    """TOPIC-9."""
    assert api.put(topic_name, **{field: U64_MAX}).ok(201)["config"][field] == U64_MAX
    api.fill(topic_name, 2)
    assert api.seqs(topic_name) == [1, 2]


@pytest.mark.parametrize("type", ["queue", "log"])
def test_dead_letter_must_differ_from_its_topic(api: Api, topic_name: str, type: str) -> None:
    """TOPIC-13."""
    api.put(topic_name, type=type, dead_letter=topic_name).refused_naming("dead_letter")
    assert not api.exists(topic_name)


@pytest.mark.parametrize(
    "suffix",
    ["", "0", "A", ".", "_", ":", "-", "a.b_c:d-e", "..", "CAPS-and-lower.0:1"],
)
def test_valid_names_are_accepted(api: Api, topic_name: str, suffix: str) -> None:
    """TOPIC-1."""
    name = topic_name + suffix
    assert api.put(name).ok(201)["topic"] == name
    assert api.state(name)["topic"] == name


def test_name_length_is_1_to_255(api: Api, topic_name: str) -> None:
    """TOPIC-1."""
    longest = (topic_name + "x" * 255)[:255]
    assert api.put(longest).ok(201)["topic"] == longest
    api.put(longest + "x").refused(400, "invalid_request")
    api.put("Z").ok()
    api.remove("Z").ok(200)


def test_names_are_case_sensitive(api: Api, topic_name: str) -> None:
    """TOPIC-1."""
    api.write(topic_name + ":a", {"data": 1})
    api.write(topic_name + ":A", {"data": 2})
    assert api.read(topic_name + ":a")["records"][0]["data"] == 1
    assert api.read(topic_name + ":A")["records"][0]["data"] == 2


def test_percent_encoded_name_is_the_same_topic(api: Api, topic_name: str) -> None:
    """TOPIC-1: `:` is for namespaces, and clients commonly send it as %3A."""
    api.write(topic_name + ":x", {"data": 1})
    assert api.state(topic_name + "%3Ax")["topic"] == topic_name + ":x"


BAD_NAMES = [
    ".a",
    "_a",
    ":a",
    "-a",
    "..",
    "%2e%2e",
    "a%20b",
    "a%2Fb",
    "a%00",
    "a%0A",
    "%C3%A9",
    "a%C3%A9",
    "a%FF",
    "a>b",
    "a*b",
    "a$b",
    "a+b",
    "a~",
    "x" * 256,
]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v0/topics/{name}", {}),
        ("GET", "/v0/topics/{name}", None),
        ("DELETE", "/v0/topics/{name}", None),
        ("POST", "/v0/topics/{name}", {"records": [{"data": 1}]}),
        ("POST", "/v0/topics/{name}/diff", {}),
        ("POST", "/v0/topics/{name}/delete", {"before_seq": 1}),
    ],
)
def test_invalid_name_is_refused_on_every_route(api: Api, name: str, method: str, path: str, body: Any) -> None:
    """TOPIC-2."""
    api.call(method, path.format(name=name), body).refused(400, "invalid_request")


def test_state_of_a_fresh_topic(api: Api, topic_name: str) -> None:
    """TOPIC-15, WRITE-2: `head_seq` is 0, `next_seq` is 1, the clocks are null, and there is no `queue`."""
    api.put(topic_name).ok(201)
    state = api.state(topic_name)
    state.pop("performance")
    assert state.pop("erased_before_ts") > 0
    assert state == {
        "topic": topic_name,
        "type": "log",
        "head_seq": 0,
        "earliest_seq": 1,
        "next_seq": 1,
        "count": 0,
        "bytes": 0,
        "config": DEFAULTS,
        "effective_priority": 0,
        "last_write_ts": None,
        "last_read_ts": None,
    }


def test_state_follows_writes(api: Api, topic_name: str) -> None:
    """TOPIC-15."""
    api.fill(topic_name, 3)
    state = api.state(topic_name)
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"], state["count"]) == (3, 1, 4, 3)
    assert state["bytes"] > 0
    assert state["last_write_ts"] == api.read(topic_name)["records"][-1]["$ts"]
    assert api.write(topic_name, {"data": 4})["first_seq"] == state["next_seq"]


def test_next_seq_minus_one_is_a_tail_cursor(api: Api, topic_name: str) -> None:
    """TOPIC-15."""
    api.fill(topic_name, 3)
    tail = api.state(topic_name)["next_seq"] - 1
    assert api.seqs(topic_name, tail) == []
    api.write(topic_name, {"data": "new"})
    assert [r["data"] for r in api.read(topic_name, tail)["records"]] == ["new"]


def test_bytes_are_exact_under_writes_and_deletes(api: Api, topic_name: str) -> None:
    """TOPIC-16."""
    records = [{"data": "x" * 1000, "meta": {"k": "v" * 100}, "tag": f"t{n}"} for n in range(4)]
    sizes = [0]
    for record in records:
        api.write(topic_name, record)
        sizes.append(api.state(topic_name)["bytes"])
    steps = {after - before for before, after in itertools.pairwise(sizes)}
    assert len(steps) == 1, sizes
    assert 1100 <= steps.pop() <= 1400
    assert api.erase(topic_name, match="t1").ok(200)["bytes"] == sizes[3]
    assert api.state(topic_name)["bytes"] == sizes[3]
    assert api.erase(topic_name, before_seq=99).ok(200)["bytes"] == 0
    assert (api.state(topic_name)["bytes"], api.state(topic_name)["count"]) == (0, 0)


def test_state_never_creates(api: Api, topic_name: str) -> None:
    """TOPIC-18."""
    assert api.get(f"/v0/topics/{topic_name}").refused(404, "topic_not_found")["topic"] == topic_name
    api.get(f"/v0/topics/{topic_name}").refused(404, "topic_not_found")
    assert api.names(topic_name) == []


def test_state_touch_false_is_not_a_read(api: Api, topic_name: str) -> None:
    """TOPIC-17."""
    api.put(topic_name).ok(201)
    api.get(f"/v0/topics/{topic_name}?touch=false").ok(200)
    assert api.state(topic_name)["last_read_ts"] is None
    before = time.time_ns() // 1_000_000
    api.get(f"/v0/topics/{topic_name}").ok(200)
    first = api.state(topic_name)["last_read_ts"]
    assert before <= first <= time.time_ns() // 1_000_000
    api.get(f"/v0/topics/{topic_name}?touch=true").ok(200)
    assert api.state(topic_name)["last_read_ts"] >= first


@pytest.mark.parametrize("touch", ["maybe", "2", "", "truee"])
@pytest.mark.parametrize("path", ["/v0/topics/{topic}?touch={touch}", "/v0/topics?touch={touch}"])
def test_touch_that_is_no_bool_is_refused(api: Api, topic_name: str, path: str, touch: str) -> None:
    """TOPIC-17, HTTP-12."""
    api.put(topic_name).ok(201)
    with api.unchanged(topic_name):
        api.get(path.format(topic=topic_name, touch=touch)).refused_naming("touch")


def test_list_item_shape(api: Api, topic_name: str) -> None:
    """TOPIC-19."""
    api.put(topic_name, durable=True, priority=7).ok(201)
    api.fill(topic_name, 3)
    body = api.topics(prefix=topic_name).ok(200)
    assert set(body) == {"topics", "performance"}
    (item,) = body["topics"]
    assert item["bytes"] == api.state(topic_name)["bytes"]
    item.pop("bytes")
    assert item == {
        "topic": topic_name,
        "head_seq": 3,
        "earliest_seq": 1,
        "count": 3,
        "durable": True,
        "effective_priority": 7,
        "type": "log",
    }
    api.put(f"{topic_name}.q", type="queue").ok(201)
    assert [item["type"] for item in api.topics(prefix=topic_name).ok(200)["topics"]] == ["log", "queue"]


def test_list_filters_by_prefix(api: Api, topic_name: str) -> None:
    """TOPIC-19."""
    for suffix in ("a", "ab", "b"):
        api.put(f"{topic_name}{suffix}").ok(201)
    assert set(api.names(topic_name)) == {f"{topic_name}{s}" for s in ("a", "ab", "b")}
    assert set(api.names(topic_name + "a")) == {f"{topic_name}a", f"{topic_name}ab"}
    assert api.names(topic_name + "c") == []
    assert api.names(topic_name.swapcase()) == [] or topic_name.swapcase() == topic_name


def test_list_pages_cover_every_topic_once(api: Api, topic_name: str) -> None:
    """HTTP-22: no `next_cursor` means the last page."""
    expected = {f"{topic_name}{n:02}" for n in range(7)}
    for name in expected:
        api.put(name).ok(201)
    seen: list[str] = []
    query: dict[str, Any] = {"prefix": topic_name, "page_size": 3}
    sizes = []
    while True:
        page = api.topics(**query).ok(200)
        sizes.append(len(page["topics"]))
        seen += [item["topic"] for item in page["topics"]]
        if "next_cursor" not in page:
            break
        assert isinstance(page["next_cursor"], str)
        assert page["next_cursor"]
        query["cursor"] = page["next_cursor"]
    assert sizes == [3, 3, 1]
    assert len(seen) == 7
    assert set(seen) == expected


def test_list_full_last_page_has_no_cursor(api: Api, topic_name: str) -> None:
    """HTTP-22: also if that page is exactly full."""
    for n in range(4):
        api.put(f"{topic_name}{n}").ok(201)
    first = api.topics(prefix=topic_name, page_size=2).ok(200)
    second = api.topics(prefix=topic_name, page_size=2, cursor=first["next_cursor"]).ok(200)
    assert len(second["topics"]) == 2
    assert "next_cursor" not in second


def test_list_survives_deletion_of_the_topic_under_the_cursor(api: Api, topic_name: str) -> None:
    """HTTP-22: a cursor is a position, so removing topics between two pages neither fails nor skips others."""
    for n in range(6):
        api.put(f"{topic_name}{n}").ok(201)
    first = api.topics(prefix=topic_name, page_size=3).ok(200)
    got = [item["topic"] for item in first["topics"]]
    for name in got:
        api.remove(name).ok(200)
    rest = api.topics(prefix=topic_name, page_size=10, cursor=first["next_cursor"]).ok(200)
    assert set(got) | {item["topic"] for item in rest["topics"]} == {f"{topic_name}{n}" for n in range(6)}
    assert len(rest["topics"]) == 3


def test_list_page_size_default_and_clamp(api: Api, topic_name: str) -> None:
    """HTTP-22."""
    for n in range(1001):
        assert api.put(f"{topic_name}{n:04}").status == 201
    try:
        default = api.topics(prefix=topic_name).ok(200)
        assert len(default["topics"]) == 100
        assert "next_cursor" in default
        for size in (1000, 1001, 2**40, 10**30):
            page = api.topics(prefix=topic_name, page_size=size).ok(200)
            assert len(page["topics"]) == 1000
            assert "next_cursor" in page
        assert len(api.topics(prefix=topic_name, page_size=1).ok(200)["topics"]) == 1
    finally:
        for n in range(1001):
            api.remove(f"{topic_name}{n:04}")


@pytest.mark.parametrize("page_size", ["0", "-1", "ten", "1.5", "", "0x10", "1e2"])
def test_list_refuses_a_bad_page_size(api: Api, page_size: str) -> None:
    """HTTP-22."""
    api.get(f"/v0/topics?page_size={page_size}").refused_naming("page_size")


@pytest.mark.parametrize(
    "cursor",
    [
        "!!!",
        "not-base64-json",
        base64.b64encode(b"nonsense").decode().replace("=", "%3D"),
        base64.b64encode(b"[]").decode().replace("=", "%3D"),
        base64.b64encode(b"{}").decode().replace("=", "%3D"),
        base64.b64encode(b'{"after":5}').decode().replace("=", "%3D"),
        base64.b64encode(b"\xff\xfe").decode().replace("=", "%3D"),
        "%00",
        "%FF",
    ],
)
def test_list_refuses_a_corrupt_cursor(api: Api, cursor: str) -> None:
    """HTTP-22."""
    api.get(f"/v0/topics?cursor={cursor}").refused_naming("cursor")


def test_list_does_not_touch_by_default(api: Api, topic_name: str) -> None:
    """TOPIC-17."""
    api.put(topic_name).ok(201)
    assert api.topics(prefix=topic_name).ok(200)["topics"][0]["effective_priority"] == 0
    assert api.topics(prefix=topic_name, touch="false").ok(200)["topics"][0]["effective_priority"] == 0
    assert api.state(topic_name)["last_read_ts"] is None
    api.topics(prefix=topic_name, touch="true").ok(200)
    assert api.state(topic_name)["last_read_ts"] is not None
    assert api.state(topic_name)["effective_priority"] > 400


def test_delete_topic(api: Api, topic_name: str) -> None:
    """TOPIC-20."""
    api.fill(topic_name, 3)
    body = api.remove(topic_name).ok(200)
    body.pop("performance")
    assert body == {"topic": topic_name, "deleted": True, "routers_removed": []}
    api.get(f"/v0/topics/{topic_name}").refused(404, "topic_not_found")
    api.diff(topic_name).refused(404, "topic_not_found")
    assert api.names(topic_name) == []


def test_delete_absent_topic(api: Api, topic_name: str) -> None:
    """TOPIC-21."""
    for query in ("", "?if_empty=true"):
        body = api.remove(topic_name, query).ok(200)
        body.pop("performance")
        assert body == {"topic": topic_name, "deleted": False, "routers_removed": []}


def test_delete_if_empty_refuses_a_topic_with_records(api: Api, topic_name: str) -> None:
    """TOPIC-20."""
    api.fill(topic_name, 2)
    with api.unchanged(topic_name):
        api.remove(topic_name, "?if_empty=true").refused(409, "topic_not_empty")
    api.erase(topic_name, before_seq=3).ok(200)
    assert api.remove(topic_name, "?if_empty=true").ok(200)["deleted"] is True


def test_delete_if_empty_false_is_the_default(api: Api, topic_name: str) -> None:
    """TOPIC-20."""
    api.fill(topic_name, 2)
    assert api.remove(topic_name, "?if_empty=false").ok(200)["deleted"] is True


def test_delete_refuses_a_bad_if_empty(api: Api, topic_name: str) -> None:
    """TOPIC-20, HTTP-12: what cannot be read must not delete."""
    api.fill(topic_name, 1)
    with api.unchanged(topic_name):
        api.remove(topic_name, "?if_empty=maybe").refused_naming("if_empty")


def test_recreated_topic_is_new_and_empty(api: Api, topic_name: str) -> None:
    """TOPIC-20, TOPIC-22: its config starts from the defaults too."""
    api.put(topic_name, cap_records=50, ttl_ms=600000).ok(201)
    api.write(topic_name, {"data": 1, "tag": "t"}, {"data": 2, "tag": "t"}, idempotency_key="once")
    api.write(topic_name, {"data": 3}, producer_id="p", producer_seq=5)
    api.remove(topic_name).ok(200)

    body = api.post(topic_name, {"records": [{"data": "new"}], "idempotency_key": "once"}).ok(201)
    assert (body["deduped"], body["seqs"], body["head_seq"]) == (False, [1], 1)
    assert api.write(topic_name, {"data": "p"}, producer_id="p", producer_seq=1)["deduped"] is False
    assert api.erase(topic_name, match="t").ok(200)["deleted"] == 0
    assert [r["data"] for r in api.read(topic_name)["records"]] == ["new", "p"]
    assert api.state(topic_name)["config"] == DEFAULTS


def test_recreated_by_put_starts_clean(api: Api, topic_name: str) -> None:
    """TOPIC-22: the type may differ."""
    api.put(topic_name, type="queue").ok(201)
    api.fill(topic_name, 3)
    api.remove(topic_name).ok(200)
    assert api.put(topic_name, type="log").ok(201)["created"] is True
    state = api.state(topic_name)
    assert (state["head_seq"], state["earliest_seq"], state["count"], state["bytes"]) == (0, 1, 0, 0)
    assert state["last_write_ts"] is None


def test_put_names_the_fields_that_it_ignored(api: Api, topic_name: str) -> None:
    """HTTP-15: a typo in a config must not stay unseen until it hurts."""
    body = api.put(topic_name, durabilty="fsync", ttl_ms=5, **{"x" * 1000: 1}).ok(201)
    assert body["unknown_fields"] == ["durabilty", "x" * 300]
    assert (body["config"]["durability"], body["config"]["ttl_ms"]) == ("disk", 5)
    assert "unknown_fields" not in api.put(topic_name, ttl_ms=6).ok(200)
    assert "unknown_fields" not in api.call("PUT", f"/v0/topics/{topic_name}").ok(200)
    many = api.put(topic_name, **{f"k{i}": i for i in range(100)}).ok(200)
    assert many["unknown_fields"] == [f"k{i}" for i in range(20)]
    router = {"source": topic_name, "dest": f"{topic_name}.copy", "garantee": "exactly_once"}
    made = api.call("PUT", f"/v0/routers/{topic_name}", router).ok(201)
    assert (made["unknown_fields"], made["guarantee"]) == (["garantee"], "at_least_once")
