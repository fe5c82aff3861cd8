"""The LOSS and RETAIN rules: what is lost, and which reader gets a tombstone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.api import Api, Json, until


def gap(body: Json) -> tuple[int, int, str] | None:
    """The range and the reason of a tombstone, after checking the rest of it against the body that carries it."""
    tombstone = body["tombstone"]
    if tombstone is None:
        return None
    assert set(tombstone) == {
        "$type",
        "$seq",
        "gap_from",
        "gap_to",
        "reason",
        "missed_estimate",
        "earliest_seq",
        "head_seq",
    }
    assert tombstone["$type"] == "tombstone"
    assert tombstone["$seq"] == tombstone["earliest_seq"] == body["earliest_seq"]
    assert tombstone["head_seq"] == body["head_seq"]
    assert isinstance(tombstone["missed_estimate"], int)
    assert 0 <= tombstone["missed_estimate"] <= max(0, tombstone["gap_to"] - tombstone["gap_from"] + 1)
    return tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]


def expire(api: Api, topic: str) -> None:
    """Wait until every record of the topic has run out."""
    until(lambda: api.state(topic)["count"] == 0, "every record has expired")


def test_cap_eviction_gives_one_tombstone_with_the_exact_range(api: Api, topic_name: str) -> None:
    """LOSS-4, LOSS-6, LOSS-8: also from `from_seq: 0`, and the records begin at `earliest_seq`."""
    api.put(topic_name, cap_records=3).ok(201)
    api.fill(topic_name, 10)
    state = api.state(topic_name)
    assert (state["count"], state["earliest_seq"], state["head_seq"], state["next_seq"]) == (3, 8, 10, 11)
    body = api.read(topic_name)
    assert gap(body) == (1, 7, "cap")
    assert body["tombstone"]["missed_estimate"] == 7
    assert [(r["$seq"], r["data"]) for r in body["records"]] == [(8, 8), (9, 9), (10, 10)]
    assert (body["next_from_seq"], body["earliest_seq"], body["caught_up"], body["lag"]) == (10, 8, True, 0)


@pytest.mark.parametrize("from_seq", range(11))
def test_tombstone_fires_exactly_below_the_evict_floor(api: Api, topic_name: str, from_seq: int) -> None:
    """LOSS-4, LOSS-6: the floor here is 8."""
    api.put(topic_name, cap_records=3).ok(201)
    api.fill(topic_name, 10)
    body = api.read(topic_name, from_seq)
    assert gap(body) == ((from_seq + 1, 7, "cap") if from_seq + 1 < 8 else None)
    assert [r["$seq"] for r in body["records"]] == list(range(max(8, from_seq + 1), 11))


def test_next_read_after_a_tombstone_has_none(api: Api, topic_name: str) -> None:
    """LOSS-7: after it the cursor is at `earliest_seq - 1`."""
    api.put(topic_name, cap_records=5).ok(201)
    api.fill(topic_name, 10)
    body = api.read(topic_name, 2, limit=2)
    assert gap(body) == (3, 5, "cap")
    assert [r["$seq"] for r in body["records"]] == [6, 7]
    assert (body["next_from_seq"], body["caught_up"], body["lag"]) == (7, False, 3)
    body = api.read(topic_name, body["next_from_seq"])
    assert gap(body) is None
    assert [r["$seq"] for r in body["records"]] == [8, 9, 10]


def test_cap_bytes_evicts_the_oldest(api: Api, topic_name: str) -> None:
    """RETAIN-4: until the topic is within the cap."""
    api.put(topic_name).ok(201)
    api.write(topic_name, {"data": "x" * 1000})
    size = api.state(topic_name)["bytes"]
    api.put(topic_name, cap_bytes=3 * size).ok(200)
    for _ in range(5):
        api.write(topic_name, {"data": "x" * 1000})
    state = api.state(topic_name)
    assert (state["count"], state["bytes"], state["earliest_seq"]) == (3, 3 * size, 4)
    assert gap(api.read(topic_name)) == (1, 3, "cap")


def test_cap_bytes_one_byte_short_evicts_one_more(api: Api, topic_name: str) -> None:
    """RETAIN-4: until the topic is within the cap."""
    api.write(topic_name, {"data": "x" * 1000})
    size = api.state(topic_name)["bytes"]
    api.put(topic_name, cap_bytes=3 * size - 1).ok(200)
    for _ in range(5):
        api.write(topic_name, {"data": "x" * 1000})
    assert (api.state(topic_name)["count"], api.state(topic_name)["earliest_seq"]) == (2, 5)


@pytest.mark.parametrize(("cap_records", "cap_sizes", "kept"), [(2, 4, 2), (4, 2, 2)])
def test_whichever_cap_is_hit_first_evicts(
    api: Api, topic_name: str, cap_records: int, cap_sizes: int, kept: int
) -> None:
    """RETAIN-4."""
    api.write(topic_name, {"data": "x" * 100})
    size = api.state(topic_name)["bytes"]
    api.put(topic_name, cap_records=cap_records, cap_bytes=cap_sizes * size).ok(200)
    for _ in range(9):
        api.write(topic_name, {"data": "x" * 100})
    assert (api.state(topic_name)["count"], api.state(topic_name)["earliest_seq"]) == (kept, 11 - kept)


def test_caps_off_keep_everything(api: Api, topic_name: str) -> None:
    """RETAIN-7: by default a topic loses nothing."""
    api.put(topic_name, discard="reject").ok(201)
    for _ in range(3):
        api.fill(topic_name, 1000)
    state = api.state(topic_name)
    assert (state["count"], state["earliest_seq"]) == (3000, 1)
    assert gap(api.read(topic_name)) is None


def test_write_over_the_cap_under_old_keeps_the_newest(api: Api, topic_name: str) -> None:
    """RETAIN-4."""
    api.put(topic_name, cap_records=2).ok(201)
    assert api.fill(topic_name, 5)["seqs"] == [1, 2, 3, 4, 5]
    assert gap(api.read(topic_name)) == (1, 3, "cap")
    assert api.seqs(topic_name) == [4, 5]


def test_single_record_over_cap_bytes_under_old_is_evicted_too(api: Api, topic_name: str) -> None:
    """RETAIN-4: what does not fit the cap at all leaves the topic empty, and never silently."""
    api.put(topic_name, cap_bytes=10).ok(201)
    assert api.write(topic_name, {"data": "x" * 100})["seqs"] == [1]
    state = api.state(topic_name)
    assert (state["head_seq"], state["count"], state["bytes"], state["earliest_seq"]) == (1, 0, 0, 2)
    assert gap(api.read(topic_name)) == (1, 1, "cap")


def test_reject_refuses_a_full_topic_before_assigning_seqs(api: Api, topic_name: str) -> None:
    """RETAIN-5: no record is acknowledged and then dropped."""
    api.put(topic_name, cap_records=3, discard="reject").ok(201)
    api.fill(topic_name, 2)
    with api.unchanged(topic_name):
        detail = api.post(topic_name, {"records": [{"data": 1}, {"data": 2}]}).refused(422, "topic_full")
    assert {k: detail[k] for k in ("cap_records", "cap_bytes", "head_seq", "earliest_seq")} == {
        "cap_records": 3,
        "cap_bytes": 0,
        "head_seq": 2,
        "earliest_seq": 1,
    }
    assert api.write(topic_name, {"data": "fits"})["seqs"] == [3]
    with api.unchanged(topic_name):
        api.post(topic_name, {"records": [{"data": 1}]}).refused(422, "topic_full")
    assert gap(api.read(topic_name)) is None
    assert api.seqs(topic_name) == [1, 2, 3]


def test_reject_holds_cap_bytes(api: Api, topic_name: str) -> None:
    """RETAIN-5: for either cap."""
    api.put(topic_name, discard="reject").ok(201)
    api.write(topic_name, {"data": "x" * 100})
    size = api.state(topic_name)["bytes"]
    api.put(topic_name, cap_bytes=2 * size).ok(200)
    api.write(topic_name, {"data": "x" * 100})
    with api.unchanged(topic_name):
        detail = api.post(topic_name, {"records": [{"data": "x" * 100}]}).refused(422, "topic_full")
    assert (detail["cap_bytes"], detail["cap_records"]) == (2 * size, 0)


def test_reject_takes_writes_again_after_a_delete(api: Api, topic_name: str) -> None:
    """RETAIN-6: a deleted record does not count toward the cap."""
    api.put(topic_name, cap_records=3, discard="reject").ok(201)
    api.fill(topic_name, 3)
    api.post(topic_name, {"records": [{"data": 4}]}).refused(422, "topic_full")
    api.erase(topic_name, before_seq=3).ok(200)
    assert api.fill(topic_name, 2)["seqs"] == [4, 5]
    api.post(topic_name, {"records": [{"data": 4}]}).refused(422, "topic_full")


def test_reject_takes_writes_again_after_expiry(api: Api, topic_name: str) -> None:
    """RETAIN-6, RETAIN-7."""
    api.put(topic_name, cap_records=2, discard="reject", ttl_ms=40).ok(201)
    api.fill(topic_name, 2)
    expire(api, topic_name)
    assert api.fill(topic_name, 2)["seqs"] == [3, 4]


@pytest.mark.parametrize("cap", [{"cap_records": 2}, {"cap_bytes": 50}])
def test_write_larger_than_the_whole_cap_is_permanently_refused(api: Api, topic_name: str, cap: dict[str, int]) -> None:
    """RETAIN-6."""
    api.put(topic_name, discard="reject", **cap).ok(201)
    with api.unchanged(topic_name):
        body = {"records": [{"data": "x" * 100}, {"data": 2}, {"data": 3}]}
        api.post(topic_name, body).refused(400, "record_too_large")


def test_idempotent_retry_on_a_full_topic_is_still_answered(api: Api, topic_name: str) -> None:
    """RETRY-1: it appends nothing, so a full topic does not refuse it."""
    api.put(topic_name, cap_records=2, discard="reject").ok(201)
    first = api.write(topic_name, {"data": 1}, {"data": 2}, idempotency_key="k")
    again = api.write(topic_name, {"data": 1}, {"data": 2}, idempotency_key="k")
    assert (again["deduped"], again["seqs"]) == (True, first["seqs"])


def test_tightened_cap_shows_at_once_and_loosened_brings_nothing_back(api: Api, topic_name: str) -> None:
    """RETAIN-9."""
    api.fill(topic_name, 10)
    api.put(topic_name, cap_records=4).ok(200)
    assert (api.state(topic_name)["count"], api.state(topic_name)["earliest_seq"]) == (4, 7)
    assert gap(api.read(topic_name)) == (1, 6, "cap")
    api.put(topic_name, cap_records=0).ok(200)
    assert (api.state(topic_name)["count"], api.state(topic_name)["earliest_seq"]) == (4, 7)
    assert api.seqs(topic_name) == [7, 8, 9, 10]
    assert gap(api.read(topic_name)) == (1, 6, "cap")


def test_ttl_expiry_gives_a_tombstone(api: Api, topic_name: str) -> None:
    """LOSS-1, LOSS-8, RETAIN-2: never silent, with the reason `ttl`, although nothing is written meanwhile."""
    api.put(topic_name, ttl_ms=40).ok(201)
    api.fill(topic_name, 3)
    expire(api, topic_name)
    state = api.state(topic_name)
    assert (state["head_seq"], state["earliest_seq"], state["count"], state["bytes"]) == (3, 4, 0, 0)
    body = api.read(topic_name)
    assert gap(body) == (1, 3, "ttl")
    assert (body["records"], body["next_from_seq"], body["caught_up"], body["lag"]) == ([], 3, True, 0)
    assert gap(api.read(topic_name, 2)) == (3, 3, "ttl")
    assert gap(api.read(topic_name, 3)) is None


def test_records_within_their_ttl_are_delivered(api: Api, topic_name: str) -> None:
    """RETAIN-1."""
    api.put(topic_name, ttl_ms=600_000).ok(201)
    api.fill(topic_name, 3)
    assert api.seqs(topic_name) == [1, 2, 3]
    assert gap(api.read(topic_name)) is None


def test_reading_resumes_after_an_expired_prefix(api: Api, topic_name: str) -> None:
    """LOSS-4: after the tombstone the read continues from earliest_seq."""
    api.put(topic_name, ttl_ms=40).ok(201)
    api.fill(topic_name, 3)
    expire(api, topic_name)
    api.put(topic_name, ttl_ms=600_000).ok(200)
    api.fill(topic_name, 2)
    body = api.read(topic_name, 1)
    assert gap(body) == (2, 3, "ttl")
    assert [r["$seq"] for r in body["records"]] == [4, 5]


def test_tightened_ttl_shows_at_once_and_loosened_brings_nothing_back(api: Api, topic_name: str) -> None:
    """RETAIN-9."""
    api.fill(topic_name, 3)
    api.put(topic_name, ttl_ms=1).ok(200)
    expire(api, topic_name)
    for ttl_ms in (0, 600_000):
        api.put(topic_name, ttl_ms=ttl_ms).ok(200)
        assert (api.state(topic_name)["count"], api.state(topic_name)["earliest_seq"]) == (0, 4)
        assert gap(api.read(topic_name)) == (1, 3, "ttl")


def test_cap_and_ttl_together_are_mixed(api: Api, topic_name: str) -> None:
    """LOSS-8."""
    api.put(topic_name, cap_records=2, ttl_ms=40).ok(201)
    api.fill(topic_name, 5)
    expire(api, topic_name)
    assert gap(api.read(topic_name)) == (1, 5, "mixed")


def test_a_purely_deleted_gap_is_silent(api: Api, topic_name: str) -> None:
    """LOSS-5."""
    api.fill(topic_name, 10)
    api.erase(topic_name, before_seq=6).ok(200)
    assert api.state(topic_name)["earliest_seq"] == 6
    for cursor in range(6):
        body = api.read(topic_name, cursor)
        assert gap(body) is None
        assert [r["$seq"] for r in body["records"]] == [6, 7, 8, 9, 10]
        assert body["next_from_seq"] == 10


def test_a_wholly_deleted_topic_is_silent(api: Api, topic_name: str) -> None:
    """DELETE-6, LOSS-2: `earliest_seq` is `head_seq + 1`, and the read is silent and caught up."""
    api.fill(topic_name, 4)
    api.erase(topic_name, before_seq=5).ok(200)
    body = api.read(topic_name)
    assert gap(body) is None
    assert (body["records"], body["earliest_seq"], body["next_from_seq"], body["caught_up"]) == ([], 5, 4, True)


def test_node_filtering_is_silent(api: Api, topic_name: str) -> None:
    """NODE-3, LOSS-1."""
    api.fill(topic_name, 4, node="me")
    body = api.read(topic_name, node="me")
    assert gap(body) is None
    assert (body["records"], body["next_from_seq"]) == ([], 4)


def test_eviction_after_a_delete_gives_a_tombstone(api: Api, topic_name: str) -> None:
    """LOSS-1: evicting live records moves `evict_floor`, whatever was deleted before."""
    api.fill(topic_name, 10)
    api.erase(topic_name, before_seq=6).ok(200)
    api.put(topic_name, cap_records=3).ok(200)
    assert api.state(topic_name)["earliest_seq"] == 8
    assert gap(api.read(topic_name)) == (1, 7, "cap")
    assert gap(api.read(topic_name, 6)) == (7, 7, "cap")
    assert gap(api.read(topic_name, 7)) is None


def test_deleted_slots_leaving_the_front_move_no_floor(api: Api, topic_name: str) -> None:
    """LOSS-3, RETAIN-8."""
    api.put(topic_name, cap_records=3).ok(201)
    api.fill(topic_name, 3)
    api.erase(topic_name, before_seq=3).ok(200)
    api.fill(topic_name, 2)
    state = api.state(topic_name)
    assert (state["count"], state["earliest_seq"]) == (3, 3)
    body = api.read(topic_name)
    assert gap(body) is None
    assert [r["$seq"] for r in body["records"]] == [3, 4, 5]


def test_delete_above_the_evict_floor_widens_only_the_reported_range(api: Api, topic_name: str) -> None:
    """LOSS-6, DELETE-6: `gap_to` covers deleted seqs too; the trigger stays the `evict_floor`."""
    api.put(topic_name, cap_records=4).ok(201)
    api.fill(topic_name, 5)
    api.erase(topic_name, before_seq=4).ok(200)
    body = api.read(topic_name)
    assert gap(body) == (1, 3, "cap")
    assert [r["$seq"] for r in body["records"]] == [4, 5]
    body = api.read(topic_name, 1)
    assert gap(body) is None
    assert [r["$seq"] for r in body["records"]] == [4, 5]


def test_expiry_of_deleted_records_is_silent(api: Api, topic_name: str) -> None:
    """LOSS-3: a deleted record cannot expire again."""
    api.fill(topic_name, 3)
    api.erase(topic_name, before_seq=4).ok(200)
    api.put(topic_name, ttl_ms=1).ok(200)
    marker = topic_name + ":clock"
    api.put(marker, ttl_ms=1).ok(201)
    api.fill(marker, 1)
    expire(api, marker)
    assert gap(api.read(topic_name)) is None


def test_earliest_seq_never_goes_down(api: Api, topic_name: str) -> None:
    """LOSS-2."""
    seen = []

    def look() -> None:
        seen.append(api.state(topic_name)["earliest_seq"])

    api.put(topic_name, cap_records=8).ok(201)
    steps: list[Any] = [
        lambda: api.fill(topic_name, 10),
        lambda: api.erase(topic_name, before_seq=5),
        lambda: api.fill(topic_name, 3),
        lambda: api.put(topic_name, cap_records=3),
        lambda: api.put(topic_name, cap_records=100),
        lambda: api.erase(topic_name, before_seq=1000),
        lambda: api.fill(topic_name, 2),
        lambda: api.put(topic_name, ttl_ms=1),
        lambda: until(lambda: api.state(topic_name)["count"] == 0, "all expired"),
        lambda: api.put(topic_name, ttl_ms=0),
        lambda: api.fill(topic_name, 1),
    ]
    look()
    for step in steps:
        step()
        look()
    assert seen == [1, 3, 5, 6, 11, 11, 14, 14, seen[8], 16, 16, 16]
    assert seen[8] in (14, 15, 16)
    assert seen == sorted(seen)


def test_tombstone_comes_with_a_node_filter_too(api: Api, topic_name: str) -> None:
    """LOSS-11."""
    api.put(topic_name, cap_records=2).ok(201)
    api.fill(topic_name, 5, node="me")
    body = api.read(topic_name, node="me")
    assert gap(body) == (1, 3, "cap")
    assert (body["records"], body["next_from_seq"], body["caught_up"]) == ([], 5, True)


def test_recreated_topic_reports_the_loss_to_a_cursor_from_the_future(api: Api, topic_name: str) -> None:
    """LOSS-9: a cursor above the head is the signal."""
    api.fill(topic_name, 10)
    api.remove(topic_name).ok(200)
    api.fill(topic_name, 3)
    for cursor in (4, 10, 2**53):
        body = api.read(topic_name, cursor)
        assert gap(body) == (1, 3, "recreated")
        assert [r["$seq"] for r in body["records"]] == [1, 2, 3]
        assert (body["next_from_seq"], body["caught_up"], body["lag"]) == (3, True, 0)


def test_recreated_empty_topic_has_an_empty_gap(api: Api, topic_name: str) -> None:
    """LOSS-9: `gap_to` is the new head."""
    api.fill(topic_name, 5)
    api.remove(topic_name).ok(200)
    api.put(topic_name).ok(201)
    body = api.read(topic_name, 5)
    assert gap(body) == (1, 0, "recreated")
    assert (body["records"], body["next_from_seq"], body["caught_up"], body["lag"]) == ([], 0, True, 0)


def test_cursor_at_head_of_a_recreated_topic_is_an_ordinary_tail(api: Api, topic_name: str) -> None:
    """LOSS-10."""
    api.fill(topic_name, 3)
    api.remove(topic_name).ok(200)
    api.fill(topic_name, 3)
    body = api.read(topic_name, 3)
    assert gap(body) is None
    assert (body["records"], body["caught_up"]) == ([], True)


def test_recreated_topic_forgets_the_floors_of_its_predecessor(api: Api, topic_name: str) -> None:
    """TOPIC-22."""
    api.put(topic_name, cap_records=1).ok(201)
    api.fill(topic_name, 10)
    api.remove(topic_name).ok(200)
    api.fill(topic_name, 4)
    body = api.read(topic_name)
    assert gap(body) is None
    assert [r["$seq"] for r in body["records"]] == [1, 2, 3, 4]
    assert api.state(topic_name)["earliest_seq"] == 1


def test_recreated_read_honours_limit(api: Api, topic_name: str) -> None:
    """LOSS-9: after the tombstone the read is an ordinary one from earliest_seq."""
    api.fill(topic_name, 9)
    api.remove(topic_name).ok(200)
    api.fill(topic_name, 5)
    body = api.read(topic_name, 9, limit=2)
    assert gap(body) == (1, 5, "recreated")
    assert [r["$seq"] for r in body["records"]] == [1, 2]
    assert (body["next_from_seq"], body["caught_up"], body["lag"]) == (2, False, 3)
