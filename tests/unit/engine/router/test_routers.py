"""The ROUTER rules on an engine in memory: what routers forward, in which order, and what they refuse."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topics.engine import ConfigPatch, Delete, Diff, Engine, Limits, RecordIn, Write
from topics.engine.router.forward import BACKOFF_MS_MAX, LATE_MS
from topics.engine.router.router import PutRouter
from topics.errors import (
    InvalidRequest,
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicExistsIncompatible,
    TopicNotFound,
)
from topics.testing import ManualClock

START_MS = 1_750_000_000_000


class Bench:
    """An engine in memory and a clock."""

    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock(START_MS)
        self.engine = Engine(self.clock, limits=Limits(**limits))

    def route(self, source: str, dest: str, name: str | None = None, **fields: Any) -> Any:
        put = PutRouter(source, dest, **fields)
        return self.engine.routers.put(name or f"{source}->{dest}", put).result

    def write(self, topic: str, *datas: Any, tag: str | None = None, node: str | None = None, meta: Any = None) -> int:
        raw = msgspec.Raw(b"" if meta is None else msgspec.json.encode(meta))
        records = [RecordIn(msgspec.Raw(msgspec.json.encode(data)), tag=tag, node=node, meta=raw) for data in datas]
        return self.engine.write(topic, Write(records)).last_seq

    def read(self, topic: str, from_seq: int = 0) -> list[dict[str, Any]]:
        return self.engine.diff(topic, Diff(from_seq=from_seq, limit=1000, include_tags=True)).records

    def datas(self, topic: str) -> list[Any]:
        return [record["data"] for record in self.read(topic)]

    def total(self, name: str) -> int:
        return self.engine.routers.get(name).forwarded_total


def test_every_record_appended_to_source_is_also_appended_to_dest() -> None:
    """ROUTER-1, ROUTER-3: `forwarded_total` counts them."""
    bench = Bench()
    bench.route("orders", "audit")
    bench.write("orders", 1, 2)
    bench.write("orders", 3)
    assert bench.datas("audit") == [1, 2, 3]
    assert bench.total("orders->audit") == 3


def test_copy_keeps_node_tag_meta_and_data_and_gets_a_seq_of_its_own() -> None:
    """ROUTER-1."""
    bench = Bench()
    bench.write("audit", "direct")
    bench.route("orders", "audit")
    bench.write("orders", {"a": 1}, tag='t"1', node="n1", meta={"trace": "z"})
    assert bench.read("audit", 1) == [
        {"$seq": 2, "$ts": START_MS, "$node": "n1", "$tag": 't"1', "meta": {"trace": "z"}, "data": {"a": 1}}
    ]


def test_preserve_flags_clear_node_and_tag() -> None:
    """ROUTER-1."""
    bench = Bench()
    bench.route("a", "b", preserve_node=False, preserve_tag=False)
    bench.write("a", 1, tag="t", node="n", meta={"k": "v"})
    (copy,) = bench.read("b")
    assert "$node" not in copy
    assert "$tag" not in copy
    assert copy["meta"] == {"k": "v"}


def test_filter_forwards_only_what_matches() -> None:
    """ROUTER-2: a bare string means Eq."""
    bench = Bench()
    bench.route("a", "glob", filter=["tag", "Glob", "public:*"])
    bench.route("a", "bare", filter="public:x")
    bench.write("a", 1, tag="public:x")
    bench.write("a", 2, tag="private:x")
    bench.write("a", 3)
    bench.write("a", 4, tag="public:y")
    assert bench.datas("glob") == [1, 4]
    assert bench.datas("bare") == [1]
    assert bench.total("a->glob") == 2


def test_new_router_copies_no_history() -> None:
    """ROUTER-13."""
    bench = Bench()
    bench.write("a", "old")
    bench.route("a", "b")
    bench.write("a", "new")
    assert bench.datas("b") == ["new"]


def test_chain_of_routers_is_read_through_to_its_end() -> None:
    """ROUTER-17: a read of a destination first catches its router up, through the whole chain."""
    bench = Bench()
    bench.route("a", "b")
    bench.route("b", "c")
    bench.route("c", "d")
    bench.engine.write("a", Write.of([1, 2]), on_done=lambda ticket: None)
    bench.engine.store.write()
    assert bench.engine.topics["d"].log.head == 0
    assert bench.datas("d") == [1, 2]


def test_direct_writes_and_copies_share_one_sequence() -> None:
    """ROUTER-16."""
    bench = Bench()
    bench.route("a", "b")
    bench.write("a", "a1")
    bench.write("b", "b1")
    bench.write("a", "a2")
    assert [(record["$seq"], record["data"]) for record in bench.read("b")] == [(1, "a1"), (2, "b1"), (3, "a2")]


def test_second_source_into_a_dest_is_refused_as_fan_in() -> None:
    """ROUTER-8."""
    bench = Bench()
    bench.route("a", "b")
    with pytest.raises(TopicExistsIncompatible) as refused:
        bench.route("c", "b")
    assert refused.value.detail["reason"] == "router_dest_fan_in"
    assert "c" not in bench.engine.topics


def test_dest_takes_another_source_once_its_router_is_gone() -> None:
    """ROUTER-8."""
    bench = Bench()
    bench.route("a", "b")
    bench.engine.routers.delete("a->b")
    bench.route("c", "b")
    bench.write("a", "a")
    bench.write("c", "c")
    assert bench.datas("b") == ["c"]


def test_two_routers_between_the_same_topics_copy_twice() -> None:
    """ROUTER-8."""
    bench = Bench()
    bench.route("a", "b", name="first")
    bench.route("a", "b", name="second", filter=["tag", "Glob", "x*"])
    bench.write("a", 1, tag="x")
    bench.write("a", 2, tag="y")
    assert bench.datas("b") == [1, 1, 2]
    assert (bench.total("first"), bench.total("second")) == (2, 1)


def test_cycle_is_refused_and_named() -> None:
    """ROUTER-7."""
    bench = Bench()
    bench.route("a", "b")
    bench.route("b", "c")
    with pytest.raises(RouterCycle) as refused:
        bench.route("c", "a")
    assert refused.value.detail["cycle"] == ["c", "a", "b", "c"]
    with pytest.raises(RouterCycle) as refused:
        bench.route("b", "a")
    assert refused.value.detail["cycle"] == ["b", "a", "b"]
    assert len(bench.engine.routers) == 2


def test_allowed_cycle_ends_at_the_hop_cap() -> None:
    """ROUTER-7: at 16."""
    bench = Bench()
    bench.route("a", "b")
    bench.route("b", "a", allow_cycle=True)
    bench.write("a", "x", node="n")
    assert len(bench.datas("a")) + len(bench.datas("b")) == 1 + 16
    assert all("$ttl_hops" not in record for record in bench.read("a"))


def test_router_cap_is_refused_before_anything_is_created() -> None:
    """LIMIT-4: a refused router leaves no topic."""
    bench = Bench(max_routers=1)
    bench.route("a", "b")
    with pytest.raises(Throttled) as refused:
        bench.route("c", "d")
    assert refused.value.detail == {"limit": "max_routers", "max": 1}
    assert set(bench.engine.topics) == {"a", "b"}
    assert not bench.route("a", "b", preserve_tag=False).created


def test_topic_cap_leaves_no_half_made_router() -> None:
    """LIMIT-4: a router that needs two topics where one fits creates none."""
    bench = Bench(max_topics=1)
    with pytest.raises(Throttled):
        bench.route("a", "b")
    assert not bench.engine.topics
    assert not len(bench.engine.routers)


def test_create_dest_false_needs_an_existing_dest() -> None:
    """ROUTER-6."""
    bench = Bench()
    with pytest.raises(TopicNotFound):
        bench.route("a", "b", create_dest=False)
    assert not bench.engine.topics
    bench.write("b", 1)
    assert bench.route("a", "b", create_dest=False).created


@pytest.mark.parametrize(
    "fields",
    [{"dest": "a"}, {"dest": "not a name"}, {"dest": "b", "filter": ["tag", "Like", "x"]}, {"dest": "b", "filter": 7}],
)
def test_bad_router_is_refused(fields: dict[str, Any]) -> None:
    """ROUTER-4."""
    bench = Bench()
    with pytest.raises(InvalidRequest):
        bench.engine.routers.put("r", PutRouter("a", **fields))
    assert not bench.engine.topics


def test_put_is_idempotent_and_changes_in_place() -> None:
    """ROUTER-3."""
    bench = Bench()
    assert bench.route("a", "b").created
    bench.write("a", 1)
    assert not bench.route("a", "b").created
    changed = bench.route("a", "b", filter="keep")
    assert not changed.created
    assert changed.filter == "keep"
    bench.write("a", 2)
    bench.write("a", 3, tag="keep")
    assert bench.datas("b") == [1, 3]
    assert bench.total("a->b") == 2


def test_put_with_another_source_forwards_from_the_new_head() -> None:
    """ROUTER-9: a changed `source` acts as delete and create in one step."""
    bench = Bench()
    bench.route("a", "b", name="r")
    bench.write("a", "a1")
    bench.write("c", "c1")
    assert not bench.route("c", "b", name="r").created
    bench.write("a", "a2")
    bench.write("c", "c2")
    assert bench.datas("b") == ["a1", "c2"]
    assert bench.engine.routers.get("r").source == "c"


def test_deleted_router_stops_and_leaves_what_it_copied() -> None:
    """ROUTER-10."""
    bench = Bench()
    bench.route("a", "b")
    bench.write("a", 1)
    assert bench.engine.routers.delete("a->b").result.deleted
    bench.write("a", 2)
    assert bench.datas("b") == [1]
    assert not bench.engine.routers.delete("a->b").result.deleted
    with pytest.raises(RouterNotFound):
        bench.engine.routers.get("a->b")


def test_deleting_a_topic_removes_its_routers() -> None:
    """ROUTER-12: a router without one of its ends cannot exist."""
    bench = Bench()
    bench.route("a", "hub")
    bench.route("hub", "c")
    bench.route("hub", "d")
    bench.write("a", 1)
    removed = bench.engine.delete_topic("hub").result.routers_removed
    assert removed == ["a->hub", "hub->c", "hub->d"]
    assert not len(bench.engine.routers)
    assert bench.datas("d") == [1]
    bench.write("a", 2)
    assert bench.datas("d") == [1]


def test_delete_in_source_leaves_the_copy() -> None:
    """ROUTER-29."""
    bench = Bench()
    bench.route("a", "b")
    bench.engine.write("a", Write.of([1, 2]), on_done=lambda ticket: None)
    bench.engine.store.write()
    bench.engine.delete("a", Delete(before_seq=3))
    assert bench.datas("a") == []
    assert bench.datas("b") == [1, 2]


def test_full_dest_that_refuses_stops_the_router_until_there_is_room() -> None:
    """ROUTER-20."""
    bench = Bench()
    bench.engine.put_topic("b", ConfigPatch(cap_records=2, discard="reject"))
    bench.route("a", "b")
    bench.write("a", 1, 2, 3, 4)
    assert bench.datas("b") == [1, 2]
    assert bench.total("a->b") == 2
    bench.engine.delete("b", Delete(before_seq=2))
    assert bench.engine.topics["b"].log.count == 1
    bench.clock.advance(BACKOFF_MS_MAX)
    bench.engine.settle()
    assert bench.engine.topics["b"].log.count == 2
    assert bench.datas("b") == [2, 3]


def test_retries_into_a_full_dest_back_off() -> None:
    """ROUTER-20: the pause between attempts grows, up to a bound."""
    bench = Bench()
    bench.engine.put_topic("b", ConfigPatch(cap_records=1, discard="reject"))
    bench.route("a", "b")
    bench.write("a", 1, 2)
    pauses = []
    for _ in range(12):
        due = bench.engine.routers.next_due_ms()
        assert due is not None
        pauses.append(due - bench.clock.now_ms())
        bench.clock.advance(pauses[-1])
        bench.engine.settle()
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[5] < pauses[-1] == BACKOFF_MS_MAX


def test_dest_that_refuses_counts_the_bytes_of_the_copies() -> None:
    """ROUTER-20: a full `discard: "reject"` dest drops nothing, also where the stamp makes a copy the larger one."""
    bench = Bench()
    bench.engine.put_topic("b", ConfigPatch(cap_bytes=200, discard="reject"))
    bench.route("a", "b", guarantee="exactly_once")
    for data in range(10):
        bench.write("a", data)
    log = bench.engine.topics["b"].log
    assert 0 < log.count < 10
    assert (log.start, log.evict_floor) == (1, 1)
    assert log.bytes <= 200


def test_records_that_a_filter_leaves_out_need_no_room() -> None:
    """ROUTER-20: a full dest holds up what it would get; what it would not get is neither held up nor lost."""
    bench = Bench()
    bench.engine.put_topic("a", ConfigPatch(cap_records=2))
    bench.engine.put_topic("b", ConfigPatch(cap_records=1, discard="reject"))
    bench.route("a", "b", filter="x")
    bench.write("a", 1, tag="x")
    for data in range(2, 8):
        bench.write("a", data, tag="y")
    bench.engine.delete("b", Delete(before_seq=2))
    bench.write("a", 9, tag="x")
    difference = bench.engine.diff("b", Diff(from_seq=1))
    assert difference.tombstone is None
    assert [record["data"] for record in difference.records] == [9]


def test_dest_that_evicts_takes_every_copy() -> None:
    """ROUTER-20: with `discard: "old"`."""
    bench = Bench()
    bench.engine.put_topic("b", ConfigPatch(cap_records=2))
    bench.route("a", "b")
    bench.write("a", 1, 2, 3, 4)
    assert bench.datas("b") == [3, 4]
    assert bench.total("a->b") == 4


def test_records_evicted_before_they_were_forwarded_are_a_source_trim() -> None:
    """ROUTER-21: it takes as many seqs as source records were lost."""
    bench = Bench()
    bench.engine.put_topic("a", ConfigPatch(cap_records=2))
    bench.engine.put_topic("b", ConfigPatch(cap_records=1, discard="reject"))
    bench.route("a", "b")
    bench.write("a", 1)
    for data in (2, 3, 4, 5):
        bench.write("a", data)
    assert bench.datas("b") == [1]
    bench.engine.delete("b", Delete(before_seq=2))
    difference = bench.engine.diff("b", Diff(from_seq=1))
    assert difference.tombstone is not None
    assert (difference.tombstone.gap_from, difference.tombstone.gap_to) == (2, 3)
    assert difference.tombstone.reason == "source_trim"
    assert [record["data"] for record in difference.records] == [4]
    assert difference.records[0]["$seq"] == 4


def test_burst_beyond_the_source_cap_is_forwarded_before_it_is_evicted() -> None:
    """ROUTER-27: no silent loss; a source whose cap is smaller than a burst still feeds its destination."""
    bench = Bench()
    bench.engine.put_topic("a", ConfigPatch(cap_records=2))
    bench.route("a", "b")
    for data in range(10):
        bench.engine.write("a", Write.of([data]), on_done=lambda ticket: None)
    bench.engine.settle()
    assert bench.datas("a") == [8, 9]
    assert bench.datas("b") == list(range(10))


def test_late_copy_is_dated_when_it_was_forwarded() -> None:
    """ROUTER-28."""
    bench = Bench()
    bench.engine.put_topic("b", ConfigPatch(cap_records=1, discard="reject", ttl_ms=10_000))
    bench.route("a", "b")
    bench.write("a", 1, 2)
    bench.clock.advance(LATE_MS + 4000)
    bench.engine.delete("b", Delete(before_seq=2))
    assert bench.datas("b") == [], "the frame that says its time comes first"
    bench.engine.settle()
    (copy,) = bench.read("b")
    assert (copy["data"], copy["$ts"]) == (2, START_MS + LATE_MS + 4000)
    bench.clock.advance(9_000)
    assert bench.datas("b") == [2]


def test_exactly_once_stamps_a_stable_key() -> None:
    """ROUTER-19: `meta._topics_router` carries source identity and a stable idempotency key."""
    bench = Bench()
    bench.route("a", "b", guarantee="exactly_once")
    bench.write("a", 1, meta={"k": "v"})
    bench.write("a", 2)
    first, second = bench.read("b")
    source_id = bench.engine.topics["a"].id
    assert first["meta"] == {"k": "v", "_topics_router": f"a->b/a/{source_id}/1"}
    assert second["meta"] == {"_topics_router": f"a->b/a/{source_id}/2"}


def test_exactly_once_skips_what_the_dest_already_has() -> None:
    """ROUTER-19: a key present in dest advances the cursor without appending; a delete removes the evidence."""
    bench = Bench()
    bench.route("a", "b", guarantee="exactly_once")
    source_id = bench.engine.topics["a"].id
    for seq in (1, 2):
        bench.write("b", f"restored {seq}", meta={"_topics_router": f"a->b/a/{source_id}/{seq}"})
    bench.engine.delete("b", Delete(before_seq=2))
    bench.write("a", "one", "two", "three")
    assert bench.datas("b") == ["restored 2", "one", "three"]
    assert bench.engine.topics["b"].inbound is not None
    assert bench.engine.topics["b"].inbound.cursor == 3


def test_copy_stands_behind_a_write_that_waits_for_its_sync() -> None:
    """ROUTER-16: seq order is the order in which records become visible, copies included."""
    bench = Bench()
    bench.route("a", "b")
    bench.engine.write("b", Write.of(["direct"]), on_done=lambda ticket: None)
    forward = bench.engine.topics["b"].inbound
    assert forward is not None
    bench.engine.write("a", Write.of(["copy"]), on_done=lambda ticket: None)
    topic = bench.engine.topics["a"]
    assert topic.last_ticket is not None
    topic.last_ticket.commit(0, 0)
    forward.catch_up()
    assert bench.engine.topics["b"].log.head == 0
    bench.engine.settle()
    assert bench.datas("b") == ["direct", "copy"]


def test_list_is_sorted_paged_and_filtered() -> None:
    """ROUTER-11: `prefix`, `source`, `dest`, pages, and the key's prefixes."""
    bench = Bench()
    for source, dest in (("a", "x"), ("a", "y"), ("b", "z"), ("t:a", "t:b")):
        bench.route(source, dest)
    routers = bench.engine.routers

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
    bench = Bench()
    for i in range(fan_out):
        bench.route("a", f"d{i}", name=f"r{i}")
    # The source's seq ceiling is raised by its first writes, as that of any topic is.
    for data in range(4):
        bench.write("a", data)
    lsn = bench.engine.store.next_lsn()
    bench.write("a", 4)
    assert bench.engine.store.next_lsn() - lsn == 2
    assert all(bench.engine.topics[f"d{i}"].log.head == 5 for i in range(fan_out))


def test_write_elsewhere_does_not_see_idle_routers() -> None:
    """ROUTER-14: 10,000 idle routers add nothing to a write elsewhere: nothing of them is looked at."""
    bench = Bench()
    for i in range(50):
        bench.route("a", f"d{i}", name=f"r{i}")
    bench.engine.settle()
    assert not bench.engine.routers.busy
    bench.write("elsewhere", 1)
    assert bench.engine.topics["elsewhere"].listeners == []
    assert bench.engine.topics["elsewhere"].outbound is None
