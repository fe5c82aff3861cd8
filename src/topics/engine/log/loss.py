"""Loss: why records that had their seqs cannot be read any more, as a tombstone reports it to their readers."""

from __future__ import annotations

from typing import Final, NamedTuple

CAP: Final = "cap"
TTL: Final = "ttl"
MIXED: Final = "mixed"
"""Both cap and TTL have taken some."""
RECREATED: Final = "recreated"
"""The cursor is of a topic of the same name that was deleted."""
CORRUPTION: Final = "corruption"
"""Stored bytes are damaged or missing."""
CRASH: Final = "crash"
"""The power was lost before they were synced, or may have been."""
RESTART: Final = "restart"
"""They were in memory only."""
SOURCE_TRIM: Final = "source_trim"
"""They left the source of a router before they were forwarded."""

RESTORE: Final = "restore"
"""A backup was restored: they were written after it, or may have been."""


class LostRange(NamedTuple):
    """Seqs that were assigned and acked, or derived, and cannot be read any more."""

    first: int
    last: int
    reason: str


def with_range(ranges: list[LostRange], added: LostRange) -> list[LostRange]:
    """Sorted, disjoint ranges with `added` among them; neighbours of the same reason join."""
    merged: list[LostRange] = []
    for lost in sorted([*ranges, added]):
        if (
            merged
            and lost.first <= merged[-1].last + 1
            and (lost.reason == merged[-1].reason or lost.first <= merged[-1].last)
        ):
            merged[-1] = LostRange(merged[-1].first, max(lost.last, merged[-1].last), merged[-1].reason)
        else:
            merged.append(lost)
    return merged
