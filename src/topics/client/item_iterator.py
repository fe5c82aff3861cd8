"""ItemIterator: batch after batch as one iterator over its items, in threads and on asyncio.

`Reader` and `Follower` say where the batches come from and what the position is; `_deliver` is called with each item,
and raises where the item is a loss that is to be raised. To call `next` again after that goes on after the loss.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, Protocol, Self, TypeVar

from topics.client.errors import Closed
from topics.client.operations.operation import Operation, arun, run
from topics.client.operations.read import ON_LOSS, Batch, OnLoss
from topics.client.options import check_choice
from topics.client.transport import blocking, waiting

Item = TypeVar("Item")
"""What is delivered: records, or also tombstones."""


class Source(Protocol):
    """What an iterator gets its batches from."""

    def batch(self) -> Operation[Batch[Any] | None]:
        """What comes next; None at the end."""


class Position(Generic[Item]):
    """Where an iterator is."""

    def __init__(self, source: Source, on_loss: OnLoss) -> None:
        check_choice("on_loss", on_loss, ON_LOSS)
        self._source = source
        self._raises = on_loss == "raise"
        self._items: Iterator[Any] = iter(())

    def _deliver(self, item: Any) -> Item:
        """The item, which is the last that was delivered from here on."""
        raise NotImplementedError

    def _next(self) -> Operation[Batch[Any] | None]:
        """Ask for what comes after everything that was delivered."""
        return self._source.batch()


class ItemIterator(Position[Item]):
    """An iterator for threads. `close` ends it, from any thread."""

    def __init__(self, source: Source, courier: blocking.Courier, on_loss: OnLoss) -> None:
        super().__init__(source, on_loss)
        self._courier = courier

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while True:
            for item in self._items:
                return self._deliver(item)
            try:
                batch = run(self._next(), self._courier)
            except Closed:
                if not self._courier.interrupted:
                    raise
                batch = None
            if batch is None:
                raise StopIteration
            self._items = iter(batch.items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration; what waits for records returns at once."""
        self._items = iter(())
        self._courier.interrupt()


class AsyncItemIterator(Position[Item]):
    """An asynchronous iterator. `close` ends it, from any task of its event loop."""

    def __init__(self, source: Source, courier: waiting.Courier, on_loss: OnLoss) -> None:
        super().__init__(source, on_loss)
        self._courier = courier

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while True:
            for item in self._items:
                return self._deliver(item)
            try:
                batch = await arun(self._next(), self._courier)
            except Closed:
                if not self._courier.interrupted:
                    raise
                batch = None
            if batch is None:
                raise StopAsyncIteration
            self._items = iter(batch.items)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration and its stream; what waits for records returns at once."""
        self._items = iter(())
        self._courier.interrupt()
        self._courier.close_stream()
