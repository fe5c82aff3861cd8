"""The outcome of a byte stream does not depend on how it was split into reads, and is never an exception or a hang."""

from __future__ import annotations

import gzip
import itertools
import re
from typing import Any

import httptools
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.connection import Client, PathApp, chunked, request, split_replies
from tests.harness.malformed import MALFORMED
from topics.errors import TopicsError
from topics.server.http.body import BodyLimit
from topics.server.http.chunked import ChunkedBody
from topics.server.http.exchange import Exchange
from topics.server.http.head import Head

OF_ONE_REQUEST = rb"\"server_total_ms\":[0-9.e-]+|\"request_id\":\"[^\"]+\""
"""What no two answers share."""
PATHS = st.sampled_from(["/a", "/b", "/missing", "/secret", "/busy", "/handle-bug", "/full", "/large?2000"])
BODIES = st.one_of(st.binary(max_size=40), st.just(request("GET", "/smuggled")), st.just(b"x" * 300))
LINES = st.lists(
    st.sampled_from(
        [
            "Accept-Encoding: gzip",
            "Connection: keep-alive",
            "Connection: close",
            "Expect: 100-continue",
            "Expect: other",
            "Content-Encoding: gzip",
            "X-Pad: " + "p" * 200,
            "X-Empty:",
        ]
    ),
    max_size=2,
    unique=True,
)


@st.composite
def good_request(draw: Any) -> bytes:
    kind = draw(st.integers(0, 3))
    lines = draw(LINES)
    path = draw(PATHS)
    if kind == 0:
        version = draw(st.sampled_from(["1.1", "1.1", "1.0"]))
        return request(draw(st.sampled_from(["GET", "DELETE", "OPTIONS"])), path, None, *lines, version=version)
    if kind == 1:
        return request(draw(st.sampled_from(["POST", "PUT", "GET"])), path, draw(BODIES), *lines)
    if kind == 2:
        return request("POST", path, gzip.compress(draw(BODIES), mtime=0), "Content-Encoding: gzip")
    trailer = draw(st.sampled_from([b"", b"X-Sum: 1\r\n"]))
    chunks = [body for body in draw(st.lists(BODIES, max_size=3)) if body]
    return chunked(path, *chunks, lines=tuple(lines), trailer=trailer)


MESSAGES = st.one_of(
    good_request(),
    good_request(),
    st.sampled_from(list(MALFORMED.values())),
    st.sampled_from([b"\r\n", b"\n", b"\r", b"\0", b"GET", b"PRI * HTTP/2.0\r\n", b"x" * 700]),
    st.binary(max_size=30),
)


@st.composite
def byte_streams(draw: Any) -> bytes:
    data = b"".join(draw(st.lists(MESSAGES, min_size=1, max_size=5)))
    if draw(st.booleans()) and data:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw(st.binary(max_size=2)) + data[at + draw(st.integers(0, 2)) :]
    return data


def outcome(data: bytes, cuts: list[int]) -> tuple[bytes, list[Any], bool]:
    """What was sent (but for times and interim answers), what the app saw, and whether the server ended it itself."""
    client = Client(max_header_bytes=600, max_headers=12, max_body_bytes=1000)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    client.send(*(data[start:stop] for start, stop in itertools.pairwise(edges) if start < stop))
    ended = client.ended
    client.send_eof()
    assert client.transport.closing, "after the client's end everything is answered and closed"
    client.lose()
    assert len(client.connections) == 0
    sent = client.received().replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    for reply in split_replies(sent):
        assert reply.status != 500 or b'"internal"' in reply.body
    sent = re.sub(rb"Content-Length: \d+|Date: [^\r]*|X-Request-Id: [^\r]*|" + OF_ONE_REQUEST, b"", sent)
    return sent, client.app.handled, ended


@settings(max_examples=400, deadline=None)
@given(byte_streams(), st.lists(st.integers(0, 10_000), max_size=12))
def test_outcome_is_the_same_however_the_bytes_are_split(data: bytes, cuts: list[int]) -> None:
    assert outcome(data, cuts) == outcome(data, [])


@settings(max_examples=100, deadline=None)
@given(byte_streams())
def test_outcome_is_the_same_byte_by_byte(data: bytes) -> None:
    assert outcome(data, list(range(len(data)))) == outcome(data, [])


