"""Unsettled: at a restart, the Blocks of a topic on which its caps may not have acted yet.

A write that waits for its sync has its frame in the WAL before that of a delete or a config change which takes effect
at once. It became visible after that change, so the caps counted it after it, and must do so again: otherwise a restart
would evict records that readers saw, and that were promised to survive. Whether there is such a change is known only
when it comes, so the caps stay a little behind; the change says how far they had come (`bound_head`).
"""

from __future__ import annotations

from collections import deque

from topics.storage.block import Block


class Unsettled:
    """The newest Blocks of a topic that is being restored, and how much they hold."""

    __slots__ = ("_bytes", "_records", "blocks")

    def __init__(self) -> None:
        self.blocks: deque[Block] = deque()
        self._records = 0
        self._bytes = 0

    def add(self, block: Block) -> None:
        """A Block came behind all others."""
        self.blocks.append(block)
        self._records += block.n
        self._bytes += block.live_bytes

    def behind(self, bound_head: int) -> tuple[int, int]:
        """How many records lie behind `bound_head`, and their bytes; what lies before it is settled. -1: all of it."""
        blocks = self.blocks
        while blocks and (bound_head < 0 or blocks[0].last_seq <= bound_head):
            block = blocks.popleft()
            self._records -= block.n
            self._bytes -= block.size_bytes(0, block.n)
        if not blocks or blocks[0].first_seq > bound_head:
            return self._records, self._bytes
        i = bound_head + 1 - blocks[0].first_seq
        return self._records - i, self._bytes - blocks[0].size_bytes(0, i)
