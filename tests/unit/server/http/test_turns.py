"""A turn of the loop is shared: who sends a lot waits in line, and who sends little does not notice."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from tests.harness.connection import Client, PathApp, connections_of, request
from tests.harness.loop import ManualLoop
from topics.server.http.account import SMALL_BYTES
from topics.server.http.connections import DEPART_TOGETHER, DEPART_TURNS, Connections
from topics.server.http.exchange import Exchange
from topics.server.http.http2 import Http2
from topics.server.http.turns import BEGIN_NS, LIGHT_MAX_BYTES, TURN_NS, Turns
from topics.server.http.upgrade import READ_MAX_BYTES
from topics.testing import ManualClock

LOOK_NS = 100_000


class Ticking:
    """A clock that every look moves on, as work does."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += LOOK_NS
        return self.now_ns


def ticking(app: PathApp) -> Connections:
    connections = connections_of(app, None, Ticking())
    connections.start()
    return connections


def loop_of(connections: Connections) -> ManualLoop:
    return cast("ManualLoop", connections._loop)


def test_a_pipeline_is_answered_in_order_over_many_turns() -> None:
    """FAIR-1: nobody has the loop for long, and nothing is lost by that."""
    app = PathApp()
    client = Client(app, connections=ticking(app))
    client.send(b"".join(request("GET", f"/{n}") for n in range(200)))
    first = len(app.handled)
    assert 1 < first < 20
    assert not client.transport.reading
    loop_of(client.connections).turn()
    assert first < len(app.handled) < 40
    loop_of(client.connections).run_until_idle()
    assert [path for _, path, _ in app.handled] == [f"/{n}" for n in range(200)]
    assert [reply.status for reply in client.replies()] == [200] * 200
    assert client.transport.reading


def test_a_request_that_came_alone_is_answered_at_once_while_others_wait_in_line() -> None:
    """FAIR-1."""
    app = PathApp()
    connections = ticking(app)
    floods = [Client(app, connections=connections) for _ in range(10)]
    for flood in floods:
        flood.send(request("GET", "/flood") * 100)
    app.handled.clear()
    bystander = Client(app, connections=connections)
    bystander.send(request("GET", "/bystander"))
    assert app.handled == [("GET", "/bystander", b"")]


def test_a_turn_is_bounded_however_many_wait() -> None:
    """FAIR-1."""
    app = PathApp()
    connections = ticking(app)
    for _ in range(50):
        Client(app, connections=connections).send(request("GET", "/flood") * 100)
    app.handled.clear()
    loop_of(connections).turn()
    assert 0 < len(app.handled) <= BEGIN_NS // LOOK_NS


def http2_request(path: str) -> bytes:
    """What a new HTTP/2 connection sends with its first request."""
    h2 = H2Connection(H2Configuration(client_side=True))
    h2.initiate_connection()
    fields = [(":method", "GET"), (":path", path), (":scheme", "http"), (":authority", "localhost")]
    h2.send_headers(1, fields, end_stream=True)
    return h2.data_to_send()


def test_many_http2_connections_that_come_at_once_begin_in_several_turns() -> None:
    """FAIR-1: a new one costs a hundred times what a request on HTTP/1.1 costs, which is answered in between."""
    app = PathApp()
    connections = connections_of(app, Http2, Ticking())
    connections.start()
    for n in range(200):
        Client(app, connections=connections).send(http2_request(f"/{n}"))
    begun = len(app.handled)
    assert 0 < begun <= BEGIN_NS // LOOK_NS
    Client(app, connections=connections).send(request("GET", "/bystander"))
    assert app.handled[begun:] == [("GET", "/bystander", b"")]
    loop_of(connections).turn()
    assert len(app.handled) <= begun + 1 + BEGIN_NS // LOOK_NS
    loop_of(connections).run_until_idle()
    paths = [path for _, path, _ in app.handled if path != "/bystander"]
    assert paths == [f"/{n}" for n in range(200)]


def test_the_line_is_served_in_order_and_each_gets_a_share() -> None:
    clock = Ticking()
    loop = ManualLoop(ManualClock())
    turns = Turns(cast("Any", loop), clock)
    served: list[int] = []

    def waiter(number: int) -> None:
        served.append(number)
        clock.now_ns += 3 * TURN_NS // 10
        turns.wait(lambda: waiter(number))

    for number in range(8):
        turns.wait(lambda number=number: waiter(number))  # type: ignore[misc]
    for _ in range(4):
        loop.turn()
    assert served[:8] == [*range(8)]
    assert len(served) <= 4 * 4


def test_a_connection_that_goes_away_while_it_waits_is_forgotten() -> None:
    app = PathApp()
    client = Client(app, connections=ticking(app))
    client.send(request("GET", "/x") * 200)
    handled = len(app.handled)
    client.lose()
    loop_of(client.connections).run_until_idle()
    assert len(app.handled) == handled
    assert not client.connections.turns


