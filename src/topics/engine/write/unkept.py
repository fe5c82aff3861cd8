"""Unkept: which seqs of a topic have records that a restart may not bring back, as far as routers copy them.

Writes to an `ephemeral` topic are in no log, and neither is a copy of such a record (GONE). What a topic holds when it
becomes `ephemeral` is still in the log, but in no checkpoint from then on (DOUBTFUL). How many copies such records made
cannot be derived afterwards, since a filter may have passed only some of them. So a router that goes on from them to
other records logs where it is; for the records themselves nothing is logged. This is known only in the memory of the
process: after a restart such records are there or are reported as lost, and nothing is in doubt.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from topics.engine.log.log import ANYWHERE

KEPT: Final = 0
DOUBTFUL: Final = 1
GONE: Final = 2


class Unkept:
    """What becomes of records at a restart, by ascending ranges of seqs; what is in none of them is kept."""

    __slots__ = ("_lasts", "_ranges")

    def __init__(self) -> None:
        # (first seq, last seq, what becomes of them)
        self._ranges: list[tuple[int, int, int]] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._ranges)

    def add(self, first_seq: int, last_seq: int, fate: int) -> None:
        """Add seqs that follow all others."""
        if self._ranges and self._ranges[-1][2] == fate and first_seq <= self._lasts[-1] + 1:
            first_seq = self._ranges.pop()[0]
            self._lasts.pop()
        self._ranges.append((first_seq, last_seq, fate))
        self._lasts.append(last_seq)

    def doubt(self, upto: int) -> None:
        """What was kept up to this seq is doubtful now."""
        ranges = self._ranges
        self._ranges, self._lasts = [], []
        at = 1
        for first, last, fate in ranges:
            if at < first:
                self.add(at, first - 1, DOUBTFUL)
            self.add(first, last, fate)
            at = last + 1
        if at <= upto:
            self.add(at, upto, DOUBTFUL)

    def run(self, seq: int) -> tuple[int, int]:
        """What becomes of `seq`, and the last seq after it for which that is true."""
        k = bisect_left(self._lasts, seq)
        if k == len(self._ranges):
            return KEPT, ANYWHERE
        first, last, fate = self._ranges[k]
        return (fate, last) if first <= seq else (KEPT, first - 1)

    def forget(self, upto: int) -> None:
        """Seqs up to `upto` are not asked about any more."""
        k = bisect_left(self._lasts, upto + 1)
        del self._ranges[:k], self._lasts[:k]
