"""EventStream: what every `text/event-stream` response shares, whether it carries records or jobs (WATCH-14)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Final

import msgspec

from topics.errors import NotAcceptable, Unauthorized
from topics.server.api.principal import REVOKED, Principal
from topics.server.delivery.delivery import Delivery
from topics.server.delivery.notice import event
from topics.server.delivery.subscriber import Subscriber
from topics.server.http.exchange import Exchange
from topics.server.http.stream import Stream

CONTENT_TYPE: Final = b"text/event-stream; charset=utf-8"
HEADERS: Final = (
    b"Content-Type: %b\r\nCache-Control: no-store\r\nConnection: keep-alive\r\nX-Accel-Buffering: no\r\n"
) % CONTENT_TYPE
RETRY: Final = b"retry: 2000\n\n"
ERROR: Final = b"error"
HEARTBEAT_MS_DEFAULT: Final = 15_000
UNACKED_MS_MAX: Final = 60_000
"""How long the kernel waits for a client that acknowledges nothing before it ends the connection."""

_TCP_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", None)
_encode: Final = msgspec.json.Encoder().encode


def error_event(code: int, message: str, **fields: Any) -> bytes:
    """An `error` event; it has no id."""
    return event(ERROR, _encode({"code": code, "error": message, **fields}))


def heartbeat(now_ms: int) -> bytes:
    """The comment that shows that the server is alive."""
    return b": hb %d\n\n" % now_ms


def require_event_stream(exchange: Exchange) -> None:
    """Refuse a client whose Accept header excludes text/event-stream (WATCH-5)."""
    accept = exchange.head.headers.get(b"accept")
    if accept is None or not accept.strip():
        return
    for item in accept.lower().split(b","):
        kind, *parameters = (each.strip() for each in item.split(b";"))
        refused = any(each.replace(b" ", b"") in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000") for each in parameters)
        if kind in (b"text/event-stream", b"text/*", b"*/*") and not refused:
            return
    raise NotAcceptable(
        "this address streams text/event-stream; say so in Accept", accept=accept[:200].decode("latin-1")
    )


def tune(transport: asyncio.Transport | None) -> None:
    """Send every frame at once, and notice a client that has vanished silently."""
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _TCP_USER_TIMEOUT is not None:
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, UNACKED_MS_MAX)


class EventStream(Subscriber):
    """One open SSE response."""

    __slots__ = ("_subject", "heartbeat_ms", "stream")

    def __init__(
        self, delivery: Delivery, stream: Stream, principal: Principal, heartbeat_ms: int, subject: str
    ) -> None:
        """A comment is sent when nothing else was for `heartbeat_ms`; `subject` is named in its warnings."""
        super().__init__(delivery, stream.sink, principal)
        self.stream = stream
        self.heartbeat_ms = heartbeat_ms
        self._subject = subject
        stream.on_drain = self.drained
        stream.on_close = self._closed

    def _closed(self) -> None:
        self.delivery.leave(self)

    def greet(self, opening: bytes) -> None:
        """Write the first bytes, and begin to send heartbeats."""
        tune(self.stream.sink.transport)
        self.stream.write(opening)
        self.delivery.enrol(self, self.last_ms + self.heartbeat_ms)

    def beat(self, tick_ms: int) -> int:
        """Send a heartbeat if nothing was sent for `heartbeat_ms`."""
        if tick_ms - self.last_ms >= self.heartbeat_ms:
            self.last_ms = tick_ms
            if not self.link.write_paused:
                self.stream.write(heartbeat(self.delivery.now_ms))
        return self.last_ms + self.heartbeat_ms

    def warn(self, retry_after_ms: int, topics: list[str]) -> None:
        """Report that topics are paced; the stream stays open."""
        text = f"{self._subject} throttled under CPU pressure"
        self.stream.write(error_event(429, text, retry_after_ms=retry_after_ms, topics=topics))

    def revoke(self) -> None:
        """The key was removed or changed: send a last error, and end."""
        self.finish(Unauthorized.status, REVOKED)

    def give_up(self) -> None:
        """The client does not read: send a last error, and end."""
        self.finish(408, "the client has not read from this stream for too long; reconnect to resume")

    def finish(self, code: int, message: str) -> None:
        """End the stream with an error that the client may still read."""
        self.stream.write(error_event(code, message))
        self.stream.close()
