"""Timetable: when leases run out, or delays end, as a heap with one entry for all jobs of a call.

An entry is not removed when an ack or an extend makes it obsolete: it is recognised as stale when it comes up, and the
heap is built anew once most of it is stale.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from topics.engine.queue.lease import Lease

STALE_SLACK: Final = 1024
NEVER_MS: Final = 1 << 62


class Timetable:
    """Leases by the time at which something happens to those that are in `state`."""

    __slots__ = ("_entries", "_noted", "_serial", "_state", "next_ms")

    def __init__(self, state: str) -> None:
        self._state = state
        # The serial is there so that lists are never compared.
        self._entries: list[tuple[int, int, list[Lease]]] = []
        self._serial = 0
        self._noted = 0
        # Before then `take` has nothing to give.
        self.next_ms = NEVER_MS

    def __len__(self) -> int:
        """How many leases are noted, stale ones included."""
        return sum(len(leases) for _, _, leases in self._entries)

    def add(self, due_ms: int, leases: list[Lease], all_leases: dict[int, Lease]) -> None:
        """Note leases that are due then; `all_leases` are those of the queue."""
        self._noted += len(leases)
        if self._noted > 2 * len(all_leases) + STALE_SLACK:
            self._rebuild(all_leases)
        self._serial += 1
        heapq.heappush(self._entries, (due_ms, self._serial, leases))
        self.next_ms = self._entries[0][0]

    def _rebuild(self, all_leases: dict[int, Lease]) -> None:
        by_time: dict[int, list[Lease]] = {}
        for lease in all_leases.values():
            if lease.state is self._state:
                by_time.setdefault(lease.due_ms, []).append(lease)
        self._entries = sorted((due_ms, 0, leases) for due_ms, leases in by_time.items())
        self._noted = sum(map(len, by_time.values()))

    def take(self, now_ms: int) -> Sequence[Lease]:
        """The leases that are due at `now_ms`; they are no longer noted."""
        due: list[Lease] = []
        while self._entries and self._entries[0][0] <= now_ms:
            due_ms, _, leases = heapq.heappop(self._entries)
            self._noted -= len(leases)
            due += [lease for lease in leases if lease.state is self._state and lease.due_ms == due_ms]
        self.next_ms = self._entries[0][0] if self._entries else NEVER_MS
        return due

    def first_ms(self) -> int | None:
        """The first time at which a lease is due, or None."""
        while self._entries:
            due_ms, _, leases = self._entries[0]
            if any(lease.state is self._state and lease.due_ms == due_ms for lease in leases):
                return due_ms
            heapq.heappop(self._entries)
            self._noted -= len(leases)
        return None
