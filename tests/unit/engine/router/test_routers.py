"""The ROUTER rules on an engine in memory: what routers forward, in which order, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.memory import ManyTopics
from topics.engine import ConfigPatch, Delete, Diff, Write
from topics.engine.router.forward import BACKOFF_MS_MAX, LATE_MS
from topics.engine.router.router import PutRouter
from topics.engine.write import room
from topics.engine.write.room import CopiesBehind
from topics.errors import (
    InvalidRequest,
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicExistsIncompatible,
    TopicNotFound,
)
from topics.testing.clock import START_MS


def test_every_record_appended_to_source_is_also_appended_to_dest() -> None:
    """ROUTER-1, ROUTER-3: `forwarded_total` counts them."""
    topics = ManyTopics()
    topics.route("orders", "audit")
    topics.write("orders", 1, 2)
    topics.write("orders", 3)
    assert topics.datas("audit") == [1, 2, 3]
    assert topics.total("orders->audit") == 3


def test_copy_keeps_node_tag_meta_and_data_and_gets_a_seq_of_its_own() -> None:
    """ROUTER-1."""
    topics = ManyTopics()
    topics.write("audit", "direct")
    topics.route("orders", "audit")
    topics.write("orders", {"a": 1}, tag='t"1', node="n1", meta={"trace": "z"})
    assert topics.read("audit", 1) == [
        {"$seq": 2, "$ts": START_MS, "$node": "n1", "$tag": 't"1', "meta": {"trace": "z"}, "data": {"a": 1}}
    ]


def test_preserve_flags_clear_node_and_tag() -> None:
    """ROUTER-1."""
    topics = ManyTopics()
    topics.route("a", "b", preserve_node=False, preserve_tag=False)
    topics.write("a", 1, tag="t", node="n", meta={"k": "v"})
    (copy,) = topics.read("b")
    assert "$node" not in copy
    assert "$tag" not in copy
    assert copy["meta"] == {"k": "v"}


def test_filter_forwards_only_what_matches() -> None:
    """ROUTER-2: a bare string means Eq."""
    topics = ManyTopics()
    topics.route("a", "glob", filter=["tag", "Glob", "public:*"])
    topics.route("a", "bare", filter="public:x")
    topics.write("a", 1, tag="public:x")
    topics.write("a", 2, tag="private:x")
    topics.write("a", 3)
    topics.write("a", 4, tag="public:y")
    assert topics.datas("glob") == [1, 4]
    assert topics.datas("bare") == [1]
    assert topics.total("a->glob") == 2


def test_new_router_copies_no_history() -> None:
    """ROUTER-13."""
    topics = ManyTopics()
    topics.write("a", "old")
    topics.route("a", "b")
    topics.write("a", "new")
    assert topics.datas("b") == ["new"]


def test_chain_of_routers_is_read_through_to_its_end() -> None:
    """ROUTER-17: a read of a destination first catches its router up, through the whole chain."""
    topics = ManyTopics()
    topics.route("a", "b")
    topics.route("b", "c")
    topics.route("c", "d")
    topics.engine.write("a", Write.of([1, 2]), on_done=lambda ticket: None)
    topics.engine.store.write()
    assert topics.engine.topics["d"].log.head == 0
    assert topics.datas("d") == [1, 2]


def test_direct_writes_and_copies_share_one_sequence() -> None:
    """ROUTER-16."""
    topics = ManyTopics()
    topics.route("a", "b")
    topics.write("a", "a1")
    topics.write("b", "b1")
    topics.write("a", "a2")
    assert [(record["$seq"], record["data"]) for record in topics.read("b")] == [(1, "a1"), (2, "b1"), (3, "a2")]


def test_second_source_into_a_dest_is_refused_as_fan_in() -> None:
    """ROUTER-8."""
    topics = ManyTopics()
    topics.route("a", "b")
    with pytest.raises(TopicExistsIncompatible) as refused:
        topics.route("c", "b")
    assert refused.value.detail["reason"] == "router_dest_fan_in"
    assert "c" not in topics.engine.topics


def test_dest_takes_another_source_once_its_router_is_gone() -> None:
    """ROUTER-8."""
    topics = ManyTopics()
    topics.route("a", "b")
    topics.engine.routers.delete("a->b")
    topics.route("c", "b")
    topics.write("a", "a")
    topics.write("c", "c")
    assert topics.datas("b") == ["c"]


def test_two_routers_between_the_same_topics_copy_twice() -> None:
    """ROUTER-8."""
    topics = ManyTopics()
    topics.route("a", "b", name="first")
    topics.route("a", "b", name="second", filter=["tag", "Glob", "x*"])
    topics.write("a", 1, tag="x")
    topics.write("a", 2, tag="y")
    assert topics.datas("b") == [1, 1, 2]
    assert (topics.total("first"), topics.total("second")) == (2, 1)


def test_cycle_is_refused_and_named() -> None:
    """ROUTER-7."""
    topics = ManyTopics()
    topics.route("a", "b")
    topics.route("b", "c")
    with pytest.raises(RouterCycle) as refused:
        topics.route("c", "a")
    assert refused.value.detail["cycle"] == ["c", "a", "b", "c"]
    with pytest.raises(RouterCycle) as refused:
        topics.route("b", "a")
    assert refused.value.detail["cycle"] == ["b", "a", "b"]
    assert len(topics.engine.routers) == 2


def test_router_on_an_allowed_cycle_can_be_changed() -> None:
    """ROUTER-3, ROUTER-7: another router closed the cycle; what no longer allows one may not be on it."""
    topics = ManyTopics()
    topics.route("a", "b")
    topics.route("b", "a", allow_cycle=True)
    topics.route("a", "b", preserve_tag=False)
    topics.write("a", "x", tag="t")
    assert "$tag" not in topics.read("b")[0]
    with pytest.raises(RouterCycle):
        topics.route("b", "a", allow_cycle=False)
    assert topics.engine.routers.get("b->a").allow_cycle


def test_allowed_cycle_ends_at_the_hop_cap() -> None:
    """ROUTER-7: at 16."""
    topics = ManyTopics()
    topics.route("a", "b")
    topics.route("b", "a", allow_cycle=True)
    topics.write("a", "x", node="n")
    assert len(topics.datas("a")) + len(topics.datas("b")) == 1 + 16
    assert all("$ttl_hops" not in record for record in topics.read("a"))


def test_router_cap_is_refused_before_anything_is_created() -> None:
    """LIMIT-4: a refused router leaves no topic."""
    topics = ManyTopics(max_routers=1)
    topics.route("a", "b")
    with pytest.raises(Throttled) as refused:
        topics.route("c", "d")
    assert refused.value.detail == {"limit": "max_routers", "max": 1}
    assert set(topics.engine.topics) == {"a", "b"}
    assert not topics.route("a", "b", preserve_tag=False).created


def test_topic_cap_leaves_no_half_made_router() -> None:
    """LIMIT-4: a router that needs two topics where one fits creates none."""
    topics = ManyTopics(max_topics=1)
    with pytest.raises(Throttled):
        topics.route("a", "b")
    assert not topics.engine.topics
    assert not len(topics.engine.routers)


def test_create_dest_false_needs_an_existing_dest() -> None:
    """ROUTER-6."""
    topics = ManyTopics()
    with pytest.raises(TopicNotFound):
        topics.route("a", "b", create_dest=False)
    assert not topics.engine.topics
    topics.write("b", 1)
    assert topics.route("a", "b", create_dest=False).created


@pytest.mark.parametrize(
    "fields",
    [{"dest": "a"}, {"dest": "not a name"}, {"dest": "b", "filter": ["tag", "Like", "x"]}, {"dest": "b", "filter": 7}],
)
def test_bad_router_is_refused(fields: dict[str, Any]) -> None:
    """ROUTER-4."""
    topics = ManyTopics()
    with pytest.raises(InvalidRequest):
        topics.engine.routers.put("r", PutRouter("a", **fields))
    assert not topics.engine.topics


def test_put_is_idempotent_and_changes_in_place() -> None:
    """ROUTER-3."""
    topics = ManyTopics()
    assert topics.route("a", "b").created
    topics.write("a", 1)
    assert not topics.route("a", "b").created
    changed = topics.route("a", "b", filter="keep")
    assert not changed.created
    assert changed.filter == "keep"
    topics.write("a", 2)
    topics.write("a", 3, tag="keep")
    assert topics.datas("b") == [1, 3]
    assert topics.total("a->b") == 2


def test_put_with_another_source_forwards_from_the_new_head() -> None:
    """ROUTER-9: a changed `source` acts as delete and create in one step."""
    topics = ManyTopics()
    topics.route("a", "b", name="r")
    topics.write("a", "a1")
    topics.write("c", "c1")
    assert not topics.route("c", "b", name="r").created
    topics.write("a", "a2")
    topics.write("c", "c2")
    assert topics.datas("b") == ["a1", "c2"]
    assert topics.engine.routers.get("r").source == "c"


def test_deleted_router_stops_and_leaves_what_it_copied() -> None:
    """ROUTER-10."""
    topics = ManyTopics()
    topics.route("a", "b")
    topics.write("a", 1)
    assert topics.engine.routers.delete("a->b").result.deleted
    topics.write("a", 2)
    assert topics.datas("b") == [1]
    assert not topics.engine.routers.delete("a->b").result.deleted
    with pytest.raises(RouterNotFound):
        topics.engine.routers.get("a->b")


def test_deleting_a_topic_removes_its_routers() -> None:
    """ROUTER-12: a router without one of its ends cannot exist."""
    topics = ManyTopics()
    topics.route("a", "hub")
    topics.route("hub", "c")
    topics.route("hub", "d")
    topics.write("a", 1)
    removed = topics.engine.delete_topic("hub").result.routers_removed
    assert removed == ["a->hub", "hub->c", "hub->d"]
    assert not len(topics.engine.routers)
    assert topics.datas("d") == [1]
    topics.write("a", 2)
    assert topics.datas("d") == [1]


def test_delete_in_source_leaves_the_copy() -> None:
    """ROUTER-29."""
    topics = ManyTopics()
    topics.route("a", "b")
    topics.engine.write("a", Write.of([1, 2]), on_done=lambda ticket: None)
    topics.engine.store.write()
    topics.engine.delete("a", Delete(before_seq=3))
    assert topics.datas("a") == []
    assert topics.datas("b") == [1, 2]


def test_full_dest_that_refuses_stops_the_router_until_there_is_room() -> None:
    """ROUTER-20, ROUTER-3: and its `lag` says how far it is behind."""
    topics = ManyTopics()
    topics.engine.put_topic("b", ConfigPatch(cap_records=2, discard="reject"))
    topics.route("a", "b")
    topics.write("a", 1, 2, 3, 4)
    assert topics.datas("b") == [1, 2]
    assert topics.total("a->b") == 2
    assert topics.engine.routers.page()[0][0].lag == 2
    topics.engine.delete("b", Delete(before_seq=2))
    assert topics.engine.topics["b"].log.count == 1
    topics.clock.advance(BACKOFF_MS_MAX)
    topics.engine.run_until_idle()
    assert topics.engine.topics["b"].log.count == 2
    assert topics.datas("b") == [2, 3]


def test_retries_into_a_full_dest_back_off() -> None:
    """ROUTER-20: the pause between attempts grows, up to a bound."""
    topics = ManyTopics()
    topics.engine.put_topic("b", ConfigPatch(cap_records=1, discard="reject"))
    topics.route("a", "b")
    topics.write("a", 1, 2)
    pauses = []
    for _ in range(12):
        due = topics.engine.routers.schedule.next_due_ms()
        assert due is not None
        pauses.append(due - topics.clock.now_ms())
        topics.clock.advance(pauses[-1])
        topics.engine.run_until_idle()
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[5] < pauses[-1] == BACKOFF_MS_MAX


def test_dest_that_refuses_counts_the_bytes_of_the_copies() -> None:
    """ROUTER-20: a full `discard: "reject"` dest drops nothing, also where the stamp makes a copy the larger one."""
    topics = ManyTopics()
    topics.engine.put_topic("b", ConfigPatch(cap_bytes=200, discard="reject"))
    topics.route("a", "b", guarantee="exactly_once")
    for data in range(10):
        topics.write("a", data)
    log = topics.engine.topics["b"].log
    assert 0 < log.count < 10
    assert (log.start, log.evict_floor) == (1, 1)
    assert log.bytes <= 200


def test_records_that_a_filter_leaves_out_need_no_room() -> None:
    """ROUTER-20: a full dest holds up what it would get; what it would not get is neither held up nor lost."""
    topics = ManyTopics()
    topics.engine.put_topic("a", ConfigPatch(cap_records=2))
    topics.engine.put_topic("b", ConfigPatch(cap_records=1, discard="reject"))
    topics.route("a", "b", filter="x")
    topics.write("a", 1, tag="x")
    for data in range(2, 8):
        topics.write("a", data, tag="y")
    topics.engine.delete("b", Delete(before_seq=2))
    topics.write("a", 9, tag="x")
    difference = topics.engine.diff("b", Diff(from_seq=1))
    assert difference.tombstone is None
    assert [record["data"] for record in difference.records] == [9]


def test_dest_that_evicts_takes_every_copy() -> None:
    """ROUTER-20: with `discard: "old"`."""
    topics = ManyTopics()
    topics.engine.put_topic("b", ConfigPatch(cap_records=2))
    topics.route("a", "b")
    topics.write("a", 1, 2, 3, 4)
    assert topics.datas("b") == [3, 4]
    assert topics.total("a->b") == 4


def test_records_evicted_before_they_were_forwarded_are_a_source_trim() -> None:
    """ROUTER-21: it takes as many seqs as source records were lost."""
    topics = ManyTopics()
    topics.engine.put_topic("a", ConfigPatch(cap_records=2))
    topics.engine.put_topic("b", ConfigPatch(cap_records=1, discard="reject"))
    topics.route("a", "b")
    topics.write("a", 1)
    for data in (2, 3, 4, 5):
        topics.write("a", data)
    assert topics.datas("b") == [1]
    topics.engine.delete("b", Delete(before_seq=2))
    difference = topics.engine.diff("b", Diff(from_seq=1))
    assert difference.tombstone is not None
    assert (difference.tombstone.gap_from, difference.tombstone.gap_to) == (2, 3)
    assert difference.tombstone.reason == "source_trim"
    assert [record["data"] for record in difference.records] == [4]
    assert difference.records[0]["$seq"] == 4


def test_burst_beyond_the_source_cap_is_forwarded_before_it_is_evicted() -> None:
    """ROUTER-27: no silent loss; a source whose cap is smaller than a burst still feeds its destination."""
    topics = ManyTopics()
    topics.engine.put_topic("a", ConfigPatch(cap_records=2))
    topics.route("a", "b")
    for data in range(10):
        topics.engine.write("a", Write.of([data]), on_done=lambda ticket: None)
    topics.engine.run_until_idle()
    assert topics.datas("a") == [8, 9]
    assert topics.datas("b") == list(range(10))


def test_late_copy_is_dated_when_it_was_forwarded() -> None:
    """ROUTER-28."""
    topics = ManyTopics()
    topics.engine.put_topic("b", ConfigPatch(cap_records=1, discard="reject", ttl_ms=10_000))
    topics.route("a", "b")
    topics.write("a", 1, 2)
    topics.clock.advance(LATE_MS + 4000)
    topics.engine.delete("b", Delete(before_seq=2))
    assert topics.datas("b") == [], "the frame that says its time comes first"
    topics.engine.run_until_idle()
    (copy,) = topics.read("b")
    assert (copy["data"], copy["$ts"]) == (2, START_MS + LATE_MS + 4000)
    topics.clock.advance(9_000)
    assert topics.datas("b") == [2]


def test_copy_that_waited_for_a_short_ttl_to_make_room_lives_as_long() -> None:
    """ROUTER-28: where the TTL is below LATE_MS, a copy with the time of its source would be expired when it came."""
    topics = ManyTopics()
    topics.engine.put_topic("b", ConfigPatch(cap_records=1, discard="reject", ttl_ms=500))
    topics.route("a", "b")
    topics.write("a", 1, 2, 3)
    for number in (1, 2, 3):
        assert topics.datas("b") == [number]
        topics.clock.advance(500)
        assert topics.datas("b") == [number]
        topics.clock.advance(1)
        assert topics.datas("b") == [], "the next is on its way"
        topics.engine.run_until_idle()


def test_exactly_once_stamps_a_stable_key() -> None:
    """ROUTER-19: `meta._topics_router` carries source identity and a stable idempotency key."""
    topics = ManyTopics()
    topics.route("a", "b", guarantee="exactly_once")
    topics.write("a", 1, meta={"k": "v"})
    topics.write("a", 2)
    first, second = topics.read("b")
    source_id = topics.engine.topics["a"].id
    assert first["meta"] == {"k": "v", "_topics_router": f"a->b/a/{source_id}/1"}
    assert second["meta"] == {"_topics_router": f"a->b/a/{source_id}/2"}


def test_exactly_once_skips_what_the_dest_already_has() -> None:
    """ROUTER-19: a key present in dest advances the cursor without appending; a delete removes the evidence."""
    topics = ManyTopics()
    topics.route("a", "b", guarantee="exactly_once")
    source_id = topics.engine.topics["a"].id
    for seq in (1, 2):
        topics.write("b", f"restored {seq}", meta={"_topics_router": f"a->b/a/{source_id}/{seq}"})
    topics.engine.delete("b", Delete(before_seq=2))
    topics.write("a", "one", "two", "three")
    assert topics.datas("b") == ["restored 2", "one", "three"]
    assert topics.engine.topics["b"].inbound is not None
    assert topics.engine.topics["b"].inbound.cursor == 3


def test_copy_comes_after_a_write_that_waits_for_its_sync() -> None:
    """ROUTER-16: seq order is the order in which records become visible, copies included."""
    topics = ManyTopics()
    topics.route("a", "b")
    topics.engine.write("b", Write.of(["direct"]), on_done=lambda ticket: None)
    forward = topics.engine.topics["b"].inbound
    assert forward is not None
    topics.engine.write("a", Write.of(["copy"]), on_done=lambda ticket: None)
    topic = topics.engine.topics["a"]
    assert topic.last_ticket is not None
    topic.last_ticket.commit(0, 0)
    forward.catch_up()
    assert topics.engine.topics["b"].log.head == 0
    topics.engine.run_until_idle()
    assert topics.datas("b") == ["direct", "copy"]


def test_list_is_sorted_paged_and_filtered() -> None:
    """ROUTER-11: `prefix`, `source`, `dest`, pages, and the key's prefixes."""
    topics = ManyTopics()
    for source, dest in (("a", "x"), ("a", "y"), ("b", "z"), ("t:a", "t:b")):
        topics.route(source, dest)
    routers = topics.engine.routers

    def names(**query: Any) -> list[str]:
        return [router.router for router in routers.page(**query)[0]]

    assert names() == ["a->x", "a->y", "b->z", "t:a->t:b"]
    assert names(source="a") == ["a->x", "a->y"]
    assert names(dest="z") == ["b->z"]
    assert names(prefix="a->") == ["a->x", "a->y"]
    assert names(allowed=("t:",)) == ["t:a->t:b"]
    page, after = routers.page(page_size=3)
    assert (len(page), after) == (3, "b->z")
    assert names(after="b->z") == ["t:a->t:b"]
    assert routers.page(source="a", page_size=2)[1] is None


