"""LongPoll: a diff that waits for the first record it can deliver (API §3, `wait_ms`).

It looks again whenever its topic publishes, and answers as soon as there is something to deliver, the topic is gone,
or the time is up. Records that its own filters drop move its cursor and do not end the wait. A client that goes away
is forgotten at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from topics.errors import TopicNotFound, TopicsError
from topics.server.api import handlers as answers
from topics.storage.job import Miss

if TYPE_CHECKING:
    from topics.engine.log.difference import Difference
    from topics.engine.requests import Diff
    from topics.engine.topic import Topic
    from topics.server.api.handlers import Handlers
    from topics.server.http.exchange import Exchange


class LongPoll:
    """One waiting diff."""

    def __init__(
        self, handlers: Handlers, exchange: Exchange, diff: Diff, difference: Difference, wait_ms: int
    ) -> None:
        self._handlers = handlers
        self._exchange = exchange
        self._diff = diff
        self._difference = difference
        self._wait_s = wait_ms / 1000
        self._topic: Topic = handlers.engine.topic(exchange.head.route.name)
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.Handle | None = None

    def start(self) -> None:
        """Wait from now on."""
        self._topic.listeners.append(self._published)
        self._exchange.on_disconnect = self._time_is_up
        self._timer = self._handlers.loop.call_later(self._wait_s, self._time_is_up)

    def _published(self, topic: Topic) -> None:
        if self._look is None:
            self._look = self._handlers.loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._look = None
        if self._topic.deleted:
            self._stop()
            name = self._topic.name
            self._exchange.fail(TopicNotFound(f'topic "{name}" was deleted while the read waited', topic=name))
            return
        diff = msgspec.structs.replace(self._diff, from_seq=self._difference.next_from_seq)
        try:
            self._difference = self._handlers.engine.diff(self._topic.name, diff)
        except Miss as miss:
            self._handlers.run_then(miss.job, lambda: None if self._exchange.answered else self._look_again())
            return
        except TopicsError as error:
            self._stop()
            self._exchange.fail(error)
            return
        if not answers.is_idle(self._difference):
            self._stop()
            answers.send_difference(self._exchange, self._difference)

    def _time_is_up(self) -> None:
        self._stop()
        answers.send_difference(self._exchange, self._difference)

    def _stop(self) -> None:
        self._exchange.on_disconnect = None
        if self._published in self._topic.listeners:
            self._topic.listeners.remove(self._published)
        for handle in (self._timer, self._look):
            if handle is not None:
                handle.cancel()
