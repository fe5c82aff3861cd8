"""A connection that is lost is gone at once: nothing of it waits for the garbage collector.

What waits for it would never go where the collector has stopped to look (FAIR-6).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.harness.connection import Client, PathApp, connections_of, request
from topics.server.http.connection import Connection


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> int:
    return sum(type(each) is Connection for each in gc.get_objects())


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
