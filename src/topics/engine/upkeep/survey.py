"""Survey: finds the largest tails where all of them together take too much memory, or the disk is full.

A tail below the size of a segment waits for more records. With many topics, tails that are small each are large
together. Once they take more than five sixteenths of `max_unsealed_bytes`, the largest are sealed first, however small
they are, until a quarter is left: each file then frees as much as possible, and sealing is as steady as writing. Where
that is not enough and they take three eighths, sealing hurries. Topics are looked at in slices, and at most
`CHOSEN_MAX` are chosen at a time.

On a full disk room is kept for what is not sealed (`Store.owed_bytes`), and writes could take that room. So there the
tails are sealed that are worth two files, until little is left.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from topics.clock import Clock
from topics.engine.log.archive import Shelf
from topics.engine.log.directory import ByteCount
from topics.engine.topic import Topic
from topics.storage.store import Store

SLICE_TOPICS: Final = 500
CHOSEN_MAX: Final = 256
PAUSE_NS: Final = 50_000_000
# On a full disk: what may stay unsealed as a part of `max_unsealed_bytes`, the smallest tail that is worth its files,
# and how long to wait for others.
LITTLE_PART: Final = 64
WORTH_BYTES: Final = 64 << 10
FULL_PAUSE_NS: Final = 5_000_000_000


class Survey:
    """Has the largest tails sealed when memory or the disk is short."""

    def __init__(
        self,
        topics: Mapping[str, Topic],
        shelf: Shelf,
        clock: Clock,
        unsealed: ByteCount,
        max_unsealed_bytes: int,
        store: Store,
    ) -> None:
        """`max_unsealed_bytes` of 0 is no bound."""
        self._topics = topics
        self._shelf = shelf
        self._clock = clock
        self._unsealed = unsealed
        self._store = store
        self._short_bytes = max_unsealed_bytes * 3 // 8
        self._many_bytes = max_unsealed_bytes * 5 // 16
        self._enough_bytes = max_unsealed_bytes // 4
        self._little_bytes = max_unsealed_bytes // LITTLE_PART
        # What this search is after: tails of at least so many bytes, until so many are left.
        self._least_bytes = 1
        self._left_bytes = self._enough_bytes
        self._rest: Iterator[Topic] | None = None
        self._largest: list[tuple[int, int, Topic]] = []
        self._due_ns = 0

    @property
    def is_short(self) -> bool:
        """Whether tails take so much memory that none should wait to become larger."""
        return 0 < self._short_bytes < self._unsealed.bytes

    @property
    def is_full(self) -> bool:
        """Whether the disk takes no writes, and no work that can wait should take its room."""
        return self._store.is_low

    def step(self, held_bytes: int) -> bool:
        """Look at some topics, where `held_bytes` are being sealed; returns whether more are to be looked at."""
        if self._rest is None:
            many = 0 < self._many_bytes < self._unsealed.bytes
            if not many and not self._store.is_low:
                return False
            bound_bytes = self._many_bytes if many else self._little_bytes
            if not bound_bytes or self._unsealed.bytes - held_bytes <= bound_bytes:
                return False
            now_ns = self._clock.elapsed_ns()
            if now_ns < self._due_ns:
                return False
            found = (1, self._enough_bytes, PAUSE_NS) if many else (WORTH_BYTES, self._little_bytes, FULL_PAUSE_NS)
            self._least_bytes, self._left_bytes, pause_ns = found
            self._due_ns = now_ns + pause_ns
            self._rest = iter(list(self._topics.values()))
            self._largest = []
        looked_at = list(islice(self._rest, SLICE_TOPICS))
        for topic in looked_at:
            if topic.log.tail_bytes >= self._least_bytes and not topic.archive.sealing and not topic.deleted:
                self._weigh(topic)
        if looked_at:
            return True
        self._rest = None
        self._choose(held_bytes)
        return False

    def _weigh(self, topic: Topic) -> None:
        entry = (topic.log.tail_bytes, topic.id, topic)
        if len(self._largest) < CHOSEN_MAX:
            heapq.heappush(self._largest, entry)
        elif entry > self._largest[0]:
            heapq.heapreplace(self._largest, entry)

    def _choose(self, held_bytes: int) -> None:
        over_bytes = self._unsealed.bytes - held_bytes - self._left_bytes
        for tail_bytes, _, topic in sorted(self._largest, reverse=True):
            if over_bytes <= 0:
                break
            self._shelf.ask(topic)
            if topic.archive.sealing:
                over_bytes -= tail_bytes
        self._largest = []
