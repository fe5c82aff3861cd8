"""Archive: the sealed segments of one topic, and the index over the tags of all its records.

A segment takes the place of the records that it holds, and goes when none of them is live any more. Tags of sealed
records are looked up in the index of their segment, those of the tail in memory.

The Shelf is the data directory that all archives share: where segments are, and which topics wait for their next one.
Without a data directory there is none, and everything stays in memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, Protocol

from topics.engine.config import TopicConfig
from topics.engine.log.log import Log
from topics.engine.log.tags import TagIndex, TagMatch
from topics.engine.slices import Work
from topics.storage.block import HAS_TAG, Block, Extent
from topics.storage.damage import Corrupt
from topics.storage.job import Miss, Task
from topics.storage.segment.segment import Segment
from topics.storage.store import Store

SEGMENT_EVENTS_MAX: Final = 10_000
SEGMENT_BYTES_MAX: Final = 64 << 20
# How many segments a piece of work drops.
_DROPPED: Final = 64
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

    __slots__ = ("asked", "enqueue", "expired", "max_bytes", "max_events", "segments")

    def __init__(self, store: Store, max_events: int = SEGMENT_EVENTS_MAX, max_bytes: int = SEGMENT_BYTES_MAX) -> None:
        self.segments = store.segments
        self.enqueue = store.enqueue
        self.max_events = max_events
        self.max_bytes = max_bytes
        self.asked: deque[Sealable] = deque()
        # Those with records that a TTL took since it was logged how far it had come.
        self.expired: dict[Sealable, None] = {}

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

    __slots__ = ("_log", "sealed_head", "sealed_ns", "sealing", "segments", "shelf", "tags", "taken")

    def __init__(self, log: Log, shelf: Shelf | None) -> None:
        self._log = log
        self.shelf = shelf
        self.segments: list[Segment] = []
        # Whether the tail waits to be sealed, or is being sealed.
        self.sealing = False
        # Blocks of the tail are being made a segment; one that was asked for may still gather.
        self.taken = False
        # When the last segment was sealed, as elapsed time; long ago where none was since the start.
        self.sealed_ns = LONG_AGO_NS
        # How far the topic was when that segment was begun.
        self.sealed_head = 0
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
            self.tags.sweep(segment.last_seq + 1)
        self.segments.append(segment)
        self.trim()

    def trim(self) -> None:
        """Drop what is below the first live record: tags, and segments that hold nothing any more."""
        start = self._log.start
        if self.tags is not None:
            self.tags.sweep(start)
        segments = self.segments
        if segments and segments[0].last_seq < start:
            self._drop_all(segments[: bisect_left(segments, start, key=_last_seq)])

    def drop_dead(self, first_seq: int, last_seq: int) -> None:
        """Drop the segments that hold these seqs and have no live record left (STORE-2)."""
        i = max(0, bisect_right(self.segments, first_seq, key=_first_seq) - 1)
        j = bisect_right(self.segments, last_seq, key=_first_seq)
        dead = [segment for segment in self.segments[i:j] if segment.is_dead]
        for segment in dead:
            self._log.replace(segment.first_seq, segment.last_seq, [])
        self._drop_all(dead)
        self.trim()

    def exchange(self, segments: Sequence[Segment], made: Segment | None) -> None:
        """Put a segment with the live records of neighbours in their place, or nothing where they have none."""
        first_seq, last_seq = segments[0].first_seq, segments[-1].sealed_to
        self._log.replace(first_seq, last_seq, [] if made is None else made.blocks)
        at = self.segments.index(segments[0])
        self.segments[at : at + len(segments)] = [] if made is None else [made]
        self._drop_all(segments)
        self.drop_dead(first_seq, last_seq)

    def clear(self) -> Work:
        """Drop everything, in slices: the topic is gone."""
        while self.segments:
            self._drop_all(self.segments[-_DROPPED:])
            yield None
        while self.tags is not None and self.tags.parts:
            self.tags.parts.pop()
            yield None

    def _drop_all(self, dead: Sequence[Segment]) -> None:
        if not dead:
            return
        assert self.shelf is not None
        for segment in dead:
            self.shelf.segments.drop(segment)
        self.segments = [segment for segment in self.segments if not segment.dropped]

    def search(
        self, match: TagMatch, before_seq: int, found: Callable[[list[int]], None], on_damage: Callable[[Corrupt], None]
    ) -> Work:
        """Give `found` the seqs below `before_seq` of records with a matching tag, in pieces and in no order.

        A record is found once at least, however records are sealed and segments merged in between: what matters is
        where the next seq to look for is by then.
        """
        at = self._log.start
        while at < before_seq:
            segment = self._segment_at(at)
            if segment is not None:
                last_seq = segment.last_seq
                pieces = yield from _tagged_in(segment, match, on_damage)
            else:
                part = None if self.tags is None else self.tags.part_at(at)
                if part is None:
                    return
                last_seq = part.last_seq
                pieces = part.find(match, at, before_seq)
            for seqs in pieces:
                found([seq for seq in seqs if at <= seq < before_seq])
                yield None
            at = last_seq + 1

    def _segment_at(self, seq: int) -> Segment | None:
        """The segment that holds `seq`, or else the first one after it."""
        k = bisect_left(self.segments, seq, key=_last_seq)
        return self.segments[k] if k < len(self.segments) else None


def _first_seq(segment: Segment) -> int:
    return segment.first_seq


def _last_seq(segment: Segment) -> int:
    return segment.last_seq


def _tagged_in(
    segment: Segment, match: TagMatch, on_damage: Callable[[Corrupt], None]
) -> Generator[Miss | None, None, Iterator[list[int]]]:
    """The seqs of a segment with a matching tag, in pieces, once its tags are read."""
    while True:
        try:
            return segment.tags().find(match.text, prefix=match.prefix)
        except Miss as miss:
            yield miss
        except Corrupt as corrupt:
            # The index is derived, so nothing is lost with it: the records themselves have their tags.
            on_damage(corrupt)
            found = yield from _tagged_among(segment.blocks, match, on_damage)
            return iter(found)


def _tagged_among(
    extents: Sequence[Extent], match: TagMatch, on_damage: Callable[[Corrupt], None]
) -> Generator[Miss | None, None, list[list[int]]]:
    found: list[list[int]] = []
    for extent in extents:
        while True:
            try:
                tags = extent.block().tags()
            except Miss as miss:
                yield miss
                continue
            except Corrupt as corrupt:
                on_damage(corrupt)
                break
            found.append([extent.first_seq + i for i, tag in enumerate(tags) if match(tag)])
            yield None
            break
    return found
