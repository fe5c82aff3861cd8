"""Every live connection of the server, and what they share: the app, the limits, the clock of their deadlines.

One sweep per second closes what is overdue (deadlines.py), makes room where too much is buffered (account.py), and
renews the `Date` of responses. Answers that are there at once are owed until the end of the loop's turn and sent
together (`owe`).

Clients end by the thousands, where a process that had many connections ends: the loop learns of all of them in one
turn. Each is noted, and a few of them are closed in each turn of the loop (`depart`).

For a graceful stop: close the listener, then `drain`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from topics.errors import TopicsError
from topics.server.http.account import SMALL_BYTES, Account
from topics.server.http.deadlines import SWEEP_S, SweepClock
from topics.server.http.exchange import App, admit
from topics.server.http.head import Head
from topics.server.http.limits import ConnectionLimits
from topics.server.http.outbox import Outbox
from topics.server.http.reply import JSON_PREFIXES
from topics.server.http.traffic import Traffic
from topics.server.http.turns import Turns
from topics.server.http.upgrade import Upgraded

if TYPE_CHECKING:
    from topics.server.http.connection import Connection

DRAIN_POLL_S: Final = 0.02
DEPART_TOGETHER: Final = 32
"""How many connections are closed or taken down in one turn of the loop: half a millisecond's worth."""
DEPART_TURNS: Final = 64
"""After about so many turns all of them have gone, however many there are: then there are more in each."""

Http2Factory = Callable[["Connections", "Connection", asyncio.Transport], "Upgraded"]


class Connections:
    """The set of live connections."""

    def __init__(
        self,
        app: App,
        loop: asyncio.AbstractEventLoop,
        limits: ConnectionLimits,
        turns: Turns,
        account: Account,
        http2: Http2Factory | None,
        traffic: Traffic,
    ) -> None:
        """`http2` makes the protocol of a connection that begins with the HTTP/2 preface."""
        self.app = app
        self.admit: Callable[[Head], None] = partial(admit, app)
        self.limits = limits
        self.turns = turns
        self.account = account
        self.http2 = http2
        self.traffic = traffic
        self.live: set[Connection] = set()
        self.clock = SweepClock(self.limits.idle_timeout_ms)
        self.draining = False
        self._refused = 0
        self._loop = loop
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._answers: list[tuple[Outbox, bytes]] = []
        # What closes each connection whose client is gone, or takes down one that is lost.
        self._departing: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        """How many connections are live, those that were refused not counted."""
        return len(self.live) - self._refused

    def start(self) -> None:
        """Begin to sweep."""
        self.sweep(self._loop.time())
        self._sweeper = self._loop.call_later(SWEEP_S, self.start)

    def stop(self) -> None:
        """Stop sweeping."""
        if self._sweeper is not None:
            self._sweeper.cancel()

    def sweep(self, now: float) -> None:
        """Let every connection that is overdue at `now` (seconds of the loop's clock) act on it."""
        JSON_PREFIXES.clear()
        self.clock.set(now)
        self.traffic.adapt()
        overdue = [each for each in self.live if each.deadlines.read <= now or each.deadlines.write <= now]
        for connection in overdue:
            connection.expire(now)
        if self.account.total_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Where too much is buffered, cut off what holds the most of it and has not moved since the last sweep."""
        holders = [each for each in self.live if each.hold.total_bytes > SMALL_BYTES and not each.place.waits]
        still = [each for each in holders if each.hold.mark()]
        still.sort(key=lambda each: each.hold.total_bytes)
        while self.account.tight and still:
            still.pop().give_room()

    def owe(self, outbox: Outbox, answer: bytes) -> None:
        """Send this at the end of this turn of the loop, with the answers to all other requests of the turn.

        Sent one by one between reads, each answer would wake a client that has gone back to sleep meanwhile, and the
        waking is most of what a `write` costs. Nothing else happens on a connection before what it owes is sent.
        """
        if not self._answers:
            self._loop.call_soon(self.send_answers)
        self._answers.append((outbox, answer))
        outbox.owing = True

    def send_answers(self) -> None:
        """Send every answer that is owed."""
        answers, self._answers = self._answers, []
        for outbox, answer in answers:
            outbox.owing = False
            outbox.write(answer)

    def add(self, connection: Connection) -> bool:
        """Count a connection in; False if there are already `max_connections`."""
        self.live.add(connection)
        self.traffic.accepted_total += 1
        self.traffic.connections += 1
        if not 0 < self.limits.max_connections < len(self):
            self.account.connections += 1
            return True
        self._refused += 1
        self.traffic.refused_total += 1
        return False

    def may_refuse(self) -> bool:
        """Whether a connection too many may get an answer that says so, rather than just being cut."""
        return self._refused <= self.limits.max_refused

    def remove(self, connection: Connection, *, refused: bool) -> None:
        """Count a lost connection out; `refused` if `add` returned False."""
        self.live.discard(connection)
        self.traffic.connections -= 1
        self._refused -= refused
        self.account.connections -= not refused
        if not self.live and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def depart(self, close: Callable[[], None]) -> None:
        """Close a connection whose client is gone, or take down one that is lost, when it is its turn."""
        self._departing.append(close)
        if len(self._departing) == 1:
            self._loop.call_soon(self._close_departing)

    def _close_departing(self) -> None:
        try:
            # Those that are lost already count nowhere else: a flood of them must not grow faster than it is removed.
            together = max(DEPART_TOGETHER, len(self._departing) // DEPART_TURNS)
            for _ in range(min(together, len(self._departing))):
                self._departing.popleft()()
        finally:
            # Also after a defect with one of them: the others would never be closed.
            if self._departing:
                self._loop.call_soon(self._close_departing)

    def revoke(self, is_revoked: Callable[[Any], bool], error: TopicsError) -> None:
        """Keys have changed: every head is resolved again, and what is under way on a route that is revoked ends."""
        for connection in list(self.live):
            connection.revoke(lambda head: head.route is not None and is_revoked(head.route), error)

    async def drain(self, timeout_s: float) -> bool:
        """Let what is in flight finish, close everything else; after `timeout_s` cut off the rest.

        Busy connections get `Connection: close` on their last answer; streams and upgraded connections are shut down.
        Idle ones are kept as long as anything is in flight, so that a load balancer that asks on one learns that the
        server stops; then they are closed. True if all of it ended by itself.
        """
        self.draining = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        for connection in list(self.live):
            if connection.idle:
                # So that it takes note: the next request is its last.
                connection.carry_on()
            else:
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
