"""HTTP/2 with prior knowledge: the same exchanges, many at a time, spoken to with h2's client side."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import defaultdict

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.connection import Client, PathApp, connections_of
from topics.errors import NotFound
from topics.server.http.account import MAX_BYTES_DEFAULT
from topics.server.http.credit import CREDIT_MAX, LIVE_RESET_EARNS, RESET_COSTS
from topics.server.http.http2 import Http2
from topics.server.http.http2_sender import UNSENT_MAX_BYTES
from topics.server.http.http2_stream import PAUSE_BYTES


class Http2Client:
    """An HTTP/2 client on a connection without a socket."""

    def __init__(self, *, window: int = 65535, buffered: int = MAX_BYTES_DEFAULT, **limits: int) -> None:
        app = PathApp()
        self.connections = connections_of(app, Http2, None, buffered, **limits)
        self.connections.sweep(0.0)
        self.client = Client(app, connections=self.connections)
        self.app = app
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="ascii"))
        self.h2.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
        self.h2.initiate_connection()
        self.status: dict[int, int] = {}
        self.headers: dict[int, dict[str, str]] = {}
        self.body: defaultdict[int, bytes] = defaultdict(bytes)
        self.ended: list[int] = []
        self.reset: dict[int, int] = {}
        self.interim: list[int] = []
        self.goaway: int | None = None
        self.acknowledge = True
        self.exchange()

    def exchange(self) -> None:
        """Send what is to be sent and take in the answers, until nothing moves."""
        while True:
            data = self.h2.data_to_send()
            if data:
                self.client.send(data)
            received = self.client.received()
            if not received and not data:
                return
            for event in self.h2.receive_data(received):
                if isinstance(event, ResponseReceived):
                    fields = dict(event.headers)
                    self.status[event.stream_id] = int(fields[":status"])
                    self.headers[event.stream_id] = fields
                elif isinstance(event, InformationalResponseReceived):
                    self.interim.append(event.stream_id)
                elif isinstance(event, DataReceived):
                    self.body[event.stream_id] += event.data
                    if self.acknowledge:
                        self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, StreamEnded):
                    self.ended.append(event.stream_id)
                elif isinstance(event, StreamReset):
                    self.reset[event.stream_id] = event.error_code
                elif isinstance(event, ConnectionTerminated):
                    self.goaway = event.error_code

    def ask(self, method: str, path: str, body: bytes | None = None, *fields: tuple[str, str], end: bool = True) -> int:
        """Send a request; its stream."""
        stream = self.h2.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "http"), (":authority", "topics.localhost"), (":path", path), *fields]
        self.h2.send_headers(stream, head, end_stream=body is None and end)
        at = 0
        while body is not None and at < len(body):
            room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            assert room > 0
            self.h2.send_data(stream, body[at : at + room], end_stream=end and at + room >= len(body))
            at += room
            self.exchange()
        self.exchange()
        return stream


def test_request_and_answer() -> None:
    client = Http2Client()
    first = client.ask("POST", "/a", b"abc", ("x-tag", "1"))
    second = client.ask("GET", "/b?x")
    assert (client.status[first], client.body[first]) == (200, b"POST /a abc")
    assert (client.status[second], client.body[second]) == (200, b"GET /b ")
    assert client.ended == [first, second]
    assert client.headers[first]["content-length"] == "11"
    assert "connection" not in client.headers[first]
    assert client.headers[first]["date"].endswith("GMT")


def test_head_says_whether_a_body_follows() -> None:
    client = Http2Client()
    client.ask("POST", "/wait1", b"abc")
    client.ask("POST", "/wait2", b"abc", ("content-length", "3"))
    client.ask("GET", "/wait3")
    heads = [exchange.head for exchange in client.app.waiting]
    assert [(head.has_body, head.content_length) for head in heads] == [(True, None), (True, 3), (False, None)]


def test_answers_come_in_any_order() -> None:
    client = Http2Client()
    streams = [client.ask("GET", f"/wait{number}") for number in range(3)]
    client.app.waiting[2].respond(200, b"third")
    client.app.waiting[0].fail(NotFound())
    client.exchange()
    assert client.ended == [streams[2], streams[0]]
    assert client.status[streams[0]] == 404
    assert client.app.over == ["/wait2", "/wait0"]


def test_head_gets_no_body_and_errors_their_envelope() -> None:
    client = Http2Client()
    head = client.ask("HEAD", "/a")
    missing = client.ask("POST", "/missing", b"x" * 200)
    bug = client.ask("GET", "/handle-bug")
    busy = client.ask("GET", "/busy")
    assert (client.body[head], client.headers[head]["content-length"]) == (b"", "8")
    assert json.loads(client.body[missing])["error"]["code"] == "not_found"
    assert client.status[bug] == 500
    assert (client.status[busy], client.headers[busy]["retry-after"]) == (429, "2")


def test_long_answers_obey_flow_control_and_take_turns() -> None:
    client = Http2Client()
    client.acknowledge = False
    first = client.ask("GET", "/large?200000")
    second = client.ask("GET", "/large?1000")
    assert len(client.body[first]) == 65535
    assert client.ended == []
    client.h2.increment_flow_control_window(100_000)
    client.exchange()
    assert client.ended == [second]
    for _ in range(3):
        client.h2.increment_flow_control_window(60_000)
        client.h2.increment_flow_control_window(60_000, first)
        client.exchange()
    assert client.ended == [second, first]
    assert client.body[first] == b"x" * 200_000


def test_large_bodies_arrive_whole_and_gzip_is_inflated() -> None:
    client = Http2Client()
    body = bytes(range(256)) * 12_000
    assert client.body[client.ask("POST", "/a", body)] == b"POST /a " + body
    packed = client.ask("POST", "/a", gzip.compress(b"hello"), ("content-encoding", "gzip"))
    assert client.body[packed] == b"POST /a hello"
    broken = client.ask("POST", "/a", b"hello", ("content-encoding", "gzip"))
    assert client.status[broken] == 400


def test_body_over_the_limit_is_413_by_its_announcement_and_by_its_bytes() -> None:
    """HTTP-18."""
    client = Http2Client(max_body_bytes=1000)
    announced = client.ask("POST", "/a", None, ("content-length", "1001"), end=False)
    counted = client.ask("POST", "/a", b"x" * 1001, end=False)
    assert (client.status[announced], client.status[counted]) == (413, 413)
    assert client.reset == {announced: ErrorCodes.NO_ERROR, counted: ErrorCodes.NO_ERROR}
    assert client.app.handled == []
    assert client.body[client.ask("POST", "/a", b"x" * 1000)].startswith(b"POST /a xxx")


def test_unfinished_bodies_are_bounded_together() -> None:
    client = Http2Client(max_body_bytes=10_000)
    streams = [client.ask("POST", "/a", b"x" * 9_000, end=False) for _ in range(3)]
    assert client.status == {streams[2]: 429}


def test_100_continue_and_other_expectations() -> None:
    client = Http2Client()
    stream = client.ask("POST", "/a", None, ("expect", "100-continue"), end=False)
    assert client.interim == [stream]
    client.h2.send_data(stream, b"abc", end_stream=True)
    client.exchange()
    assert client.body[stream] == b"POST /a abc"
    assert client.status[client.ask("POST", "/a", None, ("expect", "x"), end=False)] == 417


@pytest.mark.parametrize(
    "fields",
    [
        [("host", "another.test")],
        [("authorization", "a"), ("authorization", "b")],
        [("content-length", "x")],
    ],
)
def test_contradicting_fields_are_400(fields: list[tuple[str, str]]) -> None:
    client = Http2Client()
    client.h2.config.validate_outbound_headers = False
    assert client.status.get(client.ask("GET", "/a", None, *fields), 400) == 400
    assert client.app.handled == []


def test_too_many_fields_are_431() -> None:
    client = Http2Client(max_headers=10)
    assert client.status[client.ask("GET", "/a", None, *[(f"x-{n}", "1") for n in range(10)])] == 200
    assert client.status[client.ask("GET", "/a", None, *[(f"x-{n}", "1") for n in range(11)])] == 431


def test_bad_target_is_400_and_options_asterisk_is_taken() -> None:
    client = Http2Client()
    client.h2.config.validate_outbound_headers = False
    assert client.status[client.ask("GET", "/%zz")] == 400
    assert client.status[client.ask("GET", "http://elsewhere/")] == 200
    assert client.status[client.ask("OPTIONS", "*")] == 200


def test_oversized_head_ends_the_connection_with_goaway() -> None:
    client = Http2Client(max_header_bytes=2000)
    client.ask("GET", "/a", None, *[(f"x-{n}", "y" * 100) for n in range(30)])
    assert client.goaway == ErrorCodes.ENHANCE_YOUR_CALM
    assert client.client.ended


def test_garbage_frames_end_the_connection_with_goaway() -> None:
    client = Http2Client()
    client.client.send(b"\x00\x00\x08\x06\x00\x00\x00\x00\x01" + b"x" * 8)
    client.exchange()
    assert client.goaway == ErrorCodes.PROTOCOL_ERROR
    assert client.client.transport.closing


def test_reset_by_the_client_is_a_disconnect_of_its_exchange_alone() -> None:
    client = Http2Client()
    watched, other = client.ask("GET", "/wait-watching"), client.ask("GET", "/wait")
    client.h2.reset_stream(watched)
    client.exchange()
    assert client.app.left == ["/wait-watching"]
    for exchange in client.app.waiting:
        exchange.respond(200, b"{}")
    client.exchange()
    assert client.ended == [other]


def test_streams_opened_only_to_be_reset_are_calmed_down() -> None:
    client = Http2Client()
    allowed = CREDIT_MAX // (1 + RESET_COSTS - LIVE_RESET_EARNS)
    for _ in range(allowed - 2):
        client.h2.reset_stream(client.ask("GET", "/wait"))
        client.exchange()
    assert client.goaway is None
    while client.goaway is None and client.h2.open_outbound_streams < 1000:
        client.h2.reset_stream(client.ask("GET", "/wait"))
        client.exchange()
    assert client.goaway == ErrorCodes.ENHANCE_YOUR_CALM


def test_lost_connection_is_reported_to_every_exchange() -> None:
    client = Http2Client()
    client.ask("GET", "/wait-watching1")
    client.ask("GET", "/wait-watching2")
    client.ask("GET", "/stream")
    closed: list[int] = []
    client.app.streams[0].on_close = lambda: closed.append(1)
    client.client.lose()
    assert client.app.left == ["/wait-watching1", "/wait-watching2"]
    assert closed == [1]
    assert len(client.connections) == 0
    client.app.waiting[0].respond(200, b"late")


@pytest.mark.parametrize("beyond", [0, 1])
def test_open_body_knows_at_its_end_whether_all_of_it_was_sent(beyond: int) -> None:
    """WATCH-31: a stream that is lost with something unsent is not where it was written to."""
    client = Http2Client()
    client.acknowledge = False
    client.ask("GET", "/stream")
    (body,) = client.app.streams
    untaken: list[bool] = []
    body.on_close = lambda: untaken.append(body.untaken)
    body.write(b"x" * (65535 + beyond))
    client.exchange()
    client.client.lose()
    assert untaken == [beyond > 0]


def test_open_body_is_written_drained_and_closed() -> None:
    client = Http2Client()
    client.acknowledge = False
    stream = client.ask("GET", "/stream")
    body = client.app.streams[0]
    drained: list[int] = []
    body.on_drain = lambda: drained.append(body.buffered)
    body.write(b"data: 1\n\n")
    client.exchange()
    assert client.headers[stream]["content-type"] == "text/event-stream"
    assert client.body[stream] == b"data: 1\n\n"
    body.write(b"x" * 200_000)
    client.exchange()
    assert body.sink.write_paused
    assert body.buffered == 200_009 - 65535
    client.h2.increment_flow_control_window(1_000_000)
    client.h2.increment_flow_control_window(1_000_000, stream)
    client.exchange()
    assert drained
    assert drained[0] <= PAUSE_BYTES // 4
    assert not body.sink.write_paused
    body.close()
    client.exchange()
    assert client.ended == [stream]
    assert len(client.body[stream]) == 200_009


def test_write_backpressure_of_the_socket_stops_sending_and_reading() -> None:
    client = Http2Client(window=2**20)
    client.client.transport.protocol.pause_writing()
    assert not client.client.transport.reading
    stream = client.ask("GET", "/large?50000")
    assert client.body[stream] == b""
    client.client.transport.protocol.resume_writing()
    client.exchange()
    assert len(client.body[stream]) == 50_000


def test_client_that_opens_no_window_is_cut_off() -> None:
    client = Http2Client(write_timeout_ms=10_000)
    client.acknowledge = False
    client.ask("GET", "/large?200000")
    client.connections.sweep(10.0)
    assert not client.client.transport.closing
    client.connections.sweep(12.0)
    assert client.client.transport.aborted


def test_slow_body_is_408_and_idle_connection_is_closed() -> None:
    client = Http2Client(body_timeout_ms=5000, idle_timeout_ms=60_000)
    stream = client.ask("POST", "/a", b"x", end=False)
    client.connections.sweep(5.0)
    assert client.status == {}
    client.connections.sweep(7.0)
    client.exchange()
    assert client.status == {stream: 408}
    client.connections.sweep(65.0)
    assert client.goaway is None
    client.connections.sweep(70.0)
    client.exchange()
    assert client.goaway == ErrorCodes.NO_ERROR
    assert client.client.transport.closing


def test_waiting_exchange_has_no_deadline() -> None:
    client = Http2Client(idle_timeout_ms=1000, body_timeout_ms=1000)
    client.ask("GET", "/wait")
    client.connections.sweep(1000.0)
    assert not client.client.transport.closing


def test_shut_down_finishes_what_is_open_and_refuses_the_rest() -> None:
    client = Http2Client()
    waiting, streaming = client.ask("GET", "/wait"), client.ask("GET", "/stream")
    client.client.connection.wind_up()
    client.exchange()
    assert not client.client.transport.closing
    late = client.ask("GET", "/a")
    assert client.reset == {late: ErrorCodes.REFUSED_STREAM}
    client.app.waiting[0].respond(200, b"last")
    client.exchange()
    assert client.goaway == ErrorCodes.NO_ERROR
    assert set(client.ended) == {waiting, streaming}
    assert client.client.transport.closing


def test_shut_down_turns_away_what_only_waits() -> None:
    client = Http2Client()
    waiting = client.ask("GET", "/wait-watching")
    client.client.connection.wind_up()
    client.exchange()
    assert client.app.left == ["/wait-watching"]
    assert set(client.ended) == {waiting}
    assert client.client.transport.closing


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=3)), max_size=3), st.lists(st.integers(1, 400)))
def test_damaged_frames_are_never_an_exception_or_a_hang(damage: list[tuple[int, bytes]], sizes: list[int]) -> None:
    app = PathApp()
    connections = connections_of(app, Http2, max_body_bytes=1000)
    client = Client(app, connections=connections)
    h2 = H2Connection(H2Configuration(client_side=True))
    h2.initiate_connection()
    for number in range(5):
        stream = h2.get_next_available_stream_id()
        fields = [(":method", "POST"), (":scheme", "http"), (":authority", "t"), (":path", f"/{number}")]
        h2.send_headers(stream, fields)
        h2.send_data(stream, b"x" * 300 * number, end_stream=True)
    data = h2.data_to_send()
    preface, rest = data[:24], data[24:]
    for at, junk in damage:
        rest = rest[: at % len(rest)] + junk + rest[at % len(rest) + 1 :]
    data = preface + rest
    for size in sizes:
        client.send(data[:size])
        data = data[size:]
    client.send(data)
    client.send_eof()
    assert client.transport.closing
    client.lose()
    assert len(connections) == 0


def test_requests_wait_while_the_client_leaves_answers_unread() -> None:
    """FAIR-4: a window that is used up and many requests for large answers hold one answer, not all."""
    client = Http2Client()
    client.acknowledge = False
    size = UNSENT_MAX_BYTES + 200_000
    asked = [client.ask("GET", f"/large?{size}") for _ in range(4)]
    account = client.connections.account
    assert len(client.app.handled) == 1
    assert account.answers_bytes == size - 65_535
    for stream in asked:
        client.h2.increment_flow_control_window(4_000_000, stream)
    client.h2.increment_flow_control_window(60_000_000)
    client.exchange()
    assert sorted(client.ended) == asked
    assert account.total_bytes == 0


def test_a_large_answer_is_not_copied() -> None:
    """FAIR-1: each copy of 8 MiB is milliseconds in which nobody else is served."""
    client = Http2Client()
    client.acknowledge = False
    stream = client.ask("GET", "/wait")
    parts = [b"%d" % (i % 10) * (1 << 20) for i in range(8)]
    tracemalloc.start()
    client.app.waiting[0].respond_parts(list(parts), in_turn=True)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1 << 20
    client.h2.increment_flow_control_window(16 << 20, stream)
    client.h2.increment_flow_control_window(16 << 20)
    client.exchange()
    assert client.ended == [stream]
    assert client.body[stream] == b"".join(parts)


def test_unfinished_bodies_of_http2_streams_count_and_a_large_one_is_refused_over_the_bound() -> None:
    """FAIR-3."""
    client = Http2Client(buffered=1 << 20)
    stream = client.ask("POST", "/a", b"", end=False)
    for _ in range(40):
        if stream in client.status:
            break
        client.h2.send_data(stream, b"x" * 16_000)
        client.h2.send_data(stream, b"x" * 16_000)
        client.exchange()
    assert client.status[stream] == 429
    assert b"max_buffered_bytes" in client.body[stream]
    client.client.lose()
    assert client.connections.account.total_bytes == 0


@pytest.mark.parametrize("flood", [b"\0\0\0\4\0\0\0\0\0", b"\0\0\x08\6\0\0\0\0\x0012345678"])
def test_a_flood_is_ended_with_goaway_and_what_follows_is_thrown_away(flood: bytes) -> None:
    """FAIR-2."""
    client = Http2Client()
    client.client.send(flood * 3000)
    client.exchange()
    assert client.goaway == ErrorCodes.ENHANCE_YOUR_CALM
    assert client.client.transport.eof_sent
    assert not client.client.transport.aborted
    client.client.send(flood * 3000)
    client.connections.sweep(60.0)
    assert client.client.transport.aborted


def test_a_request_then_a_reset_after_its_answer_does_not_pay_for_itself() -> None:
    """FAIR-2: resets of what is answered already are work too."""
    client = Http2Client()
    for _ in range(1000):
        stream = client.ask("GET", "/a")
        client.client.send(b"\0\0\4\3\0" + stream.to_bytes(4) + (8).to_bytes(4))
        client.exchange()
        if client.goaway is not None:
            break
    assert client.goaway == ErrorCodes.ENHANCE_YOUR_CALM


def test_many_honest_requests_are_never_calmed_down() -> None:
    """FAIR-2."""
    client = Http2Client()
    for number in range(1500):
        assert client.status[client.ask("POST", "/a", b"{}")] == 200, number
        client.h2.ping(b"12345678")
    assert client.goaway is None
