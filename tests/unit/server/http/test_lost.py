"""A connection that is lost is gone at once, or turn by turn where many are: nothing of it waits for the collector.

What waits for it would never go where the collector has stopped to look (FAIR-6).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import cast

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from tests.harness.connection import Client, PathApp, connections_of, request
from tests.harness.loop import ManualLoop
from topics.server.http.connection import Connection
from topics.server.http.connections import DEPART_TOGETHER
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


def test_connections_that_are_reset_at_once_are_taken_down_over_many_turns() -> None:
    """FAIR-1: none of them counts as open any more; what is left of those that nobody waits for goes turn by turn."""
    app = PathApp()
    connections = connections_of(app)
    before = alive()
    clients = [Client(app, connections=connections) for _ in range(3 * DEPART_TOGETHER)]
    for client in clients:
        client.send(request("GET", "/"))
        client.received()
    for client in clients:
        client.note_lost()
        client.transport.protocol = None  # as a transport does by itself
    assert not connections.live
    del clients, client
    left = [alive() - before]
    for _ in range(3):
        cast("ManualLoop", connections._loop).turn()
        left.append(alive() - before)
    assert left == [3 * DEPART_TOGETHER, 2 * DEPART_TOGETHER, DEPART_TOGETHER, 0]


def test_a_request_that_waits_ends_in_the_turn_in_which_its_connection_is_lost() -> None:
    """CONN-10: a client that disconnects is noticed at once."""
    app = PathApp()
    client = Client(app)
    client.send(request("GET", "/wait-watching"))
    client.note_lost()
    assert (app.left, app.over) == (["/wait-watching"], ["/wait-watching"])


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
