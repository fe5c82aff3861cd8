"""Room: whether the disk has enough for what takes some, said in the log where that changes.

A write that is refused for it is not the fault of its client, and clients may hide it in their retries. So the log
names the trouble, whether or not requests are logged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from topics.storage.wal.shard import Shard

log: Final = logging.getLogger("topics.storage")


def judge(shards: Sequence[Shard], free_bytes: int, needed_bytes: int, was_full: bool) -> bool:
    """Let the shards take or refuse what grows, by the bytes that are free; returns whether any of them refuses."""
    for shard in shards:
        shard.full = free_bytes < needed_bytes or shard.files.no_room
        shard.room = (free_bytes, needed_bytes)
    is_full = any(shard.full for shard in shards)
    if is_full and not was_full:
        log.error(
            "the disk has %d bytes left and the server needs %d: writes are refused until there is room; "
            "delete records or topics, or free space in another way",
            free_bytes,
            needed_bytes,
        )
    elif was_full and not is_full:
        log.info("the disk has room again, %d bytes: writes are taken", free_bytes)
    return is_full
