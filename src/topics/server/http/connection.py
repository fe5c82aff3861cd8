"""One client connection over HTTP/1.1: requests in, answers out in the order of the requests.

`Intake` turns the bytes into messages and `Outbox` keeps the answers in order. This module decides when to read on,
hands the messages to their doors, and ends the connection well.

Rules:

1. While the outbox is full, nothing more is parsed, and reading stops.
2. A message that repeats a head of the connection, but for its target and the digits of its Content-Length, and is
   complete in one read, is dispatched by `data_received` itself: no parser, and `App.resolve` for a new target only.
   `Intake` says which heads may repeat; a bounded number of them is kept (`KnownHeads`), none beyond the connection.
3. After a refusal that leaves input unread, the answer carries `Connection: close`, the sending side is shut, and what
   the client still sends is thrown away for a while (bounded in bytes and time): closing at once would reset the
   connection, and with it destroy the answer before the client has read it.
4. A request that asks to leave HTTP is dispatched when everything before it is answered. Nothing after it is parsed
   until it is answered, nor after one whose body is handed over in parts, so that what follows takes effect later.
5. There are no timers here, only deadlines that `Connections.sweep` looks at.
6. A small message that a read begins with is dispatched at once. Anything else shares a turn of the loop with all other
   connections, and waits in line for another one when the time is up (`Turns`); nothing is read meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Final, cast

from topics.errors import InvalidRequest, Throttled, TopicsError
from topics.server.http import reply
from topics.server.http.account import SMALL_BYTES, Hold
from topics.server.http.connections import Connections
from topics.server.http.deadlines import NEVER, Deadlines
from topics.server.http.exchange import Exchange
from topics.server.http.head import Head
from topics.server.http.intake import DEAF, IDLE, IN_BODY, IN_HEAD, SKIPPING, Intake, Message
from topics.server.http.known_heads import KnownHeads
from topics.server.http.outbox import Outbox
from topics.server.http.turns import LIGHT_MAX_BYTES, Place
from topics.server.http.upgrade import Relay, Upgrade, Upgraded

LINGER_MS: Final = 2_000
LINGER_MAX_BYTES: Final = 4 * 1024 * 1024
LARGE_READ_BYTES: Final = 64 * 1024
"""A read of this size is probably followed by another at once, in the same turn of the loop."""


class Connection(asyncio.Protocol):
    """The protocol of one accepted connection, see the module."""

    __slots__ = (
        "_barrier", "_connections", "_eof", "_held", "_intake", "_known", "_limits", "_linger_left", "_lost", "_owe",
        "_reading_paused", "_ready", "_refused", "_taking", "_upgraded", "deadlines", "hold", "outbox", "place",
    )  # fmt: skip

    def __init__(self, connections: Connections) -> None:
        limits = connections.limits
        self.deadlines = Deadlines(connections.clock, limits)
        self._connections = connections
        self._limits = limits
        self.outbox = Outbox(self, connections.turns)
        # Stands in for `write` while a request is handled that was alone in its read.
        self._owe: Callable[[bytes], None] = partial(connections.owe, self.outbox)
        self._intake = Intake(connections.admit, limits, http2_known=connections.http2 is not None)
        self._known = KnownHeads(connections.admit, limits.max_body_bytes, limits.max_header_bytes)
        # Whether the next read may be a whole request with a known head.
        self._ready = False
        self._taking = False
        self.place = Place(connections.turns, self._go_on)
        self.hold = Hold(connections.account)
        self._reading_paused = False
        self._lost = False
        self._eof = False
        self._refused = False
        self._held: Message | None = None
        self._barrier: Exchange | None = None
        self._linger_left = -1
        self._upgraded: Upgraded | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is connected; one over `max_connections` is answered so and turned away."""
        self.outbox.connect(cast("asyncio.Transport", transport))
        if self._connections.add(self):
            self.deadlines.read = self.deadlines.clock.idle_deadline
            return
        self._refused = True
        if not self._connections.may_refuse():
            self.transport.abort()
            return
        message = "The server has as many connections as it takes; retry later."
        self._turn_away(Throttled(message, limit="max_connections", max=self._limits.max_connections))

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        outbox = self.outbox
        if outbox.owing:
            self._connections.send_answers()
        if self._ready and outbox.current is None and (len(data) <= LIGHT_MAX_BYTES or self.place.may_begin()):
            head_bytes = data[: data.find(b"\r\n\r\n") + 4]
            head = self._known.get(head_bytes) or self._known.recall(head_bytes, len(data))
            if head is not None and len(data) == head.message_bytes:
                outbox.current = exchange = Exchange(outbox, head, data[head.raw_bytes :], perf_counter_ns())
                outbox.answer = self._owe
                try:
                    head.door.handle(exchange)
                except Exception as error:
                    exchange.raised(error)
                outbox.answer = outbox.write
                # Where the answer is still to come, nothing is left to parse: `waiting` stays false, and `expire`
                # renews this.
                deadlines = self.deadlines
                deadlines.read = deadlines.clock.idle_deadline
                return
        if self._intake.phase != DEAF:
            self._intake.feed(data)
            if self._intake.held_bytes > LIGHT_MAX_BYTES:
                self.place.may_begin()
            self._take()
            if len(data) >= LARGE_READ_BYTES and self.place.give_way():
                self._set_reading()
        elif self._linger_left >= 0:
            self._linger_left -= len(data)
            if self._linger_left < 0:
                self.transport.abort()

    def eof_received(self) -> bool:
        """The client sends nothing more. It may still read, so what it has asked for is answered."""
        outbox = self.outbox
        if outbox.owing:
            self._connections.send_answers()
        if self._linger_left >= 0 or self._lost:
            return False
        if outbox.stream is not None:
            self._connections.depart(self.abort)
            return True
        self._eof = True
        if self._intake.phase in (IN_HEAD, IN_BODY):
            self._turn_away(InvalidRequest("The connection ended in the middle of a request."))
        if outbox.current is not None:
            self._close_after_last()
            outbox.give_up_waiting()
        if outbox.current is None:
            self._connections.depart(self.close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: everything that waits for it is ended, once."""
        self._lost = True
        can_wait = self.idle or self.outbox.can_wait
        self.outbox.lose()
        self.hold.release()
        self._connections.remove(self, refused=self._refused)
        if can_wait:
            # Nobody waits for it, and thousands may be reset in one moment: they are taken down over several turns.
            self._connections.depart(self._end)
        else:
            self._end()

    def _end(self) -> None:
        self.stop_parsing()
        self.deadlines.clear()
        self.outbox.abandon()
        self._intake.leave()
        self.place.leave()
        self._upgraded = None

    def pause_writing(self) -> None:
        """The client does not read its answers: parse and read nothing more until it does."""
        self.outbox.write_paused = True
        self._ready = False
        if self.outbox.stream is None:
            self.hold.set_answers(self.outbox.unsent_bytes)
            self._watch_writing()
            self._set_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self.outbox.write_paused = False
        self.hold.set_answers(0)
        if self.outbox.stream is not None:
            self.outbox.stream.drained()
        elif not self._lost and self._linger_left < 0 and not self.transport.is_closing():
            self.deadlines.write = NEVER
            self.carry_on()

    def carry_on(self) -> None:
        """Do what had to wait for an answer or for the client to read: parse on, and note the new deadlines."""
        if not self._taking and not self._lost:
            self._take()

    def _take(self) -> None:
        """Parse and dispatch until the bytes end or something has to be waited for."""
        intake, outbox = self._intake, self.outbox
        self._taking = True
        others = False
        while not self._blocked():
            if others and self.place.give_way():
                break
            message, self._held = self._held or intake.next(), None
            if message is None:
                if not intake.more:
                    break
                others = True
                continue
            if message.head.upgrade is not None and message.error is None and outbox.current is not None:
                self._held = message
                break
            if intake.unread:
                others = True
                if not outbox.gathering:
                    outbox.gather()
            exchange = self._dispatch(message)
            if (message.head.upgrade is not None or message.rest is not None) and not exchange.answered:
                self._barrier = exchange
        self._taking = False
        if outbox.gathering:
            outbox.send_gathered()
        if intake.http2 and outbox.current is None and not self._lost and self.place.may_begin():
            assert self._connections.http2 is not None
            self.hand_over(None, partial(self._connections.http2, self._connections, self))
        elif not self._lost:
            self._await_next()

    def _go_on(self) -> None:
        if not self._lost and self._upgraded is None:
            self._take()

    def _blocked(self) -> bool:
        """Whether nothing more may be parsed for now (rules 1, 4 and 6)."""
        if self.place.waits:
            return True
        if self._barrier is not None:
            if not self._barrier.answered:
                return True
            self._barrier = None
        outbox = self.outbox
        return outbox.full or (self._held is not None and outbox.current is not None)

    def _await_next(self) -> None:
        """Write down what the connection waits for now."""
        intake, outbox, deadlines = self._intake, self.outbox, self.deadlines
        outstanding = outbox.current is not None
        blocked = self._blocked()
        outbox.waiting = outstanding
        self._ready = False
        if intake.owes_continue and not outstanding:
            intake.owes_continue = False
            outbox.write(reply.CONTINUE)
        if intake.phase == IDLE:
            if intake.repeat is not None:
                self._known.learn(intake.repeat)
            self._ready = intake.clean and not (outstanding or blocked or self._connections.draining)
            deadlines.read = NEVER if outstanding else deadlines.clock.idle_deadline
        elif intake.phase != DEAF:
            deadlines.expect_message(intake.phase, intake.renewals)
        elif self._linger_left < 0:
            deadlines.read = NEVER
        if intake.phase == IN_BODY or self.place.waits:
            if not self._hold_body():
                return
        elif self.hold.bodies_bytes and not outstanding:
            self.hold.set_bodies(0)
        if blocked or self._reading_paused:
            self._set_reading()

    def _hold_body(self) -> bool:
        """Count what has arrived until it is answered; False if there is no room for more, and it was refused."""
        held = self._intake.held_bytes
        if held <= SMALL_BYTES:
            return True
        self.hold.set_bodies(held + self.outbox.held_bytes)
        account = self._connections.account
        if not account.full:
            return True
        self._turn_away(account.refusal())
        return False

    def give_room(self) -> None:
        """Too much is buffered for all clients, and this one does not move: give back what it holds."""
        refusal = self._connections.account.refusal()  # This counts it, whether or not it can be told.
        if self._intake.phase == IN_BODY:
            self._turn_away(refusal)
        else:
            self.abort()

    def _set_reading(self) -> None:
        """Read from the socket exactly while what is read has somewhere to go."""
        pause = self._intake.phase != DEAF and self._blocked()
        if pause != self._reading_paused and not self._lost and not self.transport.is_closing():
            self._reading_paused = pause
            if pause:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _dispatch(self, message: Message) -> Exchange:
        """Make an exchange of the message, in its place in the order, and have it handled."""
        exchange = Exchange(self.outbox, message.head, message.body, message.started_ns)
        exchange.rest = message.rest
        self.outbox.add(exchange)
        if message.closes or self._connections.draining:
            self._close_after_last()
        try:
            if message.error is not None:
                exchange.fail(message.error)
            else:
                message.head.door.handle(exchange)
        except Exception as error:
            exchange.raised(error)
        return exchange

    def _turn_away(self, error: TopicsError) -> None:
        """Answer the message under way, or the bare connection, with an error that ends the connection."""
        self._dispatch(self._intake.refuse(error))
        if not self._lost:
            self._await_next()

    def revoke(self, is_revoked: Callable[[Head], bool], error: TopicsError) -> None:
        """Keys have changed: forget how heads were resolved, and turn away what waits or arrives with a revoked one."""
        self._known.forget()
        awaited = self._intake.forget_heads()
        if self._upgraded is not None:
            self._upgraded.revoke(is_revoked, error)
            return
        for exchange in [each for each in self.outbox.outstanding() if is_revoked(each.head)]:
            exchange.turn_away(error)
        if awaited is not None and is_revoked(awaited):
            self._turn_away(error)

    def stop_parsing(self) -> None:
        """Parse nothing more, and keep nothing back from the transport before it is closed or handed over."""
        if self.outbox.gathering:
            self.outbox.send_gathered()
        self._ready = False
        self._held = None
        self._intake.stop()

    # Streams and upgrades

    def stream_begins(self) -> None:
        """From now on the stream has its own rules for how long its client may take."""
        self.deadlines.clear()
        self._set_reading()

    def hand_over(self, exchange: Exchange | None, upgrade: Upgrade) -> None:
        """Give the transport, which begins to read anew, and what is not parsed yet, to another protocol for good."""
        outbox = self.outbox
        if self._lost or exchange is not outbox.current:
            raise RuntimeError("the connection cannot be handed over now")
        rest = self._intake.rest()
        self.stop_parsing()
        outbox.current = None
        self.deadlines.clear()
        self._upgraded = protocol = upgrade(self.transport)
        depart = partial(self._connections.depart, self.transport.close)
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        self.transport.set_protocol(Relay(protocol, self.connection_lost, depart))  # type: ignore[arg-type]
        self._set_reading()
        if outbox.write_paused:
            protocol.pause_writing()
        if rest:
            protocol.data_received(rest)

    @property
    def transport(self) -> asyncio.Transport:
        """The transport to the client."""
        return self.outbox.transport

    @property
    def idle(self) -> bool:
        """Whether no request is outstanding or under way, and the connection is still one for requests."""
        free = self.outbox.stream is None is self.outbox.current and self._upgraded is None
        return free and self._intake.phase == IDLE and not self.place.waits

    def _close_after_last(self) -> None:
        self.outbox.close_after_last()
        self.stop_parsing()

    def finish(self) -> None:
        """The last answer is written: close, and linger where the client may still be sending (rule 3)."""
        self.stop_parsing()
        self.outbox.abandon()
        if self._eof or self._linger_left >= 0:
            self.close()
            return
        self._linger_left = LINGER_MAX_BYTES
        self._watch_writing()
        self.deadlines.read = self.deadlines.clock.after(LINGER_MS)
        self._set_reading()
        self.transport.write_eof()

    def close(self) -> None:
        """Close once everything written is sent, or cannot be sent in time."""
        if self.outbox.owing:
            self._connections.send_answers()
        if not self._lost:
            self.stop_parsing()
            self._watch_writing()
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if not self._lost:
            self.transport.abort()

    def wind_up(self) -> None:
        """The server stops: close if idle, else close with the last answer."""
        self._ready = False
        outbox = self.outbox
        if self._upgraded is not None:
            self._upgraded.shut_down()
        elif outbox.stream is not None:
            outbox.stream.close()
        # What is in line is still answered, and that answer ends the connection.
        elif self._intake.phase in (IDLE, SKIPPING) and not self.place.waits:
            if outbox.current is None:
                self.close()
                return
            self._close_after_last()
            outbox.hurry()

    def expire(self, now: float) -> None:
        """A deadline has passed."""
        if self._upgraded is not None:
            self._upgraded.expire(now)
            return
        deadlines = self.deadlines
        if deadlines.write <= now:
            if deadlines.is_stuck(self.outbox.unsent_bytes):
                self.transport.abort()
                return
            self._watch_writing()
        if deadlines.read > now:
            return
        if self._intake.phase in (IN_HEAD, IN_BODY):
            self._turn_away(deadlines.timeout(self._intake.phase))
        elif self.outbox.current is not None:
            deadlines.read = deadlines.clock.idle_deadline
        elif self._linger_left < 0:
            self.close()
        elif self.outbox.unsent_bytes:
            deadlines.read = deadlines.clock.after(LINGER_MS)
        else:
            self.transport.abort()

    def _watch_writing(self) -> None:
        self.deadlines.watch_writing(self.outbox.unsent_bytes)
