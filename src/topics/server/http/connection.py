"""One client connection: requests in, answers out in the order of the requests.

`Intake` turns the bytes into messages; this module decides when to ask it, hands the messages to the app, keeps the
answers in order, and ends the connection well.

Rules:

1. Outstanding exchanges are `current` (the next to be answered) and `queue` (those behind it). An answer that is not
   `current`'s waits in its exchange. At most `PIPELINE_MAX` exchanges are outstanding, and those behind `current` hold
   at most about `PIPELINE_MAX_BYTES`; beyond that, and while the client does not read its answers, nothing more is
   parsed and reading stops.
2. A message that repeats an earlier head of the connection byte for byte, but for the digits of its Content-Length,
   and is complete in one read, is dispatched by `data_received` itself: no parser, no `App.resolve`, one `Exchange`.
   `Intake` says which heads may repeat; a bounded number of them is kept (`KnownHeads`), none beyond the connection.
3. After a refusal that leaves input unread, the answer carries `Connection: close`, the sending side is shut, and what
   the client still sends is thrown away for a while (bounded in bytes and time): closing at once would make the kernel
   reset the connection, and the reset would destroy the answer before the client has read it.
4. A request that asks to leave HTTP is dispatched when everything before it is answered, and nothing behind it is
   parsed until it is answered itself.
5. There are no timers here, only deadlines that `Connections.sweep` looks at.
6. An answer that is there at once is owed until the end of the loop's turn, and sent with those to all other requests
   of the turn. Sent one by one between reads, each would wake a client that has gone to sleep again meanwhile, and the
   waking is most of what a `write` costs. Nothing else happens on a connection before what it owes is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, cast

from topics.errors import Internal, InvalidRequest, RequestTimeout, Throttled, TopicsError
from topics.server.http import reply
from topics.server.http.exchange import Exchange
from topics.server.http.intake import DEAF, IDLE, IN_BODY, IN_HEAD, PROGRESS_BYTES, SKIPPING, Intake, Message
from topics.server.http.relay import Relay
from topics.server.http.repeat import KnownHeads
from topics.server.http.stream import Stream

if TYPE_CHECKING:
    from topics.server.http.connections import Connections
    from topics.server.http.exchange import Upgraded
    from topics.server.http.head import Head

PIPELINE_MAX: Final = 64
PIPELINE_MAX_BYTES: Final = 1024 * 1024
GATHER_MAX_BYTES: Final = 64 * 1024
LINGER_MS: Final = 2_000
LINGER_MAX_BYTES: Final = 4 * 1024 * 1024
NEVER: Final = float("inf")

log = logging.getLogger("topics.server")


def _ignore(data: bytes) -> None:
    """Where the bytes of a lost connection go."""


class Connection(asyncio.Protocol):
    """The protocol of one accepted connection, see the module."""

    __slots__ = (
        "_app", "_barrier", "_eof", "_gathered", "_gathered_bytes", "_gathering", "_held",
        "_held_bytes", "_intake", "_known", "_limits", "_linger_left", "_lost", "_message_deadline", "_owe",
        "_reading_paused", "_ready", "_refused", "_renewals", "_stream", "_taking",
        "_unsent_mark", "_upgraded", "answer", "connections", "current", "owing", "queue", "read_deadline", "transport",
        "waiting", "write", "write_deadline", "write_paused",
    )  # fmt: skip

    connections: Connections
    transport: asyncio.Transport
    write: Callable[[bytes], None]
    """The transport's `write`. Only the exchange whose turn it is may use it."""
    answer: Callable[[bytes], None]
    """How it sends an answer that is complete: `write`, now or with others."""
    current: Exchange | None
    queue: deque[Exchange]
    waiting: bool
    """Whether something is to be done once `current` is answered."""
    write_paused: bool
    owing: bool
    """Whether an answer of this connection is owed (rule 6). Belongs to `Connections`."""
    read_deadline: float
    write_deadline: float

    def __init__(self, connections: Connections) -> None:
        limits = connections.limits
        self.connections = connections
        self.current = None
        self.queue = deque()
        self.waiting = False
        self.write = self.answer = _ignore
        self.owing = False
        # Stands in for `write` while a request is handled that was alone in its read.
        self._owe: Callable[[bytes], None] = _ignore
        self.write_paused = False
        self.read_deadline = NEVER
        self.write_deadline = NEVER
        self._app = connections.app
        self._limits = limits
        self._intake = Intake(
            self._admit,
            body_max_bytes=limits.max_body_bytes,
            head_max_bytes=limits.max_header_bytes,
            headers_max=limits.max_headers,
            http2_known=connections.http2_factory is not None,
        )
        self._known = KnownHeads(limits.max_body_bytes, limits.max_header_bytes)
        self._ready = False
        self._taking = False
        self._reading_paused = False
        self._lost = False
        self._eof = False
        self._refused = False
        self._renewals = 0
        self._message_deadline = NEVER
        self._unsent_mark = 0
        self._held: Message | None = None
        self._barrier: Exchange | None = None
        self._held_bytes = 0
        self._gathering = False
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._linger_left = -1
        self._stream: Stream | None = None
        self._upgraded: Upgraded | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is connected; over `max_connections` it is told so and turned away."""
        self.transport = cast("asyncio.Transport", transport)
        self.write = self.answer = self.transport.write
        connections = self.connections
        self._owe = partial(connections.owe, self)
        if connections.add(self):
            self.read_deadline = connections.idle_deadline
            return
        self._refused = True
        if not connections.may_refuse():
            self.transport.abort()
            return
        limit = self._limits.max_connections
        message = "The server has as many connections as it takes; retry later."
        self._turn_away(Throttled(message, limit="max_connections", max=limit))

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        if self.owing:
            self.connections.send_answers()
        if self._ready and self.current is None:
            head_bytes = data[: data.find(b"\r\n\r\n") + 4]
            head = self._known.get(head_bytes) or self._known.recall(head_bytes)
            if head is not None and len(data) == head.message_bytes:
                self.current = exchange = Exchange(self, head, data[head.raw_bytes :], perf_counter_ns())
                self.answer = self._owe
                try:
                    self._app.handle(exchange)
                except Exception as error:
                    self._failed(exchange, error)
                self.answer = self.write
                # Where the answer is still to come, nothing is left to parse: `waiting` stays false, and `expire`
                # renews this.
                self.read_deadline = self.connections.idle_deadline
                return
        if self._intake.phase != DEAF:
            self._intake.feed(data)
            self._take()
        elif self._linger_left >= 0:
            self._linger_left -= len(data)
            if self._linger_left < 0:
                self.transport.abort()

    def eof_received(self) -> bool:
        """The client sends nothing more. It may still read, so what it has asked for is answered."""
        if self.owing:
            self.connections.send_answers()
        if self._stream is not None:
            self.transport.abort()
        if self._stream is not None or self._linger_left >= 0 or self._lost:
            return False
        self._eof = True
        if self._intake.phase in (IN_HEAD, IN_BODY):
            self._turn_away(InvalidRequest("The connection ended in the middle of a request."))
        if self.current is not None:
            self._close_after_last()
            self._give_up_waiting()
        return self.current is not None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: everything outstanding is told, once."""
        self._lost = True
        self._silence()
        self.write = self.answer = self._owe = _ignore
        self.read_deadline = self.write_deadline = NEVER
        self.connections.remove(self, refused=self._refused)
        if self._stream is not None:
            self._stream.end()
        self._abandon()

    def pause_writing(self) -> None:
        """The client does not read its answers: parse and read nothing more until it does."""
        self.write_paused = True
        self._ready = False
        if self._stream is None:
            self._watch_writing()
            self._set_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self.write_paused = False
        if self._stream is not None:
            if self._stream.on_drain is not None:
                self._stream.on_drain()
        elif not self._lost and self._linger_left < 0 and not self.transport.is_closing():
            self.write_deadline = NEVER
            self.carry_on()

    def deliver(self, exchange: Exchange, answer: bytes | Stream) -> None:
        """Send an answer when its turn has come, and those behind it that are there already."""
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
                self._finish()
                return
            self.current = self._next()
            if self.current is None or self.current.answer is None:
                break
            exchange, answer = self.current, self.current.answer
        if self.waiting:
            self.carry_on()

    def carry_on(self) -> None:
        """Do what had to wait for an answer or for the client to read: parse on, and note the new deadlines."""
        if not self._taking and not self._lost:
            self._take()

    def open_stream(self, exchange: Exchange, head: bytes) -> Stream:
        """The exchange's answer has no end: parse nothing behind it, and let the stream write when it is its turn."""
        stream = Stream(self, head)
        if self._lost or (exchange is not self.current and exchange not in self.queue):
            stream.end()
        else:
            self._silence()
            self.deliver(exchange, stream)
        return stream

    def hand_over(self, exchange: Exchange | None, protocol: Upgraded) -> None:
        """Give the transport, and what was received but not parsed, to another protocol for good."""
        if self._lost or exchange is not self.current:
            raise RuntimeError("the connection cannot be handed over now")
        rest = self._intake.rest()
        self._silence()
        self.current = None
        self._upgraded = protocol
        self.read_deadline = self.write_deadline = NEVER
        self.transport.set_protocol(Relay(self, protocol))  # type: ignore[arg-type]
        protocol.connection_made(self.transport)
        if self.write_paused:
            protocol.pause_writing()
        self._set_reading()
        if rest:
            protocol.data_received(rest)

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that the client's socket has not taken."""
        return 0 if self._lost else self.transport.get_write_buffer_size()

    @property
    def peer(self) -> str:
        """The client's address, for logs."""
        name = self.transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "?")

    @property
    def idle(self) -> bool:
        """Whether no request is outstanding or under way, and the connection is still one for requests."""
        return self.current is None and self._intake.phase == IDLE and self._stream is None and self._upgraded is None

    def close(self) -> None:
        """Close once everything written is sent, or cannot be sent in time."""
        if self.owing:
            self.connections.send_answers()
        if not self._lost:
            self._silence()
            self._watch_writing()
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if not self._lost:
            self.transport.abort()

    def wind_up(self) -> None:
        """The server stops: close if idle, else close with the last answer."""
        self._ready = False
        if self._upgraded is not None:
            self._upgraded.shut_down()
        elif self._stream is not None:
            if self._stream.on_shutdown is not None:
                self._stream.on_shutdown()
            else:
                self._stream.close()
        elif self._intake.phase in (IDLE, SKIPPING):
            if self.current is None:
                self.close()
            else:
                self._close_after_last()
                for exchange in [self.current, *self.queue]:
                    exchange.hurry()

    def expire(self, now: float) -> None:
        """A deadline has passed."""
        if self._upgraded is not None:
            self._upgraded.expire(now)
            return
        if self.write_deadline <= now:
            if self.unsent_bytes > self._unsent_mark - PROGRESS_BYTES:
                self.transport.abort()
                return
            self._watch_writing()
        if self.read_deadline > now:
            return
        phase = self._intake.phase
        if phase == IN_BODY:
            limit = self._limits.body_timeout_ms
            error = RequestTimeout("The body arrived too slowly.", limit="body_timeout_ms", max=limit)
            self._turn_away(error)
        elif phase == IN_HEAD:
            limit = self._limits.header_timeout_ms
            error = RequestTimeout("The head took too long to arrive.", limit="header_timeout_ms", max=limit)
            self._turn_away(error)
        elif self.current is not None:
            self.read_deadline = self.connections.idle_deadline
        elif self._linger_left < 0:
            self.close()
        elif self.unsent_bytes:
            self.read_deadline = self.connections.after(LINGER_MS)
        else:
            self.transport.abort()

    def _take(self) -> None:
        """Parse and dispatch until the bytes end or something has to be waited for."""
        intake = self._intake
        self._taking = True
        while not self._blocked():
            message, self._held = self._held or intake.next(), None
            if message is None:
                break
            if message.head.upgrade is not None and message.error is None and self.current is not None:
                self._held = message
                break
            if intake.unread and not self._gathering:
                self._gathering = True
                self.write = self.answer = self._gather
            exchange = self._dispatch(message)
            if message.head.upgrade is not None and not exchange.answered:
                self._barrier = exchange
        self._taking = False
        if self._gathering:
            self._send_gathered()
        if intake.http2 and self.current is None and not self._lost:
            assert self.connections.http2_factory is not None
            self.hand_over(None, self.connections.http2_factory(self))
        elif not self._lost:
            self._settle()

    def _gather(self, data: bytes) -> None:
        """Stands in for the transport's `write` while a read holds more requests: one system call for all answers."""
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes > GATHER_MAX_BYTES:
            self._send_gathered()

    def _send_gathered(self) -> None:
        """Send what was gathered, and write directly again."""
        self._gathering = False
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if not self._lost:
            self.write = self.answer = self.transport.write
            if gathered:
                self.transport.write(b"".join(gathered))

    def _blocked(self) -> bool:
        """Whether nothing more may be parsed for now (rules 1 and 4)."""
        if self._barrier is not None:
            if not self._barrier.answered:
                return True
            self._barrier = None
        return (
            self.write_paused
            or len(self.queue) >= PIPELINE_MAX - 1
            or self._held_bytes > PIPELINE_MAX_BYTES
            or (self._held is not None and self.current is not None)
        )

    def _settle(self) -> None:
        """Write down what the connection waits for now."""
        intake = self._intake
        outstanding = self.current is not None
        blocked = self._blocked()
        self.waiting = outstanding
        self._ready = False
        if intake.owes_continue and not outstanding:
            intake.owes_continue = False
            self.write(reply.CONTINUE)
        if intake.phase != IDLE and self._renewals != intake.renewals:
            self._renewals = intake.renewals
            limits = self._limits
            timeout_ms = limits.header_timeout_ms if intake.phase == IN_HEAD else limits.body_timeout_ms
            self._message_deadline = self.connections.after(timeout_ms)
        if intake.phase == IDLE:
            if intake.repeat is not None:
                self._known.learn(intake.repeat)
            self._ready = intake.clean and not (outstanding or blocked or self.connections.draining)
            self.read_deadline = NEVER if outstanding else self.connections.idle_deadline
        elif intake.phase != DEAF:
            self.read_deadline = self._message_deadline
        elif self._linger_left < 0:
            self.read_deadline = NEVER
        if blocked or self._reading_paused:
            self._set_reading()

    def _set_reading(self) -> None:
        """Read from the socket exactly while what is read has somewhere to go."""
        pause = self._intake.phase != DEAF and self._blocked()
        if pause != self._reading_paused and not self._lost and not self.transport.is_closing():
            self._reading_paused = pause
            if pause:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _watch_writing(self) -> None:
        """From now on the client has to take what is unsent at a certain pace."""
        self._unsent_mark = self.unsent_bytes
        self.write_deadline = self.connections.after(self._limits.write_timeout_ms)

    def _admit(self, head: Head) -> None:
        try:
            head.route = self._app.resolve(head)
        except TopicsError:
            raise
        except Exception:
            log.exception("resolving %s %r failed", head.method, head.path)
            raise Internal() from None

    def _dispatch(self, message: Message) -> Exchange:
        """Make an exchange of the message, in its place in the order, and have it handled."""
        exchange = Exchange(self, message.head, message.body, message.started_ns)
        if self.current is None:
            self.current = exchange
        else:
            self.queue.append(exchange)
            self._held_bytes += len(message.body)
        if message.closes or self.connections.draining:
            self._close_after_last()
        try:
            if message.error is not None:
                exchange.fail(message.error)
            else:
                self._app.handle(exchange)
        except Exception as error:
            self._failed(exchange, error)
        return exchange

    def _turn_away(self, error: TopicsError) -> None:
        """Answer the message under way, or the mere connection, with an error that ends the connection."""
        self._dispatch(self._intake.refuse(error))
        if not self._lost:
            self._settle()

    def _failed(self, exchange: Exchange, error: Exception) -> None:
        """The handler raised: that is the answer, unless one was given before."""
        if not isinstance(error, TopicsError):
            log.error("handling %s %r failed", exchange.head.method, exchange.head.path, exc_info=error)
            error = Internal()
        if not exchange.answered:
            exchange.fail(error)

    def _next(self) -> Exchange | None:
        """Take the exchange whose turn it is now off the queue."""
        if not self.queue:
            return None
        exchange = self.queue.popleft()
        answer = exchange.answer
        self._held_bytes -= len(exchange.body) + (len(answer) if isinstance(answer, bytes) else 0)
        return exchange

    def _close_after_last(self) -> None:
        """Nothing more is parsed, and the connection ends with the last answer that is outstanding."""
        last = self.queue[-1] if self.queue else self.current
        if last is not None:
            last.closes = True
            last.plain = False
        self._silence()

    def _silence(self) -> None:
        """Parse nothing more, and owe the transport nothing before it is closed or handed over."""
        if self._gathering:
            self._send_gathered()
        self._ready = False
        self._held = None
        self._intake.stop()

    def _begin(self, stream: Stream) -> None:
        """The stream's turn has come. Requests behind it will never be answered."""
        self._stream = stream
        self.read_deadline = self.write_deadline = NEVER
        self._set_reading()
        behind, self.queue = self.queue, deque()
        for exchange in behind:
            exchange.abandon()
        stream.activate()

    def _finish(self) -> None:
        """The last answer is written: close, and linger where the client may still be sending (rule 3)."""
        self._silence()
        self._abandon()
        if self._eof or self._linger_left >= 0:
            self.close()
            return
        self._linger_left = LINGER_MAX_BYTES
        self._watch_writing()
        self.read_deadline = self.connections.after(LINGER_MS)
        self._set_reading()
        self.transport.write_eof()

    def _give_up_waiting(self) -> None:
        """The client has stopped sending: whoever watches for its leaving is told, and gives up if unanswered then."""
        assert self.current is not None
        for exchange in [self.current, *self.queue]:
            if exchange.leave():
                exchange.answered = True
                exchange.closes = True
                self.deliver(exchange, b"")
                exchange.over()

    def _abandon(self) -> None:
        """No answer can be sent any more."""
        outstanding = [*([] if self.current is None else [self.current]), *self.queue]
        self.current = None
        self.queue.clear()
        for exchange in outstanding:
            exchange.abandon()
