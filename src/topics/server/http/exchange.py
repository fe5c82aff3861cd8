"""One request and its answer.

An `Exchange` is what the server hands to `App.handle` once the whole body is there. It is answered exactly once, now or
later, by `respond`, `respond_raw`, `fail`, `stream` or `upgrade`; a second answer is a defect and raises. Exchanges of
one connection may be answered in any order: the connection sends the answers in the order of the requests.

When the client goes away first, `on_disconnect` is called once, and answering afterwards is harmless. A client that has
only closed its sending side looks the same to TCP, so `on_disconnect` may still answer (an empty long-poll, say) and
that answer is sent; an exchange that `on_disconnect` leaves unanswered is given up. An exchange without `on_disconnect`
is still answered to a client that has closed its sending side. So `on_disconnect` marks an exchange that only waits,
and a server that stops does not wait with it (`hurry`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final, Protocol

from topics.errors import ShuttingDown, TopicsError
from topics.server.http import reply
from topics.server.http.head import Head
from topics.server.http.reply import GZIP_FLOOR_BYTES, GZIP_INLINE_MAX_BYTES, JSON
from topics.server.http.stream import Stream

log = logging.getLogger("topics.server")

SHUTDOWN_RETRY_AFTER_MS: Final = 1000


class Upgraded(Protocol):
    """A protocol that takes a connection over: the callbacks of `asyncio.Protocol`, and how it is told to stop."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """The transport is yours; whatever was already received follows as `data_received`."""

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""

    def eof_received(self) -> bool | None:
        """The peer closed its sending side; a true result keeps the transport open."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""

    def pause_writing(self) -> None:
        """The peer does not read what was written."""

    def resume_writing(self) -> None:
        """The peer has caught up."""

    def shut_down(self) -> None:
        """The server stops: say goodbye and close the transport."""

    def expire(self, now: float) -> None:
        """A `read_deadline` or `write_deadline` that this protocol set on its connection has passed."""


class Carrier(Protocol):
    """What carries exchanges: an HTTP/1.1 connection, or one stream of an HTTP/2 connection."""

    current: Exchange | None
    queue: deque[Exchange]
    waiting: bool
    write: Callable[[bytes], None]
    answer: Callable[[bytes], None]

    @property
    def peer(self) -> str:
        """The client's address, for logs."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that the client has not taken."""

    @property
    def write_paused(self) -> bool:
        """Whether the client is behind with reading."""

    def carry_on(self) -> None:
        """The current exchange is answered."""

    def deliver(self, exchange: Exchange, answer: bytes) -> None:
        """Send a rendered response in its turn."""

    def open_stream(self, exchange: Exchange, head: bytes) -> Stream:
        """Send the head of a response and leave its body open."""

    def hand_over(self, exchange: Exchange, protocol: Upgraded) -> None:
        """Give the transport away."""

    def close(self) -> None:
        """End once everything written is sent."""


