"""Erasure: up to when everything that is gone from a topic is gone from the disk too (SPACE-5).

Two numbers per topic, kept by checkpoints. `gone` counts the records that have left a log: it goes up with every
delete, eviction and expiry, and never because of a write. As long as it is what it was when nothing was left to erase,
nothing is, and that time moves on to now. Otherwise what went since then may still be on the disk.
"""

from __future__ import annotations

from topics.engine.log.directory import Directory


def gone(directory: Directory) -> int:
    """How many seqs have no record any more."""
    return directory.head - directory.count


class Erasure:
    """What is known of one topic."""

    __slots__ = ("asked", "gone", "ts")

    def __init__(self, ts: int, gone: int = 0) -> None:
        # When `gone` records had left, at `ts`, no text of them was on the disk.
        self.gone = gone
        self.ts = ts
        # Whether what went since is being erased, or waits for it.
        self.asked = False

    def before(self, gone_now: int, now_ms: int) -> int:
        """Text of what was deleted, evicted or had expired before this time is not on the disk."""
        return now_ms if gone_now == self.gone else self.ts

    def look(self, gone_now: int, now_ms: int, wait_ms: int) -> bool:
        """Move on where there is nothing to erase; True, once, where there has been something for `wait_ms`."""
        if gone_now == self.gone:
            self.ts = now_ms
            return False
        if self.asked or now_ms - self.ts < wait_ms:
            return False
        self.asked = True
        return True

    def erased(self, gone_then: int, ts: int) -> None:
        """What had left by `ts` is erased; that were `gone_then` records."""
        self.gone, self.ts = gone_then, ts
