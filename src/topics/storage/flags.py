"""Delete flags: which of a run of records are deleted, and what is left of them.

A record has one flag byte. Only DELETED means deleted and every other value means live, so that a torn write of a flag
reads as live. Records are flagged in runs, and counted in runs: no method here takes time per record that is live.

A delete of many records that are not in runs is a Cut: a mask, with DELETED for each record that goes. What it changes
is worked out first, record by record, and changes nothing; then it is applied in a moment, whatever the number of
records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

DELETED: Final = 0xD5

_GONE: Final = bytes((DELETED,))
_deleted: Final = re.compile(rb"\xd5+", re.DOTALL).finditer
_next_live: Final = re.compile(rb"[^\xd5]", re.DOTALL).search
# Every value but DELETED means the same: live.
_PLAIN: Final = bytes(DELETED if value == DELETED else 0 for value in range(256))
# A mask as the digits of a binary number, and back.
_DIGITS: Final = bytes(0x31 if value == DELETED else 0x30 for value in range(256))
_VALUES: Final = bytes(DELETED if value == 0x31 else 0 for value in range(256))


def to_bits(mask: bytes) -> bytes:
    """A mask with one bit for each record, the first one in the highest bit of the first byte."""
    size = len(mask) + 7 >> 3
    return int(b"0" + mask.translate(_DIGITS).ljust(size * 8, b"0"), 2).to_bytes(size, "big")


def from_bits(bits: bytes) -> bytes:
    """The mask that these bits are of; what fills up the last byte is live."""
    return f"{int.from_bytes(bits, 'big'):0{len(bits) * 8}b}".encode().translate(_VALUES)


def deleted_runs(flags: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """The runs [i, j) of records that these flags have as deleted."""
    return (found.span() for found in _deleted(flags))


def without(mask: bytes, flags: bytes | bytearray) -> bytes:
    """The mask without what the flags have as deleted."""
    gone = int.from_bytes(flags.translate(_PLAIN), "little")
    return (int.from_bytes(mask, "little") & ~gone).to_bytes(len(mask), "little")


def united(mask: bytes, flags: bytes | bytearray) -> bytearray:
    """The flags after everything in the mask is deleted too."""
    gone = int.from_bytes(flags.translate(_PLAIN), "little")
    return bytearray((int.from_bytes(mask, "little") | gone).to_bytes(len(mask), "little"))


class Cut:
    """What the delete of some records of one run of records changes, worked out and not done yet.

    It is valid for as long as nothing else was deleted there: as long as `live` is what the run has.
    """

    __slots__ = ("count", "entry", "flags", "live", "mask", "size")

    def __init__(self, entry: Flagged, mask: bytes, flags: bytearray, count: int, size: int) -> None:
        self.entry = entry
        # The records that are live and go.
        self.mask = mask
        # All flags afterwards.
        self.flags = flags
        self.live = entry.live
        self.count = count
        self.size = size

    def runs(self) -> Iterator[tuple[int, int]]:
        """The runs [i, j) of records that go."""
        return deleted_runs(self.mask)


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
        if self.next_live(0) >= i and self.next_live(j) >= self.n:
            return self.live, self.live_bytes
        live = without(bytes(i) + _GONE * (j - i) + bytes(self.n - j), flags)
        return live.count(DELETED), self.masked_bytes(live)

    def masked_bytes(self, mask: bytes) -> int:
        """What the records that the mask names count towards `bytes`, deleted or not."""
        return sum(self.size_bytes(a, b) for a, b in deleted_runs(mask))

    def live_runs(self, i: int, j: int) -> Iterator[tuple[int, int]]:
        """The runs of live records within [i, j)."""
        flags = self.flags
        if flags is None:
            if i < j:
                yield i, j
            return
        while i < j:
            if flags[i] == DELETED:
                found = _next_live(flags, i, j)
                if found is None:
                    return
                i = found.start()
            end = flags.find(DELETED, i, j)
            if end < 0:
                end = j
            yield i, end
            i = end

    def live_end(self, i: int, j: int) -> int:
        """Where the run of live records that begins at i ends, within [i, j)."""
        if self.flags is None:
            return j
        end = self.flags.find(DELETED, i, j)
        return j if end < 0 else end

    def next_live(self, i: int) -> int:
        """The index of the first live record at or after i, or n."""
        flags = self.flags
        if flags is None or i >= self.n or flags[i] != DELETED:
            return i
        found = _next_live(flags, i)
        return self.n if found is None else found.start()

    def last_live(self, j: int) -> int:
        """The index of the last live record before j, or -1."""
        flags = self.flags
        return j - 1 if flags is None else len(flags[:j].rstrip(_GONE)) - 1

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

    def cut(self, mask: bytes) -> Cut | None:
        """What it changes to delete the records that the mask names; None where none of them is live."""
        flags = self.flags
        live = mask if flags is None else without(mask, flags)
        count = live.count(DELETED)
        if not count:
            return None
        size = self.live_bytes if count == self.live else self.masked_bytes(live)
        return Cut(self, live, bytearray(live) if flags is None else united(live, flags), count, size)

    def apply(self, cut: Cut) -> None:
        """Delete what a cut says, which is still valid."""
        assert cut.entry is self
        assert cut.live == self.live
        self.flags = cut.flags
        self.live -= cut.count
        self.live_bytes -= cut.size

    def set_flags(self, flags: bytes) -> None:
        """Take over delete flags as they were read; anything but the sentinel is live."""
        assert len(flags) == self.n
        if DELETED not in flags:
            # Most Blocks, and this looks much faster than what finds runs.
            return
        for i, j in deleted_runs(flags):
            # Not what a subclass does for a delete: these are on disk already.
            Flagged.delete(self, i, j)