class Exchange:
    """One request and its answer, see the module."""

    __slots__ = (
        "answer",
        "answered",
        "body",
        "closes",
        "connection",
        "head",
        "on_disconnect",
        "on_over",
        "plain",
        "started_ns",
        "throttled_ns",
    )

    head: Head
    body: bytes
    started_ns: int
    """`perf_counter_ns` when the request's first byte was dispatched."""
    connection: Carrier
    on_disconnect: Callable[[], None] | None
    """Called once if the client goes away before the answer."""
    on_over: Callable[[], None] | None
    """Called exactly once when the exchange is over: answered, turned into a stream, or its connection lost."""
    answered: bool
    answer: bytes | Stream | None
    """An answer that waits for its turn. Belongs to the connection."""
    closes: bool
    """Whether the connection ends with this answer. Belongs to the connection."""
    plain: bool
    """Whether a rendered keep-alive response can go out as it is. Belongs to the connection."""
    throttled_ns: int
    """How long the request was held back under pressure."""

    def __init__(self, connection: Carrier, head: Head, body: bytes, started_ns: int) -> None:
        self.connection = connection
        self.head = head
        self.body = body
        self.started_ns = started_ns
        self.on_disconnect = None
        self.on_over = None
        self.answered = False
        self.answer = None
        self.closes = not head.keep_alive
        self.plain = head.plain
        self.throttled_ns = 0

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the request's first byte was dispatched, rounded to microseconds."""
        return round((perf_counter_ns() - self.started_ns) / 1e6, 3)

    def respond_raw(self, response: bytes) -> None:
        """Answer with a response that is already rendered as HTTP/1.1 keep-alive (see `reply.prefix`)."""
        if self.answered:
            raise RuntimeError("the exchange is already answered")
        self.answered = True
        if not self.plain:
            response = self._fit(response)
        connection = self.connection
        if connection.current is self and not connection.queue and not self.closes:
            connection.current = None
            connection.answer(response)
            if connection.waiting:
                connection.carry_on()
        else:
            connection.deliver(self, response)
        if self.on_over is not None:
            self.over()

    def respond(self, status: int, body: bytes, content_type: bytes = JSON, headers: bytes = b"") -> None:
        """Answer; `headers` are further complete lines. Compressed if the client takes gzip and it is worth it."""
        if self.head.accepts_gzip and len(body) > GZIP_FLOOR_BYTES:
            headers += b"Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n"
            if len(body) > GZIP_INLINE_MAX_BYTES:
                self._respond_packed(status, body, content_type, headers)
                return
            body = reply.gzip(body)
        self.respond_raw(reply.render(status, body, content_type, headers))

    def _respond_packed(self, status: int, body: bytes, content_type: bytes, headers: bytes) -> None:
        """Compress in a thread, where zlib runs without the interpreter's lock, then answer."""
        if self.answered:
            raise RuntimeError("the exchange is already answered")
        self.answered = True

        def packed(future: asyncio.Future[bytes]) -> None:
            if not future.cancelled():
                self.answered = False
                self.respond_raw(reply.render(status, future.result(), content_type, headers))

        asyncio.get_running_loop().run_in_executor(None, reply.gzip, body).add_done_callback(packed)

    def fail(self, error: TopicsError) -> None:
        """Answer with the error's status and envelope."""
        body = reply.error_body(error, perf_counter_ns() - self.started_ns)
        self.respond_raw(reply.render(error.status, body, headers=reply.error_headers(error)))

    def stream(self, status: int, headers: bytes) -> Stream:
        """Answer with a body that has no end yet; the connection serves nothing else any more.

        `headers` are complete lines and name the content type. The body ends with the connection.
        """
        if self.answered:
            raise RuntimeError("the exchange is already answered")
        self.answered = True
        opened = self.connection.open_stream(self, reply.status_line(status) + headers + b"\r\n")
        self.over()
        return opened

    def upgrade(self, protocol: Upgraded) -> None:
        """Hand the transport, and whatever was received after the head, to `protocol`, which sends its own 101.

        Possible for requests whose `head.upgrade` is set: the connection dispatches them only when every earlier
        request is answered, and parses nothing behind them.
        """
        if self.answered:
            raise RuntimeError("the exchange is already answered")
        self.answered = True
        self.connection.hand_over(self, protocol)
        self.over()

    def over(self) -> None:
        """Call `on_over`, once. Belongs to the connection."""
        on_over, self.on_over = self.on_over, None
        if on_over is not None:
            on_over()

    def leave(self) -> bool:
        """Tell `on_disconnect`, once; True if it was told and still nothing is answered. Belongs to the connection."""
        on_disconnect, self.on_disconnect = self.on_disconnect, None
        if on_disconnect is None or self.answered:
            return False
        try:
            on_disconnect()
        except Exception:
            log.exception("leaving %s %r failed", self.head.method, self.head.path)
        return not self.answered

    def hurry(self) -> None:
        """The server stops: what only waits is answered with what there is, or else turned away."""
        if self.leave():
            self.fail(ShuttingDown(retry_after_ms=SHUTDOWN_RETRY_AFTER_MS))

    def abandon(self) -> None:
        """No answer can be sent any more: tell everyone who waits for the end. Belongs to the connection."""
        if isinstance(self.answer, Stream):
            self.answer.end()
        self.leave()
        try:
            self.over()
        except Exception:
            log.exception("ending %s %r failed", self.head.method, self.head.path)

    def _fit(self, response: bytes) -> bytes:
        """The response as this client must get it: HEAD, HTTP/1.0, or the last one of its connection."""
        line = reply.CLOSE if self.closes else reply.KEEP_ALIVE if self.head.version == b"1.0" else b""
        return reply.adapt(response, line, self.head.method != "HEAD")
