"""Reader: the records of a topic as an iterator, for threads (`Reader`) and for asyncio (`AsyncReader`).

`cursor` is the position after the last item that was delivered, so that it can be kept and read on from later. A loss
is raised as RecordsLost unless Tombstones were asked for; to call `next` again after that goes on after the loss.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, Self, TypeVar

from topics.client.errors import Closed
from topics.client.operation import arun, run
from topics.client.reading import OnLoss, Reading
from topics.client.record import Record, Tombstone
from topics.client.transport import blocking, waiting

Item = TypeVar("Item")
"""What is delivered: records, or also tombstones."""


class _Position(Generic[Item]):
    """Where an iterator stands within a read."""

    def __init__(self, reading: Reading[Any], on_loss: OnLoss) -> None:
        self._reading = reading
        self._raises = on_loss == "raise"
        self._items: Iterator[Any] = iter(())
        self._last: Record[Any] | Tombstone | None = None

    @property
    def cursor(self) -> int:
        """The position after the last item that was delivered."""
        return self._reading.cursor if self._last is None else self._last.next_from_seq

    @property
    def epoch(self) -> int | None:
        """Which instance of the topic the cursor is of; keep it with the cursor."""
        return self._reading.epoch

    @property
    def head_seq(self) -> int:
        """The topic's head when the server answered last."""
        return self._reading.head_seq

    @property
    def lag(self) -> int:
        """How many seqs the cursor was behind the head when the server answered last."""
        return max(0, self.head_seq - self.cursor)

    def _deliver(self, item: Any) -> Item:
        self._last = item
        if self._raises and type(item) is Tombstone:
            raise item.error()
        return item  # type: ignore[no-any-return]


class Reader(_Position[Item]):
    """An iterator over records. `close` ends it, from any thread."""

    def __init__(self, reading: Reading[Any], line: blocking.Line, on_loss: OnLoss) -> None:
        super().__init__(reading, on_loss)
        self._line = line

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while True:
            for item in self._items:
                return self._deliver(item)
            self._last = None
            try:
                batch = run(self._reading.batch(), self._line)
            except Closed:
                if not self._line.interrupted:
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
        self._line.interrupt()


class AsyncReader(_Position[Item]):
    """An asynchronous iterator over records."""

    def __init__(self, reading: Reading[Any], line: waiting.Line, on_loss: OnLoss) -> None:
        super().__init__(reading, on_loss)
        self._line = line

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while True:
            for item in self._items:
                return self._deliver(item)
            self._last = None
            batch = await arun(self._reading.batch(), self._line)
            if batch is None:
                raise StopAsyncIteration
            self._items = iter(batch.items)
