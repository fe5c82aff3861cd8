"""The WS rules: commands, server frames, authorisation, bad input. The client is the `websockets` library."""

from __future__ import annotations

import contextlib
import json
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.harness.api import DEADLINE_S, Api, Json, until
from tests.harness.events import handshake
from topics.testing import ServerProcess

StartApi = Callable[..., Api]


class Room:
    """One WebSocket, spoken to in JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def send(self, **command: Any) -> None:
        self.socket.send(json.dumps(command))

    def next(self, deadline_s: float = DEADLINE_S) -> Json:
        frame: Json = json.loads(self.socket.recv(deadline_s))
        return frame

    def ask(self, **command: Any) -> Json:
        """Send a command and return its answer, whatever else comes before."""
        self.send(**command)
        while True:
            frame = self.next()
            if frame.get("request_id") == command.get("request_id") and frame["op"] not in ("record", "caught_up"):
                return frame

    def until(self, op: str) -> list[Json]:
        frames = [self.next()]
        while frames[-1]["op"] != op:
            frames.append(self.next())
        return frames

    def records(self, count: int) -> list[Json]:
        found: list[Json] = []
        while len(found) < count:
            frame = self.next()
            if frame["op"] == "record":
                found += frame["records"]
        assert len(found) == count
        return found


@contextlib.contextmanager
def enter(api: Api, **options: Any) -> Iterator[Room]:
    headers = {} if api.key is None else {"Authorization": f"Bearer {api.key}"}
    with connect(f"ws://{api.host}:{api.port}/v0/ws", additional_headers=headers, **options) as socket:
        yield Room(socket)


def test_subscribe_answers_then_delivers_then_catches_up(api: Api, topic_name: str) -> None:
    """WS-1: subscribed, record, caught_up, and live records as they are written."""
    api.write(topic_name, {"data": 1, "tag": "t", "meta": {"k": "v"}, "node": "n"}, {"data": 2})
    with enter(api) as room:
        answer = room.ask(op="subscribe", request_id="s1", topic=topic_name)
        assert answer == {
            "op": "subscribed",
            "request_id": "s1",
            "topics": {topic_name: {"from_seq": 0, "head_seq": 2, "earliest_seq": 1}},
        }
        record, caught_up = room.next(), room.next()
        assert (record["op"], record["topic"]) == ("record", topic_name)
        assert (record["from_seq"], record["to_seq"], record["head_seq"]) == (0, 2, 2)
        assert set(record["records"][0]) == {"$seq", "$ts", "$node", "data", "meta"}
        assert caught_up == {"op": "caught_up", "topic": topic_name, "head_seq": 2}
        api.write(topic_name, {"data": 3})
        assert [each["data"] for each in room.records(1)] == [3]


def test_subscribe_takes_a_map_of_topics_and_every_option(api: Api, topic_name: str) -> None:
    """WS-1: the same per-topic shape as POST /v0/watch."""
    a, b = f"{topic_name}.a", f"{topic_name}.b"
    for name in (a, b):
        api.write(name, *({"data": n, "tag": "t", "node": f"n{n}", "meta": {"k": "v"}} for n in range(4)))
    with enter(api) as room:
        answer = room.ask(
            op="subscribe", request_id=7, topics={a: {"from_seq": 1}, b: {"tail": True}}, node="n2", limit=2,
            include_data=False, include_tags=True, include_meta=False,
        )  # fmt: skip
        assert {name: each["from_seq"] for name, each in answer["topics"].items()} == {a: 1, b: 4}
        frames = [room.next() for _ in range(4)]
        records = [record for frame in frames if frame["op"] == "record" for record in frame["records"]]
        assert [record["$seq"] for record in records] == [2, 4]
        assert set(records[0]) == {"$seq", "$ts", "$node", "$tag"}
        assert [frame["op"] for frame in frames].count("caught_up") == 2


def test_unsubscribe_ends_the_topic_only(api: Api, topic_name: str) -> None:
    """WS-4: unsubscribed, with the request_id."""
    a, b = f"{topic_name}.a", f"{topic_name}.b"
    for name in (a, b):
        api.fill(name, 1)
    with enter(api) as room:
        room.ask(op="subscribe", request_id="s", topics={a: {"tail": True}, b: {"tail": True}})
        answer = room.ask(op="unsubscribe", request_id="u", topic=a)
        assert answer == {"op": "unsubscribed", "request_id": "u", "topic": a}
        api.fill(a, 1)
        api.fill(b, 1)
        assert [frame["topic"] for frame in room.until("record") if frame["op"] == "record"] == [b]


def test_publish_is_acked_with_its_seqs(api: Api, topic_name: str) -> None:
    """WS-2: publish takes the record fields of a write, and return_seqs."""
    with enter(api) as room:
        ack = room.ask(
            op="publish", request_id="p1", topic=topic_name, records=[{"data": 1, "tag": "x"}, {"data": 2}], node="me"
        )
        assert (ack["op"], ack["topic"], ack["last_seq"], ack["head_seq"]) == ("ack", topic_name, 2, 2)
        assert ack["seqs"] == [1, 2]
        assert ack["performance"]["fsync_ms"] == 0.0
        ack = room.ask(op="publish", request_id="p2", topic=topic_name, return_seqs=False, records=[{"data": 3}])
        assert "seqs" not in ack
        assert ack["last_seq"] == 3
        records = api.read(topic_name, include_tags=True)["records"]
        assert [(record["data"], record.get("$node")) for record in records] == [(1, "me"), (2, "me"), (3, None)]


def test_publish_is_idempotent_and_may_not_create(api: Api, topic_name: str) -> None:
    """WS-2: create, config, idempotency_key work as on the HTTP write."""
    with enter(api) as room:
        refused = room.ask(op="publish", request_id="c", topic=topic_name, create=False, records=[{"data": 1}])
        assert (refused["op"], refused["code"]) == ("error", "topic_not_found")
        first = room.ask(
            op="publish", request_id="a", topic=topic_name, idempotency_key="k", records=[{"data": 1}],
            config={"durability": "ephemeral", "cap_records": 9},
        )  # fmt: skip
        again = room.ask(op="publish", request_id="b", topic=topic_name, idempotency_key="k", records=[{"data": 1}])
        assert (first["deduped"], again["deduped"], again["last_seq"]) == (False, True, 1)
        assert api.state(topic_name)["config"]["cap_records"] == 9


def test_own_records_are_filtered_by_node(api: Api, topic_name: str) -> None:
    """WS-1, NODE-1."""
    api.put(topic_name)
    with enter(api) as one, enter(api) as two:
        for room, node in ((one, "u1"), (two, "u2")):
            room.ask(op="subscribe", request_id="s", topic=topic_name, node=node)
            room.until("caught_up")
        for n in range(3):
            one.send(op="publish", topic=topic_name, records=[{"node": "u1", "data": n}])
        two.send(op="publish", topic=topic_name, records=[{"node": "u2", "data": "hi"}])
        assert [record["data"] for record in two.records(3)] == [0, 1, 2]
        assert [record["data"] for record in one.records(1)] == ["hi"]


def test_tombstone_and_topic_deleted_frames(api: Api, topic_name: str) -> None:
    """WS-3."""
    api.put(topic_name, cap_records=3)
    api.fill(topic_name, 10)
    with enter(api) as room:
        room.ask(op="subscribe", request_id="s", topic=topic_name, from_seq=1)
        lost = room.next()
        assert (lost["op"], lost["topic"], lost["reason"]) == ("tombstone", topic_name, "from_seq_too_old")
        assert (lost["gap_from"], lost["gap_to"], lost["earliest_seq"], lost["head_seq"]) == (2, 7, 8, 10)
        room.until("caught_up")
        api.remove(topic_name).ok()
        assert room.next() == {"op": "topic_deleted", "topic": topic_name, "head_seq": 10, "reason": "deleted"}
        api.fill(topic_name, 1)
        room.ask(op="subscribe", request_id="again", topic=topic_name)
        assert len(room.records(1)) == 1


def test_ping_command_and_ping_frame(api: Api) -> None:
    """WS-4, and RFC 6455 for the frame."""
    with enter(api) as room:
        assert room.ask(op="ping", request_id="ping-1") == {"op": "pong", "request_id": "ping-1"}
        assert room.socket.ping(b"x").wait(DEADLINE_S)


@pytest.mark.parametrize(
    "message",
    [
        "", "nonsense", "[]", "5", "{}", '{"op":"dance","request_id":"r"}', '{"op":"subscribe","request_id":"r"}',
        '{"op":"subscribe","request_id":"r","topics":{}}', '{"op":"publish","request_id":"r","topic":"x"}',
        '{"op":"publish","request_id":"r","topic":"x","records":[]}',
        '{"op":"publish","request_id":"r","records":[{}]}',
        '{"op":"subscribe","request_id":"r","topic":"-bad"}', '{"op":"subscribe","topic":5,"request_id":"r"}',
        '{"op":"subscribe","request_id":"r","topic":"a","topics":{"b":{}}}', "[" * 50_000,
        '{"op":"unsubscribe","request_id":"r"}', '{"op":"ping","request_id":"r","op":"ping"}',
        '{"op":"publish","request_id":"r","topic":"x","records":[{"data":1}],"expected_head_seq":18446744073709551616}',
        '{"op":"publish","request_id":"r","topic":"x","records":[{"data":nan}]}',
    ],
)  # fmt: skip
def test_bad_commands_get_an_error_and_the_connection_lives(api: Api, message: str) -> None:
    """WS-5: error frames carry code, message and the request_id where it can be read."""
    with enter(api) as room:
        room.socket.send(message)
        error = room.next()
        assert (error["op"], error["code"]) == ("error", "invalid_request")
        assert error["message"]
        if '"request_id":"r"' in message and "nan" not in message:
            assert error["request_id"] == "r"
        assert room.ask(op="ping", request_id="still here")["op"] == "pong"


def test_unknown_topic_is_an_error_frame(api: Api) -> None:
    """WS-5."""
    with enter(api) as room:
        error = room.ask(op="subscribe", request_id="s", topic="no.such.topic")
        assert (error["code"], error["detail"]["topic"]) == ("topic_not_found", "no.such.topic")


KEYS = "reader:read,writer:write,config:write+admin,narrow::in.,admin,nothing:delete"


def test_each_command_is_authorised_on_its_own(start_api: StartApi) -> None:
    """WS-7: any valid key may open; subscribe needs read, publish write, with config admin too."""
    api = start_api(api_keys=KEYS)
    api.with_key("admin").fill("in.a", 1)
    api.with_key("admin").fill("out.b", 1)
    publish: Json = {"op": "publish", "request_id": "p", "topic": "in.a", "records": [{"data": 1}]}
    configure: Json = publish | {"config": {}, "topic": "in.new"}
    subscribe: Json = {"op": "subscribe", "request_id": "s", "topic": "in.a"}
    allowed = {
        "reader": (True, False, False),
        "writer": (False, True, False),
        "config": (False, True, True),
        "narrow": (True, True, True),
        "nothing": (False, False, False),
    }
    for key, expected in allowed.items():
        with enter(api.with_key(key)) as room:
            answers = [room.ask(**command) for command in (subscribe, publish, configure)]
            assert tuple(answer["op"] != "error" for answer in answers) == expected, key
            assert all(answer["code"] == "forbidden" for answer in answers if answer["op"] == "error")
    with enter(api.with_key("narrow")) as room:
        for command in (
            subscribe | {"topic": "out.b"},
            subscribe | {"topic": None, "topics": {"in.a": {}, "out.b": {}}},
            publish | {"topic": "out.b"},
            {"op": "unsubscribe", "request_id": "u", "topic": "out.b"},
        ):
            assert room.ask(**command)["code"] == "forbidden", command


@pytest.mark.parametrize("key", [None, "wrong"])
def test_opening_needs_a_valid_key(start_api: StartApi, key: str | None) -> None:
    """WS-7."""
    api = start_api(api_keys="right")
    with pytest.raises(InvalidStatus) as refused, enter(api.with_key(key)):
        pass
    assert refused.value.response.status_code == 401


def test_without_keys_foreign_pages_cannot_open(api: Api) -> None:
    """A web page could otherwise read and write a developer's server through their browser."""
    with pytest.raises(InvalidStatus) as refused, enter(api, origin="https://elsewhere.example"):
        pass
    assert refused.value.response.status_code == 403
    with enter(api, origin=f"http://{api.host}:{api.port}") as room:
        assert room.ask(op="ping")["op"] == "pong"


