"""SseStream: one open `GET /v0/watch/:wid`, as text/event-stream (API §7.3 to §7.6).

Every event carries an `id` with the stream's position in every watched topic. The stream owns those positions while it
is open and hands them to its session when it ends: as far as they were written, or, where the client was behind, as far
as its socket is known to have taken them. So a client that comes back without a `Last-Event-ID` finds nothing skipped
that was still waiting here to be sent.

A comment is sent when nothing else was for `heartbeat_ms`; it has no id and moves no cursor.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics.server.delivery.composite import Position
from topics.server.delivery.part import ERROR, Part, event
from topics.server.delivery.subscriber import Feed, Subscriber

if TYPE_CHECKING:
    from topics.errors import TopicsError
    from topics.server.delivery.composite import Layout
    from topics.server.delivery.delivery import Delivery
    from topics.server.http.stream import Stream

HEADERS: Final = (
    b"Content-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-store\r\n"
    b"Connection: keep-alive\r\n"
    b"X-Accel-Buffering: no\r\n"
)
RETRY: Final = b"retry: 2000\n\n"
UNACKED_MS_MAX: Final = 60_000
"""How long the kernel waits for a client that acknowledges nothing before it ends the connection."""
_SETTLE_EVERY: Final = 8
_TCP_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", None)

_encode: Final = msgspec.json.Encoder().encode


def heartbeat(now_ms: int) -> bytes:
    """The comment that says that the server is alive."""
    return b": hb %d\n\n" % now_ms


def error_event(code: int, message: str, **fields: Any) -> bytes:
    """An `error` event; it has no id."""
    return event(ERROR, _encode({"code": code, "error": message, **fields}))


def tune(transport: Any) -> None:
    """Send every frame at once, and notice a client that has vanished without a word."""
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _TCP_USER_TIMEOUT is not None:
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, UNACKED_MS_MAX)


class SseStream(Subscriber):
    """One open stream of a watch session."""

    __slots__ = ("_alone", "_feeds", "_left", "_on_end", "_undo", "epochs", "heartbeat_ms", "layout", "stream")

    def __init__(
        self,
        delivery: Delivery,
        stream: Stream,
        layout: Layout,
        heartbeat_ms: int,
        on_end: Callable[[SseStream], None],
    ) -> None:
        super().__init__(delivery)
        self.stream = stream
        self.link = stream.sink
        self.layout = layout
        self.heartbeat_ms = heartbeat_ms
        self.epochs: dict[int, int] = {}
        """The epochs of topics, by index, that are not those the session began with."""
        self._left: dict[int, int] = {}
        self._on_end = on_end
        self._alone = len(layout.names) == 1
        self._feeds: list[Feed] = []
        self._undo: list[tuple[Feed, int]] = []
        stream.on_drain = self.drained
        stream.on_close = self._closed

    def open(self, feeds: list[Feed]) -> None:
        """Begin: these are the feeds, one per topic of the layout, in its order."""
        self._feeds = feeds
        tune(self.stream.sink.transport)
        self.stream.write(RETRY)
        self.delivery.enrol(self, self.last_ms + self.heartbeat_ms)

    def enter(self, index: int, epoch: int, began: int) -> None:
        """The next thing sent about a topic is from this epoch of it; the session began in the epoch `began`."""
        left = self.epochs.get(index, began)
        if left == epoch:
            return
        self._left[index] = left
        if epoch == began:
            del self.epochs[index]
        else:
            self.epochs[index] = epoch

    def feeds(self) -> list[Feed]:
        """The feeds of this stream."""
        return self._feeds

    def send(self, feed: Feed, part: Part) -> None:
        """Write the part as an event with the id of the position behind it."""
        undo = self._undo
        if len(undo) >= _SETTLE_EVERY and not self.stream.buffered:
            undo.clear()
            self._left.clear()
        undo.append((feed, feed.cursor))
        feed.cursor = part.cursor
        self.last_ms = self.delivery.tick_ms
        if self._alone and not self.epochs:
            frame = part.alone
            if frame is None:
                frame = part.alone = b"id: %b\n%b" % (self.layout.encode((part.cursor,), self.epochs), part.event)
        else:
            id = self.layout.encode([each.cursor for each in self._feeds], self.epochs)
            if part.shared is None:
                part.shared = {}
            frame = part.shared.get(id)
            if frame is None:
                frame = part.shared[id] = b"id: %b\n%b" % (id, part.event)
        self.stream.write(frame)

    def ended(self, feed: Feed) -> None:
        """Nothing to do: the feed keeps its place in the id."""

    def unreadable(self, feed: Feed, error: TopicsError) -> None:
        """End the stream; the session stands before what could not be read."""
        self.finish(error.status, error.message)

    def beat(self, tick_ms: int) -> int:
        """Send a heartbeat if nothing was sent for `heartbeat_ms`."""
        if tick_ms - self.last_ms >= self.heartbeat_ms:
            self.last_ms = tick_ms
            if not self.link.write_paused:
                self.stream.write(heartbeat(self.delivery.now_ms))
        return self.last_ms + self.heartbeat_ms

    def warn(self, retry_after_ms: int, topics: list[str]) -> None:
        """Say that topics are paced; the stream stays open."""
        text = "watch throttled under CPU pressure"
        self.stream.write(error_event(429, text, retry_after_ms=retry_after_ms, topics=topics))

    def give_up(self) -> None:
        """The client does not read: a last word, and the end."""
        self.finish(408, "the client has not read from this stream for too long; reconnect to resume")

    def finish(self, code: int, message: str) -> None:
        """End the stream with an error that the client may still read."""
        self.stream.write(error_event(code, message))
        self.stream.close()

    def settled(self, began: list[int]) -> list[Position]:
        """Where the client's socket is known to have come in every topic; `began` are the epochs of the session."""
        cursors = [feed.cursor for feed in self._feeds]
        epochs = self.epochs
        if self.link.write_paused or self.stream.buffered:
            for feed, cursor in reversed(self._undo):
                cursors[feed.index] = cursor
            # A seq means something in its own epoch only, so both are taken back together.
            epochs = epochs | self._left
        return [Position(cursor, epochs.get(i, began[i])) for i, cursor in enumerate(cursors)]

    def _closed(self) -> None:
        self._on_end(self)
        self.delivery.leave(self)
