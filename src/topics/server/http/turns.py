"""Turns: how much of one turn of the loop the input of clients may take, all connections together.

One read can hold thousands of requests or frames, and one turn of the loop can bring many such reads. Looked at in one
go they would hold up everybody else. So:

1. What a small read begins with is always looked at: a client that sends something small and waits for the answer never
   queues.
2. What comes after it shares `TURN_NS` per turn of the loop, over all connections.
3. A connection that has more than that waits in line and reads nothing meanwhile, so that the kernel's buffers push
   back. The line is served once per turn of the loop, `TURN_NS` altogether and `SHARE_NS` for each, first come, first
   served.
4. A read that is not small (`LIGHT_MAX_BYTES`) or ends a body that is not costs more to begin with, and so does what
   HTTP/2 connections read: in one turn of the loop they begin for `BEGIN_NS` altogether, at most for twice that, and
   the rest of them wait in line too (`may_begin`). The line gets as much time then, so that those who were early do
   not stay ahead.
5. Large answers are made in the same way (`in_turn`): one at a time, however many are asked for at the same moment.
   After one that took long the line rests for a moment, so that a small request meets at most one of them on its way.

So whatever any number of clients sends, a turn takes a few milliseconds for it, and what has just arrived elsewhere is
read in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

log = logging.getLogger("topics.server")

TURN_NS: Final = 1_000_000
SHARE_NS: Final = 250_000
BEGIN_NS: Final = 3_000_000
LIGHT_MAX_BYTES: Final = 4 * 1024
"""A thousand requests of this size at the same moment take no longer than as many of the smallest."""
REST_TURNS: Final = 2
"""How many turns follow without anything from the line after one that took long: a request and its answer, say."""


class Turns:
    """The line of the connections that have more to do, see the module."""

    __slots__ = (
        "_begin_until_ns", "_beginning", "_begun", "_crowded", "_deadline_ns", "_due", "_line", "_loop", "_rest",
        "_serving", "clock_ns",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, clock_ns: Callable[[], int]) -> None:
        self.clock_ns = clock_ns
        self._loop = loop
        self._line: deque[Callable[[], None]] = deque()
        self._deadline_ns = 0
        self._begun = False
        self._begin_until_ns = 0
        self._beginning = False
        self._crowded = False
        self._due = False
        self._rest = 0
        self._serving = False

    def __len__(self) -> int:
        """How many connections wait in line."""
        return len(self._line)

    def deadline_ns(self) -> int:
        """Until when, by `clock_ns`, a connection may go on with what it has read."""
        if not self._begun:
            self._begun = True
            self._deadline_ns = self.clock_ns() + TURN_NS
            self._wake()
        return self._deadline_ns

    def may_begin(self) -> bool:
        """Whether a connection may begin with what it has read now, or has to wait in line (rule 4)."""
        now_ns = self.clock_ns()
        if now_ns < self._begin_until_ns or self._serving:
            return True
        if self._beginning:
            # All of this time has passed within one turn of the loop.
            self._crowded = True
            return False
        # To notice the end of a turn costs more than to look at the clock: it is asked for once in this time.
        self._begin_until_ns = now_ns + BEGIN_NS
        self._beginning = True
        self._wake()
        return True

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when it is its turn."""
        self._line.append(go_on)
        self._wake()

    def in_turn(self, call: Callable[[], None]) -> None:
        """Call now if this turn has time left, else in a later one."""
        if self.clock_ns() < self.deadline_ns():
            call()
        else:
            self.wait(call)

    def _wake(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._serve)

    def finish(self) -> None:
        """Serve everybody who waits now, once: for a stop, when the connections are gone and nobody else waits."""
        for _ in range(len(self._line)):
            self._next()

    def _next(self) -> None:
        try:
            self._line.popleft()()
        except Exception:
            # A defect with one connection must not silence the others.
            log.exception("a connection could not go on")

    def _serve(self) -> None:
        """Serve the line for as long as a turn allows."""
        self._due = False
        self._beginning = False
        if self._rest:
            self._rest -= 1
            self._wake()
            return
        self._begun = True
        line = self._line
        now_ns = self.clock_ns()
        end_ns = now_ns + (BEGIN_NS if self._crowded else TURN_NS)
        self._crowded = False
        waiting = len(line)
        self._serving = True
        while waiting and now_ns < end_ns:
            waiting -= 1
            self._deadline_ns = now_ns + SHARE_NS
            self._next()
            now_ns = self.clock_ns()
        self._serving = False
        if now_ns - end_ns > TURN_NS:
            self._rest = REST_TURNS
        if line:
            # A connection that comes while others wait goes to the end of the line.
            self._deadline_ns = 0
            self._wake()
        else:
            self._begun = False


def _nothing() -> None:
    """What a connection that is gone still has to do."""


class Place:
    """The place of one connection in the line."""

    __slots__ = ("_go_on", "_turns", "waits")

    def __init__(self, turns: Turns, go_on: Callable[[], None]) -> None:
        """`go_on` is called when it is the connection's turn."""
        self._turns = turns
        self._go_on = go_on
        self.waits = False

    def wait(self) -> None:
        """Wait in line, if it does not already."""
        if not self.waits:
            self.waits = True
            self._turns.wait(self._serve)

    def may_begin(self) -> bool:
        """Whether the connection may begin with what it has read; otherwise it waits in line (rule 4)."""
        if not self.waits and not self._turns.may_begin():
            self.wait()
        return not self.waits

    def give_way(self) -> bool:
        """Wait in line if this turn has taken long enough already; whether it waits."""
        turns = self._turns
        if not self.waits and turns.clock_ns() >= turns.deadline_ns():
            self.wait()
        return self.waits

    def leave(self) -> None:
        """The connection is gone: whatever waits in line for it does nothing."""
        self._go_on = _nothing

    def _serve(self) -> None:
        self.waits = False
        self._go_on()
