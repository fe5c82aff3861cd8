"""Bodies at their limits: what is refused before it is read or built, and what a large write comes to."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pytest
from websockets.sync.client import connect

from tests.harness.api import DEADLINE_S, Api, Reply, StartApi

MIB = 1 << 20
COMMANDS = [
    ("PUT", "/v0/topics/{topic}"),
    ("POST", "/v0/topics/{topic}/diff"),
    ("POST", "/v0/topics/{topic}/delete"),
    ("POST", "/v0/topics/{topic}/claim"),
    ("POST", "/v0/topics/{topic}/ack"),
    ("PUT", "/v0/routers/{topic}"),
    ("POST", "/v0/watch"),
]


def send(api: Api, method: str, path: str, body: bytes, how: str) -> Reply:
    if how == "gzip":
        return api.call(method, path, raw=gzip.compress(body, 1), headers={"Content-Encoding": "gzip"})
    if how == "plain":
        return api.call(method, path, raw=body)
    connection = http.client.HTTPConnection(api.host, api.port, timeout=DEADLINE_S)
    pieces = [body[at : at + 100_000] for at in range(0, len(body), 100_000)]
    try:
        connection.request(method, path, iter(pieces), {"Content-Type": "application/json"}, encode_chunked=True)
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


@pytest.mark.parametrize(("method", "path"), COMMANDS)
@pytest.mark.parametrize("how", ["plain", "gzip"])
def test_body_without_records_is_at_most_a_mebibyte(
    api: Api, topic_name: str, method: str, path: str, how: str
) -> None:
    """HTTP-26: 413 that names the limit, by its length or by what it inflates to."""
    address = path.format(topic=topic_name)
    body = b'{"x":"%b"}' % (b"x" * MIB)
    detail = send(api, method, address, body, how).refused(413, "payload_too_large")
    assert detail == {"limit": "max_command_bytes", "max": MIB}
    assert not api.exists(topic_name)


def test_limit_of_commands_follows_its_variable(start_api: StartApi, topic_name: str) -> None:
    """HTTP-26: for a body that streams as well, and for what a write has around its records; not for the records."""
    api = start_api(max_command_bytes=1000)
    pad = b'"pad":"%b"' % (b"x" * 1000)
    for how in ("plain", "gzip"):
        refused = send(api, "PUT", f"/v0/topics/{topic_name}", b"{%b}" % pad, how)
        assert refused.refused(413, "payload_too_large") == {"limit": "max_command_bytes", "max": 1000}
    api.post(topic_name, raw=b'{"records":[{"data":"%b"}]}' % (b"x" * 300_000)).ok(201)
    large = b'{"records":[{"data":"%b"}],%b}' % (b"x" * 300_000, pad)
    assert api.post(topic_name, raw=large).refused(413, "payload_too_large")["limit"] == "max_command_bytes"
    connection = http.client.HTTPConnection(api.host, api.port, timeout=DEADLINE_S)
    connection.putrequest("POST", f"/v0/topics/{topic_name}/diff")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    for _ in range(3):
        connection.send(b"200\r\n" + b" " * 512 + b"\r\n")
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["error"]["detail"]["limit"]) == (413, "max_command_bytes")
    connection.close()


@pytest.mark.parametrize("value", [b"[]", b"{}", b'""', b"1", b'{"a":1}'])
def test_body_of_many_values_is_refused_before_they_are_built(api: Api, topic_name: str, value: bytes) -> None:
    """HTTP-26: each value becomes an object, so their number is bounded, known fields or not."""
    api.fill(topic_name, 1)
    for field in (b"match", b"node", b"x"):
        body = b'{"%b":[%b]}' % (field, b",".join([value] * 30_000))
        refused = api.call("POST", f"/v0/topics/{topic_name}/diff", raw=body)
        assert refused.refused(400, "invalid_request")["limit"] == "command_values_max"
    nodes = json.dumps({"node": ["n"] * 1001}).encode()
    api.call("POST", f"/v0/topics/{topic_name}/diff", raw=nodes).refused_naming("node", "1000")


def test_write_names_the_fields_that_it_ignored(api: Api, topic_name: str) -> None:
    """HTTP-15: a record is stored without its misspelled tag, so the answer says so."""
    answer = api.post(topic_name, {"records": [{"data": 1, "tags": "x"}]}).ok(201)
    assert (answer["unknown_fields"], answer["count"], answer["first_seq"]) == (["records[].tags"], 1, 1)
    batch = {"records": [{"data": 1, "tag": "t"}, {"data": 2, "tga": 1, "tags": 2}], "nod": "n", "config": {"ttl": 1}}
    answer = api.post(topic_name, batch).ok(200)
    assert answer["unknown_fields"] == ["nod", "records[].tga", "records[].tags", "config.ttl"]
    many = {f"k{i}": i for i in range(50)} | {"x" * 1000: 1}
    answer = api.post(topic_name, {"records": [{"data": 1, "x" * 1000: 1, **many}]}).ok(200)
    assert answer["unknown_fields"] == ["records[]." + "x" * 300, *(f"records[].k{i}" for i in range(19))]
    whole = {"data": {"tags": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}, "delay_ms": 0}
    assert "unknown_fields" not in api.post(topic_name, {"records": [whole], "node": "n", "config": {"ttl_ms": 1}}).ok()
    assert api.diff(topic_name, include_tags=True).ok()["records"][1]["$tag"] == "t"


def records_of(count: int, size: int) -> list[dict[str, Any]]:
    """Records that look like many others inside: a key `data`, arrays of records, brackets in strings."""
    return [
        {
            "data": {"data": i, "list": [{"data": 1}, {"data": 2}], "text": '},{"data":' + "é" * (i % 7) + "x" * size},
            **({"tag": f"t{i % 5}"} if i % 2 else {}),
            **({"meta": {"m": str(i)}} if i % 3 else {}),
            **({"node": "own"} if i % 11 == 0 else {}),
        }
        for i in range(count)
    ]


@pytest.mark.parametrize("how", ["plain", "gzip", "chunked"])
@pytest.mark.parametrize(("count", "size"), [(3000, 200), (40, 100_000), (2, 400_000), (1, 900_000)])
@pytest.mark.parametrize("spread", [False, True])
def test_large_write_is_what_was_sent(api: Api, topic_name: str, how: str, count: int, size: int, spread: bool) -> None:
    """HTTP-27, WRITE-1: every record in its place, with its labels, however the body came and is spaced."""
    sent = records_of(count, size)
    body = {"node": "all", "records": sent, "config": {"cap_records": 0}}
    raw = json.dumps(body, ensure_ascii=not spread, separators=None if spread else (",", ":")).encode()
    assert len(raw) > 256 * 1024
    answer = send(api, "POST", f"/v0/topics/{topic_name}", raw, how).ok(201)
    assert (answer["first_seq"], answer["last_seq"], answer["count"]) == (1, count, count)
    assert "unknown_fields" not in answer
    got: list[Any] = []
    while len(got) < count:
        read = api.diff(topic_name, from_seq=len(got), limit=1000, include_tags=True, max_batch_bytes=8 * MIB).ok()
        got += read["records"]
    for i, (record, found) in enumerate(zip(sent, got, strict=True), 1):
        assert (found["$seq"], found["data"]) == (i, record["data"])
        assert found.get("$tag") == record.get("tag")
        assert found.get("meta") == record.get("meta")
        assert found["$node"] == record.get("node", "all")
    assert api.state(topic_name)["count"] == count


LARGE = b",".join([b'{"data":"%b"}' % (b"x" * 1000)] * 1000)


@pytest.mark.parametrize(
    ("body", "status", "code", "named"),
    [
        (b'{"records":[%b,{"data":1,"data":2}]}' % LARGE, 400, "invalid_request", "records[1000].data is given twice"),
        (b'{"records":[%b,{"data":1,"tag":5}]}' % LARGE, 400, "invalid_request", "records[1000].tag"),
        (b'{"records":[%b,{"tag":"t"}]}' % LARGE, 400, "invalid_request", "records[1000].data is missing"),
        (b'{"records":[%b,{"data":1,"tag":"%b"}]}' % (LARGE, b"t" * 300), 400, "invalid_request", "records[1000].tag"),
        (b'{"records":[%b,{"data":1,"meta":{"a":1}}]}' % LARGE, 400, "invalid_request", "records[1000].meta"),
        (b'{"records":[%b,{"data":+1}]}' % LARGE, 400, "invalid_request", f"(byte {21 + len(LARGE)})"),
        (b'{"records":[%b' % LARGE, 400, "invalid_request", "ends too early"),
        (b'{"records":[%b,{"data":"\\ud83d and more"}]}' % LARGE, 400, "invalid_request", "one half of a character"),
        (b'{"records":[%b,{"data":"\xff"}]}' % LARGE, 400, "invalid_request", f"byte {22 + len(LARGE)}"),
        (b'{"records":[%b],"records":[]}' % LARGE, 400, "invalid_request", "records is given twice"),
        (b'{"records":[%b],"node":5}' % LARGE, 400, "invalid_request", "node"),
        (b'{"records":[%b],"config":{"ttl_ms":1,"ttl_ms":2}}' % LARGE, 400, "invalid_request", "config.ttl_ms"),
        (b'{"records":[%b]} x' % LARGE, 400, "invalid_request", "trailing characters"),
        (b'[%b]' % LARGE, 400, "invalid_request", "expected `object`, got `array`"),
        (b'{"records":[%b]}' % b",".join([LARGE] * 11), 400, "batch_too_large", "max_batch_records"),
        (b'{"records":[%b,{"data":"%b"}]}' % (LARGE, b"x" * MIB), 400, "record_too_large", "records[1000]"),
        (b'{"records":[%b,{"data":"%b"}]}' % (LARGE, b"x" * 3 * MIB), 400, "record_too_large", "records[1000]"),
        (b'{"records":[%b],"x":"%b"}' % (LARGE, b"x" * MIB), 413, "payload_too_large", "max_command_bytes"),
        (b'{"records":[%b,{"data":%b}]}' % (LARGE, b"[" * 100_000), 400, "invalid_request", "nested too deeply"),
    ],
    ids=range(19),
)  # fmt: skip
def test_large_write_with_a_fault_is_refused_as_a_whole(
    api: Api, topic_name: str, body: bytes, status: int, code: str, named: str
) -> None:
    """HTTP-27, WRITE-5: the last record counts as much as the first, and nothing is appended."""
    for how in ("plain", "gzip"):
        send(api, "POST", f"/v0/topics/{topic_name}", body, how).refused_naming(named, status=status, code=code)
    assert not api.exists(topic_name)


def test_large_write_names_the_fields_that_it_ignored(api: Api, topic_name: str) -> None:
    """HTTP-15: as a small one."""
    body = b'{"records":[%b,{"data":1,"tags":"x"},%b],"nod":1}' % (LARGE, LARGE)
    answer = api.post(topic_name, raw=body).ok(201)
    assert (answer["unknown_fields"], answer["count"]) == (["nod", "records[].tags"], 2001)


def answer_in(stream: BinaryIO) -> Any:
    """The next answer of a connection."""
    length = 0
    while line := stream.readline().strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return json.loads(stream.read(length))


def test_what_follows_a_large_write_takes_effect_after_it(api: Api, topic_name: str) -> None:
    """HTTP-27: requests of one connection are handled in their order, and answered in it."""
    path = f"/v0/topics/{topic_name}"
    bodies = [b'{"records":[%b]}' % b",".join([LARGE] * 4), b'{"records":[{"data":1}]}', b'{"from_seq":3999}']
    sent = b"".join(
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (target.encode(), len(body), body)
        for target, body in zip((path, path, f"{path}/diff"), bodies, strict=True)
    )
    with socket.create_connection((api.host, api.port), DEADLINE_S) as connection:
        connection.sendall(sent)
        with connection.makefile("rb") as stream:
            answers = [answer_in(stream) for _ in bodies]
    assert [answers[0]["first_seq"], answers[1]["first_seq"]] == [1, 4001]
    assert answers[2]["records"][0]["$seq"] == 4000


@contextmanager
def socket_to(api: Api) -> Iterator[Any]:
    with connect(f"ws://{api.host}:{api.port}/v0/ws", max_size=None) as room:
        yield room


def test_publish_names_the_fields_that_it_ignored(api: Api, topic_name: str) -> None:
    """HTTP-15, WS-2: as over HTTP."""
    with socket_to(api) as room:
        room.send(json.dumps({"op": "publish", "topic": topic_name, "records": [{"data": 1, "tags": "x"}], "no": 1}))
        assert json.loads(room.recv())["unknown_fields"] == ["no", "records[].tags"]
        room.send(json.dumps({"op": "publish", "topic": topic_name, "records": [{"data": 1, "tag": "x"}]}))
        assert "unknown_fields" not in json.loads(room.recv())


def test_large_publish_is_taken_before_what_follows_it(api: Api, topic_name: str) -> None:
    """WS-12: in the order of the messages; a fault in it is answered and the connection lives."""
    publish = '{"op":"publish","topic":"%s","request_id":%d,"return_seqs":false,"records":[%s]}'
    with socket_to(api) as room:
        room.send(publish % (topic_name, 1, LARGE.decode()))
        for i in range(2, 5):
            room.send(publish % (topic_name, i, '{"data":1}'))
        room.send(publish % (topic_name, 5, LARGE.decode() + ',{"data":1,"data":2}'))
        room.send(publish % (topic_name, 6, LARGE.decode() + ',{"data":1,"tags":2}'))
        room.send('{"op":"ping","request_id":7}')
        answers = {answer["request_id"]: answer for answer in (json.loads(room.recv()) for _ in range(7))}
    assert [answers[i]["first_seq"] for i in (1, 2, 3, 4, 6)] == [1, 1001, 1002, 1003, 1004]
    assert answers[5]["detail"]["field"] == "records[1000].data"
    assert answers[6]["unknown_fields"] == ["records[].tags"]
    assert answers[7]["op"] == "pong"


def test_command_of_many_topics_is_refused_before_they_are_built(api: Api, topic_name: str) -> None:
    """WS-12, WS-8: by its bytes, by its values, and by the number of topics."""
    with socket_to(api) as room:
        for count, limit in (
            (1_000_000, "max_command_bytes"),
            (30_000, "command_values_max"),
            (300, "max_watch_topics"),
        ):
            names = ",".join(f'"{i}":{{}}' for i in range(count))[: 7 * MIB].rpartition(",")[0]
            room.send(f'{{"op":"subscribe","request_id":1,"topics":{{{names}}}}}')
            answer = json.loads(room.recv())
            assert (answer["op"], answer["detail"]["limit"]) == ("error", limit)
        room.send('{"op":"ping"}')
        assert json.loads(room.recv()) == {"op": "pong"}
