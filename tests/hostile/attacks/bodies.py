"""Request bodies that cost the server far more than their sender: small ones that inflate, and honest large ones."""

from __future__ import annotations

import gzip
import json

from websockets.sync.client import connect

from tests.hostile.attack import Answer, Target, attack

MIB = 1 << 20
_JSON = {"Content-Type": "application/json"}
_GZIP = {**_JSON, "Content-Encoding": "gzip"}


def _send(target: Target, path: str, body: bytes, *, packed: bool = True) -> Answer:
    """Two of them in a row, so that one after the other is seen too."""
    payload = gzip.compress(body, 6) if packed else body
    for _ in range(2):
        answer = target.request("POST", path, payload, _GZIP if packed else _JSON)
    return answer


def _refused(answer: Answer, status: int, limit: str) -> None:
    assert answer.status == status, (answer.status, answer.body[:300])
    assert answer.json["error"]["detail"]["limit"] == limit, answer.body[:300]


@attack("body-unknown-fields")
def unknown_fields(target: Target) -> None:
    """A write of 56 MB of unknown fields with an inner key "data", 100 KB of gzip."""
    inner = b",".join([b'{"data":0}'] * 5_000_000)
    _refused(_send(target, "/v0/topics/victim", b'{"records":[{"data":1}],"x":[%b]}' % inner), 413, "max_command_bytes")


@attack("body-unknown-field-of-a-record")
def unknown_field_of_a_record(target: Target) -> None:
    """A write of one record with 56 MB in an unknown field."""
    inner = b",".join([b'{"data":0}'] * 5_000_000)
    _refused(_send(target, "/v0/topics/victim", b'{"records":[{"data":1,"x":[%b]}]}' % inner), 400, "max_record_bytes")


