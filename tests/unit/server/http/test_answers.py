"""The order of answers, clients that leave or do not read, deadlines, streams, upgrades and the graceful stop."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.harness.connection import Client, PathApp, connections_of, request
from topics.errors import NotFound
from topics.server.http.exchange import LARGE_ANSWER_BYTES
from topics.server.http.intake import PROGRESS_BYTES
from topics.server.http.limits import REFUSED_MAX
from topics.server.http.outbox import PIPELINE_MAX, PIPELINE_MAX_BYTES

PARTS = [b"[", b"1" * 300_000, b",", b"2" * 400_000, b"]"]


def test_a_large_answer_is_handed_over_as_it_is() -> None:
    """FAIR-1: a copy of all of it would be milliseconds in which nobody else is served."""
    client = Client()
    client.send(request("GET", "/wait") + request("GET", "/after"))
    client.app.waiting[0].respond_parts(list(PARTS))
    large, after = client.replies()
    assert large.body == b"".join(PARTS)
    assert after.body == b"GET /after "
    assert {300_000, 400_000} < set(client.transport.writes)


@pytest.mark.parametrize(("method", "version"), [("HEAD", "1.1"), ("GET", "1.0")])
def test_a_large_answer_fits_its_client(method: str, version: str) -> None:
    client = Client()
    client.send(request(method, "/wait", version=version))
    client.app.waiting[0].respond_parts(list(PARTS))
    head, _, body = client.received().partition(b"\r\n\r\n")
    assert b"Content-Length: 700003" in head
    assert body == (b"" if method == "HEAD" else b"".join(PARTS))
    assert client.ended == (version == "1.0")


def test_a_large_answer_keeps_its_place_and_counts_while_it_is_unread() -> None:
    """FAIR-5."""
    client = Client()
    client.send(request("GET", "/wait1") + request("GET", "/wait2"))
    first, second = client.app.waiting
    second.respond_parts(list(PARTS))
    assert client.received() == b""
    first.respond(200, b"1")
    assert [len(reply.body) for reply in client.replies()] == [1, 700_003]
    client.send(request("GET", "/wait3"))
    transport = client.transport
    write = transport.write

    def unread(data: bytes) -> None:
        write(data)
        transport.unsent += len(data)
        if not client.connection.outbox.write_paused:
            transport.protocol.pause_writing()

    client.connection.outbox.connect(transport)
    client.connection.outbox.write = unread
    client.app.waiting[2].respond_parts(list(PARTS))
    assert client.connections.account.answers_bytes == transport.unsent > 700_000
    transport.unsent = 0
    transport.protocol.resume_writing()
    assert client.connections.account.answers_bytes == 0
    assert [len(reply.body) for reply in client.replies()] == [700_003]


def test_answers_keep_the_order_of_the_requests_however_they_finish() -> None:
    client = Client()
    client.send(request("GET", "/wait1") + request("GET", "/wait2") + request("GET", "/c") + request("GET", "/wait3"))
    first, second, third = client.app.waiting
    third.respond(200, b"3")
    second.fail(NotFound())
    assert client.received() == b""
    first.respond(200, b"1")
    assert [(reply.status, reply.body[:7]) for reply in client.replies()] == [
        (200, b"1"),
        (404, b'{"error'),
        (200, b"GET /c "),
        (200, b"3"),
    ]
    client.send(request("GET", "/d"))
    assert client.replies()[0].body == b"GET /d "


def test_deferred_answers_of_a_repeated_head() -> None:
    client = Client()
    for number in range(5):
        client.send(request("POST", "/wait", b"%d" % number))
    for exchange in reversed(client.app.waiting):
        exchange.respond(200, exchange.body)
    assert [reply.body for reply in client.replies()] == [b"0", b"1", b"2", b"3", b"4"]
    assert client.app.over == ["/wait"] * 5


def test_outstanding_requests_are_bounded_and_reading_stops() -> None:
    client = Client()
    client.send(request("GET", "/wait") * (PIPELINE_MAX + 10))
    assert len(client.app.waiting) == PIPELINE_MAX
    assert not client.transport.reading
    client.app.waiting[0].respond(200, b"")
    assert len(client.app.waiting) == PIPELINE_MAX + 1
    for exchange in client.app.waiting:
        if not exchange.answered:
            exchange.respond(200, b"")
    assert len(client.app.waiting) == PIPELINE_MAX + 10
    assert client.transport.reading
    for exchange in client.app.waiting[-9:]:
        if not exchange.answered:
            exchange.respond(200, b"")
    assert len(client.replies()) == PIPELINE_MAX + 10


def test_bytes_held_after_an_outstanding_answer_are_bounded() -> None:
    client = Client()
    client.send(request("GET", "/wait") + request("GET", f"/large?{PIPELINE_MAX_BYTES // 2}") * 10)
    assert len(client.app.handled) == 3
    assert not client.transport.reading
    client.app.waiting[0].respond(200, b"")
    assert len(client.replies()) == 11
    assert client.transport.reading
    assert client.connection.outbox._held_bytes == 0


def test_nothing_more_is_parsed_while_the_client_does_not_read() -> None:
    client = Client()
    client.connection.pause_writing()
    assert not client.transport.reading
    client.send(request("GET", "/a") * 3)
    assert client.app.handled == []
    client.connection.resume_writing()
    assert client.transport.reading
    assert len(client.replies()) == 3


def test_client_that_never_reads_is_cut_off_and_one_that_reads_slowly_is_not() -> None:
    client = Client(write_timeout_ms=10_000)
    client.transport.unsent = 1_000_000
    client.connection.pause_writing()
    client.connections.sweep(10.5)
    assert not client.transport.closing
    client.transport.unsent -= PROGRESS_BYTES
    client.connections.sweep(11.0)
    assert not client.transport.closing
    client.connections.sweep(22.0)
    assert client.transport.aborted


def test_closing_a_client_that_never_reads_does_not_take_for_ever() -> None:
    client = Client(write_timeout_ms=10_000)
    client.transport.unsent = 1000
    client.connection.close()
    assert client.transport.closing
    assert not client.transport.aborted
    client.connections.sweep(11.0)
    assert client.transport.aborted


def test_last_answer_may_take_longer_than_lingering_while_the_client_reads_it() -> None:
    client = Client(write_timeout_ms=10_000)
    client.transport.unsent = 100_000
    client.send(request("GET", "/a", None, "Connection: close"))
    assert client.ended
    for now in (4.0, 8.0, 10.5):
        client.connections.sweep(now)
        assert not client.transport.closing
    client.transport.unsent = 50_000
    client.connections.sweep(12.0)
    assert not client.transport.closing
    client.transport.unsent = 0
    client.connections.sweep(16.0)
    assert client.transport.aborted


def test_disconnect_while_a_request_waits_is_reported_at_once_and_once() -> None:
    client = Client()
    client.send(request("GET", "/wait-watching") + request("GET", "/wait2"))
    client.lose()
    assert client.app.left == ["/wait-watching"]
    assert client.app.over == ["/wait-watching", "/wait2"]
    for exchange in client.app.waiting:
        exchange.respond(200, b"late")
    assert client.received() == b""
    assert client.app.over == ["/wait-watching", "/wait2"]
    assert len(client.connections) == 0


def test_half_closed_client_still_gets_its_answers() -> None:
    client = Client()
    client.send(request("GET", "/wait1") + request("GET", "/wait2"))
    client.send_eof()
    assert not client.transport.closing
    client.app.waiting[1].respond(200, b"2")
    client.app.waiting[0].respond(200, b"1")
    first, second = client.replies()
    assert (first.body, second.body) == (b"1", b"2")
    assert "connection" not in first.headers
    assert second.headers["connection"] == "close"
    assert client.transport.closing


def test_waiting_request_of_a_client_that_stopped_sending_may_answer_or_is_given_up() -> None:
    """A FIN may be a half-close or the end: the exchange that watches decides, at once."""
    client = Client()
    client.send(request("GET", "/wait-watching"))
    exchange = client.app.waiting[0]
    exchange.on_disconnect = lambda: exchange.respond(200, b"nothing yet")
    client.send_eof()
    assert client.replies()[0].body == b"nothing yet"
    assert client.transport.closing

    client = Client()
    client.send(request("GET", "/wait1") + request("GET", "/wait-watching") + request("GET", "/wait3"))
    client.send_eof()
    assert client.app.left == ["/wait-watching"]
    assert not client.transport.closing
    client.app.waiting[0].respond(200, b"1")
    assert [reply.body for reply in client.replies()] == [b"1"]
    assert client.transport.closing
    assert client.app.over == ["/wait-watching", "/wait3", "/wait1"]


def test_end_in_the_middle_of_a_request_is_400() -> None:
    for part in (request("GET", "/a")[:-2], request("POST", "/a", b"abc")[:-1]):
        client = Client()
        client.send(part)
        client.send_eof()
        assert client.replies()[0].status == 400
        assert client.transport.closing


def test_idle_connection_is_closed_silently() -> None:
    client = Client(idle_timeout_ms=10_000)
    for now in (0.0, 5.0):
        client.connections.sweep(now)
        client.send(request("GET", "/a"))
    client.replies()
    client.connections.sweep(14.9)
    assert not client.transport.closing
    client.connections.sweep(16.0)
    assert client.transport.closing
    assert client.received() == b""


def test_waiting_request_is_not_idle() -> None:
    client = Client(idle_timeout_ms=1000)
    for _ in range(2):
        client.send(request("GET", "/wait"))
        client.connections.sweep(100.0)
        assert not client.transport.closing
        client.app.waiting.pop().respond(200, b"")
        client.connections.sweep(101.0)
        assert not client.transport.closing
    client.connections.sweep(103.0)
    assert client.transport.closing


def test_slow_head_is_408() -> None:
    client = Client(header_timeout_ms=5000)
    data = request("GET", "/a")
    for second in range(6):
        client.send(data[second : second + 1])
        client.connections.sweep(float(second))
    assert client.received() == b""
    client.connections.sweep(6.0)
    (reply,) = client.replies()
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (408, "request_timeout")
    assert reply.headers["connection"] == "close"
    assert client.ended


def test_slow_body_is_408_and_a_steady_one_is_not() -> None:
    client = Client(body_timeout_ms=5000)
    client.send(request("POST", "/a", b"x" * PROGRESS_BYTES * 3)[: -PROGRESS_BYTES * 3])
    for now in (3.0, 6.0):
        client.connections.sweep(now - 1)
        client.send(b"x" * PROGRESS_BYTES)
        client.connections.sweep(now)
    client.send(b"x")
    client.connections.sweep(10.9)
    assert client.received() == b""
    client.connections.sweep(11.0)
    assert client.replies()[0].status == 408
    assert client.app.handled == []


def test_slow_request_after_a_waiting_one_is_408_in_its_turn() -> None:
    client = Client(header_timeout_ms=5000)
    client.send(request("GET", "/wait") + b"GET")
    for now in (7.0, 8.0, 30.0):
        client.connections.sweep(now)
    assert client.received() == b""
    assert not client.transport.closing
    client.app.waiting[0].respond(200, b"")
    assert [reply.status for reply in client.replies()] == [200, 408]
    assert client.ended


def test_connection_over_the_cap_is_429_and_the_cap_frees_itself() -> None:
    """CONN-15: a cap is 429 with `detail.limit` and `detail.max`, and frees its slot when the connection ends."""
    connections = connections_of(max_connections=2)
    first, _second, third = (Client(connections=connections) for _ in range(3))
    (reply,) = third.replies()
    assert (reply.status, reply.headers["retry-after"], reply.headers["connection"]) == (429, "1", "close")
    assert json.loads(reply.body)["error"]["detail"] == {"limit": "max_connections", "max": 2}
    assert len(connections) == 2
    first.lose()
    fourth = Client(connections=connections)
    assert fourth.received() == b""
    third.lose()
    assert len(connections) == 2


def test_connections_far_over_the_cap_are_cut() -> None:
    connections = connections_of(max_connections=1)
    clients = [Client(connections=connections) for _ in range(REFUSED_MAX + 2)]
    assert not clients[-2].transport.aborted
    assert clients[-1].transport.aborted
    for client in clients:
        client.lose()
    assert len(connections) == 0
    assert Client(connections=connections).received() == b""


@pytest.mark.parametrize("path", ["/missing", "/parts?10", f"/parts?{LARGE_ANSWER_BYTES}", "/a"])
def test_the_date_of_an_answer_is_that_of_its_second(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where answers share what is rendered of their heads."""
    connections = connections_of(PathApp())
    for time_s, year in ((0.0, "1970"), (1e9, "2001")):
        monkeypatch.setattr("time.time", lambda time_s=time_s: time_s)
        connections.sweep(time_s)
        client = Client(connections=connections)
        client.send(request("GET", path))
        assert year in client.replies()[0].headers["date"]


