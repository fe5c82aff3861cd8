"""Reader: the records of a topic as an iterator, for threads (`Reader`) and for asyncio (`AsyncReader`).

`cursor` is the position after the last item that was delivered, so that it can be kept and read on from later. A loss
is raised as RecordsLost unless Tombstones were asked for; to call `next` again after that goes on after the loss.
"""

from __future__ import annotations

from typing import Any

from topics.client.item_iterator import AsyncItemIterator, Item, ItemIterator, Position
from topics.client.operations.operation import Operation
from topics.client.operations.read import Batch, OnLoss, TopicRead
from topics.client.record import Record, Tombstone
from topics.client.transport import blocking, waiting


class _Cursor(Position[Item]):
    """Where an iterator is within a read."""

    _read: TopicRead[Any]
    _last: Record[Any] | Tombstone | None = None

    @property
    def cursor(self) -> int:
        """The position after the last item that was delivered."""
        return self._read.cursor if self._last is None else self._last.next_from_seq

    @property
    def epoch(self) -> int | None:
        """Which instance of the topic the cursor is of; keep it with the cursor."""
        return self._read.epoch

    @property
    def head_seq(self) -> int:
        """The topic's head when the server answered last."""
        return self._read.head_seq

    @property
    def lag(self) -> int:
        """How many seqs the cursor was behind the head when the server answered last."""
        return max(0, self.head_seq - self.cursor)

    def _next(self) -> Operation[Batch[Any] | None]:
        self._last = None
        return super()._next()

    def _deliver(self, item: Any) -> Item:
        self._last = item
        if self._raises and type(item) is Tombstone:
            raise item.error()
        return item  # type: ignore[no-any-return]


class Reader(_Cursor[Item], ItemIterator[Item]):
    """An iterator over records. `close` ends it, from any thread."""

    def __init__(self, read: TopicRead[Any], courier: blocking.Courier, on_loss: OnLoss) -> None:
        super().__init__(read, courier, on_loss)
        self._read = read


class AsyncReader(_Cursor[Item], AsyncItemIterator[Item]):
    """An asynchronous iterator over records."""

    def __init__(self, read: TopicRead[Any], courier: waiting.Courier, on_loss: OnLoss) -> None:
        super().__init__(read, courier, on_loss)
        self._read = read