@attack("body-diff-objects")
def diff_objects(target: Target) -> None:
    """A diff with millions of objects in an unknown field, and one that keeps the limit of bytes."""
    target.request("PUT", "/v0/topics/victim", {}, _JSON)
    body = b'{"from_seq":0,"x":[%b]}' % b",".join([b'{"a":{}}'] * 5_500_000)
    _refused(_send(target, "/v0/topics/victim/diff", body), 413, "max_command_bytes")
    for value in (b"{}", b"[]", b'{"a":1}', b'""', b"1"):
        body = b'{"match":[%b]}' % b",".join([value] * ((MIB - 100) // (len(value) + 1)))
        _refused(_send(target, "/v0/topics/victim/diff", body), 400, "command_values_max")
    answer = _send(target, "/v0/topics/victim/diff", b'{"x":"%b"}' % (b"\\n" * 500_000))
    assert answer.status == 200, answer.body[:300]


@attack("body-unterminated-string")
def unterminated_string(target: Target) -> None:
    """A write of 32 million escapes in a string without an end, 62 KB of gzip."""
    answer = _send(target, "/v0/topics/victim", b'{"records":[{"data":"' + b"\\n" * (32 * MIB - 100))
    assert answer.status == 400, answer.body[:300]
    answer = _send(target, "/v0/topics/victim", b'{"records":[],"x":"' + b"\\\\" * 100_000)
    assert answer.status == 400, answer.body[:300]


@attack("body-watch-topics")
def watch_topics(target: Target) -> None:
    """A watch session over millions of topics, and over as many as fit into the limit of bytes."""
    names = b",".join([b'"%x":{}' % (i % 1000) for i in range(4_500_000)])
    _refused(_send(target, "/v0/watch", b'{"topics":{%b}}' % names), 413, "max_command_bytes")
    fewer = b",".join([b'"%x":{}' % i for i in range(MIB // 10)])[: MIB - 200].rpartition(b",")[0]
    _refused(_send(target, "/v0/watch", b'{"topics":{%b}}' % fewer), 400, "command_values_max")
    fewest = b",".join([b'"%x":{}' % i for i in range(9000)])
    _refused(_send(target, "/v0/watch", b'{"topics":{%b}}' % fewest), 400, "max_watch_topics")


@attack("body-tiny-records")
def tiny_records(target: Target) -> None:
    """A write of millions of tiny records, and of as many as are allowed with a name given twice in the last."""
    many = b",".join([b'{"data":1}'] * 5_000_000)
    answer = _send(target, "/v0/topics/victim", b'{"records":[%b]}' % many)
    assert answer.json["error"]["code"] == "batch_too_large", answer.body[:300]
    some = b",".join([b'{"data":1, "tag":"x"}'] * 9999)
    answer = _send(target, "/v0/topics/victim", b'{"records":[%b,{"data":1,"data":2}]}' % some)
    assert answer.json["error"]["detail"]["field"] == "records[9999].data", answer.body[:300]


@attack("body-escaped-names")
def escaped_names(target: Target) -> None:
    """A write whose records have thousands of names that are written with escapes."""
    names = b",".join([b'"\\u0061%x":0' % i for i in range(500)])
    record = b'{"data":1,%b}' % names
    answer = _send(target, "/v0/topics/victim", b'{"records":[%b]}' % b",".join([record] * 5000))
    assert answer.status == 400, answer.body[:300]


@attack("body-large-write")
def large_write(target: Target) -> None:
    """Honest writes of 63 MiB: plain and as gzip, of 10,000 records and of 63."""
    for packed in (False, True):
        for size, count in ((6600, 9990), (MIB - 20, 63)):
            body = b'{"records":[%b]}' % b",".join([b'{"data":"%b"}' % (b"x" * size)] * count)
            answer = target.request(
                "POST", "/v0/topics/victim", gzip.compress(body, 1) if packed else body, _GZIP if packed else _JSON
            )
            assert answer.status in (200, 201), answer.body[:300]
            assert answer.json["count"] == count
    target.request("DELETE", "/v0/topics/victim")


@attack("body-inner-data")
def inner_data(target: Target) -> None:
    """Honest writes of 640 KB, spread out as Python does it, whose data has a key "data"."""
    record = {"data": {"data": "x" * 300, "list": [{"data": i} for i in range(20)]}, "tag": "t"}
    body = json.dumps({"records": [record] * 1000}).encode()
    for _ in range(20):
        answer = target.request("POST", "/v0/topics/victim", body, _JSON)
        assert answer.status in (200, 201), answer.body[:300]


@attack("websocket-subscribe-topics")
def subscribe_topics(target: Target) -> None:
    """Subscribes over a WebSocket to a million topics, and to as many as fit into the limit of bytes."""
    with connect(f"ws://{target.host}:{target.port}/v0/ws", max_size=None) as room:
        for count, limit in (
            (700_000, "max_command_bytes"),
            (80_000, "command_values_max"),
            (9000, "max_watch_topics"),
        ):
            names = ",".join(f'"{i:x}":{{}}' for i in range(count))
            for _ in range(3):
                room.send(f'{{"op":"subscribe","topics":{{{names}}}}}')
                answer = json.loads(room.recv())
                assert answer["detail"]["limit"] == limit, answer


@attack("websocket-large-publish")
def large_publish(target: Target) -> None:
    """Publishes of almost 8 MiB over a WebSocket, of large records and of many that have a name twice."""
    with connect(f"ws://{target.host}:{target.port}/v0/ws", max_size=None) as room:
        large = ",".join(['{"data":"' + "x" * 7000 + '"}'] * 1000)
        many = ",".join(['{"data":{"data":1}, "tag":"x"}'] * 9999 + ['{"data":1,"data":2}'])
        for records, code in ((large, "ack"), (many, "error")):
            for _ in range(3):
                room.send(f'{{"op":"publish","topic":"victim","return_seqs":false,"records":[{records}]}}')
                answer = json.loads(room.recv())
                assert answer["op"] == code, answer