def test_reused_idempotency_key_is_marked(api: Api, topic_name: str) -> None:
    """RETRY-10."""
    with enter(api) as room:
        publish = {"op": "publish", "topic": topic_name, "idempotency_key": "k"}
        assert "key_reused" not in room.ask(**publish, records=[{"data": 1}])
        assert room.ask(**publish, records=[{"data": 2}])["key_reused"] is True


def test_plain_get_is_answered_with_how_to_upgrade(api: Api) -> None:
    """A clear error instead of a hanging connection."""
    api.get("/v0/ws").refused_naming("Upgrade")


def test_websockets_count_against_the_stream_caps(start_api: StartApi) -> None:
    """LIMIT-9: the same long-lived connection limits as SSE streams, global and per key."""
    api = start_api(api_keys="a,b,c", max_sse_connections=3, max_sse_connections_per_key=2)
    a, b = api.with_key("a"), api.with_key("b")
    with enter(a), enter(a):
        with pytest.raises(InvalidStatus) as refused, enter(a):
            pass
        assert refused.value.response.status_code == 429
        detail = json.loads(refused.value.response.body)["error"]["detail"]
        assert (detail["limit"], detail["max"]) == ("max_sse_connections_per_key", 2)
        assert refused.value.response.headers["Retry-After"]
        with enter(b):
            with pytest.raises(InvalidStatus) as refused, enter(b):
                pass
            assert json.loads(refused.value.response.body)["error"]["detail"]["limit"] == "max_sse_connections"
    until(lambda: _can_enter(a), "the slots are free again")


