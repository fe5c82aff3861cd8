"""Every live connection of the server, and what is common to them: the app, the limits, the clock of their deadlines.

There are no timers per request or per connection. A connection writes down when it has to be looked at
(`read_deadline`, `write_deadline`), and one sweep per second closes what is overdue. Deadlines are therefore kept to
within one sweep, late and never early. The same sweep renews the `Date` of responses.

`Connections` is the protocol factory of the listening socket. For a graceful stop: close the listener, then `drain`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from topics.server.http import reply
from topics.server.http.connection import Connection

if TYPE_CHECKING:
    from topics.server.http.exchange import Exchange, Upgraded
    from topics.server.http.head import Head

SWEEP_S: Final = 1.0
DRAIN_POLL_S: Final = 0.02
REFUSED_MAX: Final = 256
"""How many connections over `max_connections` may be told so at the same time; the rest are cut without a word."""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one client may cost the connection layer. Times are milliseconds; `max_connections` 0 is unlimited."""

    max_body_bytes: int = 64 * 1024 * 1024
    max_header_bytes: int = 16 * 1024
    max_headers: int = 100
    header_timeout_ms: int = 10_000
    """From a head's first byte to its last."""
    body_timeout_ms: int = 20_000
    """How long a body may take over its next `connection.BODY_PROGRESS_BYTES` (or its rest, if that is less)."""
    idle_timeout_ms: int = 75_000
    """How long a kept-alive connection may stay silent between requests."""
    write_timeout_ms: int = 30_000
    """How long a client may leave answers unread before it is cut off. Streams have their own rule."""
    max_connections: int = 10_000
    max_refused: int = REFUSED_MAX


class App(Protocol):
    """What the connection layer serves."""

    def resolve(self, head: Head) -> Any:
        """The route of a complete head, kept as `head.route`.

        Called before the body is read. A head that repeats on its connection, but for the digits of a Content-Length,
        reuses its route without another call; so whatever may change between requests is `handle`'s to check, and the
        route must not depend on how long the body is. A raised TopicsError is answered at once.
        """

    def handle(self, exchange: Exchange) -> None:
        """The whole request is there. Answer now or later; must not block. A raised TopicsError becomes the answer."""


class Connections:
    """The set of live connections; call it for the protocol of another one."""

    def __init__(
        self,
        app: App,
        limits: ConnectionLimits | None = None,
        *,
        http2_factory: Callable[[Connection], Upgraded] | None = None,
    ) -> None:
        self.app = app
        self.limits = limits or ConnectionLimits()
        self.http2_factory = http2_factory
        self.live: set[Connection] = set()
        self._refused = 0
        self.draining = False
        self.now = 0.0
        self.idle_deadline = 0.0
        self._sweeper: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._answers: list[tuple[Connection, bytes]] = []

    def __call__(self) -> Connection:
        """A protocol for one accepted connection."""
        return Connection(self)

    def __len__(self) -> int:
        """How many connections are live, those that were refused not counted."""
        return len(self.live) - self._refused

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to sweep."""
        self._loop = loop
        self._tick()

    def stop(self) -> None:
        """Stop sweeping."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def _tick(self) -> None:
        assert self._loop is not None
        self.sweep(self._loop.time())
        self._sweeper = self._loop.call_later(SWEEP_S, self._tick)

    def sweep(self, now: float) -> None:
        """Let every connection that is overdue at `now` (seconds of the loop's clock) act on it."""
        reply.tick()
        self.now = now
        # A connection that goes idle before the next sweep reads this value up to a sweep later.
        self.idle_deadline = now + SWEEP_S + self.limits.idle_timeout_ms / 1000
        overdue = [each for each in self.live if each.read_deadline <= now or each.write_deadline <= now]
        for connection in overdue:
            connection.expire(now)

    def owe(self, connection: Connection, answer: bytes) -> None:
        """Have `connection` send this at the end of this turn of the loop, or now if there is no loop to wait for.

        Its answer goes out with those to the others of this turn: who has many connections is woken once, not by each.
        """
        if not self._answers:
            if self._loop is None:
                connection.write(answer)
                return
            self._loop.call_soon(self.send_answers)
        self._answers.append((connection, answer))
        connection.owing = True

    def send_answers(self) -> None:
        """Have every answer sent that is owed."""
        answers, self._answers = self._answers, []
        for connection, answer in answers:
            connection.owing = False
            connection.write(answer)

    def after(self, timeout_ms: int) -> float:
        """The deadline `timeout_ms` from now, never early although `now` is as old as the last sweep."""
        return self.now + SWEEP_S + timeout_ms / 1000

    def add(self, connection: Connection) -> bool:
        """Count a connection in; False if there are already `max_connections`."""
        self.live.add(connection)
        if not 0 < self.limits.max_connections < len(self):
            return True
        self._refused += 1
        return False

    def may_refuse(self) -> bool:
        """Whether a connection too many may be told so, rather than just cut."""
        return self._refused <= self.limits.max_refused

    def remove(self, connection: Connection, *, refused: bool) -> None:
        """Count a lost connection out; `refused` if `add` said False."""
        self.live.discard(connection)
        self._refused -= refused
        if not self.live and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def close_idle(self) -> None:
        """Close every connection that has no request in it."""
        for connection in [each for each in self.live if each.idle]:
            connection.close()

    async def drain(self, timeout_s: float) -> bool:
        """Let what is in flight finish, close everything else; after `timeout_s` cut off the rest.

        Busy connections get `Connection: close` on their last answer, streams and upgraded connections are told to
        shut down. Idle ones are kept as long as anything is in flight, so that a load balancer that asks on one is told
        that the server stops; then they are closed. True if all of it ended by itself.
        """
        self.draining = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        for connection in [each for each in self.live if not each.idle]:
            connection.wind_up()
        # Polled: it ends with any of many answers, and only once in a server's life.
        while any(not each.idle for each in self.live) and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_S)
        for connection in list(self.live):
            connection.wind_up()
        if self.live:
            self._emptied = loop.create_future()
            await asyncio.wait((self._emptied,), timeout=max(0.0, deadline - loop.time()))
        finished = not self.live
        for connection in list(self.live):
            connection.abort()
        return finished
