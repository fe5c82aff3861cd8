"""Where a stream goes on after its connection was lost (WATCH-16, WATCH-17, WATCH-18)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from tests.harness.api import Api, until
from tests.harness.events import Events, follow, make_id, watch
from topics.testing import ServerProcess


def streams_open(api: Api) -> int:
    count: int = api.get("/v0/metrics", headers={"Accept": "application/json"}).json["topics_sse_connections"]
    return count


def test_session_remembers_without_last_event_id(api: Api, topic_name: str) -> None:
    """WATCH-16: the session's cursors survive a lost Last-Event-ID."""
    api.fill(topic_name, 3)
    url = watch(api, topic_name)["stream_url"]
    with Events(api, url) as events:
        events.records(3)
    api.fill(topic_name, 2)
    with Events(api, url) as events:
        assert [record["$seq"] for record in events.records(2)] == [4, 5]


def test_last_event_id_rewinds_exactly(api: Api, topic_name: str) -> None:
    """WATCH-17: this protects what was sent and never processed."""
    api.fill(topic_name, 6)
    url = watch(api, topic_name, limit=2)["stream_url"]
    with Events(api, url) as events:
        second = events.next()
        events.until("caught-up")
    with Events(api, url, last_event_id=second.id) as events:
        assert [record["$seq"] for record in events.records(4)] == [3, 4, 5, 6]


def test_last_event_id_never_advances(api: Api, topic_name: str) -> None:
    """WATCH-17."""
    api.fill(topic_name, 4)
    url = watch(api, {topic_name: {"from_seq": 1}})["stream_url"]
    with Events(api, url, last_event_id=make_id({topic_name: 4})) as events:
        assert [record["$seq"] for record in events.records(3)] == [2, 3, 4]


def test_one_id_restores_every_topic(api: Api, topic_name: str) -> None:
    """WATCH-17: because the id is a full map, one reconnect restores all positions."""
    a, b = f"{topic_name}.a", f"{topic_name}.b"
    api.fill(a, 4)
    api.fill(b, 4)
    url = watch(api, [a, b])["stream_url"]
    with Events(api, url) as events:
        events.until("caught-up")
        events.until("caught-up")
    with Events(api, url, last_event_id=make_id({a: 1, b: 3})) as events:
        seen = {a: [], b: []}
        for event in [events.next() for _ in range(4)]:
            if event.kind == "record":
                seen[event.json["topic"]] += event.seqs
        assert seen == {a: [2, 3, 4], b: [4]}


@pytest.mark.parametrize(
    "id",
    ["%%%", "bm90IGpzb24", make_id({"x": -1}), "W10", make_id({"other.topic": 3}), "~AAAA", "a" * 3000]
    + [make_id({"$epoch": {"x": epoch}}) for epoch in (-1, 2**63, "x")],
)
def test_malformed_or_foreign_id_is_a_clear_400(api: Api, topic_name: str, id: str) -> None:
    """WATCH-19: a clear error, and the session is unharmed."""
    api.fill(topic_name, 2)
    url = watch(api, topic_name)["stream_url"]
    reply = api.get(url, headers={"Accept": "text/event-stream", "Last-Event-ID": id})
    reply.refused_naming("cursor")
    with Events(api, url) as events:
        assert len(events.records(2)) == 2


def test_reconnect_while_the_old_stream_is_open_skips_nothing(api: Api, topic_name: str) -> None:
    """WATCH-20: what was written to the old stream may never have arrived, so it is written again."""
    api.fill(topic_name, 3)
    url = watch(api, topic_name)["stream_url"]
    with Events(api, url) as old:
        first = old.records(3)
        api.fill(topic_name, 2)
        old.records(2)
        with Events(api, url) as new:
            assert [record["$seq"] for record in new.records(5)] == [1, 2, 3, 4, 5]
            api.fill(topic_name, 1)
            assert [record["$seq"] for record in new.records(1)] == [6]
            with Events(api, url, last_event_id=make_id({topic_name: 4})) as newest:
                assert [record["$seq"] for record in newest.records(2)] == [5, 6]
        assert len(first) == 3


