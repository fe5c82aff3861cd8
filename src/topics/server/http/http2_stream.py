"""Http2Stream: carries a single exchange, as an HTTP/1.1 connection carries many.

It gathers the body of its request, gives the exchange to the app, and keeps what is to be sent until the flow control
of the connection and its own allow it. (A `Stream` is something else: the open body of an answer.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from topics.errors import TopicsError
from topics.server.http.body import BodyLimit, Gathered, receive
from topics.server.http.exchange import Exchange
from topics.server.http.head import Head
from topics.server.http.intake import UNREADABLE
from topics.server.http.stream import Stream
from topics.server.http.upgrade import Upgrade

if TYPE_CHECKING:
    from topics.server.http.http2_sender import Http2Sender

PAUSE_BYTES: Final = 64 * 1024
"""An open body with more than this unsent is paused, and drained again at a quarter of it."""

_CONNECTION_FIELDS: Final = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"))


def split_head(rendered: bytes) -> list[tuple[bytes, bytes]]:
    """The fields of a rendered HTTP/1.1 response head as HTTP/2 sends them."""
    status_line, *lines = rendered.split(b"\r\n")
    fields = [(b":status", status_line.split(b" ", 2)[1])]
    for line in lines:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name and name not in _CONNECTION_FIELDS:
            fields.append((name, value.strip()))
    return fields


class Http2Stream:
    """One HTTP/2 stream, see the module."""

    __slots__ = (
        "_body", "_drained_below", "_sender", "_sent", "_started_ns", "_unsent", "answer", "current", "ending",
        "exchange", "head", "held_bytes", "id", "open_body", "over", "queue", "receiving", "unsent_bytes", "waiting",
        "write",
    )  # fmt: skip

    transport = None
    """The transport belongs to all streams."""

    def __init__(self, sender: Http2Sender, stream_id: int) -> None:
        self.current: Exchange | None = None
        self.queue: list[Exchange] = []
        self.waiting = False
        self.write: Callable[[bytes], None] = self._write
        self.answer: Callable[[bytes], None] = self._write
        self.id = stream_id
        self.head: Head = UNREADABLE
        self.exchange: Exchange | None = None
        self.open_body: Stream | None = None
        self.receiving = True
        """Whether the request's body has not ended."""
        self.ending = False
        """Whether the last byte of the answer is written, if not sent."""
        self.over = False
        self.unsent_bytes = 0
        self.held_bytes = 0
        self._sender = sender
        self._body = Gathered()
        self._unsent: deque[bytes] = deque()
        self._sent = 0
        self._drained_below = -1
        self._started_ns = perf_counter_ns()

    def receive(self, data: bytes, limit: BodyLimit) -> None:
        """Add to the body; raises PayloadTooLarge."""
        if len(self._body) + len(data) > limit.max_bytes:
            raise limit.exceeded()
        self._body.add(data)
        self.held_bytes += len(data)
        self._sender.count_held(len(data))

    def dispatch(self, limit: BodyLimit) -> None:
        """The request is complete: have it handled."""
        received, self._body = self._body, Gathered()
        body, rest = receive(received, limit, gzip=self.head.gzip_body)
        self.exchange = Exchange(self, self.head, body, self._started_ns)
        self.exchange.rest = rest
        self.head.door.handle(self.exchange)

    def fail(self, error: TopicsError) -> None:
        """Answer with an error, if nothing was answered yet."""
        if self.exchange is None:
            self.exchange = Exchange(self, self.head, b"", self._started_ns)
        self._forget_body()
        if not self.exchange.answered:
            self.exchange.fail(error)

    def _forget_body(self) -> None:
        """Nothing is held of the request any more; until then it counts, also while it is handled."""
        self._sender.count_held(-self.held_bytes)
        self.held_bytes = 0
        self._body = Gathered()

    def end(self) -> None:
        """The stream is gone: reset by the client, or with its connection."""
        self.over = True
        if self.open_body is not None:
            self.open_body.lose(untaken=self.unsent_bytes > 0)
        self._forget_body()
        self._unsent.clear()
        self._sender.count_unsent(-self.unsent_bytes)
        self.unsent_bytes = 0
        # Nothing of it knows it any more, so that it does not wait for the garbage collector.
        self.write = self.answer = _drop
        open_body, self.open_body = self.open_body, None
        exchange, self.exchange = self.exchange, None
        if open_body is not None:
            open_body.end()
        if exchange is not None:
            exchange.abandon()

    def next_part(self, size: int) -> bytes:
        """Take up to `size` bytes of what is to be sent."""
        part = self._unsent[0]
        if self._sent or len(part) > size:
            whole, part = part, part[self._sent : self._sent + size]
            self._sent += len(part)
            if self._sent == len(whole):
                self._sent = 0
                self._unsent.popleft()
        else:
            self._unsent.popleft()
        self.unsent_bytes -= len(part)
        self._sender.count_unsent(-len(part))
        return part

    def drained(self) -> None:
        """Something was sent: let the open body know once there is room again."""
        if self.unsent_bytes <= self._drained_below:
            self._drained_below = -1
            if self.open_body is not None:
                self.open_body.drained()

    @property
    def write_paused(self) -> bool:
        """Whether the client is slow to read."""
        return self._drained_below >= 0

    @property
    def clogged(self) -> bool:
        """Whether the client leaves much unread, on whichever stream."""
        return self._sender.clogged

    @property
    def gone(self) -> bool:
        """Whether the stream is over: reset, or ended with its connection."""
        return self.over

    def in_turn(self, call: Callable[[], None]) -> None:
        """Call now, or in another turn of the loop."""
        self._sender.in_turn(call)

    def carry_on(self) -> None:
        """Nothing waits for an answer here."""

    def deliver(self, exchange: Exchange, answer: bytes) -> None:
        """Send a rendered HTTP/1.1 response as frames."""
        if self.over:
            return
        head_end = answer.index(b"\r\n\r\n")
        body_at = head_end + 4
        self._forget_body()
        self.ending = True
        self._sender.send_head(self, split_head(answer[:head_end]), ends=body_at == len(answer))
        if body_at < len(answer):
            self._write(answer, body_at)

    def deliver_parts(self, exchange: Exchange, head: bytes, parts: list[bytes]) -> None:
        """As `deliver`; the parts are sent as they are."""
        if not any(parts):
            self.deliver(exchange, head)
        elif not self.over:
            self._forget_body()
            self._sender.send_head(self, split_head(head[:-4]), ends=False)
            for part in parts:
                self._keep(part)
            self.ending = True
            self._pump()

    def open_stream(self, exchange: Exchange, head: bytes) -> Stream:
        """Send the head of a response and leave its body open."""
        body = Stream(self, b"")
        if self.over:
            body.end()
            return body
        self.open_body = body
        self._sender.send_head(self, split_head(head), ends=False)
        body.activate()
        return body

    def hand_over(self, exchange: Exchange, upgrade: Upgrade) -> None:
        """Not possible: the transport belongs to all streams."""
        raise RuntimeError("an HTTP/2 stream cannot be upgraded")

    def close(self) -> None:
        """End the open body once everything written is sent."""
        if not self.over and not self.ending:
            self.ending = True
            self._sender.pump(self)

    def _write(self, data: bytes, begin: int = 0) -> None:
        """Send the data from `begin` on, which must be 0 where something is to be sent before it."""
        if self.over or not data:
            return
        if begin:
            # As if that much were sent already: a large body is not copied.
            self._sent = begin
        self._keep(data, begin)
        self._pump()

    def _keep(self, data: bytes, begin: int = 0) -> None:
        self._unsent.append(data)
        self.unsent_bytes += len(data) - begin
        self._sender.count_unsent(len(data) - begin)

    def _pump(self) -> None:
        self._sender.pump(self)
        if self.unsent_bytes > PAUSE_BYTES:
            self._drained_below = PAUSE_BYTES // 4


def _drop(data: bytes) -> None:
    """What is written to a stream that is over goes nowhere."""