def test_filters_of_subscriptions_are_bounded(start_api: StartApi) -> None:
    """LIMIT-17: a filter that there is no room for is refused by the limit's name; what goes makes room."""
    api = start_api(max_subscription_bytes=40_000)
    api.fill("a", 1)
    api.fill("b", 1)
    with enter(api) as room:
        room.ask(op="subscribe", request_id=1, topic="a", node=[f"a-{i}" for i in range(150)])
        answer = room.ask(op="subscribe", request_id=2, topic="b", node=[f"b-{i}" for i in range(150)])
        assert (answer["op"], answer["code"]) == ("error", "throttled")
        assert answer["detail"]["limit"] == "max_subscription_bytes"
        room.ask(op="unsubscribe", request_id=3, topic="a")
        again = room.ask(op="subscribe", request_id=4, topic="b", node=[f"b-{i}" for i in range(150)])
        assert again["op"] == "subscribed"


def _can_enter(api: Api) -> bool:
    try:
        with enter(api):
            return True
    except InvalidStatus:
        return False


def test_fragmented_messages_are_whole_commands(api: Api) -> None:
    """RFC 6455: fragments, with control frames between them."""
    with enter(api) as room:
        room.socket.send(iter(['{"op":', '"ping",', '"request_id":"f"}']))
        assert room.next() == {"op": "pong", "request_id": "f"}


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\x81\x85\0\0\0\0\xff\xfe\xfd\xfc\xfb", 1007),
        (b"\x82\x81\0\0\0\0x", 1003),
        (b"\x81\x01x", 1002),
        (b"\xf1\x81\0\0\0\0x", 1002),
        (b"\x81\xff" + struct.pack("!Q", 1 << 40) + b"\0\0\0\0", 1009),
        (b"\x80\x81\0\0\0\0x", 1002),
        (b"\x09\x80\0\0\0\0", 1002),
    ],
    ids=["not-utf8", "binary", "unmasked", "reserved-bits", "oversized", "stray-continuation", "fragmented-ping"],
)
def test_garbage_closes_with_the_right_code(api: Api, payload: bytes, code: int) -> None:
    """WS-9: garbage and oversized frames get a clear end."""
    sock = handshake(api)
    sock.sendall(payload)
    data = b""
    while chunk := sock.recv(4096):
        data += chunk
    assert data[0] == 0x88, data
    assert struct.unpack("!H", data[2:4])[0] == code
    sock.close()


