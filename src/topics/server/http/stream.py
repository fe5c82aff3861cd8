"""An answer without an end: the body of an SSE response.

A `Stream` owns its connection's sending side until it is closed. It never blocks and never drops: `write` queues, and
`buffered` is how much the peer has not taken yet, so that the caller can decide to coalesce, skip or give up. While
`sink.write_paused`, the transport is above its high-water mark; `on_drain` is called when it has fallen below the low
one.
`on_close` is called once, however the stream ends, also by `close`. A server that stops closes its streams.

Where the connection of a stream that `can_wait` is lost, the stream ends some turns of the loop later: thousands may be
lost in one moment. Until then it looks like one whose client does not read, and `untaken` says whether that was so.

Frames written while earlier pipelined answers are still outstanding wait here for their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Sink(Protocol):
    """What a stream writes to: an HTTP/1.1 connection, or one stream of an HTTP/2 connection."""

    write: Callable[[bytes], None]

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport, if it belongs to this sink alone."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that the client has not taken."""

    @property
    def write_paused(self) -> bool:
        """Whether the client is slow to read: more is unsent than the high-water mark."""

    def close(self) -> None:
        """End once everything written is sent."""


class Stream:
    """The open body of a response."""

    __slots__ = ("_untaken", "can_wait", "closed", "early", "lost", "on_close", "on_drain", "sink")

    def __init__(self, sink: Sink, head: bytes) -> None:
        self.sink = sink
        self.closed = False
        self.lost = False
        """Whether the connection is gone: nothing that is written arrives any more."""
        self.can_wait = False
        """Whether nobody is worse off where the stream ends a little after its connection."""
        self._untaken = False
        self.on_drain: Callable[[], None] | None = None
        self.on_close: Callable[[], None] | None = None
        self.early: list[bytes] | None = [head]

    def write(self, data: bytes) -> None:
        """Queue bytes of the body. Ignored once the stream is closed."""
        if self.early is not None:
            self.early.append(data)
        elif not self.closed:
            self.sink.write(data)

    @property
    def buffered(self) -> int:
        """Bytes that were written and that the peer's socket has not taken."""
        if self.early is not None:
            return sum(map(len, self.early))
        return 0 if self.closed else self.sink.unsent_bytes

    @property
    def untaken(self) -> bool:
        """Whether something was written that the client's socket is not known to have taken."""
        return self._untaken if self.lost else self.sink.write_paused or self.buffered > 0

    def lose(self, untaken: bool) -> None:
        """The connection is gone, with or without something on its way. Belongs to the connection."""
        self.lost = True
        self._untaken = untaken

    def close(self) -> None:
        """End the body, and with it the connection, once everything written is sent."""
        if not self.closed:
            self.end()
            self.sink.close()

    def drained(self) -> None:
        """The peer reads again. Belongs to the connection."""
        if self.on_drain is not None:
            self.on_drain()

    def activate(self) -> None:
        """Every earlier answer is sent: send what has gathered. Belongs to the connection."""
        early, self.early = self.early, None
        if early is not None:
            self.sink.write(b"".join(early))

    def end(self) -> None:
        """The connection is gone or going. Belongs to the connection."""
        if not self.closed:
            self.closed = True
            self.early = None
            on_close, self.on_close = self.on_close, None
            self.on_drain = None
            if on_close is not None:
                on_close()
