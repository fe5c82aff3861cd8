"""What a watch stream sends, and when (the WATCH rules)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.harness.api import Api, until
from tests.harness.events import Events, follow, watch

StartApi = Callable[..., Api]


def test_response_headers_and_retry(api: Api, topic_name: str) -> None:
    """WATCH-14: tuned for proxies; `retry: 2000` is sent once at open."""
    api.fill(topic_name, 1)
    with follow(api, topic_name) as events:
        assert events.status == 200
        assert events.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert events.headers["cache-control"] == "no-store"
        assert events.headers["connection"] == "keep-alive"
        assert events.headers["x-accel-buffering"] == "no"
        events.until("caught-up")
        assert events.retry == 2000
        assert events.raw.count(b"retry:") == 1


def test_records_come_as_batches_with_their_place(api: Api, topic_name: str) -> None:
    """WATCH-21: `record` carries from_seq, to_seq, head_seq, and an id with the post-batch cursor."""
    api.write(topic_name, {"data": {"a": 1}, "node": "n1", "tag": "t1", "meta": {"k": "v"}}, {"data": None})
    with follow(api, topic_name) as events:
        first = events.next()
        assert first.kind == "record"
        body = first.json
        assert list(body) == ["topic", "records", "from_seq", "to_seq", "head_seq"]
        assert (body["topic"], body["from_seq"], body["to_seq"], body["head_seq"]) == (topic_name, 0, 2, 2)
        one, two = body["records"]
        assert set(one) == {"$seq", "$ts", "$node", "data", "meta"}
        assert (one["$seq"], one["$node"], one["data"], one["meta"]) == (1, "n1", {"a": 1}, {"k": "v"})
        assert set(two) == {"$seq", "$ts", "data"}
        assert two["data"] is None
        assert first.cursor == {topic_name: 2}


def test_live_records_are_pushed(api: Api, topic_name: str) -> None:
    """WATCH-21."""
    api.fill(topic_name, 1)
    with follow(api, {topic_name: {"tail": True}}) as events:
        events.until("caught-up")
        for n in range(20):
            api.write(topic_name, {"data": n})
        records = events.records(20)
        assert [record["data"] for record in records] == list(range(20))
        assert [record["$seq"] for record in records] == list(range(2, 22))


def test_caught_up_once_after_the_backlog_and_not_after_each_record(api: Api, topic_name: str) -> None:
    """WATCH-10, WATCH-25: one per topic, also where there was no backlog, again after each later backlog."""
    api.fill(topic_name, 10)
    with follow(api, topic_name, limit=4) as events:
        kinds = [events.next() for _ in range(4)]
        assert [event.kind for event in kinds] == ["record", "record", "record", "caught-up"]
        assert [len(event.seqs) for event in kinds[:3]] == [4, 4, 2]
        assert kinds[3].json == {"topic": topic_name, "head_seq": 10}
        assert kinds[3].cursor == {topic_name: 10}
        api.write(topic_name, {"data": "live"})
        assert events.next().kind == "record"
        assert events.silent(0.2)
        api.fill(topic_name, 9)
        assert [events.next().kind for _ in range(4)] == ["record", "record", "record", "caught-up"]


def test_caught_up_on_an_empty_topic(api: Api, topic_name: str) -> None:
    """WATCH-25: also where there was no backlog."""
    api.put(topic_name)
    with follow(api, topic_name) as events:
        event = events.next()
        assert (event.kind, event.json["head_seq"], event.cursor) == ("caught-up", 0, {topic_name: 0})


def test_heartbeat_only_when_idle(api: Api, topic_name: str) -> None:
    """WATCH-26: a comment without an id after heartbeat_ms of silence, suppressed while data flows."""
    api.fill(topic_name, 1)
    with follow(api, {topic_name: {"tail": True}}, heartbeat_ms=1) as events:
        events.until("caught-up")
        end, last, gap = time.monotonic() + 1.5, time.monotonic(), 0.0
        while time.monotonic() < end:
            api.write(topic_name, {"data": 1})
            events.records(1)
            gap, last = max(gap, time.monotonic() - last), time.monotonic()
            time.sleep(0.1)
        assert events.comments == [] or gap > 0.9, "there was data all the time"
        events.comments.clear()
        id = events.last_id
        until(lambda: events.silent(0.1) and len(events.comments) >= 3, "there are heartbeats")
        sent_ms = [int(comment.removeprefix("hb ")) for comment in events.comments]
        assert all(b - a >= 500 for a, b in pairwise(sent_ms)), "heartbeat_ms is clamped to a second"
        assert abs(sent_ms[-1] - time.time() * 1000) < 20_000
        assert events.last_id == id
        assert b"\n: hb " in events.raw


def test_tombstone_at_connect_is_from_seq_too_old(api: Api, topic_name: str) -> None:
    """WATCH-23: before any record; its id is after the gap."""
    api.put(topic_name, cap_records=3)
    api.fill(topic_name, 10)
    with follow(api, {topic_name: {"from_seq": 2}}) as events:
        lost, records = events.next(), events.next()
        assert lost.kind == "tombstone"
        body = lost.json
        assert (body["topic"], body["reason"]) == (topic_name, "from_seq_too_old")
        assert (body["gap_from"], body["gap_to"]) == (3, 7)
        assert (body["earliest_seq"], body["head_seq"]) == (8, 10)
        assert lost.cursor == {topic_name: 7}
        assert records.seqs == [8, 9, 10]
        assert records.json["from_seq"] == 7


def test_tombstone_while_live_names_the_cause(api: Api, topic_name: str) -> None:
    """WATCH-24."""
    api.put(topic_name, cap_records=5)
    api.fill(topic_name, 2)
    with follow(api, {topic_name: {"tail": True}}) as events:
        events.until("caught-up")
        api.fill(topic_name, 20)
        lost, records = events.next(), events.next()
        assert (lost.kind, lost.json["reason"]) == ("tombstone", "cap")
        assert (lost.json["gap_from"], lost.json["gap_to"]) == (3, 17)
        assert records.seqs == [18, 19, 20, 21, 22]


def test_expired_records_are_reported_at_connect(start_api: StartApi, topic_name: str, api: Api) -> None:
    """WATCH-23: TTL loss is never silent."""
    api.put(topic_name, ttl_ms=50)
    api.fill(topic_name, 3)
    until(lambda: api.state(topic_name)["count"] == 0, "the records have expired")
    with follow(api, topic_name) as events:
        lost, caught_up = events.next(), events.next()
        assert (lost.kind, lost.json["gap_from"], lost.json["gap_to"]) == ("tombstone", 1, 3)
        assert caught_up.kind == "caught-up"


def test_deletes_are_silent(api: Api, topic_name: str) -> None:
    """WATCH-24: voluntary removal gives no tombstone, at connect or live."""
    api.fill(topic_name, 6)
    api.erase(topic_name, before_seq=3)
    api.write(topic_name, {"data": "x", "tag": "gone"}, {"data": "y"})
    api.erase(topic_name, match="gone")
    with follow(api, {topic_name: {"from_seq": 1}}) as events:
        seen = events.until("caught-up")
        assert [event.kind for event in seen] == ["record", "caught-up"]
        assert seen[0].seqs == [3, 4, 5, 6, 8]


def test_node_filter_drops_own_records_silently(api: Api, topic_name: str) -> None:
    """WATCH-9: own-node records are omitted, the cursor still advances, and nothing alarms."""
    for n in range(6):
        api.write(topic_name, {"data": n, "node": f"n{n % 3}"})
    with follow(api, topic_name, node="n0") as events, follow(api, topic_name, node=["n0", "n1"]) as other:
        assert [record["$node"] for record in events.records(4)] == ["n1", "n2", "n1", "n2"]
        assert [record["$node"] for record in other.records(2)] == ["n2", "n2"]
        assert events.next().cursor == {topic_name: 6}
        other.until("caught-up")
        api.write(topic_name, {"data": "own", "node": "n0"})
        api.write(topic_name, {"data": "theirs", "node": "n9"})
        event = events.until("record")[-1]
        assert [record["data"] for record in event.json["records"]] == ["theirs"]
        assert event.cursor == {topic_name: 8}


def test_dedupe_node_off_lets_echoes_through(api: Api, topic_name: str) -> None:
    """WATCH-9: a topic can opt out of node filtering."""
    api.put(topic_name, dedupe_node=False)
    api.write(topic_name, {"data": 1, "node": "me"})
    with follow(api, topic_name, node="me") as events:
        assert len(events.records(1)) == 1


def test_include_options_choose_the_fields(api: Api, topic_name: str) -> None:
    """WATCH-12."""
    api.write(topic_name, {"data": 1, "tag": "t", "node": "n", "meta": {"k": "v"}})
    with follow(api, topic_name, include_data=False, include_tags=True, include_meta=False) as events:
        record = events.records(1)[0]
        assert set(record) == {"$seq", "$ts", "$tag", "$node"}
    with follow(api, topic_name, include_tags=True) as events:
        assert set(events.records(1)[0]) == {"$seq", "$ts", "$tag", "$node", "data", "meta"}


def test_max_batch_bytes_bounds_a_frame_but_never_stops_it(api: Api, topic_name: str) -> None:
    """WATCH-10: a frame ends once it has reached the budget, with at least one record."""
    api.write(topic_name, *({"data": "x" * 1000} for _ in range(10)))
    with follow(api, topic_name, max_batch_bytes=3000) as events:
        sizes = [len(event.seqs) for event in events.until("caught-up")[:-1]]
        assert sizes == [3, 3, 3, 1]
    with follow(api, topic_name, max_batch_bytes=1) as events:
        assert [len(event.seqs) for event in events.until("caught-up")[:-1]] == [1] * 10


@pytest.mark.parametrize(
    "text",
    ['{"a":\n\n1,\r\n\r\n"b":\r\r2}', "[\n1\n,\r2\r\n]", "\n{\n}\n", '"plain"', '{"data: x":"id: 5\\n\\n"}'],
)
def test_line_breaks_in_data_cannot_end_an_event(api: Api, topic_name: str, text: str) -> None:
    """WATCH-22: raw CR and LF become further data lines, so that no record can end an event early."""
    raw = ('{"records":[{"data":' + text + '},{"data":"after"}]}').encode()
    api.post(topic_name, raw=raw).ok()
    with follow(api, topic_name) as events:
        event = events.next()
        assert [record["data"] for record in event.json["records"]] == [json.loads(text), "after"]
        assert event.cursor == {topic_name: 2}
        assert events.next().kind == "caught-up"


def test_many_topics_share_one_stream_with_one_cursor(api: Api, topic_name: str) -> None:
    """WATCH-15: the id encodes the entire per-topic map at that moment."""
    names = [f"{topic_name}.{i}" for i in range(5)]
    for name in names:
        api.fill(name, 2)
    with follow(api, {name: {"from_seq": i % 2} for i, name in enumerate(names)}) as events:
        seen: dict[str, list[int]] = {name: [] for name in names}
        cursor = {name: i % 2 for i, name in enumerate(names)}
        for _ in range(10):
            event = events.next()
            name = event.json["topic"]
            if event.kind == "record":
                seen[name] += event.seqs
                cursor[name] = event.seqs[-1]
            assert event.cursor == cursor
        assert seen == {name: [1, 2][i % 2 :] for i, name in enumerate(names)}


def test_topic_deleted_is_terminal_for_that_topic_only(api: Api, topic_name: str) -> None:
    """WATCH-27: the rest of the stream continues."""
    gone, kept = f"{topic_name}.gone", f"{topic_name}.kept"
    api.fill(gone, 3)
    api.fill(kept, 1)
    with follow(api, {gone: {"tail": True}, kept: {"tail": True}}) as events:
        events.until("caught-up")
        events.until("caught-up")
        api.remove(gone).ok()
        event = events.next()
        assert (event.kind, event.json) == ("topic-deleted", {"topic": gone, "head_seq": 3, "reason": "deleted"})
        assert event.cursor == {gone: 3, kept: 1}
        api.fill(gone, 1)
        api.write(kept, {"data": "more"})
        event = events.next()
        assert (event.json["topic"], event.cursor) == (kept, {gone: 3, kept: 2})


def test_recreated_topic_is_reported_on_reconnect(api: Api, topic_name: str) -> None:
    """WATCH-18: cursors carry the epoch, so a recreate is seen exactly, even at the same seq."""
    api.fill(topic_name, 3)
    session = watch(api, topic_name)
    with Events(api, session["stream_url"]) as events:
        events.records(3)
        last_id = events.next().id
    api.remove(topic_name).ok()
    with Events(api, session["stream_url"], last_event_id=last_id) as events:
        assert events.next().kind == "topic-deleted"
    api.fill(topic_name, 5)
    for _ in range(2):
        with Events(api, session["stream_url"], last_event_id=last_id) as events:
            lost, records = events.next(), events.next()
            assert (lost.kind, lost.json["reason"]) == ("tombstone", "recreated")
            assert (lost.json["gap_from"], lost.json["gap_to"]) == (1, 5)
            assert records.seqs == [1, 2, 3, 4, 5]
            newer = records.id
    with Events(api, session["stream_url"], last_event_id=newer) as events:
        assert events.next().kind == "caught-up"


def test_from_seq_beyond_the_head_is_the_recreate_signal(api: Api, topic_name: str) -> None:
    """WATCH-18."""
    api.fill(topic_name, 2)
    with follow(api, {topic_name: {"from_seq": 99}}) as events:
        lost, records = events.next(), events.next()
        assert (lost.json["reason"], lost.json["gap_from"], lost.json["gap_to"]) == ("recreated", 1, 2)
        assert records.seqs == [1, 2]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("consistency", ["eventual", "strong"])
def test_every_class_is_delivered_in_both_consistencies(
    api: Api, topic_name: str, durability: str, consistency: str
) -> None:
    """WATCH-13: strong pushes only what is synced, and pushes all of it."""
    api.put(topic_name, durability=durability)
    api.fill(topic_name, 3)
    with follow(api, topic_name, consistency=consistency) as events:
        assert [record["$seq"] for record in events.records(3)] == [1, 2, 3]
        events.until("caught-up")
        for _ in range(5):
            api.fill(topic_name, 2)
        assert [record["$seq"] for record in events.records(10)] == list(range(4, 14))


def test_match_and_from_ts_narrow_a_watched_topic(api: Api, topic_name: str) -> None:
    """Additive: a tag predicate and a start time per watched topic."""
    api.write(topic_name, {"data": 1, "tag": "a:1"}, {"data": 2, "tag": "b:1"}, {"data": 3})
    until(lambda: time.time() * 1000 > api.read(topic_name)["records"][0]["$ts"] + 5, "time has passed")
    api.write(topic_name, {"data": 4, "tag": "a:2"})
    ts = api.read(topic_name)["records"][-1]["$ts"]
    with follow(api, {topic_name: {"match": ["tag", "Glob", "a:*"]}}) as events:
        assert [record["data"] for record in events.records(2)] == [1, 4]
        assert events.next().cursor == {topic_name: 4}
    with follow(api, {topic_name: {"from_ts": ts}}) as events:
        assert [record["data"] for record in events.records(1)] == [4]


def test_delivery_counts_as_consumption(api: Api, topic_name: str) -> None:
    """PRIORITY-2."""
    api.fill(topic_name, 1)
    assert api.state(topic_name)["effective_priority"] == 0
    with follow(api, topic_name) as events:
        events.until("caught-up")
        assert api.state(topic_name)["effective_priority"] > 450


def test_slow_reader_delays_neither_writers_nor_other_readers(start_api: StartApi, topic_name: str) -> None:
    """WATCH-29: each connection has a bounded queue; a slow stream lags alone and then gets everything."""
    api = start_api(slow_consumer_timeout_ms=600_000)
    api.fill(topic_name, 1)
    session = watch(api, {topic_name: {"tail": True}})
    with (
        Events(api, session["stream_url"], receive_buffer=4096) as slow,
        follow(api, {topic_name: {"tail": True}}) as quick,
    ):
        slow.until("caught-up")
        quick.until("caught-up")
        latest = []
        for n in range(300):
            start = time.monotonic()
            api.write(topic_name, {"data": {"n": n, "pad": "x" * 50_000}})
            latest.append(time.monotonic() - start)
            quick.records(1)
        assert sorted(latest)[-10] < 1.0
        got = [record["data"]["n"] for record in slow.records(300, deadline_s=60)]
        assert got == list(range(300))


def test_concurrent_writers_are_seen_in_seq_order_by_all(api: Api, topic_name: str) -> None:
    """WRITE-3: delivery order is seq order, without gaps or repeats."""
    api.fill(topic_name, 1)
    streams = [follow(api, topic_name) for _ in range(5)]
    writers = [threading.Thread(target=lambda: [api.fill(topic_name, 3) for _ in range(30)]) for _ in range(4)]
    for writer in writers:
        writer.start()
    for events in streams:
        assert [record["$seq"] for record in events.records(361)] == list(range(1, 362))
        events.close()
    for writer in writers:
        writer.join()


def test_replay_of_sealed_segments_is_complete_and_in_order(start_api: StartApi) -> None:
    """WATCH-33: segments change nothing about what a watcher sees."""
    api = start_api(segment_max_events=200)
    for _ in range(30):
        api.write("t", *({"data": {"n": n, "pad": "x" * 200}} for n in range(100)))
    streams = [follow(api, {"t": {"from_seq": from_seq}}, limit=1000) for from_seq in (0, 0, 1234)]
    for events, first in zip(streams, (1, 1, 1235), strict=True):
        assert [record["$seq"] for record in events.records(3001 - first)] == list(range(first, 3001))
        events.close()
