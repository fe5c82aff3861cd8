"""The READ rules: reading from a cursor."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.harness.api import Api, StartApi, until

MIB = 1024 * 1024


def test_diff_response_shape(api: Api, topic_name: str) -> None:
    """READ-1, READ-5: every field, and no other."""
    api.fill(topic_name, 5)
    body = api.read(topic_name, 1, limit=2)
    assert body.pop("performance")["records_scanned"] == 2
    records = body.pop("records")
    assert [(r["$seq"], r["data"]) for r in records] == [(2, 2), (3, 3)]
    assert body == {
        "topic": topic_name,
        "next_from_seq": 3,
        "head_seq": 5,
        "earliest_seq": 1,
        "caught_up": False,
        "tombstone": None,
        "lag": 2,
    }


def test_defaults_read_256_from_the_earliest(api: Api, topic_name: str) -> None:
    """READ-2, READ-3, READ-10: the defaults."""
    api.fill(topic_name, 300, tag="t", meta={"k": "v"})
    body = api.diff(topic_name).ok(200)
    assert [r["$seq"] for r in body["records"]] == list(range(1, 257))
    assert (body["next_from_seq"], body["caught_up"], body["lag"]) == (256, False, 44)
    assert set(body["records"][0]) == {"$seq", "$ts", "data", "meta"}


@pytest.mark.parametrize(
    ("limit", "delivered"), [(0, 256), (1, 1), (256, 256), (999, 999), (1000, 1000), (1001, 1000), (2**32 - 1, 1000)]
)
def test_limit_is_clamped_and_zero_is_the_default(api: Api, topic_name: str, limit: int, delivered: int) -> None:
    """READ-3: clamped to 1000, not refused."""
    api.fill(topic_name, 1005)
    body = api.read(topic_name, limit=limit)
    assert [r["$seq"] for r in body["records"]] == list(range(1, delivered + 1))
    assert (body["next_from_seq"], body["lag"]) == (delivered, 1005 - delivered)


def test_limit_follows_its_variable(start_api: StartApi, topic_name: str) -> None:
    """READ-3: the default limit is held to `TOPICS_MAX_LIMIT` too."""
    api = start_api(max_limit=3)
    api.fill(topic_name, 10)
    for limit in (0, 3, 4, 1000):
        assert api.seqs(topic_name, limit=limit) == [1, 2, 3]
    assert api.seqs(topic_name, limit=2) == [1, 2]


def test_from_seq_is_an_exclusive_lower_bound(api: Api, topic_name: str) -> None:
    """READ-2: records with a larger seq, ascending."""
    api.fill(topic_name, 5)
    for cursor in range(6):
        body = api.read(topic_name, cursor)
        assert [r["$seq"] for r in body["records"]] == list(range(cursor + 1, 6))
        assert (body["next_from_seq"], body["caught_up"], body["lag"], body["tombstone"]) == (5, True, 0, None)


def test_reading_on_from_next_from_seq_sees_every_record_once(api: Api, topic_name: str) -> None:
    """READ-5, READ-7: pass back `next_from_seq`; fully caught up, it equals `head_seq`."""
    api.fill(topic_name, 10)
    cursor, seen, turns = 0, [], 0
    while True:
        body = api.read(topic_name, cursor, limit=3)
        seen += [r["$seq"] for r in body["records"]]
        assert body["lag"] == body["head_seq"] - body["next_from_seq"]
        assert body["caught_up"] is (body["next_from_seq"] == body["head_seq"])
        cursor, turns = body["next_from_seq"], turns + 1
        if body["caught_up"]:
            break
    assert seen == list(range(1, 11))
    assert turns == 4


def test_head_seq_as_cursor_tails(api: Api, topic_name: str) -> None:
    """READ-2: from the head a reader gets only what is new."""
    api.fill(topic_name, 3)
    body = api.read(topic_name, 3)
    assert (body["records"], body["next_from_seq"], body["caught_up"], body["tombstone"]) == ([], 3, True, None)
    api.write(topic_name, {"data": "new"})
    assert [r["data"] for r in api.read(topic_name, 3)["records"]] == ["new"]


def test_diff_of_a_fresh_topic(api: Api, topic_name: str) -> None:
    """READ-1: `head_seq` 0, `earliest_seq` 1, caught up."""
    api.put(topic_name).ok(201)
    body = api.read(topic_name)
    body.pop("performance")
    assert body == {
        "topic": topic_name,
        "records": [],
        "next_from_seq": 0,
        "head_seq": 0,
        "earliest_seq": 1,
        "caught_up": True,
        "tombstone": None,
        "lag": 0,
    }


def test_diff_keeps_no_state_and_is_safe_to_retry(api: Api, topic_name: str) -> None:
    """READ-9: the client owns its cursor."""
    api.fill(topic_name, 5)
    first = api.read(topic_name, 2)
    second = api.read(topic_name, 2)
    first.pop("performance")
    second.pop("performance")
    assert first == second


def test_diff_never_creates(api: Api, topic_name: str) -> None:
    """TOPIC-18."""
    assert api.diff(topic_name).refused(404, "topic_not_found")["topic"] == topic_name
    api.diff(topic_name, wait_ms=5000).refused(404, "topic_not_found")
    assert not api.exists(topic_name)


@pytest.mark.parametrize("include_tags", [False, True])
@pytest.mark.parametrize("include_meta", [False, True])
def test_include_flags(api: Api, topic_name: str, include_tags: bool, include_meta: bool) -> None:
    """READ-10: `$tag` and `meta` on request, `$node` whenever it is set."""
    api.write(topic_name, {"data": 1, "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": 2})
    full, plain = api.read(topic_name, include_tags=include_tags, include_meta=include_meta)["records"]
    expected: dict[str, Any] = {"$seq": 1, "$node": "n", "data": 1}
    if include_tags:
        expected["$tag"] = "t"
    if include_meta:
        expected["meta"] = {"k": "v"}
    full.pop("$ts")
    assert full == expected
    assert set(plain) == {"$seq", "$ts", "data"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            (field, value)
            for field in ("from_seq", "limit", "wait_ms", "max_batch_bytes")
            for value in (-1, 1.5, "5", True, [], {})
        ),
        ("from_seq", 2**64),
        ("node", 5),
        ("node", {}),
        ("node", [5]),
        ("node", ["a", None]),
        ("node", True),
        ("include_tags", 1),
        ("include_tags", "true"),
        ("include_meta", 0),
        ("include_meta", []),
    ],
)
def test_type_errors_are_refused_by_name(api: Api, topic_name: str, field: str, value: Any) -> None:
    """HTTP-12."""
    api.fill(topic_name, 1)
    with api.unchanged(topic_name):
        api.diff(topic_name, **{field: value}).refused_naming(field)


def test_largest_cursor_is_accepted(api: Api, topic_name: str) -> None:
    """READ-2: a cursor is a u64."""
    api.fill(topic_name, 2)
    body = api.read(topic_name, 2**64 - 1)
    assert body["tombstone"]["reason"] == "recreated"
    assert [r["$seq"] for r in body["records"]] == [1, 2]


def test_wait_returns_at_once_where_records_wait(api: Api, topic_name: str) -> None:
    """READ-12."""
    api.fill(topic_name, 1)
    start = time.monotonic()
    assert api.seqs(topic_name, wait_ms=20000) == [1]
    assert time.monotonic() - start < 10


def test_wait_ends_with_an_ordinary_empty_answer(api: Api, topic_name: str) -> None:
    """READ-12: nothing came."""
    api.fill(topic_name, 2)
    start = time.monotonic()
    body = api.read(topic_name, 2, wait_ms=150)
    assert 0.14 <= time.monotonic() - start < 10
    assert (body["records"], body["next_from_seq"], body["caught_up"], body["lag"]) == ([], 2, True, 0)


@pytest.mark.parametrize("wait_ms", [20000, 30001, 2**32 - 1])
def test_wait_ends_with_the_first_new_record(api: Api, topic_name: str, wait_ms: int) -> None:
    """READ-12: `wait_ms` over 30000 is clamped, not refused."""
    api.fill(topic_name, 2)
    answer: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: answer.append(api.read(topic_name, 2, wait_ms=wait_ms)))
    start = time.monotonic()
    reader.start()
    reader.join(0.05)
    assert reader.is_alive()
    api.write(topic_name, {"data": "news"})
    reader.join(15)
    assert answer, "the long-poll did not return"
    assert time.monotonic() - start < 15
    (body,) = answer
    assert [(r["$seq"], r["data"]) for r in body["records"]] == [(3, "news")]
    assert (body["next_from_seq"], body["head_seq"], body["caught_up"]) == (3, 3, True)


@pytest.mark.parametrize("nodes", [2, 200])
def test_wait_goes_on_while_its_own_nodes_write(api: Api, topic_name: str, nodes: int) -> None:
    """READ-12, READ-8: a filter of any size holds for every look, and what it drops moves the cursor."""
    own = [f"{i:03}" + "n" * 120 for i in range(nodes)]
    api.fill(topic_name, 2)
    answer: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: answer.append(api.read(topic_name, 2, wait_ms=20000, node=own)))
    reader.start()
    reader.join(0.05)
    for node in (own[0], own[-1]):
        api.write(topic_name, {"data": "echo", "node": node})
        reader.join(0.05)
        assert reader.is_alive()
    api.write(topic_name, {"data": "news", "node": "another"})
    reader.join(15)
    assert [(r["$seq"], r["data"]) for r in answer[0]["records"]] == [(5, "news")]


def test_wait_on_one_topic_is_not_ended_by_another(api: Api, topic_name: str) -> None:
    """READ-12: it waits for new records of *this* topic."""
    api.fill(topic_name + ":a", 1)
    answer: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: answer.append(api.read(topic_name + ":a", 1, wait_ms=600)))
    start = time.monotonic()
    reader.start()
    for _ in range(5):
        api.fill(topic_name + ":b", 1)
    reader.join(15)
    assert time.monotonic() - start >= 0.55
    assert answer[0]["records"] == []


def test_wait_does_not_hold_back_a_tombstone(api: Api, topic_name: str) -> None:
    """READ-12: a gap is something to report, so there is nothing to wait for."""
    api.put(topic_name, cap_records=2).ok(201)
    api.fill(topic_name, 5)
    api.erase(topic_name, before_seq=6).ok(200)
    start = time.monotonic()
    body = api.read(topic_name, 0, wait_ms=20000)
    assert time.monotonic() - start < 10
    assert body["records"] == []
    assert (body["tombstone"]["gap_from"], body["tombstone"]["gap_to"]) == (1, 5)


def test_many_waiting_readers_are_all_served(api: Api, topic_name: str) -> None:
    """READ-12: every waiting reader gets the record; none takes it from another."""
    api.put(topic_name).ok(201)
    answers: list[list[int]] = []
    readers = [threading.Thread(target=lambda: answers.append(api.seqs(topic_name, wait_ms=20000))) for _ in range(10)]
    for reader in readers:
        reader.start()
    api.write(topic_name, {"data": 1})
    for reader in readers:
        reader.join(15)
    assert answers == [[1]] * 10


def _read_sizes(api: Api, topic: str, **fields: Any) -> list[int]:
    """How many records each diff delivers until the reader has caught up; the seqs must come complete and in order."""
    cursor, sizes, seen = 0, [], []
    while True:
        body = api.read(topic, cursor, limit=1000, **fields)
        sizes.append(len(body["records"]))
        seen += [r["$seq"] for r in body["records"]]
        cursor = body["next_from_seq"]
        assert cursor == seen[-1]
        if body["caught_up"]:
            assert seen == list(range(1, body["head_seq"] + 1))
            return sizes


@pytest.mark.parametrize("fields", [{}, {"max_batch_bytes": 0}, {"max_batch_bytes": MIB}])
def test_response_is_bounded_by_one_mib_by_default(api: Api, topic_name: str, fields: dict[str, int]) -> None:
    """READ-11: 0 means the default."""
    for _ in range(5):
        api.write(topic_name, *({"data": "x" * 100_000} for _ in range(6)))
    sizes = _read_sizes(api, topic_name, **fields)
    assert all(10 <= size <= 11 for size in sizes[:-1]), sizes
    assert len(sizes) == 3


def test_at_least_one_record_is_delivered(api: Api, topic_name: str) -> None:
    """READ-11: a reader always makes progress."""
    api.write(topic_name, *({"data": "x" * 5000} for _ in range(3)))
    body = api.read(topic_name, max_batch_bytes=1)
    assert [r["$seq"] for r in body["records"]] == [1]
    assert (body["next_from_seq"], body["caught_up"], body["lag"]) == (1, False, 2)
    assert _read_sizes(api, topic_name, max_batch_bytes=1) == [1, 1, 1]


def test_byte_budget_is_clamped_to_8_mib(api: Api, topic_name: str) -> None:
    """READ-11."""
    for _ in range(10):
        api.write(topic_name, {"data": "x" * 1_000_000})
    sizes = _read_sizes(api, topic_name, max_batch_bytes=2**31)
    assert 8 <= sizes[0] <= 9, sizes


def test_diff_is_not_ended_early_by_filtered_records_bytes(api: Api, topic_name: str) -> None:
    """READ-6: the byte budget bounds what is *delivered*, so progress never stops."""
    api.write(topic_name, *({"data": "x" * 400_000, "node": "me"} for _ in range(5)), {"data": "y"})
    cursor, seen = 0, []
    for _ in range(10):
        body = api.read(topic_name, cursor, node="me")
        assert body["next_from_seq"] > cursor
        seen += [r["data"] for r in body["records"]]
        cursor = body["next_from_seq"]
        if body["caught_up"]:
            break
    assert seen == ["y"]


def test_from_ts_starts_at_the_first_record_of_that_time(api: Api, topic_name: str) -> None:
    """READ-14: `from_ts` starts at the first record with `$ts` >= it."""
    stamp = 0
    for n in range(5):
        until(lambda: time.time_ns() // 1_000_000 > stamp, "the millisecond is over")  # noqa: B023
        api.write(topic_name, {"data": n})
        stamp = api.state(topic_name)["last_write_ts"]
    records = api.read(topic_name)["records"]
    assert len({r["$ts"] for r in records}) == 5
    for wanted in records:
        expected = [r["$seq"] for r in records if r["$ts"] >= wanted["$ts"]]
        assert [r["$seq"] for r in api.diff(topic_name, from_ts=wanted["$ts"]).ok(200)["records"]] == expected
    assert [r["$seq"] for r in api.diff(topic_name, from_ts=0).ok(200)["records"]] == [1, 2, 3, 4, 5]
    later = api.diff(topic_name, from_ts=records[-1]["$ts"] + 3_600_000).ok(200)
    assert (later["records"], later["next_from_seq"], later["caught_up"]) == ([], 5, True)
    assert api.diff(topic_name, from_ts=2**64 - 1).ok(200)["records"] == []
    for bad in ("1", 1.5, True, [], -1, 2**64):
        api.diff(topic_name, from_ts=bad).refused_naming("from_ts")


def test_match_on_diff_filters_by_tag_silently(api: Api, topic_name: str) -> None:
    """READ-15: silent like the node filter, and the cursor still advances."""
    tags = ["a:1", "a:2", "b:1", None, "a:1"]
    api.write(topic_name, *({"data": n, **({"tag": t} if t else {})} for n, t in enumerate(tags)))
    for match, expected in (("a:1", [1, 5]), (["tag", "Glob", "a:*"], [1, 2, 5]), (["tag", "Eq", "none"], [])):
        body = api.diff(topic_name, match=match).ok(200)
        assert [r["$seq"] for r in body["records"]] == expected
        assert (body["next_from_seq"], body["caught_up"], body["tombstone"]) == (5, True, None)
    window = api.diff(topic_name, match="b:1", limit=2).ok(200)
    assert (window["records"], window["next_from_seq"], window["caught_up"]) == ([], 2, False)
    for bad in (5, [], ["tag", "Eq"], ["tag", "Like", "a"], ["node", "Eq", "a"], ["tag", "Glob", "a"]):
        api.diff(topic_name, match=bad).refused_naming("match")
