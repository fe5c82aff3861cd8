"""Watch sessions: the answer of POST /v0/watch, which keys may open a stream, how long it lives (the WATCH rules)."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.harness.api import Api, until
from tests.harness.events import Events, follow, watch

StartApi = Callable[..., Api]


def test_create_answers_wid_url_ttl_and_watermarks(api: Api, topic_name: str) -> None:
    """WATCH-1: the answer lets the client compute its lag, and names the stream's address."""
    api.fill(topic_name, 5)
    api.erase(topic_name, before_seq=3)
    body = watch(api, {topic_name: {"from_seq": 4}})
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", body["wid"])
    assert body["stream_url"] == f"/v0/watch/{body['wid']}"
    assert body["session_ttl_ms"] == 300_000
    assert body["topics"] == {topic_name: {"from_seq": 4, "head_seq": 5, "earliest_seq": 3}}


def test_tail_begins_at_the_head(api: Api, topic_name: str) -> None:
    """WATCH-8: `tail` ignores `from_seq` and starts at the topic's current head."""
    api.fill(topic_name, 3)
    body = watch(api, {topic_name: {"from_seq": 1, "tail": True}})
    assert body["topics"][topic_name]["from_seq"] == 3


def test_wids_cannot_be_guessed(api: Api, topic_name: str) -> None:
    """WATCH-2: at least 128 bits, no counter."""
    api.fill(topic_name, 1)
    wids = {watch(api, topic_name)["wid"] for _ in range(50)}
    assert len(wids) == 50
    assert len({wid[4:8] for wid in wids}) > 40


def test_unknown_topic_is_404_unless_lenient(api: Api, topic_name: str) -> None:
    """WATCH-7: `?lenient=true` drops unknown topics; they are absent from the answer."""
    api.fill(topic_name, 1)
    topics = {topic_name: {}, "no.such.topic": {}}
    api.call("POST", "/v0/watch", {"topics": topics}).refused(404, "topic_not_found")
    assert list(watch(api, topics, "?lenient=true")["topics"]) == [topic_name]


def test_what_is_asked_of_an_unknown_topic_is_checked_all_the_same(api: Api, topic_name: str) -> None:
    """WATCH-7: a predicate that is none is refused, whether or not its topic is there."""
    api.fill(topic_name, 1)
    topics = {topic_name: {}, "no.such.topic": {"match": ["tag", "Glob", "no star"]}}
    api.call("POST", "/v0/watch?lenient=true", {"topics": topics}).refused_naming("match")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topics": {}},
        {"topics": []},
        {"topics": {"a": 5}},
        {"topics": {"a": {"from_seq": -1}}},
        {"topics": {"a": {"from_seq": "x"}}},
        {"topics": {"a": {"from_seq": 2**64}}},
        {"topics": {"a": {"from_ts": -1}}},
        {"topics": {"a": {"from_ts": 2**64}}},
        {"topics": {"-bad": {}}},
        {"topics": {"a": {}}, "consistency": "sometimes"},
        {"topics": {"a": {}}, "limit": "many"},
        {"topics": {"a": {"match": ["tag", "Regex", "x"]}}},
        {"topics": {"a": {}}, "cursor": "!!"},
    ],
)
def test_malformed_bodies_are_400(api: Api, body: object) -> None:
    """WATCH-6: 400 while the client can still read the error body."""
    api.fill("a", 1)
    api.call("POST", "/v0/watch", body).refused(400, "invalid_request")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"topics":{"a":{"from_seq":1},"a":{"tail":true}}}', "topics.a"),
        (b'{"topics":{"a":{"from_seq":1,"from_seq":2}}}', "topics.a.from_seq"),
        (b'{"topics":{"a":{}},"limit":1,"limit":2}', "limit"),
    ],
)
def test_nothing_is_named_twice(api: Api, body: bytes, field: str) -> None:
    """HTTP-14: what came first would be dropped in silence."""
    api.fill("a", 1)
    api.call("POST", "/v0/watch", raw=body).refused_naming(field, "given twice")


def test_too_many_topics_are_400_and_the_limit_itself_works(api: Api, topic_name: str) -> None:
    """WATCH-6, WATCH-15: up to TOPICS_MAX_WATCH_TOPICS, 256 by default."""
    names = [f"{topic_name}.{i}" for i in range(257)]
    for name in names:
        api.write(name, {"data": 1})
    api.call("POST", "/v0/watch", {"topics": {key: {} for key in names}}).refused_naming("max_watch_topics", 256)
    with follow(api, names[:256]) as events:
        seen = {event.json["topic"] for event in [events.next() for _ in range(512)] if event.kind == "record"}
        assert seen == set(names[:256])
        id = events.last_id
    assert len(id) < 8_000
    api.write(names[7], {"data": 2})
    session = watch(api, names[:256], cursor=id)
    assert session["topics"][names[7]]["from_seq"] == 1
    with Events(api, session["stream_url"]) as resumed:
        assert resumed.records(1)[0]["data"] == 2


@pytest.mark.parametrize("wid", ["wid_AAAAAAAAAAAAAAAAAAAAAA", "nonsense", "wid_", "%20", "%C3%A9", "x" * 3000])
def test_unknown_wid_is_404_whatever_it_looks_like(api: Api, wid: str) -> None:
    """WATCH-5."""
    api.get(f"/v0/watch/{wid}", headers={"Accept": "text/event-stream"}).refused(404, "not_found")


