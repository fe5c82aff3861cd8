"""The DELETE rules: permanent deletion of records by seq and by tag."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.api import Api

TAGS = ["a:1", "a:2", "b:1", None, "a:1", "a", "a*", "A:1", "é:1", "a:10"]
"""The tags of the records 1 to 10 of a tagged topic."""


def tagged(api: Api, topic: str) -> None:
    """Ten records with the tags above."""
    api.write(topic, *({"data": n, **({"tag": tag} if tag else {})} for n, tag in enumerate(TAGS, 1)))


def test_delete_response(api: Api, topic_name: str) -> None:
    """DELETE-2: the state of the topic after the delete."""
    api.fill(topic_name, 10)
    size = api.state(topic_name)["bytes"]
    body = api.erase(topic_name, before_seq=4).ok(200)
    body.pop("performance")
    state = api.state(topic_name)
    assert 0 < body["bytes"] < size
    assert body == {
        "topic": topic_name,
        "deleted": 3,
        "earliest_seq": 4,
        "head_seq": 10,
        "count": 7,
        "bytes": state["bytes"],
    }
    assert (state["count"], state["earliest_seq"], state["head_seq"]) == (7, 4, 10)


@pytest.mark.parametrize(("before_seq", "deleted"), [(0, 0), (1, 0), (2, 1), (5, 4), (6, 5), (7, 5), (2**64 - 1, 5)])
def test_before_seq_deletes_every_record_below_it(api: Api, topic_name: str, before_seq: int, deleted: int) -> None:
    """DELETE-1."""
    api.fill(topic_name, 5)
    body = api.erase(topic_name, before_seq=before_seq).ok(200)
    assert (body["deleted"], body["earliest_seq"], body["count"]) == (deleted, deleted + 1, 5 - deleted)
    assert api.seqs(topic_name) == list(range(deleted + 1, 6))


@pytest.mark.parametrize(
    ("match", "gone"),
    [
        ("a:1", [1, 5]),
        (["tag", "Eq", "a:1"], [1, 5]),
        (["tag", "Eq", "a"], [6]),
        (["tag", "Eq", "a*"], [7]),
        ("a*", [7]),
        (["tag", "Eq", "nobody"], []),
        (["tag", "Eq", "é:1"], [9]),
        (["tag", "Glob", "a:*"], [1, 2, 5, 10]),
        (["tag", "Glob", "a*"], [1, 2, 5, 6, 7, 10]),
        (["tag", "Glob", "a:1*"], [1, 5, 10]),
        (["tag", "Glob", "A*"], [8]),
        (["tag", "Glob", "é*"], [9]),
        (["tag", "Glob", "nobody*"], []),
        (["tag", "Glob", "*"], [1, 2, 3, 5, 6, 7, 8, 9, 10]),
        (["tag", "Glob", "?:*"], []),
        (["tag", "Glob", ".*"], []),
        (["tag", "Glob", "[ab]*"], []),
    ],
)
def test_match_deletes_by_tag(api: Api, topic_name: str, match: Any, gone: list[int]) -> None:
    """DELETE-1, DELETE-3: Eq, Glob, a bare string for Eq; untagged records are never matched."""
    tagged(api, topic_name)
    body = api.erase(topic_name, match=match).ok(200)
    left = [seq for seq in range(1, 11) if seq not in gone]
    assert (body["deleted"], body["count"], body["earliest_seq"]) == (len(gone), len(left), min(left))
    assert api.seqs(topic_name) == left


@pytest.mark.parametrize(
    ("match", "before_seq", "gone"),
    [("a:1", 5, [1]), ("a:1", 6, [1, 5]), (["tag", "Glob", "a*"], 6, [1, 2, 5]), ("b:1", 3, []), ("a:1", 0, [])],
)
def test_match_and_before_seq_are_anded(
    api: Api, topic_name: str, match: Any, before_seq: int, gone: list[int]
) -> None:
    """DELETE-1: with both, both must hold."""
    tagged(api, topic_name)
    assert api.erase(topic_name, match=match, before_seq=before_seq).ok(200)["deleted"] == len(gone)
    assert api.seqs(topic_name) == [seq for seq in range(1, 11) if seq not in gone]


def test_publish_then_delete_prior_versions(api: Api, topic_name: str) -> None:
    """DELETE-1: publish v2 of a message then delete its prior versions, keeping the new one."""
    api.write(topic_name, {"data": "v0", "tag": "msg-123"}, {"data": "v1", "tag": "msg-123"})
    latest = api.write(topic_name, {"data": "v2", "tag": "msg-123"})["last_seq"]
    api.erase(topic_name, match=["tag", "Eq", "msg-123"], before_seq=latest).ok(200)
    assert [r["data"] for r in api.read(topic_name)["records"]] == ["v2"]


@pytest.mark.parametrize("match", ["chat-42:u1", ["tag", "Glob", "chat-42:*"]])
def test_match_is_point_in_time(api: Api, topic_name: str, match: Any) -> None:
    """DELETE-7: later records with that tag are not deleted."""
    api.write(topic_name, {"data": 1, "tag": "chat-42:u1"})
    assert api.erase(topic_name, match=match).ok(200)["deleted"] == 1
    api.write(topic_name, {"data": 2, "tag": "chat-42:u1"})
    assert [r["data"] for r in api.read(topic_name)["records"]] == [2]
    assert api.state(topic_name)["count"] == 1


def test_before_seq_above_the_head_is_no_standing_filter(api: Api, topic_name: str) -> None:
    """DELETE-7: it removes only what exists at the time of the call."""
    api.fill(topic_name, 3)
    assert api.erase(topic_name, before_seq=1000).ok(200)["deleted"] == 3
    assert api.fill(topic_name, 2)["seqs"] == [4, 5]
    assert api.seqs(topic_name) == [4, 5]
    state = api.state(topic_name)
    assert (state["count"], state["earliest_seq"]) == (2, 4)
    assert api.erase(topic_name, before_seq=5).ok(200)["deleted"] == 1


def test_delete_is_permanent_and_repeatable(api: Api, topic_name: str) -> None:
    """DELETE-4: a repeated delete counts only what it removed itself."""
    tagged(api, topic_name)
    assert api.erase(topic_name, match="a:1").ok(200)["deleted"] == 2
    assert api.erase(topic_name, match="a:1").ok(200)["deleted"] == 0
    assert api.erase(topic_name, before_seq=6).ok(200)["deleted"] == 3
    assert api.erase(topic_name, before_seq=6).ok(200)["deleted"] == 0
    assert api.erase(topic_name, before_seq=3).ok(200)["deleted"] == 0
    assert api.seqs(topic_name) == [6, 7, 8, 9, 10]


def test_delete_is_effective_immediately_everywhere(api: Api, topic_name: str) -> None:
    """DELETE-5: in diff, state, counts and the list."""
    tagged(api, topic_name)
    answer = api.erase(topic_name, match=["tag", "Glob", "a*"]).ok(200)
    state = api.state(topic_name)
    (item,) = api.topics(prefix=topic_name).ok(200)["topics"]
    for seen in (state, item):
        assert (seen["count"], seen["bytes"], seen["earliest_seq"]) == (4, answer["bytes"], 3)
    assert api.seqs(topic_name) == [3, 4, 8, 9]


def test_interior_delete_leaves_a_silent_hole(api: Api, topic_name: str) -> None:
    """DELETE-6: no tombstone; `earliest_seq` stays while the first record lives."""
    tagged(api, topic_name)
    assert api.erase(topic_name, match="b:1").ok(200)["earliest_seq"] == 1
    body = api.read(topic_name, 2)
    assert [r["$seq"] for r in body["records"]] == [4, 5, 6, 7, 8, 9, 10]
    assert (body["tombstone"], body["next_from_seq"]) == (None, 10)


def test_deleted_tail_is_passed_over_and_its_seqs_never_return(api: Api, topic_name: str) -> None:
    """READ-6, DELETE-4: `next_from_seq` passes over deleted records, and seqs are never assigned twice."""
    api.write(topic_name, {"data": 1}, {"data": 2, "tag": "x"}, {"data": 3, "tag": "x"})
    body = api.erase(topic_name, match="x").ok(200)
    assert (body["head_seq"], body["earliest_seq"], body["count"]) == (3, 1, 1)
    body = api.read(topic_name)
    assert [r["$seq"] for r in body["records"]] == [1]
    assert (body["next_from_seq"], body["caught_up"], body["lag"]) == (3, True, 0)
    body = api.read(topic_name, 1)
    assert (body["records"], body["next_from_seq"], body["caught_up"], body["tombstone"]) == ([], 3, True, None)
    assert api.write(topic_name, {"data": 4})["seqs"] == [4]


def test_deleting_everything_leaves_an_empty_topic(api: Api, topic_name: str) -> None:
    """LOSS-2: `earliest_seq` is then `head_seq + 1`; the topic itself stays."""
    tagged(api, topic_name)
    api.erase(topic_name, match=["tag", "Glob", "*"]).ok(200)
    body = api.erase(topic_name, before_seq=11).ok(200)
    assert (body["deleted"], body["count"], body["bytes"], body["earliest_seq"], body["head_seq"]) == (1, 0, 0, 11, 10)
    state = api.state(topic_name)
    assert (state["count"], state["bytes"], state["earliest_seq"], state["next_seq"]) == (0, 0, 11, 11)


def test_delete_on_a_fresh_topic(api: Api, topic_name: str) -> None:
    """DELETE-8."""
    api.put(topic_name).ok(201)
    for fields in ({"before_seq": 10}, {"match": "x"}, {"match": ["tag", "Glob", "*"], "before_seq": 1}):
        body = api.erase(topic_name, **fields).ok(200)
        assert (body["deleted"], body["earliest_seq"], body["head_seq"], body["count"]) == (0, 1, 0, 0)


def test_delete_never_creates(api: Api, topic_name: str) -> None:
    """TOPIC-18."""
    assert api.erase(topic_name, before_seq=1).refused(404, "topic_not_found")["topic"] == topic_name
    assert not api.exists(topic_name)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "before_seq"),
        ({}, "match"),
        ({"other": 1}, "match"),
        ({"before_seq": -1}, "before_seq"),
        ({"before_seq": "5"}, "before_seq"),
        ({"before_seq": 1.5}, "before_seq"),
        ({"before_seq": True}, "before_seq"),
        ({"before_seq": 2**64}, "before_seq"),
        ({"before_seq": []}, "before_seq"),
        ({"match": 5}, "match"),
        ({"match": True}, "match"),
        ({"match": {}}, "match"),
        ({"match": []}, "match"),
        ({"match": ["tag"]}, "match"),
        ({"match": ["tag", "Eq"]}, "match"),
        ({"match": ["tag", "Eq", "a", "b"]}, "match"),
        ({"match": ["tag", "Eq", 5]}, "match"),
        ({"match": ["tag", "Eq", None]}, "match"),
        ({"match": ["tag", "eq", "a"]}, "match"),
        ({"match": ["tag", "Ne", "a"]}, "match"),
        ({"match": ["tag", "Regex", "a.*"]}, "match"),
        ({"match": ["tag", 5, "a"]}, "match"),
        ({"match": ["node", "Eq", "a"]}, "match"),
        ({"match": [5, "Eq", "a"]}, "match"),
        ({"match": ["tag", "Glob", "a"]}, "match"),
        ({"match": ["tag", "Glob", ""]}, "match"),
        ({"match": ["tag", "Glob", "a*b"]}, "match"),
        ({"match": ["tag", "Glob", "*a"]}, "match"),
        ({"match": ["tag", "Glob", "a**"]}, "match"),
        ({"match": ["tag", "Glob", "*a*"]}, "match"),
        ({"match": ["tag", "Glob", "**"]}, "match"),
        ({"match": "a:1", "before_seq": "x"}, "before_seq"),
        ({"match": 7, "before_seq": 5}, "match"),
    ],
)
def test_bad_delete_is_refused_and_deletes_nothing(api: Api, topic_name: str, body: dict[str, Any], named: str) -> None:
    """DELETE-1, DELETE-3: neither field, a bad tuple, another operator, a `*` that is not alone at the end."""
    tagged(api, topic_name)
    with api.unchanged(topic_name):
        api.erase(topic_name, **body).refused_naming(named)


def test_large_deletes_count_exactly(api: Api, topic_name: str) -> None:
    """DELETE-2: also over many blocks of the log."""
    for batch in range(5):
        records = ({"data": n, "tag": f"g{n % 3}:{batch}"} for n in range(2000))
        api.write(topic_name, *records)
    assert api.erase(topic_name, match=["tag", "Glob", "g1:*"]).ok(200)["deleted"] == 5 * 667
    assert api.erase(topic_name, match="g0:2", before_seq=5001).ok(200)["deleted"] == 334
    body = api.erase(topic_name, before_seq=9001).ok(200)
    assert body["count"] == api.state(topic_name)["count"] == 10000 - 9000 - sum(n % 3 == 1 for n in range(1000, 2000))
    assert body["deleted"] == 10000 - 5 * 667 - 334 - body["count"]
    assert body["earliest_seq"] == next(seq for seq in range(9001, 10001) if (seq - 8001) % 3 != 1)


def test_deleted_records_free_the_cap(api: Api, topic_name: str) -> None:
    """RETAIN-8: eviction looks at live records only."""
    api.put(topic_name, cap_records=4).ok(201)
    api.write(topic_name, *({"data": n, "tag": "x" if n in (2, 3) else "y"} for n in range(1, 5)))
    api.erase(topic_name, match="x").ok(200)
    api.fill(topic_name, 2)
    assert api.seqs(topic_name) == [1, 4, 5, 6]
    api.fill(topic_name, 1)
    body = api.read(topic_name)
    assert [r["$seq"] for r in body["records"]] == [4, 5, 6, 7]
    assert (body["tombstone"]["gap_from"], body["tombstone"]["gap_to"]) == (1, 3)


def test_a_dry_run_counts_and_deletes_nothing(api: Api, topic_name: str) -> None:
    """DELETE-11: the number that a delete right after it answers."""
    api.write(topic_name, *({"data": n, "tag": f"c:{n % 3}"} for n in range(9)))
    path = f"/v0/topics/{topic_name}/delete"
    for match, count in (("c:1", 3), (["tag", "Glob", "c:*"], 9), ("none", 0)):
        counted = api.call("POST", path, {"match": match, "dry_run": True}).ok(200)
        assert (counted["deleted"], counted["count"], counted["dry_run"]) == (count, 9, True)
    assert api.call("POST", path, {"match": "c:1", "before_seq": 5, "dry_run": True}).ok(200)["deleted"] == 1
    assert len(api.seqs(topic_name)) == 9
    api.call("POST", path, {"before_seq": 5, "dry_run": True}).refused(400, "invalid_request")
    assert api.call("POST", path, {"match": "c:1"}).ok(200)["deleted"] == 3
