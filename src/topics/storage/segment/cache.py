"""BlockCache: Blocks and tags that were read from segments, bounded in bytes.

It also keeps the error of a read that failed, once: a command that waited for the read is handled again from the start,
and that is how it learns of the failure. The newest entry always stays, whatever its size.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from topics.errors import TopicsError
from topics.storage.block import Block
from topics.storage.damage import Corrupt
from topics.storage.segment.format import Tags

CACHE_BYTES: Final = 64 << 20


class BlockCache:
    """Blocks and tags read from segments. Beyond `bytes_max` the least recently used is dropped first."""

    def __init__(self, bytes_max: int = CACHE_BYTES) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits_total = 0
        self.misses_total = 0
        self._entries: OrderedDict[object, tuple[Block | Tags | TopicsError | Corrupt, int]] = OrderedDict()

    def get(self, key: object) -> Block | Tags | None:
        """What is kept under this key. A failure that was kept is raised, once."""
        entry = self._entries.get(key)
        if entry is None:
            self.misses_total += 1
            return None
        found = entry[0]
        if isinstance(found, Exception):
            self.drop(key)
            raise found
        self._entries.move_to_end(key)
        self.hits_total += 1
        return found

    def put(self, key: object, value: Block | Tags | TopicsError | Corrupt) -> None:
        """Keep a value. The newest one always stays, whatever its size, so that the command that needs it can go on."""
        self.drop(key)
        # Decoded columns take about as much again as the bytes.
        size = 2 * len(value.raw) if isinstance(value, Block) else 2 * getattr(value, "size_bytes", 100)
        self._entries[key] = (value, size)
        self.bytes += size
        while self.bytes > self.bytes_max and len(self._entries) > 1:
            _, (_, freed) = self._entries.popitem(last=False)
            self.bytes -= freed

    def drop(self, key: object) -> None:
        """Forget what is kept under this key."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry[1]
