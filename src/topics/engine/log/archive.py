"""Archive: the sealed segments of one topic, and the index over the tags of all its records.

A segment takes the place of the records that it holds, and goes when none of them is live any more. Tags of sealed
records are looked up in the index of their segment, those of the tail in memory.

The Shelf is the data directory that all archives share: where segments are, and which topics wait for their next one.
Without a data directory there is none, and everything stays in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from topics.engine.config import TopicConfig
from topics.engine.log.log import Log
from topics.engine.log.tags import TagIndex, TagMatch
from topics.storage.block import HAS_TAG, Block
from topics.storage.damage import Corrupt
from topics.storage.job import Miss, Task
from topics.storage.segment.segment import Segment
from topics.storage.store import Store

SEGMENT_EVENTS_MAX: Final = 10_000
SEGMENT_BYTES_MAX: Final = 64 << 20
LONG_AGO_NS: Final = -(1 << 62)


class Sealable(Protocol):
    """A topic, as far as sealing its tail needs it."""

    id: int
    name: str
    config: TopicConfig
    log: Log
    archive: Archive
    deleted: bool

    def ask_seal(self) -> None:
        """Have the tail sealed if it is large enough."""


class Shelf:
    """The segments of a data directory, how large one may be, and the topics that wait for their next one."""

    __slots__ = ("asked", "enqueue", "max_bytes", "max_events", "segments")

    def __init__(self, store: Store, max_events: int = SEGMENT_EVENTS_MAX, max_bytes: int = SEGMENT_BYTES_MAX) -> None:
        self.segments = store.segments
        self.enqueue = store.enqueue
        self.max_events = max_events
        self.max_bytes = max_bytes
        self.asked: deque[Sealable] = deque()

    def ask(self, topic: Sealable) -> None:
        """Have the topic's tail sealed in its turn."""
        if not topic.archive.sealing and topic.config.durability != "ephemeral":
            topic.archive.sealing = True
            self.asked.append(topic)

    def read_then(self, miss: Miss, then: Callable[[], None]) -> None:
        """Have the Block that is missing read by a job, then call `then`, whether or not the job succeeded."""
        job = miss.job

        def finish(error: BaseException | None) -> None:
            job.done(error)
            then()

        self.enqueue(Task(job.name, job.run, finish))


class Archive:
    """The segments and tags of one topic."""

    __slots__ = ("_log", "sealed_ns", "sealing", "segments", "shelf", "tags")

    def __init__(self, log: Log, shelf: Shelf | None) -> None:
        self._log = log
        self.shelf = shelf
        self.segments: list[Segment] = []
        # Whether the tail waits to be sealed, or is being sealed.
        self.sealing = False
        # When the last segment was sealed, as elapsed time; long ago where none was since the start.
        self.sealed_ns = LONG_AGO_NS
        self.tags: TagIndex | None = None

    def index(self, first_seq: int, tags: Sequence[bytes | None]) -> None:
        """Enter the tags of records that are not sealed."""
        if self.tags is None:
            self.tags = TagIndex()
        self.tags.add(first_seq, tags)

    def index_block(self, block: Block) -> None:
        """Enter the tags of a Block that is not sealed."""
        if block.bits & HAS_TAG:
            self.index(block.first_seq, block.tags())

    def take(self, segment: Segment) -> None:
        """The records of a segment are on disk: its Blocks are in the log from now on."""
        self._log.sealed(segment.first_seq, segment.last_seq, segment.blocks)
        if self.tags is not None:
            self.tags.sweep(segment.last_seq + 1, 0, force=True)
        self.segments.append(segment)
        self.trim()

    def trim(self) -> None:
        """Drop what lies below the first live record: tags, and segments that hold nothing any more."""
        start = self._log.start
        if self.tags is not None:
            self.tags.sweep(start, self._log.count)
        while self.segments and self.segments[0].last_seq < start:
            self._drop(self.segments.pop(0))

    def drop_dead(self, first_seq: int, last_seq: int) -> None:
        """Drop the segments that hold these seqs and have no live record left (STORE-2)."""
        i = max(0, bisect_right(self.segments, first_seq, key=_first_seq) - 1)
        j = bisect_right(self.segments, last_seq, key=_first_seq)
        for segment in [segment for segment in self.segments[i:j] if not segment.live]:
            self._log.replace(segment.first_seq, segment.last_seq, [])
            self.segments.remove(segment)
            self._drop(segment)
        self.trim()

    def exchange(self, segments: Sequence[Segment], made: Segment | None) -> None:
        """Put a segment with the live records of neighbours in their place, or nothing where they have none."""
        first_seq, last_seq = segments[0].first_seq, segments[-1].sealed_to
        self._log.replace(first_seq, last_seq, [] if made is None else made.blocks)
        at = self.segments.index(segments[0])
        self.segments[at : at + len(segments)] = [] if made is None else [made]
        for segment in segments:
            self._drop(segment)
        self.drop_dead(first_seq, last_seq)

    def clear(self) -> None:
        """Drop everything: the topic is gone."""
        for segment in self.segments:
            self._drop(segment)
        self.segments = []

    def _drop(self, segment: Segment) -> None:
        assert self.shelf is not None
        self.shelf.segments.drop(segment)

    def tagged(self, match: TagMatch, before_seq: int, on_damage: Callable[[Corrupt], None]) -> list[int]:
        """The ascending seqs below `before_seq` of records with a matching tag. May raise Miss."""
        start = self._log.start
        found: list[int] = []
        for segment in self.segments:
            if segment.first_seq < before_seq:
                found += _tagged_in(segment, match, on_damage)
        if self.tags is not None:
            found += self.tags.find(match, start, before_seq)
        return sorted(seq for seq in found if start <= seq < before_seq)


def _first_seq(segment: Segment) -> int:
    return segment.first_seq


def _tagged_in(segment: Segment, match: TagMatch, on_damage: Callable[[Corrupt], None]) -> list[int]:
    try:
        tags = segment.tags()
    except Corrupt as corrupt:
        # The index is derived, so nothing is lost with it: the records themselves have their tags.
        on_damage(corrupt)
        blocks = [sealed.block() for sealed in segment.blocks]
        return [block.first_seq + i for block in blocks for i, tag in enumerate(block.tags()) if match(tag)]
    return tags.starting(match.text) if match.prefix else tags.equal(match.text)
