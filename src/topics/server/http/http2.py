"""HTTP/2 with prior knowledge on the same port: many exchanges at a time over one connection.

`h2` speaks the protocol: frames, header compression, flow control windows, stream states; it answers bad frames with a
GOAWAY. This module gives each HTTP/2 stream a `Lane`, so that the app sees the same `Exchange` as on HTTP/1.1, and
bounds what a client can cost: the body of each request and of all together, header fields and their size, streams at a
time, streams opened only to be reset, and time (`Connections.sweep` looks at the deadlines as it does for HTTP/1.1).

Answers are sent in turns of one frame per lane, so that a long one does not hold up the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from typing import Final

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings

from topics.errors import (
    ExpectationFailed,
    HeadTooLarge,
    InvalidRequest,
    RequestTimeout,
    Throttled,
    TopicsError,
)
from topics.server.http.body import BodyLimit
from topics.server.http.connection import Connection
from topics.server.http.connections import Connections
from topics.server.http.deadlines import NEVER
from topics.server.http.exchange import as_answer
from topics.server.http.head import Head, add_field
from topics.server.http.intake import PROGRESS_BYTES
from topics.server.http.lane import Lane
from topics.server.http.upgrade import Upgraded

STREAMS_MAX: Final = 100
WINDOW_BYTES: Final = 1024 * 1024
"""How much of one request's body, and of all bodies together, may be on the way before it is read."""
HELD_BODIES: Final = 2
"""Unfinished bodies of one connection may hold this many times the limit of a single one."""
RESETS_MAX: Final = 100
"""Requests that a client may reset, beyond one for every answered one, before it is turned away."""

_METHOD: Final = re.compile(rb"[A-Z]+")
_TARGET: Final = re.compile(rb"[!-~]+")


