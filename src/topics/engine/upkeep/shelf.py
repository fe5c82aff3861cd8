"""Shelf: where the logs of topics are kept once they leave memory, as one object that every topic can reach.

Without a data directory there is none, and everything stays in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.engine.upkeep.sealer import Sealer

if TYPE_CHECKING:
    from topics.storage.segment.segments import Segments
    from topics.storage.store import Store


class Shelf:
    """The segments of a data directory and what makes new ones."""

    __slots__ = ("enqueue", "max_bytes", "max_events", "sealer", "segments")

    def __init__(self, store: Store, segments: Segments, max_events: int, max_bytes: int) -> None:
        self.segments = segments
        self.sealer = Sealer(store, segments, max_events, max_bytes)
        self.max_events = max_events
        self.max_bytes = max_bytes
        self.enqueue = store.enqueue