def test_ping_flood_harms_no_other_client(api: Api, topic_name: str) -> None:
    """WS-9: a flooding client costs itself, and is closed (1008); others are served meanwhile."""
    sock = handshake(api)
    sock.setblocking(False)
    flood = b"\x89\x80\0\0\0\0" * 50_000
    took_s: list[float] = []
    closed = 0
    end = time.monotonic() + 1.5
    while time.monotonic() < end or len(took_s) < 5:
        try:
            sock.send(flood)
        except BlockingIOError:
            pass
        except OSError:
            closed += 1
            sock.close()
            sock = handshake(api)
            sock.setblocking(False)
        start = time.monotonic()
        api.write(topic_name, {"data": 1})
        took_s.append(time.monotonic() - start)
    sock.close()
    assert closed
    # Not the slowest, which a busy machine makes as slow as it likes.
    assert statistics.median(took_s) < 1.0


def test_too_many_pings_end_a_connection_and_commands_pay_for_theirs(api: Api) -> None:
    """WS-9, FAIR-2: about 2,000 at once and 200 a second are too many, unless there are commands between them."""
    with enter(api) as room:
        for _ in range(600):
            for _ in range(5):
                room.socket.ping()
            room.socket.send('{"op":"ping"}')
            assert room.next()["op"] == "pong"
    sock = handshake(api)
    sock.sendall(b"\x89\x80\0\0\0\0" * 2600)
    data = b""
    while chunk := sock.recv(1 << 16):
        data += chunk
    assert struct.pack("!H", 1008) + b"too many pings" in data
    sock.close()


