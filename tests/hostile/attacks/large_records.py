"""Attacks by reading records that are large, many times over."""

from __future__ import annotations

import json
import selectors
import socket
import time
from typing import cast

from tests.hostile.attack import Target, attack
from tests.hostile.attacks.streams import websocket

MIB = 1 << 20
RECORDS = 63 + 63 + 1000
JSON = {"Content-Type": "application/json"}


def _write(target: Target) -> None:
    """Three writes of 63 MiB: each is one Block, of 63 records or of 1,000."""
    for size, count in ((MIB - 20, 63), (MIB - 20, 63), (65_000, 1000)):
        _post(target, "large", size, count)


def _post(target: Target, topic: str, size: int, count: int) -> None:
    """Write as soon as there is room for it."""
    body = b'{"records":[%b]}' % b",".join([b'{"data":"%b"}' % (b"x" * size)] * count)
    for _ in range(60):
        answer = target.request("POST", f"/v0/topics/{topic}", body, JSON)
        if answer.status != 429:
            break
        time.sleep(answer.json["error"]["detail"]["retry_after_ms"] / 1000)
    assert answer.status in (200, 201), answer.body[:300]


@attack("large-records-read", prepare=_write, in_slice=False)
def large_records_read(target: Target) -> None:
    """Reads one record of a Block of 63 MiB, and then as much as an answer takes, again and again from elsewhere."""
    ends = time.monotonic() + target.seconds
    seq = 0
    while time.monotonic() < ends:
        for ask in ({"limit": 1}, {"limit": 1000, "max_batch_bytes": 8 * MIB}, {"limit": 1, "include_tags": True}):
            answer = target.request("POST", "/v0/topics/large/diff", {"from_seq": seq, **ask}, JSON)
            assert answer.status == 200, answer.body[:300]
            assert len(answer.json["records"]) >= 1
        seq = (seq + 37) % 1100


def _route(target: Target) -> None:
    """Four routers out of the topic that is written to."""
    for number in range(4):
        rule = {"source": "large", "dest": f"copy-{number}"}
        answer = target.request("PUT", f"/v0/routers/r{number}", rule, JSON)
        assert answer.status in (200, 201), answer.body[:300]


@attack("large-records-forwarded", prepare=_route, in_slice=False)
def large_records_forwarded(target: Target) -> None:
    """Writes 63 MiB, three times, into a topic with four routers, and waits until the last copy is there."""
    _write(target)
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        answer = target.request("GET", "/v0/topics/copy-3")
        if answer.json["head_seq"] == RECORDS:
            return
        time.sleep(0.1)
    raise AssertionError("the copies did not arrive")


@attack("large-records-streamed", prepare=_write, in_slice=False)
def large_records_streamed(target: Target) -> None:
    """Opens 40 streams over 189 MiB of large records, and reads them all: as SSE, and over WebSockets."""
    topics = {"topics": {"large": {"from_seq": 0}}}
    streams = []
    for _ in range(20):
        wid = target.request("POST", "/v0/watch", topics, JSON).json["wid"]
        stream = target.connect()
        stream.sendall(b"GET /v0/watch/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % wid.encode())
        streams.append(stream)
        stream = websocket(target)
        text = json.dumps({"op": "subscribe", **topics}).encode()
        stream.sendall(b"\x81%c\0\0\0\0%b" % (0x80 | len(text), text))
        streams.append(stream)
    ends = time.monotonic() + target.seconds
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        received = 0
        while time.monotonic() < ends:
            for key, _ in selector.select(0.1):
                received += len(cast("socket.socket", key.fileobj).recv(1 << 20))
    for stream in streams:
        stream.close()
    assert received > 100 * MIB, f"only {received} bytes came"


def _enqueue(target: Target) -> None:
    """A queue of 189 large jobs."""
    assert target.request("PUT", "/v0/topics/q", {"type": "queue", "lease_ms": 1000}, JSON).status == 201
    for _ in range(3):
        _post(target, "q", MIB - 20, 63)


@attack("large-jobs", prepare=_enqueue, in_slice=False)
def large_jobs(target: Target) -> None:
    """Claims as many large jobs as a claim may take, again and again, and gives them back."""
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        answer = target.request("POST", "/v0/topics/q/claim", {"node": "n", "max": 1000}, JSON)
        assert answer.status == 200, answer.body[:300]
        seqs = [job["$seq"] for job in answer.json["claimed"]]
        if seqs:
            answer = target.request("POST", "/v0/topics/q/nack", {"node": "n", "seqs": seqs}, JSON)
            assert answer.status == 200, answer.body[:300]
