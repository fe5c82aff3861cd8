"""The reference against a real server: answers, events and messages are as it says (the OPENAPI rules)."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.harness.api import DEADLINE_S, Api, Json, Reply, until
from tests.harness.events import Events
from tests.harness.openapi import Described, operations
from topics import __version__
from topics.testing import ServerProcess

KEY = "k"
NARROW = "narrow"


@pytest.fixture(scope="module")
def running() -> Iterator[ServerProcess]:
    """A server that seals early, with a key for everything and one that may touch some names only."""
    keys = f"{KEY},{NARROW}:read+write:n.|orders->audit"
    with ServerProcess(api_keys=keys, segment_max_events=20) as server:
        yield server


@pytest.fixture
def guarded(running: ServerProcess) -> Iterator[Api]:
    client = Api(running.host, running.port, KEY)
    yield client
    client.close()


@pytest.fixture(scope="module")
def described(running: ServerProcess) -> Described:
    return Described(running.request("GET", "/v0/openapi.json").json)


class Client:
    """Calls operations by name, and holds every answer against what is said of it."""

    def __init__(self, api: Api, described: Described) -> None:
        self.api = api
        self.described = described
        self._routes = {each["operationId"]: (method, path) for method, path, each in operations(described.document)}

    def call(self, id: str, body: Any = None, query: str = "", headers: dict[str, str] | None = None, **at: str) -> Any:
        reply = self.ask(id, body, query, headers, **at)
        assert reply.status < 300, reply
        return reply.json

    def ask(
        self, id: str, body: Any = None, query: str = "", headers: dict[str, str] | None = None, **at: str
    ) -> Reply:
        method, path = self._routes[id]
        reply = self.api.call(method, path.format(**at) + query, body, headers=headers)
        self.described.check_answer(id, reply.status, reply.json)
        return reply

    def refuse(self, id: str, code: str, body: Any = None, query: str = "", **at: str) -> None:
        assert self.ask(id, body, query, **at).json["error"]["code"] == code


def test_the_document_is_served_to_anyone(guarded: Api) -> None:
    """OPENAPI-1: without a key, plain or packed, to pages of any origin; it names the version."""
    anyone = guarded.with_key(None)
    plain = anyone.get("/v0/openapi.json", headers={"Origin": "https://example.com"})
    assert plain.status == 200
    assert plain.headers["content-type"] == "application/json"
    assert plain.headers["access-control-allow-origin"] == "*"
    assert (plain.json["openapi"], plain.json["info"]["version"]) == ("3.1.0", __version__)
    packed = anyone.get("/v0/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert anyone.call("HEAD", "/v0/openapi.json").status == 200


def test_the_page_needs_no_key_and_lets_nothing_in_from_outside(guarded: Api) -> None:
    """OPENAPI-6: it and every file of it, with the policy of the console."""
    anyone = guarded.with_key(None)
    names = [entry.name for entry in files("topics").joinpath("reference").iterdir() if entry.name != "index.html"]
    assert "reference.js" in names
    for path in ("/v0/docs", *(f"/v0/docs/{name}" for name in names)):
        reply = anyone.get(path)
        assert reply.status == 200
        assert reply.headers["content-security-policy"] == anyone.get("/").headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "http://" not in reply.text
        assert "https://" not in reply.text


def test_answers_have_the_fields_that_are_described(running: ServerProcess, guarded: Api, described: Described) -> None:
    """OPENAPI-4: a field that comes and is not described fails, and so does one that is described and never comes."""
    client = Client(guarded, described)
    _look_at_topics(client)
    _look_at_records(client)
    _look_at_queues(client)
    _look_at_routers(client, Client(guarded.with_key(NARROW), described))
    _look_at_streams(client)
    _look_at_sockets(running, client)
    for id in ("health", "healthz", "ready", "readyz", "whoami", "keys"):
        client.call(id)
    client.call("metrics", headers={"Accept": "application/json"})
    _look_at_scans(running, client)
    # A stream is paced under pressure only.
    assert described.fields() - described.seen == {("ErrorEvent", "retry_after_ms"), ("ErrorEvent", "topics")}


def _look_at_topics(client: Client) -> None:
    client.call("putTopic", {"cap_records": 3, "typo": 1}, topic="orders")
    client.call("putTopic", {"cap_records": 3}, topic="orders")
    client.call("putTopic", {"type": "queue", "dead_letter": "dead", "max_deliveries": 2}, topic="jobs")
    client.refuse("putTopic", "topic_exists_incompatible", {"type": "log"}, topic="jobs")
    client.call("getTopic", topic="orders")
    client.call("getTopic", topic="jobs")
    client.refuse("getTopic", "topic_not_found", topic="missing")
    client.call("listTopics", query="?page_size=1")
    client.call("putTopic", topic="gone")
    client.call("deleteTopic", topic="gone")


def _look_at_records(client: Client) -> None:
    record = {"data": {"n": 1}, "tag": "a", "node": "web", "meta": {"trace": "1"}}
    client.call("write", {"records": [record] * 5, "idempotency_key": "once", "typo": 1}, topic="orders")
    assert client.call("write", {"records": [record], "idempotency_key": "once"}, topic="orders")["key_reused"]
    client.call("write", {"records": [{"data": 2}]}, "?return_seqs=false", topic="orders")
    client.refuse("write", "head_mismatch", {"records": [record], "expected_head_seq": 99}, topic="orders")
    read = client.call("diff", {"include_tags": True}, topic="orders")
    assert read["tombstone"]["reason"] == "cap"
    client.call("diff", topic="orders")
    client.refuse("diff", "invalid_request", {"limit": -1}, topic="orders")
    client.call("deleteRecords", {"match": "b", "dry_run": True}, topic="orders")
    client.call("deleteRecords", {"match": "b"}, topic="orders")


def _look_at_queues(client: Client) -> None:
    job = {"data": 1, "tag": "a", "meta": {"k": "v"}}
    client.call("write", {"records": [job, {"data": 2}, {"data": 3}, job]}, topic="jobs")
    worker = {"node": "w"}
    jobs = client.call("claim", {**worker, "max": 3}, topic="jobs")["claimed"]
    seqs = [job["$seq"] for job in jobs]
    client.call("leases", topic="jobs")
    client.call("extend", {**worker, "seqs": seqs, "lease_ms": 60_000}, topic="jobs")
    client.call("ack", {**worker, "seqs": [seqs[0], 99]}, topic="jobs")
    client.call("nack", {**worker, "seqs": seqs[1:], "delay_ms": 60_000, "reason": "late"}, topic="jobs")
    client.call("history", topic="jobs")
    # A loss is noticed at the next look, a second after the last one.
    losses = until(lambda: client.call("overview")["losses"], "a loss in the overview")
    assert [loss["topic"] for loss in losses] == ["orders"]
    client.call("redrive", {"dry_run": True}, topic="jobs")
    client.refuse("claim", "not_a_queue", worker, topic="orders")
    with Events(client.api, "/v0/topics/jobs/work?node=w") as stream:
        event = stream.next()
        _check_event(client, "work", event.kind, event.json)
        client.call("deleteTopic", topic="jobs")
        event = stream.next()
        _check_event(client, "work", event.kind, event.json)


def _check_event(client: Client, id: str, kind: str, data: Json) -> None:
    events = client.described.operation(id)["x-events"]
    assert kind in events, f"{id} is described without the event {kind}"
    client.described.check(events[kind], data)


def _look_at_routers(client: Client, narrow: Client) -> None:
    put = {"source": "orders", "dest": "n.audit", "filter": ["tag", "Glob", "a*"], "typo": 1}
    client.call("putRouter", put, router="orders->audit")
    client.call("putRouter", put, router="orders->audit")
    client.refuse("putRouter", "router_cycle", {"source": "n.audit", "dest": "orders"}, router="back")
    client.call("getRouter", router="orders->audit")
    # A key that may touch the destination only is not told of the source.
    assert "source" not in narrow.call("getRouter", router="orders->audit")
    client.call("putRouter", {"source": "orders", "dest": "other"}, router="orders->other")
    assert "next_cursor" in client.call("listRouters", query="?page_size=1")
    client.call("deleteRouter", router="orders->other")


def _look_at_streams(client: Client) -> None:
    client.call("putTopic", topic="short")
    client.refuse("watch", "topic_not_found", {"topics": {"missing": {}}})
    created = client.call("watch", {"topics": {"orders": {}, "short": {}}, "include_tags": True})
    events = []
    with Events(client.api, created["stream_url"]) as stream:
        events += stream.until("caught-up") + stream.until("caught-up")
        client.call("deleteTopic", topic="short")
        events += stream.until("topic-deleted")
        with Events(client.api, created["stream_url"]):
            events += stream.until("error")
    for event in events:
        _check_event(client, "openWatch", event.kind, event.json)
    assert {event.kind for event in events} == set(client.described.operation("openWatch")["x-events"])
    client.refuse("openWatch", "not_found", wid="wid_unknown")


def _look_at_sockets(running: ServerProcess, client: Client) -> None:
    messages = client.described.operation("websocket")["x-messages"]
    schemas = client.described.schemas
    by_op = {schemas[name]["properties"]["op"]["const"]: ref for ref, name in _named(messages["receives"])}
    sent = {schemas[name]["properties"]["op"]["const"]: ref for ref, name in _named(messages["sends"])}
    client.call("putTopic", topic="brief")
    publish = {"op": "publish", "topic": "n.new", "idempotency_key": "i"}
    # Each command, and the messages that come of it.
    commands: list[tuple[Json, set[str]]] = [
        (
            {"op": "subscribe", "topics": {"orders": {}, "brief": {}}, "include_tags": True},
            {"subscribed", "tombstone", "record", "caught_up"},
        ),
        ({"op": "subscribe", "topic": "brief", "request_id": 1}, {"subscribed"}),
        ({"op": "unsubscribe", "topics": ["orders"], "request_id": "u"}, {"unsubscribed"}),
        ({"op": "unsubscribe", "topic": "orders"}, {"unsubscribed"}),
        ({**publish, "records": [{"data": 1}], "request_id": 2, "typo": 1}, {"ack"}),
        ({**publish, "records": [{"data": 2}]}, {"ack"}),
        ({"op": "ping", "request_id": 3}, {"pong"}),
        ({"op": "subscribe", "topic": "missing", "request_id": 4}, {"error"}),
    ]
    url = f"ws://{running.host}:{running.port}/v0/ws"
    with connect(url, additional_headers={"Authorization": f"Bearer {KEY}"}) as socket:

        def receive(expected: set[str]) -> None:
            while expected:
                frame = json.loads(socket.recv(DEADLINE_S))
                assert frame["op"] in by_op, f"the message {frame} is not described"
                client.described.check(by_op[frame["op"]], frame)
                expected.discard(frame["op"])

        for command, expected in commands:
            client.described.check(sent[command["op"]], command)
            socket.send(json.dumps(command))
            receive(expected)
        client.call("deleteTopic", topic="brief")
        receive({"topic_deleted"})


def _named(references: list[Json]) -> list[tuple[Json, str]]:
    return [(ref, ref["$ref"].rpartition("/")[2]) for ref in references]


def _look_at_scans(running: ServerProcess, client: Client) -> None:
    client.call("putTopic", {"durability": "ephemeral"}, topic="fleeting")
    client.call("write", {"records": [{"data": 1}] * 3}, topic="fleeting")
    client.call("write", {"records": [{"data": n, "tag": f"t{n}"} for n in range(50)]}, topic="sealed")
    query = "?from_seq=0&from_ts=0&to_ts=0&segments=true&deleted=true"
    until(lambda: client.call("plan", query=query, topic="sealed")["segments"], "the topic is sealed")
    client.call("deleteRecords", {"match": "t3"}, topic="sealed")
    client.call("plan", query="?from_seq=0", topic="orders")
    _look_at_backups(client)
    running.stop()
    running.start()
    with closing(Api(running.host, running.port, KEY)) as api:
        assert Client(api, client.described).call("plan", topic="fleeting")["lost"]
        blocks = api.get("/v0/topics/orders/blocks?from_seq=0").body
    (size,) = struct.unpack_from("<4xI", blocks)
    header = json.loads(blocks[8 : 8 + size])
    assert header["tombstone"]["reason"] == "cap"
    client.described.check(client.described.operation("blocks")["x-header"], header)


def _look_at_backups(client: Client) -> None:
    begun = client.call("beginBackup")
    client.refuse("beginBackup", "backup_running")
    backup = begun["backup"]
    (segment, *_) = client.call("plan", query="?segments=true", topic="sealed")["segments"]
    name = segment["name"] if "name" in segment else segment["file"].rpartition("/")[2].removesuffix(".data")
    client.call("describeSegments", {"segments": [name]}, backup=backup)
    client.call("takeMoment", backup=backup)
    client.call("endBackup", backup=backup)
    client.refuse("endBackup", "backup_not_found", backup=backup)


# In an order in which each finds what it needs.
EXAMPLES = [
    *("putTopic", "getTopic", "listTopics", "deleteTopic"),
    *("write", "diff", "plan", "putRouter", "getRouter", "listRouters", "watch", "deleteRouter", "deleteRecords"),
    *("claim", "leases", "extend", "nack", "history", "ack", "redrive"),
    *("beginBackup", "describeSegments", "takeMoment", "endBackup"),
    *("overview", "keys", "whoami", "health", "healthz", "ready", "readyz"),
]


def test_examples_work_as_they_stand(guarded: Api, described: Described) -> None:
    """OPENAPI-3: each request in the document is answered as it shows, with the same fields."""
    client = Client(guarded, described)
    for name in ("orders", "jobs", "jobs.dead", "audit"):
        client.call("deleteTopic", topic=name)
    client.call("putTopic", {"type": "queue", "dead_letter": "jobs.dead"}, topic="jobs")
    client.call("write", {"records": [{"data": {"send": "invoice"}}]}, topic="jobs")
    shown = {each["operationId"]: found for _, _, each in operations(described.document) for found in _shown(each)}
    assert set(EXAMPLES) == set(shown)
    backup = ""
    for id in EXAMPLES:
        said = described.operation(id)
        status, schema, answer = shown[id]
        described.check(schema, answer)
        body = said["requestBody"]["content"]["application/json"]["example"] if "requestBody" in said else None
        topic = "jobs" if "Queues" in said["tags"] else "orders"
        reply = client.ask(id, body, topic=topic, router="orders->audit", backup=backup)
        backup = reply.json.get("backup", backup)
        assert reply.status == status, reply
        assert set(reply.json) == set(answer), id
        assert set(reply.json["performance"]) == set(answer["performance"]), id


def _shown(operation: Json) -> Iterator[tuple[int, Json, Json]]:
    for status, response in operation["responses"].items():
        media = response.get("content", {}).get("application/json", {})
        if "example" in media:
            yield int(status), media["schema"], media["example"]
