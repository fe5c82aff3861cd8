"""Follower: the records of several topics as one iterator, in threads (`Follower`) and on asyncio (`AsyncFollower`).

One stream serves all topics (`watch`). Within a topic records come in order, between topics as they arrive.
`cursors` says where it has got to in each, so that another one can go on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, cast

from topics.client.item_iterator import AsyncItemIterator, Item, ItemIterator, Position
from topics.client.operations.call import Patience
from topics.client.operations.read import Bookmark, FollowOptions, OnLoss
from topics.client.operations.watch import TopicsWatch
from topics.client.options import check_options
from topics.client.record import Tombstone
from topics.client.transport import blocking, waiting
from topics.names import check_topic_name


class FollowManyOptions(TypedDict, total=False):
    """What a follower of several topics may ask for, each as `Topic.follow` takes it."""

    match: str | Sequence[str]
    node: str | Sequence[str]
    limit: int
    max_batch_bytes: int
    tail: bool
    missing: Literal["raise", "wait"]


def watch_of(
    topics: Iterable[str] | Mapping[str, int], patience: Patience, options: FollowManyOptions
) -> TopicsWatch[Any]:
    """A watch of these topics, from the beginning or from the cursors that a mapping names."""
    check_options("follow", options, FollowManyOptions)
    cursors = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 0)
    if not cursors:
        raise ValueError("follow() needs at least one topic")
    for name in cursors:
        check_topic_name(name)
    bookmarks = {name: Bookmark(cursor) for name, cursor in cursors.items()}
    return TopicsWatch(bookmarks, Any, patience, cast("FollowOptions", options))


class _Cursors(Position[Item]):
    """Where an iterator is in each of its topics."""

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


class Follower(_Cursors[Item], ItemIterator[Item]):
    """An iterator over the records of several topics. It belongs to one thread."""

    def __init__(self, watch: TopicsWatch[Any], courier: blocking.Courier, on_loss: OnLoss) -> None:
        super().__init__(watch, courier, on_loss)
        self._cursors = {name: bookmark.cursor for name, bookmark in watch.bookmarks.items()}

    def close(self) -> None:
        """End the iteration and its stream."""
        super().close()
        self._courier.close_stream()


class AsyncFollower(_Cursors[Item], AsyncItemIterator[Item]):
    """An asynchronous iterator over the records of several topics."""

    def __init__(self, watching: TopicsWatch[Any], courier: waiting.Courier, on_loss: OnLoss) -> None:
        super().__init__(watching, courier, on_loss)
        self._cursors = {name: bookmark.cursor for name, bookmark in watching.bookmarks.items()}
