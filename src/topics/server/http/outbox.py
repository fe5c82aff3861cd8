"""Outbox: the answers of one HTTP/1.1 connection, sent in the order of its requests.

Rules:

1. Outstanding exchanges are `current` (the next to be answered) and `queue` (those after it). An answer that is not
   `current`'s waits in its exchange. At most `PIPELINE_MAX` exchanges are outstanding, and those in the queue hold at
   most about `PIPELINE_MAX_BYTES`; beyond that, and while the client does not read its answers, the outbox is `full`.
2. `write` sends now. `answer` is how `current` sends an answer that is complete: usually `write`; while the connection
   handles a request that came alone in its read, `Connections.owe`, which sends at the end of the loop's turn; and
   while a read holds more requests, both gather, so that one system call sends all answers of the read.
3. Nothing is sent once the connection is lost or handed over.
4. A lost connection is not known here any longer: the two would keep each other until the garbage collector finds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from topics.server.http.exchange import Exchange
from topics.server.http.stream import Stream
from topics.server.http.turns import Turns
from topics.server.http.upgrade import Upgrade

if TYPE_CHECKING:
    from topics.server.http.connection import Connection

PIPELINE_MAX: Final = 64
PIPELINE_MAX_BYTES: Final = 1024 * 1024
GATHER_MAX_BYTES: Final = 64 * 1024
PART_MIN_BYTES: Final = 16 * 1024
"""What is smaller is put together with what follows it before it is sent."""

NOT_CONNECTED: Final = asyncio.Transport()
"""Stands in for the transport of a connection that is not made yet."""


def _ignore(data: bytes) -> None:
    """Where the bytes of a lost connection go."""


class _Gone:
    """Stands in for a connection that is lost: there is nothing left to do, and nothing keeps it in memory."""

    def finish(self) -> None:
        """Close with the last answer."""

    def carry_on(self) -> None:
        """Parse on."""

    def stop_parsing(self) -> None:
        """Parse nothing more."""

    def close(self) -> None:
        """Close."""

    def pause_writing(self) -> None:
        """Count what is unsent."""

    def stream_begins(self) -> None:
        """A stream has its turn."""

    def hand_over(self, exchange: Exchange, upgrade: Upgrade) -> None:
        """Give the transport away."""
        raise RuntimeError("the connection cannot be handed over now")


GONE: Final = _Gone()


class Outbox:
    """The answers of one connection, see the module."""

    __slots__ = (
        "_gathered", "_gathered_bytes", "_held_bytes", "_lost", "_owner", "_turns", "answer", "current", "gathering",
        "owing", "queue", "stream", "transport", "waiting", "write", "write_paused",
    )  # fmt: skip

    def __init__(self, owner: Connection, turns: Turns) -> None:
        self.current: Exchange | None = None
        # Short, and nearly always empty: an empty deque takes 700 bytes.
        self.queue: list[Exchange] = []
        self.waiting = False
        """Whether the owner has something to do once `current` is answered."""
        self.transport = NOT_CONNECTED
        self.write: Callable[[bytes], None] = _ignore
        """The transport's `write`. Only the exchange whose turn it is may use it."""
        self.answer: Callable[[bytes], None] = _ignore
        self.write_paused = False
        self.owing = False
        """Whether an answer of this connection is owed until the end of the turn. Belongs to `Connections`."""
        self.stream: Stream | None = None
        """The answer without an end, once it has its turn."""
        self.gathering = False
        self._owner: Connection | _Gone = owner
        self._turns = turns
        self._lost = False
        self._held_bytes = 0
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

    def connect(self, transport: asyncio.Transport) -> None:
        """Answers go to this transport."""
        self.transport = transport
        self.write = self.answer = transport.write

    @property
    def full(self) -> bool:
        """Whether no further exchange may be added for now."""
        return self.write_paused or len(self.queue) >= PIPELINE_MAX - 1 or self._held_bytes > PIPELINE_MAX_BYTES

    @property
    def clogged(self) -> bool:
        """Whether the client does not read, or answers wait for one before them that is still to come."""
        return self.write_paused or self._held_bytes > PIPELINE_MAX_BYTES

    @property
    def gone(self) -> bool:
        """Whether the connection is lost."""
        return self._lost

    @property
    def held_bytes(self) -> int:
        """What is held of requests that wait for the answer to another one, and of their answers."""
        return self._held_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that the client's socket has not taken."""
        return 0 if self._lost else self.transport.get_write_buffer_size()

    @property
    def can_wait(self) -> bool:
        """Whether what is here may end a little after its connection: a stream that says so."""
        return self.stream is not None and self.stream.can_wait

    def outstanding(self) -> list[Exchange]:
        """Every exchange that is not answered, in order."""
        return [*self.queue] if self.current is None else [self.current, *self.queue]

    def add(self, exchange: Exchange) -> None:
        """Put another exchange after those that are outstanding."""
        if self.current is None:
            self.current = exchange
        else:
            self.queue.append(exchange)
            self._held_bytes += len(exchange.body)

    def deliver(self, exchange: Exchange, answer: bytes | Stream) -> None:
        """Send an answer when its turn has come, and those after it that are there already."""
        if self._lost:
            return
        if exchange is not self.current:
            exchange.answer = answer
            self._held_bytes += len(answer) if isinstance(answer, bytes) else 0
            return
        while True:
            if isinstance(answer, Stream):
                self._begin(answer)
                return
            self.write(answer)
            if exchange.closes:
                self.current = None
                self._owner.finish()
                return
            self.current = self._next()
            if self.current is None or self.current.answer is None:
                break
            exchange, answer = self.current, self.current.answer
        if self.waiting:
            self._owner.carry_on()

    def deliver_parts(self, exchange: Exchange, head: bytes, parts: list[bytes]) -> None:
        """As `deliver`; the parts are handed to the transport as they are, unless they have to wait."""
        if exchange is not self.current:
            self.deliver(exchange, b"".join((head, *parts)))
            return
        if self.gathering:
            # To gather this too would copy all of it.
            self.send_gathered()
        for part in _grouped(head, parts):
            self.write(part)
        if self.write_paused:
            # It was told of the first part that did not fit, and counts them all.
            self._owner.pause_writing()
        self.deliver(exchange, b"")

    def in_turn(self, call: Callable[[], None]) -> None:
        """Call now, or in another turn of the loop."""
        self._turns.in_turn(call)

    def carry_on(self) -> None:
        """The current exchange is answered."""
        self._owner.carry_on()

    def open_stream(self, exchange: Exchange, head: bytes) -> Stream:
        """The exchange's answer has no end: parse nothing after it, and let the stream write when it is its turn."""
        stream = Stream(self, head)
        if self._lost or (exchange is not self.current and exchange not in self.queue):
            stream.end()
        else:
            self._owner.stop_parsing()
            self.deliver(exchange, stream)
        return stream

    def hand_over(self, exchange: Exchange, upgrade: Upgrade) -> None:
        """Give the transport away."""
        self._owner.hand_over(exchange, upgrade)

    def close(self) -> None:
        """End the connection once everything written is sent."""
        self._owner.close()

    def gather(self) -> None:
        """Keep what is written from now on, up to a bound, until `send_gathered`."""
        self.gathering = True
        self.write = self.answer = self._gather

    def _gather(self, data: bytes) -> None:
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes > GATHER_MAX_BYTES:
            self.send_gathered()

    def send_gathered(self) -> None:
        """Send what was gathered, and write directly again."""
        self.gathering = False
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if not self._lost:
            self.write = self.answer = self.transport.write
            if gathered:
                self.transport.write(b"".join(gathered))

    def close_after_last(self) -> None:
        """Have the connection end with the last answer that is outstanding."""
        last = self.queue[-1] if self.queue else self.current
        if last is not None:
            last.closes = True
            last.plain = False

    def give_up_waiting(self) -> None:
        """The client has stopped sending: every exchange that only waits is left, and given up if still unanswered."""
        for exchange in self.outstanding():
            if exchange.leave():
                exchange.answered = True
                exchange.closes = True
                self.deliver(exchange, b"")
                exchange.over()

    def hurry(self) -> None:
        """The server stops: the exchanges that only wait are answered now."""
        for exchange in self.outstanding():
            exchange.hurry()

    def lose(self) -> None:
        """The connection is gone: nothing is sent any more, and a stream gets nothing more to send."""
        self._lost = True
        if self.stream is not None:
            self.stream.lose(untaken=self.write_paused)
        self.write_paused = self.stream is not None
        self._held_bytes = 0
        self.write = self.answer = _ignore

    def abandon(self) -> None:
        """No answer can be sent any more: end everything that is outstanding."""
        if self.stream is not None:
            self.stream.end()
            self.stream = None
        outstanding = self.outstanding()
        self.current = None
        self.queue.clear()
        for exchange in outstanding:
            exchange.abandon()
        self._owner = GONE

    def _begin(self, stream: Stream) -> None:
        """The stream's turn has come. Requests after it will never be answered."""
        self.stream = stream
        self._owner.stream_begins()
        unanswered, self.queue = self.queue, []
        for exchange in unanswered:
            exchange.abandon()
        stream.activate()

    def _next(self) -> Exchange | None:
        """Take the exchange whose turn it is now off the queue."""
        if not self.queue:
            return None
        exchange = self.queue.pop(0)
        answer = exchange.answer
        self._held_bytes -= len(exchange.body) + (len(answer) if isinstance(answer, bytes) else 0)
        return exchange


def _grouped(head: bytes, parts: list[bytes]) -> Iterator[bytes]:
    """All of it, with what is small put together."""
    small, size = [head], len(head)
    for part in parts:
        if len(part) >= PART_MIN_BYTES:
            yield b"".join(small)
            yield part
            small, size = [], 0
            continue
        small.append(part)
        size += len(part)
        if size >= PART_MIN_BYTES:
            yield b"".join(small)
            small, size = [], 0
    yield b"".join(small)