def test_large_answer_among_others_of_one_read_is_not_copied() -> None:
    """FAIR-1: what was gathered before it is sent first, and its parts go to the transport as they are."""
    client = Client()
    client.send(request("GET", "/a") + request("GET", f"/parts?{LARGE_ANSWER_BYTES}") + request("GET", "/b"))
    assert [len(reply.body) for reply in client.replies()] == [7, LARGE_ANSWER_BYTES + 2, 7]
    assert LARGE_ANSWER_BYTES in client.transport.writes


def test_stream_writes_until_it_is_closed_and_reads_nothing_more() -> None:
    client = Client()
    client.send(request("GET", "/stream") + request("GET", "/a"))
    (stream,) = client.app.streams
    stream.write(b"data: 1\n\n")
    head, _, body = client.received().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nDate: ")
    assert b"Content-Type: text/event-stream" in head
    assert b"Content-Length" not in head
    assert body == b"data: 1\n\n"
    client.send(request("GET", "/a"))
    closed: list[bool] = []
    stream.on_close = lambda: closed.append(True)
    stream.close()
    stream.close()
    stream.write(b"lost")
    assert client.transport.closing
    client.lose()
    assert closed == [True]
    assert client.received() == b""
    assert client.app.handled == [("GET", "/stream", b"")]


