"""A connection that is lost is gone at once: nothing of it waits for the garbage collector.

What waits for it would never go where the collector has stopped to look (FAIR-6).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from tests.harness.connection import Client, PathApp, connections_of, request
from topics.server.http.connection import Connection
from topics.server.http.http2 import Http2
from topics.server.http.http2_stream import Http2Stream


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> int:
    return sum(type(each) in (Connection, Http2, Http2Stream) for each in gc.get_objects())


def http2_requests(path: str) -> bytes:
    h2 = H2Connection(H2Configuration(client_side=True))
    h2.initiate_connection()
    fields = [(":method", "GET"), (":path", path), (":scheme", "http"), (":authority", "localhost")]
    for stream in (1, 3, 5):
        h2.send_headers(stream, fields, end_stream=stream != 5)
    return h2.data_to_send()


def protocols() -> int:
    return sum(isinstance(each, H2Connection) for each in gc.get_objects())


@pytest.mark.parametrize("path", ["/", "/missing", "/full", "/wait", "/stream"])
def test_a_lost_http2_connection_leaves_nothing(path: str) -> None:
    """FAIR-6: with streams that were answered, that wait, and whose request is not complete."""
    sent = http2_requests(path)
    app = PathApp()
    connections = connections_of(app, Http2)
    before = alive(), protocols()
    client = Client(app, connections=connections)
    client.send(sent)
    client.received()
    assert alive() > before[0]
    client.lose()
    client.transport.protocol = None  # as a transport does by itself
    del client
    app.waiting.clear()
    app.streams.clear()
    assert (alive(), protocols()) == before


@pytest.mark.parametrize("path", ["/", "/missing", "/full", "/wait", "/stream"])
def test_a_lost_connection_leaves_nothing(path: str) -> None:
    """FAIR-6: answered, refused, still waiting, or with an answer that has no end."""
    app = PathApp()
    connections = connections_of(app)
    before = alive()
    client = Client(app, connections=connections)
    client.send(request("GET", path), request("GET", path))
    client.received()
    assert alive() == before + 1
    client.lose()
    client.transport.protocol = None  # as a transport does by itself
    del client
    app.waiting.clear()
    app.streams.clear()
    assert alive() == before


def test_one_that_waits_in_line_leaves_nothing() -> None:
    """FAIR-6: what is left to do for it in a later turn is nothing."""
    app = PathApp()
    ticks = iter(range(0, 10**12, 10**6))
    connections = connections_of(app, clock_ns=lambda: next(ticks))
    before = alive()
    client = Client(app, connections=connections)
    client.send(request("GET", "/") * 20)
    assert len(connections.turns) == 1
    client.lose()
    client.transport.protocol = None  # as a transport does by itself
    client.received()
    del client
    assert alive() == before
