"""Sealer: turns the tail of a topic into a segment, off the path of any request (STORE-1).

A tail that has enough records, bytes or age is merged into Blocks of about a thousand records, one per slice of the
loop's time, and written by a job. The merged Blocks are in the log from the moment they are made, so a delete that
comes while the job runs applies to them and is carried over when it is done. Readers see the same records before,
during and after.

At most one segment is made at a time: it is background work, and requests need the disk more.
"""

from __future__ import annotations

import logging
from collections import deque

from topics.engine.log.archive import Sealable, Shelf
from topics.storage.block import Block
from topics.storage.segment.format import BLOCK_BYTES, BLOCK_RECORDS, Builder
from topics.storage.segment.segment import Segment
from topics.storage.splice import merge

log = logging.getLogger("topics.sealer")


class Sealer:
    """Makes segments, one after the other."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._topic: Sealable | None = None
        self._builder: Builder | None = None
        self._groups: deque[list[Block]] = deque()
        self._writing = False

    def step(self) -> bool:
        """Do one slice; returns whether there is more to do at once."""
        if self._writing:
            return False
        if self._topic is None:
            return self._begin()
        assert self._builder is not None
        if self._groups:
            self._merge(self._topic, self._builder, self._groups.popleft())
            return True
        self._write(self._topic, self._builder)
        return False

    def _begin(self) -> bool:
        shelf = self._shelf
        while shelf.asked:
            topic = shelf.asked.popleft()
            topic.log.end_run()
            self._groups = _groups(topic.log.tail(), shelf.max_events, shelf.max_bytes)
            if topic.deleted or not self._groups:
                topic.archive.sealing = False
                continue
            self._topic = topic
            self._builder = Builder(topic.id)
            return True
        return False

    def _merge(self, topic: Sealable, builder: Builder, group: list[Block]) -> None:
        live = [block for block in group if block.last_seq >= topic.log.start]
        if not live or topic.deleted:
            return
        merged = merge(live)
        if len(live) > 1:
            topic.log.replace(merged.first_seq, merged.last_seq, [merged])
        builder.add(merged)

    def _write(self, topic: Sealable, builder: Builder) -> None:
        if topic.deleted or not builder.places:
            self._finish(topic)
            return
        self._writing = True
        segments = self._shelf.segments

        def sealed(segment: Segment | None, error: BaseException | None) -> None:
            self._writing = False
            if segment is None:
                log.error("topic %s: a segment could not be written: %s", topic.name, error)
            elif topic.deleted:
                segments.drop(segment)
            else:
                topic.archive.take(segment)
            self._finish(topic)

        self._shelf.enqueue(segments.seal_job(builder, sealed))

    def _finish(self, topic: Sealable) -> None:
        self._topic = None
        self._builder = None
        topic.archive.sealing = False
        topic.ask_seal()


def _groups(tail: list[Block], max_events: int, max_bytes: int) -> deque[list[Block]]:
    """The Blocks of the next segment, in groups that become one Block each; a gap between seqs ends a group."""
    groups: deque[list[Block]] = deque()
    records = size = group_records = group_bytes = 0
    for block in tail:
        if records >= max_events or size >= max_bytes:
            break
        fits = group_records + block.n <= BLOCK_RECORDS and group_bytes + len(block.raw) <= BLOCK_BYTES
        if groups and fits and groups[-1][-1].last_seq + 1 == block.first_seq:
            groups[-1].append(block)
        else:
            groups.append([block])
            group_records = group_bytes = 0
        group_records += block.n
        group_bytes += len(block.raw)
        records += block.n
        size += len(block.raw)
    return groups
