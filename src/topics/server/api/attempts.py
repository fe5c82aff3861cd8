"""Attempts: a request that needs what is not in memory is handled from the start once that is read.

A handler that meets a Block which is on disk only raises `Miss` before it has changed anything. The read runs on a
thread, and the request is attempted again; nothing else waits for it.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.server.api.route import Handler
from topics.server.http.exchange import Exchange, as_answer
from topics.storage.job import Job, Miss

RunThen = Callable[[Job, Callable[[], None]], None]
"""Executes a job on a thread, then calls back on the loop."""


class Attempts:
    """Handles requests again that had to wait for something."""

    def __init__(self, run_then: RunThen) -> None:
        self._run_then = run_then

    def after(self, miss: Miss, exchange: Exchange, handle: Handler) -> None:
        """Handle the request once what was missing is read."""
        self._run_then(miss.job, lambda: self.handle(exchange, handle))

    def handle(self, exchange: Exchange, handle: Handler) -> None:
        """Answer a request that has come through its door before, whatever happens."""
        try:
            handle(exchange)
        except Miss as miss:
            self.after(miss, exchange, handle)
        except Exception as error:
            exchange.fail(as_answer(error, "handling", exchange.head))