def test_stream_waits_for_earlier_answers() -> None:
    client = Client()
    client.send(request("GET", "/wait") + request("GET", "/stream"))
    (stream,) = client.app.streams
    stream.write(b"data: 1\n\n")
    assert client.received() == b""
    assert stream.buffered > len(b"data: 1\n\n")
    client.app.waiting[0].respond(200, b"{}")
    sent = client.received()
    assert sent.index(b"{}") < sent.index(b"text/event-stream") < sent.index(b"data: 1\n\n")
    assert stream.buffered == 0


def test_stream_sees_backpressure_and_its_end() -> None:
    client = Client(write_timeout_ms=1000, idle_timeout_ms=1000)
    client.send(request("GET", "/stream"))
    (stream,) = client.app.streams
    events: list[str] = []
    stream.on_drain = lambda: events.append("drain")
    stream.on_close = lambda: events.append("close")
    client.transport.unsent = 100
    client.connection.pause_writing()
    assert (stream.sink.write_paused, stream.buffered) == (True, 100)
    assert client.transport.reading
    client.connections.sweep(1000.0)
    assert not client.transport.closing
    client.connection.resume_writing()
    assert not stream.sink.write_paused
    client.send_eof()
    client.lose()
    assert events == ["drain", "close"]


def test_stream_of_a_repeated_head_has_no_idle_deadline() -> None:
    client = Client(idle_timeout_ms=1000)
    client.send(request("GET", "/wait"), request("GET", "/wait"))
    client.app.waiting[0].respond(200, b"{}")
    client.app.handle = lambda exchange: exchange.stream(200, b"")
    client.app.waiting[1].respond(200, b"{}")
    client.send(request("GET", "/wait"))
    client.connections.sweep(1000.0)
    assert not client.transport.closing