def test_a_server_that_stops_answers_what_waits_and_closes() -> None:
    app = PathApp()
    client = Client(app, connections=ticking(app))
    client.send(request("GET", "/x") * 200)
    client.connections.draining = True
    assert not client.connection.idle
    client.connection.wind_up()
    assert not client.transport.closing
    loop_of(client.connections).run_until_idle()
    assert client.ended
    assert client.replies()[-1].headers["connection"] == "close"


def test_a_large_body_reads_on_in_another_turn() -> None:
    """FAIR-1: an upload gives way to those who wait in line."""
    app = PathApp()
    connections = ticking(app)
    Client(app, connections=connections).send(request("GET", "/flood") * 100)
    client = Client(app, connections=connections)
    whole = request("POST", "/x", b"x" * 1_000_000)
    client.send(whole[:800_000])
    assert not client.transport.reading
    loop_of(connections).run_until_idle()
    assert client.transport.reading
    client.send(whole[800_000:])
    assert client.replies()[0].status == 200


def test_large_answers_are_made_one_at_a_time() -> None:
    """FAIR-1: a hundred clients that ask for a lot at the same moment hold up nobody."""

    class LargeApp(PathApp):
        def handle(self, exchange: Exchange) -> None:
            if exchange.head.path == "/parts":
                exchange.respond_parts([b"x" * 300_000])
            else:
                super().handle(exchange)

    app = LargeApp()
    connections = ticking(app)
    clients = [Client(app, connections=connections) for _ in range(100)]
    for client in clients:
        client.send(request("GET", "/parts"))
    sent = sum(bool(client.transport.sent) for client in clients)
    assert sent < 20
    bystander = Client(app, connections=connections)
    bystander.send(request("GET", "/bystander"))
    assert ("GET", "/bystander", b"") in app.handled
    clients[99].lose()
    loop_of(connections).run_until_idle()
    assert [len(client.replies()) for client in clients] == [1] * 99 + [0]
    clients[0].send(request("GET", "/again"))
    assert clients[0].replies()[0].status == 200


