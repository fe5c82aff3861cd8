"""AsyncConsumer: the records of topics, from where it has got to, with its progress kept. For asyncio.

An `async for` loop over it, or `run` with a function. `stop` ends either after the item in hand, and so does SIGTERM
while `run` runs on the event loop of the main thread. Its cursors are committed as `consumption` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Self, TypeVar

from topics.client.operations.call import log
from topics.client.operations.consumption import Consumption, Lag
from topics.client.operations.operation import arun
from topics.client.signals import stops_task
from topics.client.transport import waiting
from topics.errors import TopicsError

Item = TypeVar("Item")
"""What is delivered: records, or also tombstones."""


class AsyncConsumer(Generic[Item]):
    """A reader that remembers. It belongs to one task; `stop` may be called from any."""

    def __init__(self, consumption: Consumption[Any], pool: waiting.Pool) -> None:
        self._consumption = consumption
        self._pool = pool
        self._courier = waiting.Courier(pool)
        self._stopped = False
        self._fetching: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The name under which it keeps its cursors."""
        return self._consumption.name

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while True:
            if self._stopped:
                self._consumption.handled()
                self._courier.close_stream()
                await self.commit()
                raise StopAsyncIteration
            item: Any = self._consumption.pop()
            if item is not None:
                return item  # type: ignore[no-any-return]
            await self._fetch()

    async def _fetch(self) -> None:
        # A task of its own, so that `stop` can end the wait and nothing else.
        fetching = self._fetching = asyncio.create_task(arun(self._consumption.fetch(), self._courier))
        try:
            await asyncio.wait([fetching])
        finally:
            self._fetching = None
            if not fetching.done():
                fetching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await fetching
        if not fetching.cancelled():
            fetching.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, handler: Callable[[Item], Any]) -> None:
        """Call a function, plain or async, with each item, until `stop` or SIGTERM."""
        with stops_task(self.stop, self._consumption.signals):
            try:
                async for item in self:
                    result = handler(item)
                    if inspect.isawaitable(result):
                        await result
            except BaseException:
                # An item whose handler failed is delivered again, and what it raised matters more than a commit.
                self._consumption.put_back()
                try:
                    await self.commit()
                except TopicsError as error:
                    log.error("the consumer %s could not commit at its end: %s", self.name, error.message)
                raise

    async def commit(self) -> None:
        """Keep where it has got to, now."""
        await arun(self._consumption.commit(), waiting.Courier(self._pool))

    def lag(self) -> dict[str, Lag]:
        """How far it is behind in each topic, in records and in seconds."""
        return self._consumption.lag()

    def stop(self) -> None:
        """End the iteration after the item in hand, and commit."""
        self._stopped = True
        if self._fetching is not None:
            self._fetching.cancel()

    async def close(self) -> None:
        """End it, and commit what was handled: every item but the last one, unless the iteration has ended."""
        self._consumption.put_back()
        await self.commit()
        self.stop()
        self._courier.close_stream()