def test_newer_stream_takes_the_session_over(api: Api, topic_name: str) -> None:
    """WATCH-20, WATCH-28: the older stream gets a terminal error, and frees its place."""
    api.fill(topic_name, 1)
    url = watch(api, topic_name)["stream_url"]
    with Events(api, url) as old:
        old.until("caught-up")
        before = streams_open(api)
        with Events(api, url) as new:
            new.until("caught-up")
            error = old.next()
            assert (error.kind, error.json["code"]) == ("error", 410)
            assert old.next_or_end() is None
            until(lambda: streams_open(api) <= before, "the older stream has freed its place")


def test_close_then_reconnect_at_once_repeats_nothing(api: Api, topic_name: str) -> None:
    """WATCH-16: a client that closed its stream is at the session's cursor."""
    api.fill(topic_name, 1)
    url = watch(api, topic_name)["stream_url"]
    expected = 1
    for _ in range(40):
        with Events(api, url) as events:
            assert [record["$seq"] for record in events.records(1)] == [expected]
        expected += 1
        api.fill(topic_name, 1)


def test_cursor_field_starts_a_new_session_at_an_id(api: Api, topic_name: str) -> None:
    """WATCH-19."""
    api.fill(topic_name, 5)
    with follow(api, topic_name, limit=2) as events:
        id = events.next().id
    session = watch(api, topic_name, cursor=id)
    assert session["topics"][topic_name]["from_seq"] == 2
    with Events(api, session["stream_url"]) as events:
        assert [record["$seq"] for record in events.records(3)] == [3, 4, 5]


def test_ended_streams_are_counted_out(start_server: Callable[..., ServerProcess]) -> None:
    """LIMIT-10: a slot is freed however the connection ends."""
    server = start_server()
    with contextlib.closing(Api(server.host, server.port)) as api:
        api.fill("t", 1)
        with contextlib.ExitStack() as streams:
            for _ in range(5):
                streams.enter_context(follow(api, "t"))
            assert streams_open(api) == 5
        until(lambda: streams_open(api) == 0, "every stream is counted out")


def test_recreate_is_reported_once_to_a_client_with_an_older_cursor(api: Api, topic_name: str) -> None:
    """WATCH-18: once it is reported, ids and the session are in the topic that is there."""
    api.fill(topic_name, 3)
    other = f"{topic_name}.other"
    api.fill(other, 1)
    older = make_id({topic_name: 2, other: 1, "$epoch": {topic_name: 0}})
    url = watch(api, [topic_name, other], cursor=older)["stream_url"]
    with Events(api, url) as events:
        reported = events.next()
        assert (reported.kind, reported.json["reason"]) == ("tombstone", "recreated")
        last = events.until("record")[-1]
        assert (last.seqs, last.cursor) == ([1, 2, 3], {topic_name: 3, other: 1})
    for id in (None, last.id):
        with Events(api, url, last_event_id=id) as events:
            assert {events.next().kind, events.next().kind} == {"caught-up"}


def test_cursor_may_name_a_topic_that_is_gone_where_that_is_asked_for(api: Api, topic_name: str) -> None:
    """WATCH-7: `?lenient=true` drops unknown topics, so it drops their positions too."""
    kept, gone = f"{topic_name}.kept", f"{topic_name}.gone"
    api.fill(kept, 3)
    body = {"topics": {kept: {}, gone: {}}, "cursor": make_id({kept: 2, gone: 7})}
    assert api.call("POST", "/v0/watch?lenient=true", body).ok()["topics"] == {
        kept: {"from_seq": 2, "head_seq": 3, "earliest_seq": 1}
    }
    body["cursor"] = make_id({kept: 2, "never.named": 7})
    detail = api.call("POST", "/v0/watch?lenient=true", body).refused_naming("never.named")
    assert detail["field"] == "cursor"
