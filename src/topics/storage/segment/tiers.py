"""Tiers: where the segments of one data directory are, and what all of them are read through.

The hot tier is a folder of the data directory and holds every index. The cold tier, where there is one, holds records
only, and may be out of reach at any time: nothing but the records in it may depend on that.
"""

from __future__ import annotations

import contextlib

from topics.storage import quarantine
from topics.storage.disk import Disk
from topics.storage.segment.cache import BlockCache
from topics.storage.segment.tier import DirectoryTier, Tier


class Tiers:
    """The hot tier, the cold tier or None, the cache, and the quarantine for damaged bytes."""

    def __init__(
        self, disk: Disk, directory: str, quarantine_directory: str, *, cold: Tier | None, cache_bytes: int
    ) -> None:
        self.hot = DirectoryTier("hot", disk, directory)
        self.cold = cold
        self.cache = BlockCache(cache_bytes)
        # At a start nothing else has to run, so reads wait for the disk and none of them raises Miss.
        self.patient = False
        # The cold store was out of reach at the start: nothing is written to where it should be mounted.
        self.away = False
        self.corrupt_total = 0
        self._disk = disk
        self._quarantine = quarantine_directory

    def open(self) -> None:
        """Remove what a crash left half done, before anything is read. The cold store may be out of reach."""
        self.hot.clean()
        if self.cold is not None:
            with contextlib.suppress(OSError):
                self.cold.clean()

    def quarantine(self, file: str, offset: int, data: bytes) -> str:
        """Keep a copy of damaged bytes; the path of the copy, or "" where that failed."""
        self.corrupt_total += 1
        return quarantine.keep(self._disk, self._quarantine, file, offset, data)

    def set_aside(self, file: str) -> str:
        """Move a file of the hot tier to quarantine; its new path, or "" where that failed."""
        return quarantine.move(self._disk, self._quarantine, self.hot.path(file))

    def close(self) -> None:
        """Close every file."""
        for tier in (self.hot, self.cold):
            if isinstance(tier, DirectoryTier):
                tier.close()
