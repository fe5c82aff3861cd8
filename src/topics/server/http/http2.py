"""HTTP/2 with prior knowledge on the same port: many exchanges at a time over one connection.

`h2` speaks the protocol: frames, header compression, flow control windows, stream states; it answers bad frames with a
GOAWAY. This module makes an `Http2Stream` of each stream, so that the app sees the same `Exchange` as on HTTP/1.1, and
bounds what a client can cost: the body of each request and of all together, header fields and their size, streams at a
time, streams opened only to be reset, and time (`Connections.sweep` looks at the deadlines as it does for HTTP/1.1).

Answers are sent in turns of one frame per stream, so that a long one does not hold up the others.

Rules:

1. What was read is given to h2 in pieces of a few frames, each paid for first (`credit.py`). A client without credit
   gets a GOAWAY with ENHANCE_YOUR_CALM; what it still sends is thrown away for a while, since closing at once would
   destroy the GOAWAY too.
2. The first piece of a read is looked at when it comes, unless very many come at once. What follows, and answers that
   are long, share a turn of the loop with all other connections (`Turns`); nothing is read while something waits.
3. While more than a bound of answers waits for the client, further requests wait unanswered. So do those with large
   bodies that are complete in a turn that has handled enough of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Callable
from typing import Final

from h2 import events
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, StreamClosedError

from topics.errors import (
    ExpectationFailed,
    HeadTooLarge,
    InvalidRequest,
    RequestTimeout,
    Throttled,
    TopicsError,
)
from topics.server.http.account import SMALL_BYTES
from topics.server.http.body import BodyLimit
from topics.server.http.connection import LINGER_MAX_BYTES, LINGER_MS, Connection
from topics.server.http.connections import Connections
from topics.server.http.credit import LIVE_RESET_EARNS, Credit, FrameMeter, Overdrawn
from topics.server.http.deadlines import NEVER
from topics.server.http.exchange import as_answer
from topics.server.http.head import Head, add_field
from topics.server.http.http2_sender import Http2Sender, protocol
from topics.server.http.http2_stream import Http2Stream
from topics.server.http.intake import PROGRESS_BYTES
from topics.server.http.turns import LIGHT_MAX_BYTES, Place
from topics.server.http.upgrade import READ_MAX_BYTES, Upgraded

HELD_BODIES: Final = 2
"""Unfinished bodies of one connection may hold this many times the limit of a single one."""

_METHOD: Final = re.compile(rb"[A-Z]+")
_TARGET: Final = re.compile(rb"[!-~]+")


class Http2(Upgraded):
    """The protocol of a connection that began with the HTTP/2 preface; fits `Connections(http2=Http2)`."""

    __slots__ = (
        "_account", "_app", "_at", "_awaited", "_body_limit", "_connection", "_credit", "_deadlines", "_h2", "_limits",
        "_linger_left", "_mark", "_meter", "_place", "_progress", "_reading", "_receiving", "_sender", "_stopping",
        "_traffic", "_transport", "_unread", "_waiting",
    )  # fmt: skip

    def __init__(self, connections: Connections, connection: Connection, transport: asyncio.Transport) -> None:
        """Take the transport of `connection` over; the preface follows as data."""
        self._connection = connection
        self._deadlines = connection.deadlines
        self._transport = transport
        self._app = connections.app
        self._limits = connections.limits
        self._body_limit = BodyLimit("max_body_bytes", connections.limits.max_body_bytes)
        self._place = Place(connections.turns, self._go_on)
        self._account = connections.account
        self._h2 = protocol(self._limits.max_header_bytes)
        self._credit = Credit(connections.turns.clock_ns)
        self._meter = FrameMeter(self._credit, self._limits.max_header_bytes)
        self._sender = Http2Sender(
            self._h2, transport, self._credit, connection.hold, connections.turns, self._place, self._when_pumped
        )
        self._unread = b""
        self._at = 0
        self._reading = True
        self._linger_left = -1
        # Complete requests that wait until there is less to send, or for their turn.
        self._waiting: deque[Http2Stream] = deque()
        self._receiving = False
        self._stopping = False
        self._awaited = False
        self._progress = 0
        self._mark = 0
        self._traffic = connections.traffic
        self._traffic.http2 += 1
        self._sender.flush()
        self._await_next()

    def data_received(self, data: bytes) -> None:
        """Frames arrived."""
        if self._linger_left >= 0:
            self._linger_left -= len(data)
            if self._linger_left < 0:
                self._transport.abort()
            return
        self._unread = self._unread[self._at :] + data if self._at < len(self._unread) else data
        self._at = 0
        if self._place.may_begin():
            self._take()
        else:
            self._set_reading()

    def _go_on(self) -> None:
        """It is this connection's turn."""
        if self._linger_left < 0 and not self._transport.is_closing():
            self._take()

    def _take(self) -> None:
        """Look at what was read, piece by piece, until it ends, has to wait, or the time is up (rules 1 and 2)."""
        self._receiving = True
        try:
            while self._at < len(self._unread) and not self._sender.paused:
                begin, self._at = self._at, self._meter.piece(self._unread, self._at)
                for event in self._h2.receive_data(self._unread[begin : self._at]):
                    self._on_event(event)
                    if self._transport.is_closing():
                        return
                self._sender.flush()
                if self._at < len(self._unread) and self._place.give_way():
                    break
            if self._at == len(self._unread):
                if len(self._unread) >= READ_MAX_BYTES:
                    self._place.give_way()
                self._unread = b""
                self._at = 0
        except ProtocolError:
            # h2 has queued the GOAWAY that says why.
            self._close()
            return
        except Overdrawn:
            self._calm_down()
            return
        finally:
            self._receiving = False
        self._sender.pump()
        self._await_next()
        self._set_reading()

    def _set_reading(self) -> None:
        """Read from the socket exactly while what is read has somewhere to go."""
        reading = self._linger_left >= 0 or not (self._sender.paused or self._place.waits)
        if reading != self._reading and not self._transport.is_closing():
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _calm_down(self) -> None:
        """The client only makes work: say so, and close once it had the time to read that."""
        self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
        self._sender.flush()
        self._sender.end()
        if self._transport.is_closing():
            return
        self._linger_left = LINGER_MAX_BYTES
        self._unread = b""
        self._at = 0
        self._sender.paused = False
        self._set_reading()
        self._deadlines.clear()
        self._deadlines.read = self._deadlines.clock.after(LINGER_MS)
        self._transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """Every exchange ends."""
        self._traffic.http2 -= 1
        self._waiting.clear()
        self._sender.end()
        self._place.leave()
        # What knows itself would wait for the garbage collector, and h2 does.
        vars(self._h2).clear()

    def pause_writing(self) -> None:
        """The client does not read: send and read nothing more until it does."""
        if self._linger_left < 0:
            self._sender.paused = True
            self._set_reading()
            self._await_next()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._sender.paused = False
        if self._linger_left < 0 and not self._transport.is_closing():
            self._sender.pump()
            self._await_next()
            if self._at < len(self._unread):
                self._place.wait()
            self._set_reading()

    def shut_down(self) -> None:
        """Refuse further streams, finish those that are open, then close. Open bodies are ended.

        The GOAWAY comes last: h2 on either side lets no open stream finish after one.
        """
        self._stopping = True
        if self._linger_left >= 0:
            self._transport.abort()
            return
        for stream in list(self._sender.streams.values()):
            if stream.open_body is not None:
                stream.open_body.close()
            elif stream.exchange is not None:
                stream.exchange.hurry()
        self._await_next()

    def revoke(self, is_revoked: Callable[[Head], bool], error: TopicsError) -> None:
        """Keys have changed: turn away the requests that wait, or whose body arrives, with a revoked one."""
        for stream in [each for each in self._sender.streams.values() if is_revoked(each.head)]:
            if stream.exchange is None:
                stream.fail(error)
            elif stream.open_body is None:
                stream.exchange.turn_away(error)

    def expire(self, now: float) -> None:
        """A deadline has passed: the connection is idle, a body is too slow, or answers are not read."""
        if self._linger_left >= 0:
            self._transport.abort()
            return
        if self._deadlines.write <= now:
            if self._sender.sent_bytes - self._mark < PROGRESS_BYTES:
                self._transport.abort()
                return
            self._deadlines.write = NEVER
        if self._deadlines.read <= now:
            if not self._sender.streams:
                self._h2.close_connection()
                self._close()
                return
            limit = self._limits.body_timeout_ms
            for stream in [each for each in self._sender.streams.values() if each.receiving]:
                stream.fail(RequestTimeout("The body arrived too slowly.", limit="body_timeout_ms", max=limit))
        self._await_next()

    def _when_pumped(self) -> None:
        """What could be sent is sent."""
        if not self._receiving and self._linger_left < 0:
            self._serve_waiting()
            self._await_next()
            self._set_reading()

    def _serve_waiting(self) -> None:
        """Have requests handled that had to wait (rule 3)."""
        if not self._waiting:
            return
        # Each answer would otherwise come back here by itself.
        self._receiving = True
        while self._waiting and not (self._sender.clogged or self._place.waits):
            stream = self._waiting.popleft()
            if not stream.over:
                self._handle(stream)
            self._place.give_way()
        self._receiving = False

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.RequestReceived):
            self._begin(event)
        elif isinstance(event, events.DataReceived):
            self._receive(event)
        elif isinstance(event, events.StreamEnded):
            stream = self._sender.streams.get(event.stream_id)
            if stream is not None:
                stream.receiving = False
                if stream.exchange is None:
                    self._dispatch(stream)
        elif isinstance(event, events.StreamReset):
            stream = self._sender.streams.get(event.stream_id)
            if stream is not None:
                self._credit.earn(LIVE_RESET_EARNS)
                self._sender.drop(stream)
        elif isinstance(event, (events.WindowUpdated, events.RemoteSettingsChanged)):
            self._sender.pump()
        elif isinstance(event, events.ConnectionTerminated):
            self._close()

    def _begin(self, event: events.RequestReceived) -> None:
        """A request's head: have it resolved before its body."""
        stream = Http2Stream(self._sender, event.stream_id)
        stream.receiving = event.stream_ended is None
        self._sender.streams[stream.id] = stream
        if self._stopping:
            self._h2.reset_stream(stream.id, ErrorCodes.REFUSED_STREAM)
            self._sender.drop(stream)
            return
        try:
            stream.head = self._read_head([(bytes(name), bytes(value)) for name, value in event.headers])
            stream.head.chunked = stream.receiving and stream.head.content_length is None
            self._admit(stream)
        except Exception as error:
            stream.fail(as_answer(error, "resolving", stream.head))
            # It knows this frame, and with it the stream.
            error.__traceback__ = None

    def _admit(self, stream: Http2Stream) -> None:
        head = stream.head
        head.route = self._app.resolve(head)
        limit = head.body_limit or self._body_limit
        if (head.content_length or 0) > limit.max_bytes:
            raise limit.exceeded(head.content_length)
        head.require_supported()
        if b"expect" in head.headers and stream.receiving:
            if head.headers[b"expect"].lower() != b"100-continue":
                raise ExpectationFailed()
            self._h2.send_headers(stream.id, [(b":status", b"100")])

    def _read_head(self, fields: list[tuple[bytes, bytes]]) -> Head:
        headers: dict[bytes, bytes] = {}
        for name, value in fields:
            add_field(headers, name, value)
        method, target = headers.pop(b":method", b""), headers.pop(b":path", b"")
        headers.pop(b":scheme", None)
        authority = headers.pop(b":authority", headers.get(b"host", b""))
        if headers.setdefault(b"host", authority) != authority:
            raise InvalidRequest("The Host header contradicts the :authority.", header="host")
        limit = self._limits.max_headers
        if sum(not name.startswith(b":") for name, _ in fields) > limit:
            raise HeadTooLarge(f"More than {limit} header fields.", limit="max_headers", max=limit)
        if _METHOD.fullmatch(method) is None or _TARGET.fullmatch(target) is None or method == b"CONNECT":
            raise InvalidRequest("The method or the target is malformed.")
        return Head(method.decode(), target, headers, b"2")

    def _receive(self, event: events.DataReceived) -> None:
        stream = self._sender.streams.get(event.stream_id)
        limit = self._limits.max_body_bytes
        try:
            if stream is not None and stream.exchange is None:
                stream.receive(event.data, stream.head.body_limit or self._body_limit)
                if self._sender.held_bytes > HELD_BODIES * limit:
                    raise Throttled("Too many large requests at a time.", limit="max_body_bytes", max=limit)
                if self._account.full and stream.held_bytes > SMALL_BYTES:
                    raise self._account.refusal()
                self._progress += len(event.data)
        except TopicsError as error:
            assert stream is not None
            stream.fail(error)
        with contextlib.suppress(StreamClosedError):
            self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)

    def _dispatch(self, stream: Http2Stream) -> None:
        """The request is complete."""
        large = stream.held_bytes > LIGHT_MAX_BYTES
        if self._sender.clogged or self._waiting or (large and self._place.give_way()):
            self._waiting.append(stream)
        else:
            self._handle(stream)

    def _handle(self, stream: Http2Stream) -> None:
        try:
            stream.dispatch(stream.head.body_limit or self._body_limit)
        except Exception as error:
            stream.fail(as_answer(error, "handling", stream.head))
            error.__traceback__ = None

    def _close(self) -> None:
        self._sender.flush()
        self._connection.close()

    def _await_next(self) -> None:
        """Write down what the connection waits for now."""
        deadlines = self._deadlines
        if self._transport.is_closing():
            return
        if self._stopping and not self._sender.streams:
            self._h2.close_connection()
            self._close()
            return
        awaited = any(stream.receiving and stream.exchange is None for stream in self._sender.streams.values())
        if not awaited:
            deadlines.read = NEVER if self._sender.streams else deadlines.clock.idle_deadline
        elif not self._awaited or self._progress >= PROGRESS_BYTES:
            self._progress = 0
            deadlines.read = deadlines.clock.after(self._limits.body_timeout_ms)
        self._awaited = awaited
        if not self._sender.paused and not any(
            stream.unsent_bytes for stream in self._sender.streams.values() if stream.open_body is None
        ):
            deadlines.write = NEVER
        elif deadlines.write == NEVER:
            self._mark = self._sender.sent_bytes
            deadlines.write = deadlines.clock.after(self._limits.write_timeout_ms)
