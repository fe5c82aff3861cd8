"""Follower: the records of several topics as one iterator, in threads (`Follower`) and on asyncio (`AsyncFollower`).

One stream serves all topics (`watching`). Within a topic records come in order, between topics as they arrive.
`cursors` says where it has got to in each, so that another one can go on from there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar, cast

from topics.client.calling import Patience
from topics.client.errors import Closed
from topics.client.operation import arun, run
from topics.client.reading import FollowOptions, OnLoss, Place
from topics.client.record import Record, Tombstone
from topics.client.transport import blocking, waiting
from topics.client.watching import Watching
from topics.names import check_topic_name

Item = TypeVar("Item")
"""What is delivered: records, or also tombstones."""


class FollowManyOptions(TypedDict, total=False):
    """What a follower of several topics may ask for, each as `Topic.follow` takes it."""

    match: str | Sequence[str]
    node: str | Sequence[str]
    limit: int
    max_batch_bytes: int
    tail: bool
    missing: Literal["raise", "wait"]


def watching_of(
    topics: Iterable[str] | Mapping[str, int], patience: Patience, options: FollowManyOptions
) -> Watching[Any]:
    """A watch of these topics, from the beginning or from the cursors that a mapping names."""
    cursors = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 0)
    if not cursors:
        raise ValueError("follow() needs at least one topic")
    for name in cursors:
        check_topic_name(name)
    places = {name: Place(cursor) for name, cursor in cursors.items()}
    return Watching(places, Any, patience, cast("FollowOptions", options))


class _Positions(Generic[Item]):
    """Where an iterator stands in each of its topics."""

    def __init__(self, watching: Watching[Any], on_loss: OnLoss) -> None:
        self._watching = watching
        self._raises = on_loss == "raise"
        self._items: Iterator[Record[Any] | Tombstone] = iter(())
        self._cursors = {name: place.cursor for name, place in watching.places.items()}

    @property
    def cursors(self) -> dict[str, int]:
        """The position in each topic, after the last item that was delivered."""
        return dict(self._cursors)

    def _deliver(self, item: Record[Any] | Tombstone) -> Item:
        self._cursors[item.topic] = item.next_from_seq
        if self._raises and isinstance(item, Tombstone):
            raise item.error()
        return cast("Item", item)


class Follower(_Positions[Item]):
    """An iterator over the records of several topics. It belongs to one thread."""

    def __init__(self, watching: Watching[Any], line: blocking.Line, on_loss: OnLoss) -> None:
        super().__init__(watching, on_loss)
        self._line = line

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while True:
            for item in self._items:
                return self._deliver(item)
            try:
                batch = run(self._watching.batch(), self._line)
            except Closed:
                if not self._line.interrupted:
                    raise
                raise StopIteration from None
            self._items = iter(batch.items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration and its stream."""
        self._items = iter(())
        self._line.interrupt()
        self._line.close_stream()


class AsyncFollower(_Positions[Item]):
    """An asynchronous iterator over the records of several topics."""

    def __init__(self, watching: Watching[Any], line: waiting.Line, on_loss: OnLoss) -> None:
        super().__init__(watching, on_loss)
        self._line = line

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while True:
            for item in self._items:
                return self._deliver(item)
            batch = await arun(self._watching.batch(), self._line)
            self._items = iter(batch.items)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stream."""
        self._items = iter(())
        self._line.close_stream()
