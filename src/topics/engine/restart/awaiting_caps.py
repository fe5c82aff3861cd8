"""Awaiting caps: at a restart, the newest Blocks of each topic, on which its caps may not have acted yet.

A write that waits for its sync has its frame in the WAL before that of a delete or a config change which takes effect
at once. It became visible after that change, so the caps counted it after it, and must do so again: otherwise a restart
would evict records that readers saw, and that were promised to survive. Whether there is such a change is known only
when it comes, so the caps act a little late; the change says how far they had come (`bound_head`).

Where a topic has a TTL as well, a reader was told which of the two took a record (LOSS-8). A record that has expired by
now may have been evicted long before. So there the caps act once more for every moment at which something was written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from topics.engine.config import TopicConfig
from topics.engine.log.log import ANYWHERE
from topics.engine.topic import Topic
from topics.storage.block import Block

BLOCKS_MAX: Final = 4096


class _Newest:
    """The newest Blocks of one topic, and how much they hold."""

    __slots__ = ("blocks", "bytes", "records")

    def __init__(self) -> None:
        self.blocks: deque[Block] = deque()
        self.records = 0
        self.bytes = 0

    def add(self, block: Block) -> None:
        self.blocks.append(block)
        self.records += block.n
        self.bytes += block.live_bytes

    def upto(self, bound_head: int) -> Iterator[tuple[Block, int, int, int]]:
        """Each Block up to `bound_head`: how many of its records, and the records after these, and their bytes."""
        records, size = self.records, self.bytes
        for block in self.blocks:
            n = block.n if bound_head < 0 else min(block.n, bound_head + 1 - block.first_seq)
            if n <= 0:
                return
            records -= n
            size -= block.size_bytes(0, n)
            yield block, n, records, size

    def take(self, bound_head: int) -> tuple[int, int]:
        """Forget what there is up to `bound_head` (-1: all of it); how many records come after it, and their bytes."""
        blocks = self.blocks
        while blocks and (bound_head < 0 or blocks[0].last_seq <= bound_head):
            block = blocks.popleft()
            self.records -= block.n
            self.bytes -= block.size_bytes(0, block.n)
        if not blocks or blocks[0].first_seq > bound_head:
            return self.records, self.bytes
        i = bound_head + 1 - blocks[0].first_seq
        return self.records - i, self.bytes - blocks[0].size_bytes(0, i)


class AwaitingCaps:
    """How a restart puts records back into topics, and lets the caps act when they did."""

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        self._newest: dict[Topic, _Newest] = {}

    def adopt(self, topic: Topic, block: Block) -> None:
        """Take over records that the WAL holds: a restart, not a write."""
        topic.log.publish(block)
        topic.last_ts = max(topic.last_ts, block.last_ts)
        topic.last_write_ts = block.last_ts
        topic.archive.index_block(block)
        newest = self._newest.get(topic)
        if newest is None:
            newest = self._newest[topic] = _Newest()
        newest.add(block)
        if len(newest.blocks) > BLOCKS_MAX:
            self.apply(topic, newest.blocks[0].last_seq)

    def apply(self, topic: Topic, bound_head: int = -1) -> None:
        """Let the caps act as they did when `bound_head` was the last visible seq; -1: on everything."""
        newest, config = self._newest.get(topic), topic.config
        if newest is None:
            topic.hold_caps()
            return
        if config.ttl_ms and (config.cap_records or config.cap_bytes):
            for block, n, besides, besides_bytes in newest.upto(bound_head):
                if _exceeds(topic, besides, besides_bytes):
                    _hold_in_time(topic, block, n, besides, besides_bytes)
        topic.hold_caps(*newest.take(bound_head), upto=ANYWHERE if bound_head < 0 else bound_head)

    def reconfigure(self, topic: Topic, config: TopicConfig, ts: int, bound_head: int) -> None:
        """Apply a config that was given when `bound_head` was the last visible seq."""
        upto = ANYWHERE if bound_head < 0 else bound_head
        topic.expire(ts, upto)
        topic.config = config
        topic.count_tail()
        topic.expire(ts, upto)
        self.apply(topic, bound_head)


def _exceeds(topic: Topic, besides: int, besides_bytes: int) -> bool:
    log, config = topic.log, topic.config
    return bool(
        (config.cap_records and log.count - besides > config.cap_records)
        or (config.cap_bytes and log.bytes - besides_bytes > config.cap_bytes)
    )


def _hold_in_time(topic: Topic, block: Block, n: int, besides: int, besides_bytes: int) -> None:
    """Let TTL and caps act as they did while the first `n` records of a Block were written, in this order each time.

    What was written in the same millisecond makes no difference, so that a Block of many writes is looked at by the
    times that it has.
    """
    expired_before = block.ts_at(n - 1) - topic.config.ttl_ms
    oldest = next(topic.log.retained())
    if oldest.first_ts < expired_before and block.first_ts < block.ts_at(n - 1):
        at, size = 0, block.size_bytes(0, n)
        while at < n:
            ts = block.ts_at(at)
            at = min(n, block.ts_index(ts + 1))
            besides_these = besides_bytes + size - block.size_bytes(0, at)
            topic.hold_caps(besides + n - at, besides_these, ts, block.first_seq + at - 1)
    else:
        topic.hold_caps(besides, besides_bytes, block.ts_at(n - 1), block.first_seq + n - 1)