def test_after_work_that_took_long_the_line_rests_for_a_moment() -> None:
    """FAIR-1: a small request meets at most one large one on its way to its answer."""
    clock = Ticking()
    loop = ManualLoop(ManualClock())
    turns = Turns(cast("Any", loop), clock)
    served: list[int] = []

    def heavy(number: int) -> None:
        served.append(number)
        clock.now_ns += 10 * TURN_NS

    for number in range(3):
        turns.wait(lambda number=number: heavy(number))  # type: ignore[misc]
    seen = []
    while loop.turn():
        seen.append(len(served))
    assert served == [0, 1, 2]
    assert seen[:7] == [1, 1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize("path", ["/", "/stream", "/upgrade"])
def test_clients_that_end_at_once_are_closed_over_many_turns(path: str) -> None:
    """FAIR-1: idle connections, streams and what was upgraded; each is closed, and none in the turn that it ends in."""
    app = PathApp()
    app.upgrade_to = SimpleNamespace(connected=lambda _: asyncio.Protocol())
    connections = connections_of(app)
    clients = [Client(app, connections=connections) for _ in range(3 * DEPART_TOGETHER)]
    lines = ("Connection: Upgrade", "Upgrade: websocket") if path == "/upgrade" else ()
    for client in clients:
        client.send(request("GET", path, None, *lines))
        client.received()
    for client in clients:
        client.note_eof()
    closed = [sum(client.transport.closing for client in clients)]
    for _ in range(3):
        loop_of(connections).turn()
        closed.append(sum(client.transport.closing for client in clients))
    assert closed == [0, DEPART_TOGETHER, 2 * DEPART_TOGETHER, 3 * DEPART_TOGETHER]
    for client in clients:
        client.lose()
    loop_of(connections).run_until_idle()
    assert not connections.live


def test_the_more_connections_have_ended_the_more_go_in_a_turn() -> None:
    """FAIR-1: so that a flood of them does not grow faster than it is removed."""
    connections = connections_of(PathApp())
    gone: list[int] = []
    for i in range(2 * DEPART_TOGETHER * DEPART_TURNS):
        connections.depart(lambda i=i: gone.append(i))  # type: ignore[misc]
    loop_of(connections).turn()
    assert gone == list(range(2 * DEPART_TOGETHER))


def test_a_connection_that_cannot_be_closed_does_not_keep_the_others() -> None:
    """FAIR-1: a defect with one of those that end at once is reported, and the others are closed."""
    connections = connections_of(PathApp())
    clients = [Client(connections=connections) for _ in range(3)]

    def fail() -> None:
        raise ZeroDivisionError("a defect")

    connections.depart(fail)
    for client in clients:
        client.note_eof()
    with pytest.raises(ZeroDivisionError):
        loop_of(connections).turn()
    loop_of(connections).run_until_idle()
    assert all(client.transport.closing for client in clients)


def large_request(path: str) -> bytes:
    return request("POST", path, b"x" * (LIGHT_MAX_BYTES + 1))


@pytest.mark.parametrize("at", [0, 1], ids=["with-one-read", "with-the-last-byte"])
def test_large_requests_that_end_at_once_are_handled_in_several_turns(at: int) -> None:
    """FAIR-1: a crowd of slow clients that are all done in the same moment holds up nobody who asks for little."""
    app = PathApp()
    connections = ticking(app)
    clients = [Client(app, connections=connections) for _ in range(300)]
    for client in clients:
        # So that the head of the request is known, as it is for a client that has asked before.
        client.send(large_request("/large?5"))
        loop_of(connections).run_until_idle()
    app.handled.clear()
    if at:
        for client in clients:
            client.send(large_request("/large?5")[:-at])
            loop_of(connections).run_until_idle()
    for client in clients:
        client.send(large_request("/large?5")[-at:])
    assert 0 < len(app.handled) <= 2 * BEGIN_NS // LOOK_NS
    bystander = Client(app, connections=connections)
    bystander.send(request("GET", "/bystander"))
    assert app.handled[-1] == ("GET", "/bystander", b"")
    before = len(app.handled)
    loop_of(connections).turn()
    assert before < len(app.handled) <= before + BEGIN_NS // LOOK_NS, "those in line have as much time as the others"
    loop_of(connections).run_until_idle()
    assert [len(client.replies()) for client in clients] == [2] * 300
    assert not connections.account.total_bytes


def test_what_waits_for_its_turn_counts_and_is_not_cut_off() -> None:
    """FAIR-1, FAIR-4: what was read and not yet handled is held for a client that did nothing wrong."""
    app = PathApp()
    body = b"x" * (2 * SMALL_BYTES)
    connections = connections_of(app, None, Ticking(), buffered=60 * len(body))
    connections.start()
    clients = [Client(app, connections=connections) for _ in range(49)]
    for client in clients:
        client.send(request("POST", "/x", body))
    assert connections.account.bodies_bytes >= len(body) * (len(clients) - len(app.handled))
    connections.account.max_bytes = connections.account.bodies_bytes + 3 * len(body)
    assert connections.account.tight
    for _ in range(3):
        connections.sweep(0)
    late = [Client(app, connections=connections) for _ in range(10)]
    for client in late:
        client.send(request("POST", "/x", body))
    loop_of(connections).run_until_idle()
    assert [client.replies()[0].status for client in clients] == [200] * len(clients)
    assert {client.replies()[0].status for client in late} == {200, 429}, "there is room for some of them"
    assert not connections.account.bodies_bytes


def test_large_requests_of_one_http2_connection_that_end_at_once_are_handled_in_several_turns() -> None:
    """FAIR-1."""
    clock = Ticking()

    class SlowApp(PathApp):
        def handle(self, exchange: Exchange) -> None:
            clock.now_ns += TURN_NS
            super().handle(exchange)

    app = SlowApp()
    connections = connections_of(app, Http2, clock)
    connections.start()
    client = Client(app, connections=connections)
    h2 = H2Connection(H2Configuration(client_side=True))
    h2.initiate_connection()
    streams = range(1, 40, 2)
    for stream in streams:
        fields = [(":method", "POST"), (":path", f"/{stream}"), (":scheme", "http"), (":authority", "localhost")]
        h2.send_headers(stream, fields)
        client.send(h2.data_to_send())
        loop_of(connections).run_until_idle()
        h2.receive_data(client.received())
        h2.send_data(stream, b"x" * (LIGHT_MAX_BYTES // 2))
        h2.send_data(stream, b"x" * LIGHT_MAX_BYTES)
        client.send(h2.data_to_send())
        loop_of(connections).run_until_idle()
    assert not app.handled
    for stream in streams:
        h2.end_stream(stream)
    client.send(h2.data_to_send())
    handled = [len(app.handled)]
    while loop_of(connections).turn():
        handled.append(len(app.handled))
    assert handled[-1] == len(streams)
    most = max(after - before for before, after in zip([0, *handled], handled, strict=False))
    assert most <= 2 * BEGIN_NS // TURN_NS


def test_an_upgraded_connection_reads_a_bounded_piece_at_a_time() -> None:
    """FAIR-1: what is read on very many connections in one turn takes time before any of them can wait."""
    app = PathApp()
    received: list[bytes] = []
    protocol = SimpleNamespace(data_received=received.append, pause_writing=None, resume_writing=None)
    app.upgrade_to = SimpleNamespace(connected=lambda _: protocol)
    client = Client(app)
    client.send(request("GET", "/upgrade", None, "Connection: Upgrade", "Upgrade: websocket") + b"rest")
    assert client.transport.reading
    relay = client.transport.protocol
    room = relay.get_buffer(-1)
    assert len(room) == READ_MAX_BYTES
    for part in (b"one", b"another"):
        room[: len(part)] = part
        relay.buffer_updated(len(part))
    assert received == [b"rest", b"one", b"another"]
