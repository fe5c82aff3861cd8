"""Delete flags: which of a run of records are deleted, and what is left of them.

A record has one flag byte. Only DELETED means deleted and every other value means live, so that a torn write of a flag
reads as live. Records are flagged in runs, and counted in runs: no method here takes time per record that is live.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

DELETED: Final = 0xD5


def deleted_runs(flags: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """The runs [i, j) of records that these flags have as deleted."""
    i = flags.find(DELETED)
    while i >= 0:
        j = i
        while j < len(flags) and flags[j] == DELETED:
            j += 1
        yield i, j
        i = flags.find(DELETED, j)


def both(flags: bytes, others: bytes) -> bytes:
    """Flags with a record deleted where either has it as deleted. No others, b"", delete nothing."""
    if DELETED not in others:
        return flags
    made = bytearray(flags)
    for i, j in deleted_runs(others):
        made[i:j] = others[i:j]
    return bytes(made)


class Flagged:
    """A run of consecutive records as retention sees it: seqs, times, delete flags and running totals, no content.

    `flags` is None while nothing is deleted. `live` and `live_bytes` count the records that are not deleted; a log that
    has trimmed part of its first entry keeps that apart.
    """

    __slots__ = ("first_seq", "first_ts", "flags", "last_ts", "live", "live_bytes", "n")

    def __init__(self, first_seq: int, n: int, first_ts: int, last_ts: int, size_bytes: int) -> None:
        self.first_seq = first_seq
        self.n = n
        self.first_ts = first_ts
        self.last_ts = last_ts
        self.flags: bytearray | None = None
        self.live = n
        self.live_bytes = size_bytes

    @property
    def last_seq(self) -> int:
        """The seq of the last record."""
        return self.first_seq + self.n - 1

    def size_bytes(self, i: int, j: int) -> int:
        """What the records [i, j) count towards `bytes`, deleted or not."""
        raise NotImplementedError

    def live_in(self, i: int, j: int) -> tuple[int, int]:
        """How many of the records [i, j) are live, and their bytes."""
        flags = self.flags
        if i == 0 and j == self.n:
            return self.live, self.live_bytes
        if i >= j:
            return 0, 0
        if flags is None or flags.find(DELETED, i, j) < 0:
            return j - i, self.size_bytes(i, j)
        count = size = 0
        for a, b in self.live_runs(i, j):
            count += b - a
            size += self.size_bytes(a, b)
        return count, size

    def live_runs(self, i: int, j: int) -> Iterator[tuple[int, int]]:
        """The runs of live records within [i, j)."""
        flags = self.flags
        if flags is None:
            if i < j:
                yield i, j
            return
        while i < j:
            while i < j and flags[i] == DELETED:
                i += 1
            if i == j:
                return
            end = flags.find(DELETED, i, j)
            end = j if end < 0 else end
            yield i, end
            i = end

    def next_live(self, i: int) -> int:
        """The index of the first live record at or after i, or n."""
        flags = self.flags
        if flags is None:
            return i
        while i < self.n and flags[i] == DELETED:
            i += 1
        return i

    def last_live(self, j: int) -> int:
        """The index of the last live record before j, or -1."""
        flags = self.flags
        j -= 1
        while flags is not None and j >= 0 and flags[j] == DELETED:
            j -= 1
        return j

    def delete(self, i: int, j: int) -> tuple[int, int]:
        """Flag the records [i, j) deleted; how many of them were live, and their bytes."""
        count, size = self.live_in(i, j)
        if count:
            if self.flags is None:
                self.flags = bytearray(self.n)
            self.flags[i:j] = bytes((DELETED,)) * (j - i)
            self.live -= count
            self.live_bytes -= size
        return count, size

    def set_flags(self, flags: bytes) -> None:
        """Take over delete flags as they were read; anything but the sentinel is live."""
        assert len(flags) == self.n
        for i, j in deleted_runs(flags):
            # Not what a subclass does for a delete: these are on disk already.
            Flagged.delete(self, i, j)
