"""The HTTP API of reading: `POST /v0/topics/:topic/diff`, answered at once or after a wait (the READ rules).

The answer is hot, so it is formatted by hand in one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Final

from msgspec import structs

from topics.engine import Engine
from topics.engine.engine import BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX
from topics.engine.log.difference import Difference
from topics.engine.requests import Diff
from topics.engine.topic import Topic
from topics.errors import TopicNotFound, TopicsError
from topics.server.api import bodies
from topics.server.api.answers import separated
from topics.server.api.attempts import Attempts
from topics.server.http.account import SMALL_BYTES, Account
from topics.server.http.exchange import Exchange
from topics.server.http.turns import Turns

WAIT_MS_MAX: Final = 30_000
CLOGGED_S: Final = 0.25
"""How soon a wait looks again whose client does not read its earlier answers."""
KEPT_BYTES_MAX: Final = 16 * 1024
"""A wait keeps what was decoded of a body of up to this size."""

_BOOL: Final = (b"false", b"true")
_TAIL: Final = (
    b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"tombstone":%b,"lag":%d,'
    b'"performance":{"server_total_ms":%.3f,"records_scanned":%d,"throttle_wait_ms":0.0}}'
)


class DiffHandler:
    """Answers the route that reads records."""

    def __init__(
        self, engine: Engine, loop: asyncio.AbstractEventLoop, attempts: Attempts, turns: Turns, account: Account
    ) -> None:
        self.engine = engine
        self.loop = loop
        self.attempts = attempts
        self.turns = turns
        self.account = account
        # What is to be looked at again when clients may have read.
        self._clogged: list[Callable[[], None]] = []

    def diff(self, exchange: Exchange) -> None:
        """`POST /v0/topics/:topic/diff`."""
        diff = bodies.diff(exchange.body)
        if diff.max_batch_bytes > BATCH_BYTES_DEFAULT:
            exchange.carrier.in_turn(lambda: self._read_large(exchange, diff))
        elif diff.wait_ms or self.account.total_bytes:
            self._answer(exchange, diff)
        else:
            _send(exchange, self.engine.diff(exchange.head.route.name, diff), in_turn=False)

    def _read_large(self, exchange: Exchange, diff: Diff) -> None:
        """Read a lot, one at a time, and not before the client has taken its earlier answers (FAIR-4)."""
        if exchange.carrier.gone:
            return
        if exchange.carrier.clogged:
            self.look_later(partial(self._read_large, exchange, diff))
        else:
            self.attempts.handle(exchange, lambda exchange: self._answer(exchange, diff, in_turn=True))

    def look_later(self, look: Callable[[], None]) -> None:
        """Call this a little later, in turns with whatever else waits for a client that does not read."""
        self._clogged.append(look)
        if len(self._clogged) == 1:
            self.loop.call_later(CLOGGED_S, self._look_at_clogged)

    def _look_at_clogged(self) -> None:
        clogged, self._clogged = self._clogged, []
        for look in clogged:
            self.turns.wait(look)

    def _answer(self, exchange: Exchange, diff: Diff, *, in_turn: bool = False) -> None:
        account = self.account
        if account.total_bytes:
            diff = self.within(diff)
        difference = self.engine.diff(exchange.head.route.name, diff)
        if diff.wait_ms and _is_empty(difference):
            LongPoll(self, exchange, diff, difference)
        elif account.total_bytes >= account.max_bytes and sum(map(len, difference.pieces)) > SMALL_BYTES:
            raise account.refusal()
        else:
            _send(exchange, difference, in_turn)

    def within(self, diff: Diff) -> Diff:
        """The diff with no more bytes than an answer may have for now (FAIR-4)."""
        share = self.account.share_bytes()
        if share >= BATCH_BYTES_MAX:
            return diff
        asked = diff.max_batch_bytes or BATCH_BYTES_DEFAULT
        return structs.replace(diff, max_batch_bytes=min(asked, share))


class LongPoll:
    """A diff that waits for the first record it can deliver (`wait_ms`).

    It looks again whenever its topic publishes, and answers as soon as there is something to deliver, the topic is
    gone, or the time is up. Records that its own filters drop move its cursor and do not end the wait. A client that
    goes away is forgotten at once. Those that one publish wakes look in turns (`Turns`), and one whose client does not
    read its earlier answers waits on.

    A large body, which has a filter of many nodes, is kept as it came and decoded again for each look: one piece of
    memory, not a thousand that the collector walks and that all have to be freed in one go.
    """

    def __init__(self, handler: DiffHandler, exchange: Exchange, diff: Diff, difference: Difference) -> None:
        self._handler = handler
        self._exchange = exchange
        self._diff = diff if len(exchange.body) <= KEPT_BYTES_MAX else None
        self._difference = difference
        self._topic = handler.engine.topic(exchange.head.route.name)
        self._due = False
        self._over = False
        self._topic.listeners[self._published] = None
        exchange.on_disconnect = self._left
        exchange.begin_wait()
        self._timer = handler.loop.call_later(min(diff.wait_ms, WAIT_MS_MAX) / 1000, self._time_is_up)

    def _published(self, topic: Topic) -> None:
        if not self._due:
            self._due = True
            self._exchange.end_wait()
            self._handler.turns.wait(self._look_soon)

    def _look_soon(self) -> None:
        if self._over:
            return
        if self._exchange.carrier.clogged or self._handler.account.full:
            self._handler.look_later(self._look_soon)
            return
        self._due = False
        self._handler.attempts.handle(self._exchange, self._look_again)

    def _look_again(self, exchange: Exchange) -> None:
        if exchange.answered:
            return
        try:
            if self._topic.deleted:
                name = self._topic.name
                raise TopicNotFound(f'topic "{name}" was deleted while the read waited', topic=name)
            diff = structs.replace(self._diff or bodies.diff(exchange.body), from_seq=self._difference.next_from_seq)
            if self._handler.account.total_bytes:
                diff = self._handler.within(diff)
            self._difference = self._handler.engine.diff(self._topic.name, diff)
        except TopicsError:
            self._stop()
            raise
        if not _is_empty(self._difference):
            self._time_is_up()
        else:
            exchange.begin_wait()

    def _left(self) -> None:
        """The client is gone, or only sends nothing more: then it gets what there is."""
        if self._exchange.carrier.gone:
            self._stop()
        else:
            self._time_is_up()

    def _time_is_up(self) -> None:
        self._stop()
        if not self._exchange.answered:
            # One that a publish has woken looks when it is its turn.
            _send(self._exchange, self._difference, in_turn=True)

    def _stop(self) -> None:
        self._exchange.on_disconnect = None
        self._exchange.end_wait()
        self._topic.listeners.pop(self._published, None)
        self._timer.cancel()
        self._over = True


def _is_empty(difference: Difference) -> bool:
    """Whether a reader that may wait should: nothing to deliver, nothing lost, nothing more to look at."""
    return not difference.count and difference.tombstone is None and difference.caught_up


def _send(exchange: Exchange, difference: Difference, in_turn: bool) -> None:
    tombstone = difference.tombstone
    head = b'{"topic":"%b","records":[' % exchange.head.route.name_bytes
    tail = _TAIL % (
        difference.next_from_seq,
        difference.head_seq,
        difference.earliest_seq,
        _BOOL[difference.caught_up],
        b"null" if tombstone is None else tombstone.wire(),
        difference.lag,
        (perf_counter_ns() - exchange.started_ns) / 1e6,
        difference.scanned,
    )
    exchange.respond_parts([head, *separated(difference.pieces), tail], in_turn=in_turn)
