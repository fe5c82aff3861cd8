"""Seal: one segment in the making, from the tail of a topic to the Blocks that a job will write.

The tail is merged into Blocks of about a thousand records, one per step. The merged Blocks are in the log from the
moment they are made, so a delete that comes before the segment is written applies to them, and is carried over. Nothing
is copied where a Block is large enough already. One that is far larger, which is a write of tens of MiB, is cut into
Blocks of that size, one per step: a read of one of its records would have to read and check all of it.

A tail that has grown beyond one segment's worth becomes one larger segment instead of many, up to `GROWTH` times the
records: the further behind sealing is, the fewer files and syncs each record costs. Tagged records count in full,
because the index over their tags is built in one go.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from topics.engine.log.archive import Sealable
from topics.storage.block import HAS_TAG, Block
from topics.storage.segment.format import BLOCK_BYTES, BLOCK_RECORDS, Builder
from topics.storage.segment.rewrite import SEQS_MAX
from topics.storage.splice import cut, merge

GROWTH: Final = 32
# A tail of many small Blocks is sealed in parts: choosing them is one step.
BLOCKS_MAX: Final = 4096
CUT_BYTES: Final = 2 * BLOCK_BYTES
"""A Block that is larger is cut before it is sealed. One record may take half of that."""


class Seal:
    """The next segment of one topic."""

    def __init__(self, topic: Sealable, max_events: int, max_bytes: int) -> None:
        """At most about `GROWTH * max_events` records and `max_bytes`."""
        topic.log.end_run()
        self.topic = topic
        self.builder = Builder(topic.id)
        self._groups: deque[list[Block]] = deque()
        self._cutting: _Cutting | None = None
        self.held_bytes = self._choose(max_events, max_bytes)
        """What the Blocks that were chosen take in memory."""

    def _choose(self, max_events: int, max_bytes: int) -> int:
        """Take Blocks in groups that become one Block each; a gap between seqs ends a group."""
        groups = self._groups
        weight = size = group_records = group_bytes = 0
        for block in islice(self.topic.log.unsealed(), BLOCKS_MAX):
            if weight >= GROWTH * max_events or size >= max_bytes:
                break
            if groups and block.last_seq - groups[0][0].first_seq >= SEQS_MAX:
                # The rest is after a large lost range, and too far away for the index of the tags.
                break
            n, raw_bytes = block.n, len(block.raw)
            fits = group_records + n <= BLOCK_RECORDS and group_bytes + raw_bytes <= BLOCK_BYTES
            if groups and fits and groups[-1][-1].last_seq + 1 == block.first_seq:
                groups[-1].append(block)
            else:
                groups.append([block])
                group_records = group_bytes = 0
            group_records += n
            group_bytes += raw_bytes
            weight += n * GROWTH if block.bits & HAS_TAG else n
            size += raw_bytes
        return size

    def step(self) -> bool:
        """Merge the next group, or cut off the next part of a large Block; returns whether there are more."""
        cutting = self._cutting
        if cutting is not None:
            if self._has_left(cutting.whole):
                self._cutting = None
            elif not cutting.step():
                self._cutting = None
                self._take(cutting.whole, cutting.parts())
        elif self._groups:
            self._merge(self._groups.popleft())
        return bool(self._groups) or self._cutting is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write: everything that was chosen has left the topic."""
        return self.topic.deleted or not self.builder.places

    def _has_left(self, block: Block) -> bool:
        return self.topic.deleted or block.last_seq < self.topic.log.start

    def _merge(self, group: list[Block]) -> None:
        live = [block for block in group if not self._has_left(block)]
        if not live:
            return
        merged = merge(live)
        if len(live) > 1:
            self.topic.log.replace(merged.first_seq, merged.last_seq, [merged])
        elif merged.n > 1 and len(merged.raw) > CUT_BYTES:
            self._cutting = _Cutting(merged)
            return
        self.builder.add(merged)

    def _take(self, whole: Block, parts: list[Block]) -> None:
        self.topic.log.replace(whole.first_seq, whole.last_seq, parts)
        for part in parts:
            if not self._has_left(part):
                self.builder.add(part)


class _Cutting:
    """A large Block that becomes several, one per step. It stays in the log, and may be deleted from, until the end."""

    def __init__(self, whole: Block) -> None:
        self.whole = whole
        self._made: list[Block] = []
        self._at = 0

    def step(self) -> bool:
        """Cut off the next part; returns whether there are more."""
        whole, i = self.whole, self._at
        self._at = whole.fitting(i, min(i + BLOCK_RECORDS, whole.n), BLOCK_BYTES)
        self._made.append(cut(whole, i, self._at))
        return self._at < whole.n

    def parts(self) -> list[Block]:
        """What was cut off, with the delete flags that the whole has by now."""
        flags = self.whole.flags
        if flags is not None:
            for part in self._made:
                i = part.first_seq - self.whole.first_seq
                part.set_flags(bytes(flags[i : i + part.n]))
        return self._made