@pytest.mark.parametrize("fan_out", [1, 10, 100, 1000])
def test_source_append_is_one_frame_whatever_the_fan_out(fan_out: int) -> None:
    """ROUTER-14."""
    topics = ManyTopics()
    for i in range(fan_out):
        topics.route("a", f"d{i}", name=f"r{i}")
    # The source's seq ceiling is raised by its first writes, as that of any topic is.
    for data in range(4):
        topics.write("a", data)
    lsn = topics.engine.store.next_lsn()
    topics.write("a", 4)
    assert topics.engine.store.next_lsn() - lsn == 2
    assert all(topics.engine.topics[f"d{i}"].log.head == 5 for i in range(fan_out))


def test_write_elsewhere_does_not_see_idle_routers() -> None:
    """ROUTER-14: 10,000 idle routers add nothing to a write elsewhere: nothing of them is looked at."""
    topics = ManyTopics()
    for i in range(50):
        topics.route("a", f"d{i}", name=f"r{i}")
    topics.engine.run_until_idle()
    assert not topics.engine.routers.schedule.dirty
    topics.write("elsewhere", 1)
    assert topics.engine.topics["elsewhere"].listeners == {}
    assert topics.engine.topics["elsewhere"].outbound is None


def test_a_source_waits_for_copies_that_are_too_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROUTER-34: a write is refused by name until they are made; other topics are not concerned."""
    monkeypatch.setattr(room, "COPIES_BEHIND_MAX", 50)
    topics = ManyTopics()
    for name in ("x", "y"):
        topics.route("a", name)
    engine = topics.engine
    engine.write("a", Write.of(range(30)), lambda _: None)
    engine.store.write()
    with pytest.raises(CopiesBehind) as refused:
        engine.write("a", Write.of([1]), lambda _: None)
    assert refused.value.detail == {"limit": "copies_behind", "max": 50}
    engine.write("b", Write.of([1]), lambda _: None)
    engine.run_until_idle()
    engine.write("a", Write.of([1]), lambda _: None)
    engine.run_until_idle()
    assert len(topics.datas("x")) == len(topics.datas("y")) == 31


def test_a_source_rests_after_a_cap_demanded_many_copies() -> None:
    """ROUTER-35: for as long as the copies took; nothing is lost, and other topics go on."""
    topics = ManyTopics()
    engine = topics.engine
    engine.put_topic("a", ConfigPatch(cap_records=1))
    topics.route("a", "b")
    engine.topics["b"].listeners[lambda _: topics.clock.advance(10)] = None
    engine.write("a", Write.of([1, 2]), lambda _: None)
    engine.store.write()
    with pytest.raises(CopiesBehind) as refused:
        engine.write("a", Write.of([3]), lambda _: None)
    assert refused.value.of_topic
    engine.write("c", Write.of([1]), lambda _: None)
    topics.clock.advance(10)
    engine.write("a", Write.of([3]), lambda _: None)
    engine.run_until_idle()
    assert topics.datas("b") == [1, 2, 3]
