"""Bands: which of the topics that have something to deliver is served next (PRIORITY-6 to PRIORITY-9).

Rules:

1. What waits is ranked by effective priority, computed when it is put in and again by `age`, which is called every
   `AGE_TICK_MS` while something waits. Waiting raises the rank: 100 per second, at most 1000.
2. Ranks fall into bands. The highest band that has credit goes first, and inside a band the highest rank; equal ranks
   go in the order in which they came. Serving costs a credit of the band. When no band in which something waits has
   credit left, all bands get theirs back. So a higher band gets most of the service, and a lower one always gets some.
3. What has waited for `OVERDUE_MS` goes ahead of every band, oldest first. As long as one round over everything that
   waits takes less than `OVERDUE_MS`, nothing waits longer than `OVERDUE_MS` + that round, whatever its priority: less
   than 10 s.

It orders delivery only: never seq order, retention or what is visible. Pure: time is passed in.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

AGE_TICK_MS: Final = 50
OVERDUE_MS: Final = 5_000
BAND_FLOORS: Final = (1000, 250, 0)
"""The lowest rank of each band but the last, which takes all lower ranks."""
BAND_CREDITS: Final = (8, 4, 2, 1)
AGED_PER_TICK_MAX: Final = 1_000
"""How many entries one `age` ranks again, so that a tick stays short however much waits."""


class _Entry(Generic[T]):
    """One item that waits."""

    __slots__ = ("band", "item", "order", "rank", "since_ms")

    def __init__(self, item: T, since_ms: int, order: int, rank: int) -> None:
        self.item = item
        self.since_ms = since_ms
        self.order = order
        self.rank = rank
        self.band = _band_of(rank)

    def __lt__(self, other: _Entry[T]) -> bool:
        return (-self.rank, self.order) < (-other.rank, other.order)


class Bands(Generic[T]):
    """What waits for delivery, in the order in which it is to be served."""

    __slots__ = ("_age_from", "_credits", "_heaps", "_order", "_priority", "_waiting")

    def __init__(self, priority: Callable[[T, int], int]) -> None:
        """`priority` gives the effective priority of an item that has waited for so many milliseconds."""
        self._priority = priority
        self._heaps: list[list[_Entry[T]]] = [[] for _ in BAND_CREDITS]
        self._credits = list(BAND_CREDITS)
        # In the order in which they began to wait, so that the first is the oldest.
        self._waiting: OrderedDict[T, _Entry[T]] = OrderedDict()
        self._order = 0
        self._age_from = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, item: T) -> bool:
        return item in self._waiting

    def put(self, item: T, now_ms: int) -> None:
        """Let an item wait from now on; an item that waits already keeps its place."""
        if item in self._waiting:
            return
        self._order += 1
        self._enter(_Entry(item, now_ms, self._order, self._priority(item, 0)))

    def _enter(self, entry: _Entry[T]) -> None:
        self._waiting[entry.item] = entry
        heapq.heappush(self._heaps[entry.band], entry)

    def discard(self, item: T) -> None:
        """Forget an item, whether it waits or not."""
        self._waiting.pop(item, None)

    def take(self, now_ms: int, floor: int | None = None) -> T | None:
        """The item to serve now, which waits no longer; None where nothing waits.

        With `floor`, items whose rank is below it stay where they are until ageing lifts them or they are overdue.
        """
        if not self._waiting:
            return None
        oldest = next(iter(self._waiting.values()))
        if now_ms - oldest.since_ms >= OVERDUE_MS:
            del self._waiting[oldest.item]
            return oldest.item
        band = self._choose(floor)
        if band is None:
            return None
        self._credits[band] -= 1
        entry = heapq.heappop(self._heaps[band])
        del self._waiting[entry.item]
        return entry.item

    def _choose(self, floor: int | None) -> int | None:
        first = None
        for band, heap in enumerate(self._heaps):
            while heap and self._waiting.get(heap[0].item) is not heap[0]:
                heapq.heappop(heap)
            if not heap or (floor is not None and heap[0].rank < floor):
                continue
            if self._credits[band] > 0:
                return band
            if first is None:
                first = band
        if first is not None:
            self._credits = list(BAND_CREDITS)
        return first

    def below(self, floor: int) -> list[T]:
        """The items whose rank is below `floor`."""
        return [entry.item for entry in self._waiting.values() if entry.rank < floor]

    def age(self, now_ms: int) -> None:
        """Rank what waits again: at most `AGED_PER_TICK_MAX` entries, taking turns where there are more."""
        entries = list(self._waiting.values())
        if len(entries) > AGED_PER_TICK_MAX:
            begin = self._age_from % len(entries)
            self._age_from = begin + AGED_PER_TICK_MAX
            entries = (entries + entries)[begin : begin + AGED_PER_TICK_MAX]
        for entry in entries:
            rank = self._priority(entry.item, max(0, now_ms - entry.since_ms))
            if rank != entry.rank:
                # The old entry stays in its heap until it comes up there, and is then seen to be superseded.
                aged = _Entry(entry.item, entry.since_ms, entry.order, rank)
                self._waiting[entry.item] = aged
                heapq.heappush(self._heaps[aged.band], aged)
        self._prune()

    def _prune(self) -> None:
        """Drop superseded entries once they outnumber what waits."""
        if sum(map(len, self._heaps)) > 4 * len(self._waiting) + 64:
            self._heaps = [[] for _ in BAND_CREDITS]
            for entry in self._waiting.values():
                self._heaps[entry.band].append(entry)
            for heap in self._heaps:
                heapq.heapify(heap)


def _band_of(rank: int) -> int:
    for band, floor in enumerate(BAND_FLOORS):
        if rank >= floor:
            return band
    return len(BAND_FLOORS)
