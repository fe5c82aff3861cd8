"""The NODE rules: a reader does not get back what its own node wrote."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.api import Api


def mixed(api: Api, topic: str) -> None:
    """Six records: from a, b, nobody, A, ab, a."""
    nodes = ["a", "b", None, "A", "ab", "a"]
    api.write(topic, *({"data": n, **({"node": node} if node else {})} for n, node in enumerate(nodes, 1)))


@pytest.mark.parametrize(
    ("node", "seen"),
    [
        ("a", [2, 3, 4, 5]),
        ("b", [1, 3, 4, 5, 6]),
        ("A", [1, 2, 3, 5, 6]),
        ("ab", [1, 2, 3, 4, 6]),
        ("abc", [1, 2, 3, 4, 5, 6]),
        ("z", [1, 2, 3, 4, 5, 6]),
        (["a"], [2, 3, 4, 5]),
        (["a", "b"], [3, 4, 5]),
        (["a", "b", "A", "ab"], [3]),
        (["a", "a"], [2, 3, 4, 5]),
        ([], [1, 2, 3, 4, 5, 6]),
    ],
)
def test_own_records_are_dropped_by_exact_equality(api: Api, topic_name: str, node: Any, seen: list[int]) -> None:
    """NODE-1: byte for byte, not by prefix; a list drops each of its ids; records without a node pass."""
    mixed(api, topic_name)
    body = api.read(topic_name, node=node)
    assert [r["$seq"] for r in body["records"]] == seen
    assert (body["next_from_seq"], body["caught_up"], body["tombstone"]) == (6, True, None)


def test_without_node_everything_is_delivered(api: Api, topic_name: str) -> None:
    """NODE-1."""
    mixed(api, topic_name)
    assert api.seqs(topic_name) == [1, 2, 3, 4, 5, 6]


def test_batch_level_node_is_filtered_like_any_other(api: Api, topic_name: str) -> None:
    """NODE-2."""
    api.write(topic_name, {"data": 1}, {"data": 2, "node": "other"}, node="me")
    assert api.seqs(topic_name, node="me") == [2]
    assert api.seqs(topic_name, node="other") == [1]


def test_cursor_advances_past_own_records(api: Api, topic_name: str) -> None:
    """READ-6, NODE-3: `records` may be empty while the cursor moves; `caught_up` means that there is no more."""
    api.fill(topic_name, 10, node="me")
    api.write(topic_name, {"data": "theirs", "node": "you"})
    body = api.read(topic_name, node="me", limit=4)
    assert (body["records"], body["next_from_seq"], body["caught_up"], body["lag"]) == ([], 4, False, 7)
    body = api.read(topic_name, body["next_from_seq"], node="me", limit=4)
    assert (body["records"], body["next_from_seq"], body["caught_up"]) == ([], 8, False)
    body = api.read(topic_name, body["next_from_seq"], node="me", limit=4)
    assert [r["data"] for r in body["records"]] == ["theirs"]
    assert (body["next_from_seq"], body["caught_up"], body["lag"]) == (11, True, 0)


def test_filter_is_applied_after_the_window_is_taken(api: Api, topic_name: str) -> None:
    """READ-8: it never scans on to fill a batch."""
    nodes = ["me", "you", "me", "me", "you", "you"]
    api.write(topic_name, *({"data": n, "node": node} for n, node in enumerate(nodes, 1)))
    body = api.read(topic_name, node="me", limit=3)
    assert [r["$seq"] for r in body["records"]] == [2]
    assert body["next_from_seq"] == 3


def test_deleted_records_take_no_place_in_the_window(api: Api, topic_name: str) -> None:
    """READ-8: the window is of *live* records."""
    api.write(topic_name, *({"data": n, "tag": "even" if n % 2 == 0 else "odd"} for n in range(1, 11)))
    api.erase(topic_name, match="odd").ok(200)
    body = api.read(topic_name, limit=3)
    assert [r["$seq"] for r in body["records"]] == [2, 4, 6]
    assert body["next_from_seq"] == 6


def test_dedupe_node_false_delivers_echoes(api: Api, topic_name: str) -> None:
    """NODE-4: it can be changed in place."""
    api.put(topic_name, dedupe_node=False).ok(201)
    mixed(api, topic_name)
    assert api.seqs(topic_name, node=["a", "b"]) == [1, 2, 3, 4, 5, 6]
    api.put(topic_name, dedupe_node=True).ok(200)
    assert api.seqs(topic_name, node=["a", "b"]) == [3, 4, 5]


def test_node_stays_on_the_records_of_others(api: Api, topic_name: str) -> None:
    """NODE-5."""
    mixed(api, topic_name)
    assert [r.get("$node") for r in api.read(topic_name, node="b")["records"]] == ["a", None, "A", "ab", "a"]


def test_symmetric_nodes_each_see_the_others(api: Api, topic_name: str) -> None:
    """NODE-5."""
    nodes = ["n1", "n2", "n3"]
    for node in nodes:
        api.write(topic_name, {"data": node}, node=node)
    for node in nodes:
        assert [r["data"] for r in api.read(topic_name, node=node)["records"]] == [n for n in nodes if n != node]