class Http2(Upgraded):
    """The protocol of a connection that began with the HTTP/2 preface; fits `Connections(http2=Http2)`."""

    __slots__ = (
        "_answered", "_app", "_awaited", "_body_limit", "_connection", "_deadlines", "_h2", "_lanes", "_limits",
        "_mark", "_paused", "_progress", "_pumping", "_receiving", "_resets", "_sent", "_stopping", "_transport",
        "_turns",
    )  # fmt: skip

    def __init__(self, connections: Connections, connection: Connection, transport: asyncio.Transport) -> None:
        """Take the transport of `connection` over; the preface follows as data."""
        self._connection = connection
        self._deadlines = connection.deadlines
        self._transport = transport
        self._app = connections.app
        self._limits = connections.limits
        self._body_limit = BodyLimit("max_body_bytes", connections.limits.max_body_bytes)
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        # Initial values, so that the first SETTINGS frame carries them and they hold from the first byte on.
        limit = self._limits.max_header_bytes
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
                SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: limit,
            },
        )
        self._h2.decoder.max_header_list_size = limit
        self._lanes: dict[int, Lane] = {}
        self._turns: deque[Lane] = deque()
        self._paused = False
        self._pumping = False
        self._receiving = False
        self._stopping = False
        self._awaited = False
        self._answered = 0
        self._resets = 0
        self._progress = 0
        self._sent = 0
        self._mark = 0
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW_BYTES)
        self._flush()
        self._await_next()

    def data_received(self, data: bytes) -> None:
        """Frames arrived."""
        self._receiving = True
        try:
            for event in self._h2.receive_data(data):
                if self._transport.is_closing():
                    return
                self._on_event(event)
        except ProtocolError:
            # h2 has queued the GOAWAY that says why.
            self._close()
            return
        finally:
            self._receiving = False
        self.pump()
        self._await_next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Every exchange ends."""
        lanes = list(self._lanes.values())
        self._lanes.clear()
        for lane in lanes:
            lane.end()

    def pause_writing(self) -> None:
        """The client does not read: send and read nothing more until it does."""
        self._paused = True
        self._transport.pause_reading()
        self._await_next()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._paused = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self.pump()
            self._await_next()

    def shut_down(self) -> None:
        """Refuse further streams, finish those that are open, then close. Open bodies are ended.

        The GOAWAY comes last: h2 on either side lets no open stream finish after one.
        """
        self._stopping = True
        for lane in list(self._lanes.values()):
            if lane.stream is not None:
                lane.stream.close()
            elif lane.exchange is not None:
                lane.exchange.hurry()
        self._await_next()

    def expire(self, now: float) -> None:
        """A deadline has passed: the connection is idle, a body is too slow, or answers are not read."""
        if self._deadlines.write <= now:
            if self._sent - self._mark < PROGRESS_BYTES:
                self._transport.abort()
                return
            self._deadlines.write = NEVER
        if self._deadlines.read <= now:
            if not self._lanes:
                self._h2.close_connection()
                self._close()
                return
            limit = self._limits.body_timeout_ms
            for lane in [each for each in self._lanes.values() if each.receiving]:
                lane.fail(RequestTimeout("The body arrived too slowly.", limit="body_timeout_ms", max=limit))
        self._await_next()

    def send_head(self, lane: Lane, fields: list[tuple[bytes, bytes]], *, ends: bool) -> None:
        """Send the head of an answer, which may be all of it."""
        try:
            self._h2.send_headers(lane.id, fields, end_stream=ends)
        except ProtocolError:
            self._drop(lane)
            return
        if ends:
            self._finish(lane)
        self._flush()

    def pump(self, lane: Lane | None = None) -> None:
        """Send what the flow control allows, a frame per lane and turn. `lane` is one that has something to send."""
        if lane is not None and lane not in self._turns:
            self._turns.append(lane)
        if self._pumping:
            return
        self._pumping = True
        blocked: list[Lane] = []
        while self._turns and not self._paused:
            lane = self._turns.popleft()
            if lane.over:
                continue
            try:
                if not self._send_frame(lane):
                    blocked.append(lane)
                elif lane.unsent_bytes:
                    self._turns.append(lane)
            except ProtocolError:
                self._drop(lane)
            lane.drained()
            self._flush()
        self._turns.extend(blocked)
        self._pumping = False
        self._flush()
        if not self._receiving:
            self._await_next()

    def _send_frame(self, lane: Lane) -> bool:
        """Send one frame of the lane; False if its flow control allows none."""
        if lane.unsent_bytes:
            room = min(self._h2.local_flow_control_window(lane.id), self._h2.max_outbound_frame_size)
            if room <= 0:
                return False
            part = lane.next_part(room)
            ends = lane.ending and not lane.unsent_bytes
            self._h2.send_data(lane.id, part, end_stream=ends)
            self._sent += len(part)
        else:
            ends = lane.ending
            if ends:
                self._h2.end_stream(lane.id)
        if ends:
            self._finish(lane)
        return True

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.RequestReceived):
            self._begin(event)
        elif isinstance(event, events.DataReceived):
            self._receive(event)
        elif isinstance(event, events.StreamEnded):
            lane = self._lanes.get(event.stream_id)
            if lane is not None:
                lane.receiving = False
                if lane.exchange is None:
                    self._dispatch(lane)
        elif isinstance(event, events.StreamReset):
            lane = self._lanes.get(event.stream_id)
            if lane is not None:
                self._resets += 1
                self._drop(lane)
                if self._resets > RESETS_MAX + self._answered:
                    self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
                    self._close()
        elif isinstance(event, (events.WindowUpdated, events.RemoteSettingsChanged)):
            self.pump()
        elif isinstance(event, events.ConnectionTerminated):
            self._close()

    def _begin(self, event: events.RequestReceived) -> None:
        """A request's head: have it resolved before its body."""
        lane = Lane(self, event.stream_id)
        lane.receiving = event.stream_ended is None
        self._lanes[lane.id] = lane
        if self._stopping:
            self._h2.reset_stream(lane.id, ErrorCodes.REFUSED_STREAM)
            self._drop(lane)
            return
        try:
            lane.head = self._read_head([(bytes(name), bytes(value)) for name, value in event.headers])
            lane.head.chunked = lane.receiving and lane.head.content_length is None
            self._admit(lane)
        except Exception as error:
            lane.fail(as_answer(error, "resolving", lane.head))

    def _admit(self, lane: Lane) -> None:
        head = lane.head
        head.route = self._app.resolve(head)
        limit = head.body_limit or self._body_limit
        if (head.content_length or 0) > limit.max_bytes:
            raise limit.exceeded(head.content_length)
        head.require_supported()
        if b"expect" in head.headers and lane.receiving:
            if head.headers[b"expect"].lower() != b"100-continue":
                raise ExpectationFailed()
            self._h2.send_headers(lane.id, [(b":status", b"100")])

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
        lane = self._lanes.get(event.stream_id)
        limit = self._limits.max_body_bytes
        try:
            if lane is not None and lane.exchange is None:
                lane.receive(event.data, lane.head.body_limit or self._body_limit)
                if sum(each.body_bytes for each in self._lanes.values()) > HELD_BODIES * limit:
                    raise Throttled("Too many large requests at a time.", limit="max_body_bytes", max=limit)
                self._progress += len(event.data)
        except TopicsError as error:
            assert lane is not None
            lane.fail(error)
        with contextlib.suppress(StreamClosedError):
            self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)

    def _dispatch(self, lane: Lane) -> None:
        try:
            lane.dispatch(self._app.handle, lane.head.body_limit or self._body_limit)
        except Exception as error:
            lane.fail(as_answer(error, "handling", lane.head))

    def _finish(self, lane: Lane) -> None:
        """The answer is complete. A body that still arrives is not wanted."""
        self._answered += 1
        if lane.receiving:
            self._h2.reset_stream(lane.id, ErrorCodes.NO_ERROR)
        self._drop(lane)

    def _drop(self, lane: Lane) -> None:
        if self._lanes.pop(lane.id, None) is not None:
            lane.end()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _close(self) -> None:
        self._flush()
        self._connection.close()

    def _await_next(self) -> None:
        """Write down what the connection waits for now."""
        deadlines = self._deadlines
        if self._transport.is_closing():
            return
        if self._stopping and not self._lanes:
            self._h2.close_connection()
            self._close()
            return
        awaited = any(lane.receiving and lane.exchange is None for lane in self._lanes.values())
        if not awaited:
            deadlines.read = NEVER if self._lanes else deadlines.clock.idle_deadline
        elif not self._awaited or self._progress >= PROGRESS_BYTES:
            self._progress = 0
            deadlines.read = deadlines.clock.after(self._limits.body_timeout_ms)
        self._awaited = awaited
        if not self._paused and not any(lane.unsent_bytes for lane in self._lanes.values() if lane.stream is None):
            deadlines.write = NEVER
        elif deadlines.write == NEVER:
            self._mark = self._sent
            deadlines.write = deadlines.clock.after(self._limits.write_timeout_ms)
