"""Pending: the writes of one topic that have their seqs and are not visible yet.

They count towards the caps of a topic that rejects, and towards the quota over all topics: whatever is acked later must
have had room when it was taken.
"""

from __future__ import annotations

from topics.engine.log.directory import Totals
from topics.storage.block import Block


class Pending:
    """How many records wait for their WAL class, and their bytes."""

    __slots__ = ("_totals", "bytes", "records")

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self.records = 0
        self.bytes = 0

    def add(self, block: Block) -> None:
        """Count a write in."""
        self.records += block.n
        size = block.live_bytes
        self.bytes += size
        self._totals.pending_bytes += size

    def remove(self, block: Block) -> None:
        """A write is visible, or has failed."""
        self.records -= block.n
        size = block.live_bytes
        self.bytes -= size
        self._totals.pending_bytes -= size
