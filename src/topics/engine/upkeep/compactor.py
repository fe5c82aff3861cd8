"""Compactor: the space of deleted records comes back although others in their segment are live (SPACE-8).

The files of a segment go when nothing in it is live any more. Deletes by tag, and jobs that are acked out of order,
leave segments that hold a little of what is live among much that is not. A segment whose deleted records take half of
it is rewritten without them, together with such neighbours (rewriter.py): at least as much is freed as is written, and
the records of a topic take at most about twice their size.

Deletes free the most where the disk is full, so it goes on there as long as the new segment fits beside the old ones.

What is below the first live record does not count: retention takes whole segments soon, and to write the rest of one
again and again on its way would cost a busy topic more than it frees.
"""

from __future__ import annotations

from typing import Final

from topics.engine.log.archive import Shelf
from topics.engine.topic import Topic
from topics.engine.upkeep.rewriter import Rewriter
from topics.storage.segment.rewrite import SEQS_MAX
from topics.storage.segment.segment import Segment

DEAD_PART: Final = 2
# Less than this part of a whole segment is not worth a rewrite.
LEAST_PART: Final = 64


class Compactor:
    """The topics with segments that are mostly dead."""

    def __init__(self, shelf: Shelf, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._whole_bytes = shelf.max_bytes
        self._least_bytes = shelf.max_bytes // LEAST_PART
        # In the order in which they came. A dict, because very many may wait, and each is looked for in every round.
        self._topics: dict[Topic, None] = {}

    def look(self, topic: Topic) -> None:
        """Take a topic up if any of its segments is mostly dead."""
        if topic.archive.segments and topic not in self._topics and self._find(topic):
            self._topics[topic] = None

    def step(self) -> None:
        """Begin the next rewrite if none runs; one that does not fit on the disk waits for another look."""
        if not self._topics or self._rewriter.is_busy:
            return
        topic = next(iter(self._topics))
        del self._topics[topic]
        found = [] if topic.deleted else self._find(topic)
        if found and self._rewriter.fits(sum(segment.data_bytes - segment.dead_bytes for segment in found)):
            self._rewriter.begin(topic, found, lambda replaced: self.look(topic) if replaced else None)

    def _find(self, topic: Topic) -> list[Segment]:
        """The first neighbours that are mostly dead, and in which no more is live than one segment holds."""
        found: list[Segment] = []
        left_bytes = self._whole_bytes
        for segment in topic.archive.segments:
            left_bytes -= segment.data_bytes - segment.dead_bytes
            if not self._is_dead(segment) or (found and (left_bytes < 0 or not _go_together(found[0], segment))):
                if found:
                    break
                left_bytes = self._whole_bytes
            else:
                found.append(segment)
        return found

    def _is_dead(self, segment: Segment) -> bool:
        """Whether most of it is dead, enough to be worth it, and nothing else is done with it."""
        dead_bytes = segment.dead_bytes
        worth_it = dead_bytes > self._least_bytes and dead_bytes * DEAD_PART >= segment.data_bytes
        return worth_it and not (segment.moving or segment.rewriting)


def _go_together(first: Segment, other: Segment) -> bool:
    return first.tier is other.tier and other.sealed_to - first.first_seq < SEQS_MAX