@pytest.mark.parametrize(("accept", "taken"), [
    ("text/event-stream", True), ("text/*", True), ("*/*", True), ("text/html, text/event-stream;q=0.5", True),
    ("application/json", False), ("text/html", False), ("text/event-stream;q=0", False),
])  # fmt: skip
def test_accept_must_allow_event_streams(api: Api, topic_name: str, accept: str, taken: bool) -> None:
    """WATCH-5."""
    api.fill(topic_name, 1)
    url = watch(api, topic_name)["stream_url"]
    if taken:
        with Events(api, url, accept=accept) as events:
            assert events.status == 200
    else:
        api.get(url, headers={"Accept": accept}).refused(406, "not_acceptable")


def test_session_without_stream_expires_and_frees_its_place(start_api: StartApi) -> None:
    """WATCH-3, LIMIT-8: an abandoned session does not pin a slot."""
    api = start_api(session_ttl_ms=300, max_watch_sessions=2)
    api.fill("t", 1)
    body = {"topics": {"t": {}}}
    old = api.call("POST", "/v0/watch", body).ok(200)["stream_url"]
    # The third in a row, unless the machine stands still between them for as long as a session lives.
    refused = until(lambda: (reply := api.call("POST", "/v0/watch", body)).status == 429 and reply, "all are taken")
    detail = refused.refused(429, "throttled")
    assert detail["limit"] == "max_watch_sessions"
    assert detail["max"] == 2
    until(lambda: api.call("POST", "/v0/watch", body).status == 200, "a slot is free again")
    api.get(old, headers={"Accept": "text/event-stream"}).refused(404, "not_found")


def test_session_with_an_open_stream_is_never_reclaimed(start_api: StartApi) -> None:
    """WATCH-3: its cursor map is in use."""
    api = start_api(session_ttl_ms=200, max_watch_sessions=2)
    api.fill("t", 1)
    with follow(api, "t") as events:
        events.until("caught-up")
        watch(api, "t")
        for _ in range(3):
            # Another session, without a stream, shows that the time has passed.
            until(
                lambda: api.call("POST", "/v0/watch", {"topics": {"t": {}}}).status == 200, "an idle one is reclaimed"
            )
        api.write("t", {"data": "still here"})
        assert events.records(1)[0]["data"] == "still here"


KEYS = "reader:read,other:read,writer:write,narrow:read:in.,admin,q%uot+e:read"


def test_stream_needs_the_creating_key(start_api: StartApi) -> None:
    """WATCH-4: the wid alone is no credential, and neither is another valid key."""
    api = start_api(api_keys=KEYS)
    admin, reader = api.with_key("admin"), api.with_key("reader")
    admin.fill("in.a", 1)
    url = watch(reader, "in.a")["stream_url"]
    stream = {"Accept": "text/event-stream"}
    api.get(url, headers=stream).refused(401, "unauthorized")
    for key in ("other", "admin", "wrong"):
        api.with_key(key).get(url, headers=stream).refused(401, "unauthorized")
        api.get(f"{url}?token={key}", headers=stream).refused(401, "unauthorized")
    with Events(reader, url) as events:
        assert events.status == 200
        assert len(events.records(1)) == 1


def test_token_in_the_query_opens_streams_only(start_api: StartApi) -> None:
    """AUTH-19: `?token=` is decoded as a form, the first one counts, and no other route takes it."""
    api = start_api(api_keys=KEYS)
    admin = api.with_key("admin")
    admin.fill("in.a", 1)
    odd = api.with_key("q%uot+e")
    url = watch(odd, "in.a")["stream_url"]
    with Events(api, url + "?token=q%25uot%2Be&token=wrong") as events:
        assert events.status == 200
    header = {"Authorization": "Bearer wrong", "Accept": "text/event-stream"}
    api.get(url + "?token=q%25uot%2Be", headers=header).refused(401, "unauthorized")
    api.get("/v0/topics/in.a?token=admin").refused(401, "unauthorized")
    api.call("POST", "/v0/watch?token=admin", {"topics": {"in.a": {}}}).refused(401, "unauthorized")
    api.get("/v0/ws?token=admin").refused(401, "unauthorized")


def test_watch_needs_read_scope_and_prefixes_of_every_topic(start_api: StartApi) -> None:
    """AUTH-14: the allowlist is enforced against every topic in the body."""
    api = start_api(api_keys=KEYS)
    admin = api.with_key("admin")
    admin.fill("in.a", 1)
    admin.fill("out.b", 1)
    api.with_key("writer").call("POST", "/v0/watch", {"topics": {"in.a": {}}}).refused(403, "forbidden")
    narrow = api.with_key("narrow")
    for topics in ({"in.a": {}, "out.b": {}}, {"in.a": {}, "out.unknown": {}}):
        narrow.call("POST", "/v0/watch?lenient=true", {"topics": topics}).refused(403, "forbidden")
    assert watch(narrow, "in.a")["topics"]["in.a"]["head_seq"] == 1


def test_memory_of_sessions_and_of_their_filters_is_bounded(start_api: StartApi) -> None:
    """LIMIT-17: the one too many is 429 that names the limit; a session that ends makes room."""
    api = start_api(max_subscription_bytes=60_000, session_ttl_ms=300)
    api.fill("t", 1)
    mine = {"topics": {"t": {}}, "node": [f"mine-{i}" for i in range(100)]}
    api.call("POST", "/v0/watch", mine).ok(200)
    for _ in range(10):
        # The same filter is there already.
        api.call("POST", "/v0/watch", mine).ok(200)
    refused = api.call("POST", "/v0/watch", {**mine, "node": [f"other-{i}" for i in range(900)]})
    detail = refused.refused(429, "throttled")
    assert (detail["limit"], detail["max"]) == ("max_subscription_bytes", 60_000)
    assert refused.headers["retry-after"]

    def fits() -> bool:
        return api.call("POST", "/v0/watch", {**mine, "node": [f"next-{i}" for i in range(200)]}).status == 200

    until(fits, "the sessions without a stream are gone, and their filters with them")