class HeadApp(PathApp):
    """Keeps every part of each head it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[dict[str, Any]] = []

    def handle(self, exchange: Exchange) -> None:
        self.heads.append({name: getattr(exchange.head, name) for name in Head.__slots__ if name != "door"})
        super().handle(exchange)


TARGETS = st.one_of(
    PATHS,
    st.sampled_from(
        ["/a?x=1", "/a%20b", "/a%2Fb", "/%zz", "/%ff", "/a#b", "/a|b", "//", "/?", "http://e/a", "*", "a", "/a b"]
    ),
    st.text("abcXYZ019-._~%/?:@!$&'()*+,;=<>[]{}|^`\\\"", max_size=8).map(lambda text: "/" + text),
)
FIELDS = st.sampled_from(
    [(), ("Accept: */*",), ("X-Content-Length: 7", "Authorization: Bearer k"), ("Content-Type: a/b",)]
)
LENGTH_NAMES = st.sampled_from(["Content-Length", "Content-Length", "content-length"])


@st.composite
def similar_request(draw: Any) -> bytes:
    """A request that often differs from another one only in its target or the length of its body."""
    body = draw(st.sampled_from([None, b"", b"x", b"y" * 9, b"z" * 10, b"w" * 1001]))
    lines = draw(FIELDS)
    if body is not None:
        lines = (*lines, f"{draw(LENGTH_NAMES)}: {len(body)}", *draw(FIELDS))
    method = "GET" if body is None else draw(st.sampled_from(["POST", "POST", "PUT"]))
    return request(method, draw(TARGETS), None, *lines) + (body or b"")


@settings(max_examples=400, deadline=None)
@given(st.lists(similar_request(), min_size=2, max_size=12))
def test_what_came_before_on_a_connection_does_not_change_what_a_request_means(requests: list[bytes]) -> None:
    """Heads that repeat are not parsed again; this must not show."""

    def replies_of(client: Client) -> list[tuple[int, bytes]]:
        return [(reply.status, re.sub(OF_ONE_REQUEST, b"", reply.body)) for reply in client.replies()]

    limits = {"max_header_bytes": 300, "max_body_bytes": 1000}
    client = Client(HeadApp(), **limits)
    for data in requests:
        alone = Client(HeadApp(), **limits)
        alone.send(data)
        client.send(data)
        assert replies_of(client) == replies_of(alone)
        assert client.app.heads[-len(alone.app.heads) :] == alone.app.heads or not alone.app.heads
        if client.ended:
            client = Client(HeadApp(), **limits)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 90), st.lists(st.integers(0, 10_000), max_size=8))
def test_answers_keep_the_order_of_the_requests_in_whatever_order_they_are_given(
    data: st.DataObject, count: int, cuts: list[int]
) -> None:
    requests = b"".join(
        request("POST", f"/wait{number % 3}", b"%d" % number) if number % 4 else request("GET", f"/now{number}")
        for number in range(count)
    )
    edges = [0, *sorted(cut % (len(requests) + 1) for cut in cuts), len(requests)]
    reads = [requests[start:stop] for start, stop in itertools.pairwise(edges)]
    client = Client()
    while reads or client.app.waiting:
        if reads and client.transport.reading and (not client.app.waiting or data.draw(st.booleans())):
            client.send(reads.pop(0))
        elif client.app.waiting:
            exchange = client.app.waiting.pop(data.draw(st.integers(0, len(client.app.waiting) - 1)))
            exchange.respond(200, exchange.body)
    expected = [b"%d" % number if number % 4 else b"GET /now%d " % number for number in range(count)]
    assert [reply.body for reply in client.replies()] == expected


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.one_of(BODIES, st.text("0123456789abcdefF;= \t\r\n-+x", max_size=6).map(str.encode)), max_size=6),
    st.booleans(),
)
def test_chunked_bodies_decode_as_llhttp_decodes_them_or_not_at_all(pieces: list[bytes], framed: bool) -> None:
    """Whatever this decoder takes, the parser of Node and of many proxies reads as the same bytes."""
    data = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) if framed and piece else piece for piece in pieces)
    data += b"0\r\n\r\n"
    ours = ChunkedBody(BodyLimit("max_body_bytes", 10_000), 1000)
    try:
        end = ours.feed(data, 0)
    except TopicsError:
        return
    if ours.complete:
        seen = LlhttpBody()
        httptools.HttpRequestParser(seen).feed_data(
            request("POST", "/", None, "Transfer-Encoding: chunked") + data[:end]
        )
        assert (seen.body, seen.complete) == (ours.body.whole(), True)


class LlhttpBody:
    """The body as httptools reports it."""

    def __init__(self) -> None:
        self.body = b""
        self.complete = False

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True
