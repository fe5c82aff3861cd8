"""Subscriptions: what a client may ask for when it watches topics, on SSE and WebSocket alike (WATCH-8 to WATCH-12)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from msgspec import Struct

from topics.engine.requests import U64
from topics.engine.topic import Topic
from topics.errors import InvalidRequest
from topics.names import check_topic_name, printable_name
from topics.server.api.bodies import Body
from topics.server.api.principal import Principal


class TopicWatch(Struct, gc=False):
    """How one topic is watched."""

    from_seq: U64 = 0
    tail: bool = False
    from_ts: U64 | None = None
    match: Any = None


class Watched(Struct):
    """What the answer reports about one topic."""

    from_seq: int
    head_seq: int
    earliest_seq: int


_topic_watch: Final = Body(TopicWatch)


def check_numbers(topics: dict[str, TopicWatch]) -> None:
    """Raise InvalidRequest where a number of a topic's options is no u64."""
    for name, asked in topics.items():
        _topic_watch.check_range(asked, f"topics.{printable_name(name)}.")


def check_count(names: Collection[str], topics_max: int) -> None:
    """Refuse too many topics."""
    if len(names) > topics_max:
        raise InvalidRequest(
            f"{len(names)} topics are too many for one subscription; at most {topics_max}",
            field="topics",
            limit="max_watch_topics",
            max=topics_max,
        )


def check_names(names: dict[str, TopicWatch], principal: Principal, topics_max: int) -> None:
    """Refuse too many topics, bad names, and names outside the key's prefixes."""
    check_count(names, topics_max)
    for name in names:
        check_topic_name(name)
        principal.require_name(name)


def cursor_for(asked: TopicWatch, topic: Topic) -> int:
    """Where a subscription to this topic begins."""
    if asked.tail:
        return topic.log.head
    if asked.from_ts is not None:
        return max(asked.from_seq, topic.cursor_at_ts(asked.from_ts))
    return asked.from_seq
