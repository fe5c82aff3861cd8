"""Follower: the records of several topics as one iterator, in threads (`Follower`) and on asyncio (`AsyncFollower`).

One stream serves all topics (`watching`). Within a topic records come in order, between topics as they arrive.
`cursors` says where it has got to in each, so that another one can go on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, cast

from topics.client.calling import Patience
from topics.client.iteration import AsyncIteration, Item, Iteration, Position
from topics.client.options import check_options
from topics.client.reading import FollowOptions, OnLoss, Place
from topics.client.record import Tombstone
from topics.client.transport import blocking, waiting
from topics.client.watching import Watching
from topics.names import check_topic_name


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
    check_options("follow", options, FollowManyOptions)
    cursors = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 0)
    if not cursors:
        raise ValueError("follow() needs at least one topic")
    for name in cursors:
        check_topic_name(name)
    places = {name: Place(cursor) for name, cursor in cursors.items()}
    return Watching(places, Any, patience, cast("FollowOptions", options))


class _Cursors(Position[Item]):
    """Where an iterator stands in each of its topics."""

    _cursors: dict[str, int]

    @property
    def cursors(self) -> dict[str, int]:
        """The position in each topic, after the last item that was delivered."""
        return dict(self._cursors)

    def _deliver(self, item: Any) -> Item:
        self._cursors[item.topic] = item.next_from_seq
        if self._raises and isinstance(item, Tombstone):
            raise item.error()
        return item  # type: ignore[no-any-return]


class Follower(_Cursors[Item], Iteration[Item]):
    """An iterator over the records of several topics. It belongs to one thread."""

    def __init__(self, watching: Watching[Any], line: blocking.Line, on_loss: OnLoss) -> None:
        super().__init__(watching, line, on_loss)
        self._cursors = {name: place.cursor for name, place in watching.places.items()}

    def close(self) -> None:
        """End the iteration and its stream."""
        super().close()
        self._line.close_stream()


class AsyncFollower(_Cursors[Item], AsyncIteration[Item]):
    """An asynchronous iterator over the records of several topics."""

    def __init__(self, watching: Watching[Any], line: waiting.Line, on_loss: OnLoss) -> None:
        super().__init__(watching, line, on_loss)
        self._cursors = {name: place.cursor for name, place in watching.places.items()}
