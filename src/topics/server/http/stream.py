"""An answer without an end: the body of an SSE response.

A `Stream` owns its connection's sending side until it is closed. It never blocks and never drops: `write` queues, and
`buffered` tells how much the peer has not taken yet, so that the caller can decide to coalesce, skip or give up. While
`paused`, the transport is above its high-water mark; `on_drain` is called when it has fallen below the low one.
`on_close` is called once, however the stream ends, also by `close`. When the server stops, `on_shutdown` is called if
set (write a last frame, then `close`), otherwise the stream is closed.

Frames written while earlier pipelined answers are still outstanding wait here for their turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics.server.http.exchange import Carrier


class Stream:
    """The open body of a response."""

    __slots__ = ("closed", "connection", "early", "on_close", "on_drain", "on_shutdown")

    closed: bool
    on_drain: Callable[[], None] | None
    on_close: Callable[[], None] | None
    on_shutdown: Callable[[], None] | None

    def __init__(self, connection: Carrier, head: bytes) -> None:
        self.connection = connection
        self.closed = False
        self.on_drain = None
        self.on_close = None
        self.on_shutdown = None
        self.early: list[bytes] | None = [head]

    def write(self, data: bytes) -> None:
        """Queue bytes of the body. Ignored once the stream is closed."""
        if self.early is not None:
            self.early.append(data)
        elif not self.closed:
            self.connection.write(data)

    @property
    def buffered(self) -> int:
        """Bytes that were written and that the peer's socket has not taken."""
        if self.early is not None:
            return sum(map(len, self.early))
        return 0 if self.closed else self.connection.unsent_bytes

    @property
    def paused(self) -> bool:
        """Whether the peer is behind: more is buffered than the transport's high-water mark."""
        return self.connection.write_paused

    def close(self) -> None:
        """End the body, and with it the connection, once everything written is sent."""
        if not self.closed:
            self.end()
            self.connection.close()

    def activate(self) -> None:
        """Every earlier answer is sent: send what has gathered. Belongs to the connection."""
        early, self.early = self.early, None
        if early is not None:
            self.connection.write(b"".join(early))

    def end(self) -> None:
        """The connection is gone or going. Belongs to the connection."""
        if not self.closed:
            self.closed = True
            self.early = None
            on_close, self.on_close = self.on_close, None
            self.on_drain = None
            if on_close is not None:
                on_close()
