"""ThreadPool: threads that run plain functions for an event loop.

They are daemons: a function that never returns must not keep a program from ending, which the threads of an executor
would. There are at most as many as there are functions at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class _Call(NamedTuple):
    function: Callable[[Any], Any]
    argument: Any
    loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[Any]


class ThreadPool:
    """At most `size` threads."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0

    async def run(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """The result of a function, called in a thread."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        if self._idle > 0:
            self._idle -= 1
        elif self._threads < self._size:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._calls.put(_Call(function, argument, loop, outcome))
        return await outcome

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            result, error = None, None
            try:
                result = call.function(call.argument)
            except BaseException as raised:
                error = raised
            # The loop is gone where the program has given up on this function.
            with contextlib.suppress(RuntimeError):
                call.loop.call_soon_threadsafe(self._finish, call.outcome, result, error)

    def _finish(self, outcome: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._idle += 1
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            outcome.set_exception(error)
        else:
            failure = RuntimeError(f"the task raised {error!r}")
            failure.__cause__ = error
            outcome.set_exception(failure)

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        for _ in range(self._threads):
            self._calls.put(None)