def test_stream_that_opens_late_gives_up_what_was_asked_after_it() -> None:
    client = Client()
    client.send(request("GET", "/wait") + request("GET", "/wait-watching2"))
    stream = client.app.waiting[0].stream(200, b"")
    stream.write(b"x")
    assert client.app.left == ["/wait-watching2"]
    client.app.waiting[1].respond(200, b"late")
    assert client.received().endswith(b"\r\n\r\nx")


class EchoProtocol:
    """Takes a connection over and records what happens to it."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def connected(self, transport: asyncio.Transport) -> EchoProtocol:
        self.transport = transport
        transport.write(b"101")
        return self

    def data_received(self, data: bytes) -> None:
        self.events.append(data)

    def eof_received(self) -> bool | None:
        self.events.append("eof")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def shut_down(self) -> None:
        self.events.append("shut down")
        self.transport.close()

    def expire(self, now: float) -> None:
        self.events.append("expired")


UPGRADE = request("GET", "/upgrade", None, "Connection: keep-alive, Upgrade", "Upgrade: WebSocket")


def test_upgrade_hands_over_the_transport_and_what_was_received() -> None:
    client = Client()
    client.app.upgrade_to = protocol = EchoProtocol()
    client.send(UPGRADE + b"\x81frame")
    client.send(b"more")
    assert client.received() == b"101"
    assert protocol.events == [b"\x81frame", b"more"]
    assert len(client.connections) == 1
    client.connections.sweep(10_000.0)
    assert not client.transport.closing
    client.send_eof()
    client.lose()
    assert protocol.events[2:] == ["eof", "lost"]
    assert len(client.connections) == 0


def test_upgrade_waits_for_earlier_answers() -> None:
    client = Client()
    client.app.upgrade_to = protocol = EchoProtocol()
    client.send(request("GET", "/wait") + UPGRADE, b"\x81")
    assert protocol.events == []
    client.app.waiting[0].respond(200, b"{}")
    assert client.received().endswith(b"{}101")
    assert protocol.events == [b"\x81"]


def test_upgrade_that_is_answered_like_any_request_leaves_the_connection_as_it_is() -> None:
    client = Client()
    data = UPGRADE.replace(b"/upgrade", b"/wait")
    client.send(data + request("GET", "/b"))
    assert len(client.app.handled) == 1
    client.app.waiting[0].respond(400, b"{}")
    assert [reply.status for reply in client.replies()] == [400, 200]


def test_http2_preface_goes_to_the_http2_protocol_and_only_as_the_first_bytes() -> None:
    protocol = EchoProtocol()
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    connections = connections_of(http2=lambda connections, connection, transport: protocol.connected(transport))
    client = Client(connections=connections)
    client.send(preface[:3], preface[3:] + b"frames", b"more")
    assert protocol.events == [preface + b"frames", b"more"]
    client = Client(connections=connections)
    client.send(request("GET", "/a"), preface)
    assert [reply.status for reply in client.replies()] == [200, 400]
    client = Client(connections=connections)
    client.send(b"P", request("POST", "/a", b"x")[1:])
    assert client.replies()[0].body == b"POST /a x"


def test_drain_lets_busy_connections_finish_and_keeps_idle_ones_until_then() -> None:
    connections = connections_of()
    idle, known, waiting, sending, streaming, upgraded = (
        Client(connections.app, connections=connections) for _ in range(6)
    )
    app = connections.app
    assert isinstance(app, PathApp)
    app.upgrade_to = EchoProtocol()
    for client in (known, waiting, sending):
        client.send(request("GET", "/a"))
        client.replies()
    waiting.send(request("GET", "/wait1") + request("GET", "/wait2"))
    sending.send(request("POST", "/a", b"abc")[:-1])
    streaming.send(request("GET", "/stream"))
    upgraded.send(UPGRADE)

    async def stop() -> bool:
        draining = asyncio.ensure_future(connections.drain(5))
        await asyncio.sleep(0)
        assert not idle.transport.closing
        idle.send(request("GET", "/b"))
        known.send(request("GET", "/a"))
        assert streaming.transport.closing
        assert app.upgrade_to.events == ["shut down"]
        app.waiting[0].respond(200, b"1")
        app.waiting[1].respond(200, b"2")
        sending.send(b"c" + request("GET", "/b"))
        assert not draining.done()
        for client in (idle, known, waiting, sending, streaming, upgraded):
            client.lose()
        return await draining

    assert asyncio.run(stop()) is True
    first, second = waiting.replies()
    assert "connection" not in first.headers
    assert second.headers["connection"] == "close"
    for client in (idle, known):
        (asked,) = client.replies()
        assert asked.headers["connection"] == "close"
    (last,) = sending.replies()
    assert (last.body, last.headers["connection"]) == (b"POST /a abc", "close")
    assert waiting.ended
    assert sending.ended


def test_drain_does_not_wait_for_requests_that_only_wait() -> None:
    """CONN-13: a long-poll is answered with what there is, anything else that waits for news is turned away."""
    connections = connections_of()
    poll, claim = (Client(connections.app, connections=connections) for _ in range(2))
    app = connections.app
    assert isinstance(app, PathApp)
    poll.send(request("GET", "/wait-watching1"))
    claim.send(request("GET", "/wait-watching2"))
    app.waiting[0].on_disconnect = lambda: app.waiting[0].respond(200, b"nothing new")

    async def stop() -> bool:
        draining = asyncio.ensure_future(connections.drain(5))
        await asyncio.sleep(0)
        assert poll.ended
        assert claim.ended
        for client in (poll, claim):
            client.lose()
        return await draining

    assert asyncio.run(stop()) is True
    (answered,), (refused,) = poll.replies(), claim.replies()
    assert (answered.status, answered.body, answered.headers["connection"]) == (200, b"nothing new", "close")
    assert (refused.status, refused.headers["retry-after"], refused.headers["connection"]) == (503, "1", "close")
    assert json.loads(refused.body)["error"]["code"] == "shutting_down"
    assert app.left == ["/wait-watching2"]


def test_drain_cuts_off_what_does_not_finish() -> None:
    connections = connections_of()
    client = Client(connections=connections)
    client.send(request("GET", "/wait"))
    assert asyncio.run(connections.drain(0.01)) is False
    assert client.transport.aborted


@pytest.mark.parametrize("close", [False, True])
def test_rendered_response_is_fitted_to_the_client(close: bool) -> None:
    client = Client()
    client.send(request("GET", "/wait", None, *(["Connection: close"] if close else [])))
    client.app.waiting[0].respond_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    (reply,) = client.replies()
    assert reply.headers.get("connection") == ("close" if close else None)
    assert reply.body == b"ok"


def test_pipelined_answers_go_out_together_and_are_bounded() -> None:
    client = Client()
    client.send(request("GET", "/a") * 50)
    assert len(client.transport.writes) == 1
    client.send(request("GET", "/large?60000") * 10)
    assert max(client.transport.writes) < 200_000
    assert len(client.replies()) == 60


def test_answer_that_waits_for_its_turn_goes_out_before_the_connection_ends() -> None:
    """CONN-10: a request that was taken is answered, whether the client stops sending or the server closes first."""
    client = Client()
    client.send(request("POST", "/a", b"1"), request("POST", "/a", b"2"))
    assert [reply.body for reply in client.replies()] == [b"POST /a 1", b"POST /a 2"]
    client.send(request("POST", "/a", b"3"))
    client.send_eof()
    assert [reply.body for reply in client.replies()] == [b"POST /a 3"]
    client = Client()
    client.send(request("POST", "/a", b"1"), request("POST", "/a", b"2"))
    client.connection.close()
    assert [reply.body for reply in client.replies()] == [b"POST /a 1", b"POST /a 2"]
    assert client.ended


def test_answers_of_one_turn_go_out_together_and_a_lost_connection_gets_none() -> None:
    """CONN-14: what many connections asked is answered after the last of them."""
    connections = Client().connections
    clients = [Client(connections.app, connections=connections) for _ in range(3)]
    for client in clients:
        client.send(request("POST", "/a", b"1"))
        client.received()
    for client in clients:
        client.send(request("POST", "/a", b"2"))
        assert not client.transport.sent.endswith(b"2")
    clients[1].lose()
    assert [len(client.replies()) for client in clients] == [1, 0, 1]
