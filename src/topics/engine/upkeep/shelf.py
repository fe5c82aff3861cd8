"""Shelf: where the logs of topics are kept once they leave memory, as one object that every topic can reach.

Without a data directory there is none, and everything stays in memory.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from topics.engine.topic import Topic
    from topics.storage.store import Store

SEGMENT_EVENTS_MAX: Final = 10_000
SEGMENT_BYTES_MAX: Final = 64 << 20


class Shelf:
    """The segments of a data directory, how large one may be, and the topics that wait to get their next one."""

    __slots__ = ("asked", "enqueue", "max_bytes", "max_events", "segments")

    def __init__(self, store: Store, max_events: int = SEGMENT_EVENTS_MAX, max_bytes: int = SEGMENT_BYTES_MAX) -> None:
        self.segments = store.segments
        self.enqueue = store.enqueue
        self.max_events = max_events
        self.max_bytes = max_bytes
        self.asked: deque[Topic] = deque()

    def ask(self, topic: Topic) -> None:
        """Have the topic's tail sealed in its turn."""
        if not topic.sealing and topic.config.durability != "ephemeral":
            topic.sealing = True
            self.asked.append(topic)
