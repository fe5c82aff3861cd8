"""Topic: one named log with its config, its recency clocks and what makes its writes safe to retry.

`next_seq` counts what was assigned, `log.head` what is visible; they differ only while writes wait for their WAL class
(`pending` of them). A topic's `id` is never used again, so a topic that was deleted and created anew has another one:
it is the epoch of DESIGN §5.5.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from topics.engine.config import TopicConfig
from topics.engine.log.log import ANYWHERE, Log, Totals
from topics.engine.log.tags import TagIndex, TagMatch
from topics.engine.priority import effective_priority
from topics.engine.queue.queue import Queue
from topics.engine.restart.unsettled import Unsettled
from topics.engine.upkeep.shelf import Shelf
from topics.engine.write.dedupe import Dedupe
from topics.engine.write.ticket import Receipt, Ticket
from topics.engine.write.unkept import Unkept
from topics.errors import TopicsError
from topics.storage.block import HAS_TAG, Block
from topics.storage.segment.segment import Corrupt, Miss
from topics.storage.segment.segments import Segment

logger = logging.getLogger("topics.topic")

CEILING_STEP_MIN: Final = 65_536
UNSETTLED_BLOCKS_MAX: Final = 4096

Listener = Callable[["Topic"], None]


class Inbound(Protocol):
    """What a topic and its writes ask of the router that copies into it."""

    @property
    def source(self) -> Topic:
        """The topic that is copied from."""

    @property
    def cursor(self) -> int:
        """The source seq up to which records were copied."""

    def catch_up(self) -> None:
        """Copy what the source has."""

    def mark(self, leaves: str = "ephemeral") -> None:
        """Log where the copies are, for a frame after it that cannot say so itself."""

    def note_keys(self, block: Block) -> None:
        """A direct write came between the copies."""

    def capture(self) -> bytes:
        """How far the copies are, for a checkpoint."""


class Outbound(Protocol):
    """What a topic and its writes ask of the routers that copy out of it."""

    @property
    def forwards(self) -> Sequence[Inbound]:
        """The ways out of the topic, one per destination."""

    def published(self, topic: Topic) -> None:
        """The topic has something new."""

    def before_eviction(self) -> None:
        """A cap is about to take the oldest records."""

    def catch_up(self) -> None:
        """Copy everything: something is about to leave the topic."""

    def lagging(self) -> list[tuple[int, int]]:
        """(destination id, cursor) of each destination that does not have everything."""

    def mark(self) -> None:
        """Log where the copies in each destination are."""


def _first_seq(segment: Segment) -> int:
    return segment.first_seq


class Topic:
    """One topic instance, from create to delete."""

    __slots__ = (
        "ceiling",
        "ceiling_asked",
        "ceiling_change",
        "ceiling_step",
        "config",
        "config_lsn",
        "created_ts",
        "dedupe",
        "deleted",
        "id",
        "inbound",
        "last_change",
        "last_config",
        "last_read_ts",
        "last_ticket",
        "last_ts",
        "last_write_ts",
        "letters",
        "listeners",
        "log",
        "name",
        "next_seq",
        "outbound",
        "pending",
        "pending_bytes",
        "queue",
        "sealing",
        "segments",
        "shelf",
        "tags",
        "unkept",
        "unsettled",
    )

    def __init__(self, name: str, id: int, config: TopicConfig, totals: Totals, shelf: Shelf | None = None) -> None:
        self.name = name
        self.id = id
        self.config = config
        self.log = Log(totals)
        self.next_seq = 1
        self.pending = 0
        self.pending_bytes = 0
        self.last_ts = 0
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        self.tags: TagIndex | None = None
        self.dedupe: Dedupe | None = None
        self.last_ticket: Ticket | None = None
        # The last config, and the last change of whatever kind beside a write: they may be on their way to the disk.
        self.last_config: Receipt | None = None
        self.last_change: Receipt | None = None
        self.listeners: list[Listener] = []
        self.deleted = False
        self.created_ts = 0
        self.config_lsn = 0
        # Up to `ceiling` a `disk` topic may hand out seqs without waiting for a sync (decision 37).
        self.ceiling = 0
        self.ceiling_asked = 0
        self.ceiling_change: Receipt | None = None
        self.ceiling_step = CEILING_STEP_MIN
        self.shelf = shelf
        self.segments: list[Segment] = []
        self.sealing = False
        self.queue = Queue(self.log) if config.type == "queue" else None
        # What is forwarded into this topic, and out of it; and whether dead letters were put into it.
        self.inbound: Inbound | None = None
        self.outbound: Outbound | None = None
        self.letters = False
        self.unsettled = Unsettled()
        self.unkept = Unkept()

    def publish(self, ticket: Ticket) -> None:
        """Make a committed write visible, then hold the caps."""
        block = ticket.block
        if block is None:
            return
        log = self.log
        log.publish(block)
        self._settle(block)
        self.last_write_ts = block.last_ts
        if self.last_ticket is ticket:
            self.last_ticket = None
        if ticket.tags is not None:
            if self.tags is None:
                self.tags = TagIndex()
            self.tags.add(block.first_seq, ticket.tags)
        if self.config.cap_records or self.config.cap_bytes:
            self.hold_caps()
        if self.shelf is not None and log.tail_records >= self.shelf.max_events:
            self.shelf.ask(self)
        if self.listeners:
            for listener in tuple(self.listeners):
                listener(self)

    def await_commit(self, block: Block) -> None:
        """Count a write in that has its seqs and is not visible yet."""
        self.pending += block.n
        self.pending_bytes += block.live_bytes
        self.log.totals.pending_bytes += block.live_bytes

    def _settle(self, block: Block) -> None:
        self.pending -= block.n
        self.pending_bytes -= block.live_bytes
        self.log.totals.pending_bytes -= block.live_bytes

    def adopt(self, block: Block) -> None:
        """Take over records that the WAL holds: a restart, not a write."""
        self.log.publish(block)
        self.last_ts = max(self.last_ts, block.last_ts)
        self.last_write_ts = block.last_ts
        self.index_tags(block)
        self.unsettled.add(block)
        if len(self.unsettled.blocks) > UNSETTLED_BLOCKS_MAX:
            self.settle_caps(self.unsettled.blocks[0].last_seq)

    def settle_caps(self, bound_head: int = -1) -> None:
        """Let the caps act as they did when `bound_head` was the last visible seq; -1: on everything."""
        self.hold_caps(*self.unsettled.behind(bound_head))

    def index_tags(self, block: Block) -> None:
        """Enter the tags of records that are not sealed."""
        if block.bits & HAS_TAG:
            if self.tags is None:
                self.tags = TagIndex()
            self.tags.add(block.first_seq, block.tags())

    def hold_caps(self, besides: int = 0, besides_bytes: int = 0) -> None:
        """Evict what is beyond the caps; where a sealed Block has to be read for that first, with the next write.

        So many of the newest records, and their bytes, do not count.
        """
        config = self.config
        if not (config.cap_records or config.cap_bytes):
            return
        if self.outbound is not None:
            self.outbound.before_eviction()
        try:
            # What has expired is gone already and takes no place under the cap.
            if config.ttl_ms:
                self.log.expire(self.last_ts - config.ttl_ms)
            self.log.evict(
                config.cap_records + besides if config.cap_records else 0,
                config.cap_bytes + besides_bytes if config.cap_bytes else 0,
            )
        except Miss as miss:
            assert self.shelf is not None
            self.shelf.enqueue(miss.job)
        except Corrupt as corrupt:
            self.lose(corrupt)
            self.hold_caps(besides, besides_bytes)
        except TopicsError:
            logger.warning("topic %s: evicting waits for a cold store that cannot be read", self.name)
        self._trim()

    def _trim(self) -> None:
        """Let go of what lies below the first live record: tags, and segments that hold nothing any more."""
        start = self.log.start
        if self.tags is not None:
            self.tags.sweep(start, self.log.count)
        while self.segments and self.segments[0].last_seq < start:
            assert self.shelf is not None
            self.shelf.segments.drop(self.segments.pop(0))

    def drop_dead_segments(self, first_seq: int, last_seq: int) -> None:
        """Drop every segment among those that hold these seqs whose records are all deleted (DESIGN §7.4)."""
        i = max(0, bisect_right(self.segments, first_seq, key=_first_seq) - 1)
        j = bisect_right(self.segments, last_seq, key=_first_seq)
        for segment in [segment for segment in self.segments[i:j] if not segment.live]:
            assert self.shelf is not None
            self.log.replace(segment.first_seq, segment.last_seq, [])
            self.segments.remove(segment)
            self.shelf.segments.drop(segment)
        self._trim()

    def take_segment(self, segment: Segment) -> None:
        """The records of a segment are on disk: its Blocks stand in the log from now on."""
        self.log.sealed(segment.first_seq, segment.last_seq, segment.blocks)
        if self.tags is not None:
            self.tags.sweep(segment.last_seq + 1, 0, force=True)
        self.segments.append(segment)
        self._trim()

    def check_full(self) -> None:
        """Have the tail sealed if it is large enough."""
        shelf = self.shelf
        if shelf is None or self.deleted:
            return
        if self.log.tail_records >= shelf.max_events or self.log.tail_bytes >= shelf.max_bytes:
            shelf.ask(self)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Have the sealed Blocks that hold these seqs at hand. Raises Miss where one has to be read from disk first."""
        while True:
            try:
                self.log.fetch(ranges)
                return
            except Corrupt as corrupt:
                self.lose(corrupt)

    def tagged(self, match: TagMatch, before_seq: int) -> list[int]:
        """The ascending seqs below `before_seq` whose tag matches: from each segment's index, and the tail's."""
        start = self.log.start
        found: list[int] = []
        for segment in self.segments:
            if segment.first_seq < before_seq:
                found += self._tagged_in(segment, match)
        if self.tags is not None:
            found += self.tags.find(match, start, before_seq)
        return sorted(seq for seq in found if start <= seq < before_seq)

    def _tagged_in(self, segment: Segment, match: TagMatch) -> list[int]:
        try:
            tags = segment.tags()
        except Corrupt as corrupt:
            # The index is derived, so nothing is lost with it: the records themselves say what they are tagged.
            self.lose(corrupt)
            blocks = [sealed.block() for sealed in segment.blocks]
            return [block.first_seq + i for block in blocks for i, tag in enumerate(block.tags()) if match(tag)]
        return tags.starting(match.text) if match.prefix else tags.equal(match.text)

    def lose(self, corrupt: Corrupt) -> None:
        """A sealed Block turned out to be damaged: its records become a lost range."""
        self.log.totals.corruption_total += 1
        lost = self.log.drop_extent(corrupt.lost.first_seq, "corruption") if corrupt.lost.n else None
        logger.error(
            "%s: corruption at offset %d, %d bytes, kept in %s; topic %s loses %s",
            corrupt.path, corrupt.offset, corrupt.length, corrupt.quarantined or "-", self.name, lost or "nothing",
        )  # fmt: skip

    def reconfigure(self, config: TopicConfig, now_ms: int, bound_head: int = -1) -> None:
        """Apply the old TTL up to now, then the new rules: what is gone stays gone, a tightened rule shows at once."""
        self.expire(now_ms, bound_head)
        self.config = config
        self.expire(now_ms, bound_head)
        self.settle_caps(bound_head)

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a write that the WAL refused; its seqs were never shown."""
        if ticket.block is not None:
            self._settle(ticket.block)
        if self.last_ticket is ticket:
            self.last_ticket = None
        if ticket.remembered is not None and self.dedupe is not None:
            self.dedupe.forget(ticket.remembered)

    def expire(self, now_ms: int, bound_head: int = -1) -> None:
        """Apply the TTL as of `now_ms`, when `bound_head` was the last visible seq; -1: to everything."""
        ttl_ms = self.config.ttl_ms
        if ttl_ms and self.log.count:
            while True:
                try:
                    self.log.expire(now_ms - ttl_ms, ANYWHERE if bound_head < 0 else bound_head)
                    break
                except Corrupt as corrupt:
                    self.lose(corrupt)
            self._trim()

    def catch_up(self) -> None:
        """Forward what the source has for this topic, so that a client that wrote there reads the copies here."""
        if self.inbound is not None:
            self.inbound.catch_up()

    def touch(self, now_ms: int) -> None:
        """Count as consumed now: what the recency term of the priority looks at."""
        self.last_read_ts = now_ms

    def effective_priority(self, now_ms: int, waited_ms: int = 0) -> int:
        """The priority that the scheduler uses now."""
        return effective_priority(self.config.priority, self.config.auto_priority, self.last_read_ts, now_ms, waited_ms)
