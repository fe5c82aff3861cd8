"""The records that are written and read: about 150 bytes each, as the budget has them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench import load
from bench.load import Traffic

if TYPE_CHECKING:
    from topics.testing import ServerProcess

DATA = (
    b'{"type":"resize","url":"s3://bucket/2026/11/picture-000042.png","width":256,"height":256,"quality":0.85,'
    b'"owner":"tenant-42","attempt":1,"trace":"4f2a9c"}'
)
FILL_BATCH = 1000


def batch(n: int, fields: bytes = b"") -> bytes:
    """The body of a write of n records, each with these further fields."""
    return b'{"records":[' + b",".join([b'{"data":' + DATA + fields + b"}"] * n) + b"]}"


def post(topic: str, n: int = 1, connections: int = 64, fields: bytes = b"") -> Traffic:
    """Writes of n records each."""
    return Traffic("POST", f"/v0/topics/{topic}?return_seqs=false", batch(n, fields), connections)


def create(server: ServerProcess, topic: str, **config: object) -> None:
    """Create a topic."""
    answer = server.request("PUT", f"/v0/topics/{topic}", json=config)
    assert answer.status in (200, 201), answer.body


def fill(server: ServerProcess, topic: str, count: int, n: int = FILL_BATCH) -> None:
    """Append `count` records in writes of n."""
    request = post(topic, n).request(0, server.host)
    load.fill(server.host, server.port, itertools.repeat(request, count // n))


def fill_topics(server: ServerProcess, first: int, count: int) -> None:
    """Write one record to each of the topics t<first>, ..."""
    traffic = Traffic("POST", "/v0/topics/t{n}?return_seqs=false", batch(1), first=first, span=count)
    requests: Iterator[bytes] = (traffic.request(i, server.host) for i in range(count))
    load.fill(server.host, server.port, requests)


def head_seq(server: ServerProcess, topic: str) -> int:
    """The head of a topic."""
    head: int = server.request("GET", f"/v0/topics/{topic}?touch=false").json["head_seq"]
    return head