def test_a_message_that_there_is_no_room_for_is_refused_by_name(start_api: StartApi) -> None:
    """FAIR-3: what has arrived of a message counts, and over the bound its connection ends with 1013."""
    api = start_api(max_buffered_bytes=1 << 20)
    sock = handshake(api)
    sock.sendall(b"\x81\xff" + struct.pack("!Q", 8 << 20) + b"\0\0\0\0" + b" " * (2 << 20))
    data = b""
    while chunk := sock.recv(4096):
        data += chunk
    assert b'"limit":"max_buffered_bytes"' in data
    assert struct.pack("!H", 1013) + b"max_buffered_bytes" in data
    sock.close()
    assert api.get("/v0/metrics", headers={"Accept": "application/json"}).json["topics_buffered_refused_total"] >= 1


def test_clean_stop_closes_with_going_away(start_server: Callable[..., ServerProcess]) -> None:
    """WATCH-34: a stop says goodbye to open WebSockets (1001) and ends with exit code 0."""
    server = start_server()
    with enter(Api(server.host, server.port)) as room:
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        with pytest.raises(ConnectionClosed) as closed:
            room.next()
        stopping.join()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001


def test_topics_of_a_connection_are_counted_together(start_api: StartApi) -> None:
    """WS-8: a subscription that is made anew does not count again."""
    api = start_api(max_watch_topics=2)
    for name in "abc":
        api.fill(name, 1)
    with enter(api) as room:
        for names in ("a", "b", "ab"):
            assert room.ask(op="subscribe", request_id=names, topics={name: {} for name in names})["op"] == "subscribed"
        refused = room.ask(op="subscribe", request_id="c", topic="c")
        assert (refused["code"], refused["detail"]["limit"]) == ("invalid_request", "max_watch_topics")
        assert room.ask(op="unsubscribe", request_id="u", topic="a")["op"] == "unsubscribed"
        assert room.ask(op="subscribe", request_id="c", topic="c")["op"] == "subscribed"
