"""Eraser: text of what was deleted, evicted or has expired leaves the disk within `erase_after_ms` (SPACE-5, SPACE-6).

Such text may be in segments, in the tail of a snapshot and in the WAL. For a topic that has lost records, half of that
time after it was last known to have no such text:

1. the Blocks of its tail are replaced by ones without the text, so that snapshots no longer hold it;
2. every segment that holds any is rewritten (rewriter.py), be it in the hot or the cold tier;
3. a checkpoint is made that leaves the WAL files of before: with it WAL, snapshot and segments of before go.

Then everything that was gone when the first step began is erased. A topic says how far that is (`Erasure`): two numbers
that the next checkpoint keeps. No delete pays for it: that there is something to do is seen from head and count alone.

Topics that were deleted leave segments and frames too; a checkpoint of the same kind sees to those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from topics.engine.engine import Engine
from topics.engine.log.erasure import Erasure, gone
from topics.engine.topic import Topic
from topics.engine.upkeep.rewriter import Rewriter
from topics.storage.block import Block
from topics.storage.flags import DELETED, both
from topics.storage.segment.segment import Segment
from topics.storage.splice import erased

# So many Blocks of a tail are looked at in one slice.
TAIL_BLOCKS: Final = 64

# What is erased once the checkpoint under way is durable: whose, and up to what.
Erasing = tuple[Erasure, int, int]


class Eraser:
    """Takes topics one by one through the steps, in slices."""

    def __init__(self, engine: Engine, rewriter: Rewriter, erase_after_ms: int) -> None:
        self._engine = engine
        self._rewriter = rewriter
        self._after_ms = erase_after_ms
        self._asked: deque[Topic] = deque()
        self._topic: Topic | None = None
        self._gone = self._began_ms = self._head = 0
        self._steps: Iterator[bool] = iter(())
        self._rewriting = False
        self._failed = False
        # Topics that are through, and wait for a checkpoint.
        self._through: list[Erasing] = []
        self._through_ms = 0
        # Topics that were deleted, counted as the records of one.
        self._topics = Erasure(engine.clock.now_ms())

    def look(self, topic: Topic, now_ms: int) -> None:
        """Note whether a topic has anything to erase, and take it up in its turn when that is due."""
        if topic.erasure.look(gone(topic.log), now_ms, self._after_ms // 2):
            self._asked.append(topic)

    def look_at_deleted(self, now_ms: int) -> None:
        """The same for the topics that are gone altogether."""
        deleted = self._deleted()
        if self._topics.look(deleted, now_ms, self._after_ms // 2):
            self._come_through((self._topics, deleted, now_ms))

    def _deleted(self) -> int:
        return self._engine.catalog.next_topic_id - 1 - len(self._engine.topics)

    def step(self) -> bool:
        """Do one slice; returns whether there is more to do at once."""
        if self._rewriting:
            return False
        if self._topic is None:
            if not self._asked:
                return False
            self._begin(self._asked.popleft())
            return True
        if self._failed or self._topic.deleted:
            self._give_up(self._topic)
            return True
        more = next(self._steps, None)
        if more is None:
            self._come_through((self._topic.erasure, self._gone, self._began_ms))
            self._topic = None
            return True
        return more

    def _begin(self, topic: Topic) -> None:
        self._topic = topic
        self._failed = False
        # The tail is about to become a segment as it is: the next look takes the topic up again.
        if topic.deleted or topic.archive.taken:
            self._give_up(topic)
            return
        self._gone, self._began_ms = gone(topic.log), self._engine.clock.now_ms()
        self._steps = self._erase(topic, topic.log.head)

    def _give_up(self, topic: Topic) -> None:
        topic.erasure.asked = False
        self._topic = None

    def _come_through(self, done: Erasing) -> None:
        if not self._through:
            self._through_ms = self._engine.clock.now_ms()
        self._through.append(done)

    def _erase(self, topic: Topic, head: int) -> Iterator[bool]:
        """Erase the tail, then the segments; yields whether the next slice may follow at once."""
        log, tail = topic.log, topic.log.tail_first()
        seq = head + 1 if tail is None else tail.first_seq
        while seq <= head:
            if topic.archive.taken:
                # The sealer has the Blocks of the tail as they were, and puts its own in their place.
                self._failed = True
            yield True
            for _ in range(TAIL_BLOCKS):
                # By seq, since Blocks of a tail become one as they come.
                k = log.index_of(seq)
                if seq > head or k == len(log.entries):
                    seq = head + 1
                    break
                entry = log.entries[k]
                seq = entry.last_seq + 1
                made = _without_dead(entry, log.start) if isinstance(entry, Block) else None
                if made is not None:
                    log.replace(entry.first_seq, entry.last_seq, [made])
                    break
        while (segment := self._next(topic, head)) is not None:
            while not self._rewriter.is_free or segment.moving or segment.rewriting:
                yield False
                if segment.dropped:
                    break
            else:
                self._rewriting = True
                self._rewriter.begin(topic, [segment], self._rewritten)
                yield False

    def _rewritten(self, replaced: bool) -> None:
        self._rewriting = False
        self._failed = not replaced

    def _next(self, topic: Topic, head: int) -> Segment | None:
        """The next segment that may hold text of what was gone when the pass began."""
        for segment in topic.archive.segments:
            if segment.first_seq > head:
                break
            if segment.erased_ts < self._began_ms and segment.holds_dead(topic.log.start):
                return segment
        return None

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint should be made now: for as many topics at once as is possible in time."""
        if not self._through:
            return False
        idle = self._topic is None and not self._asked
        return idle or self._engine.clock.now_ms() - self._through_ms >= self._after_ms // 8

    def take(self) -> list[Erasing]:
        """What the checkpoint that begins now erases, if it leaves the WAL files of before."""
        taken, self._through = self._through, []
        return taken

    def erased(self, taken: list[Erasing], *, complete: bool) -> None:
        """That checkpoint is over; `complete` says that everything it replaces is gone from the disk."""
        for erasure, gone_then, began_ms in taken:
            if complete:
                erasure.erased(gone_then, began_ms)
            erasure.asked = False


def _without_dead(block: Block, start: int) -> Block | None:
    """A Block of the tail without the text of what is gone; None where there is none."""
    trimmed = max(0, min(block.n, start - block.first_seq))
    dead = (bytes((DELETED,)) * trimmed).ljust(block.n, b"\0")
    if block.flags is not None:
        dead = both(dead, bytes(block.flags))
    if dead.count(DELETED) == block.erased().count(DELETED):
        return None
    return erased(block, dead)
