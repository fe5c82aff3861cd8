"""Merger: has small segments of a topic become large ones: files grow in number with bytes and not with records.

Segments next to each other are merged when together they make about one whole segment, or when there are many of them
and none is larger than the others together: then each record is rewritten a few times in its life, not with every new
segment. The newest are looked at first, and then some of the older ones, others each time: while many topics are
written at full speed, merging falls behind, and makes up for it later. Segments of the cold tier are merged among
themselves; what is made of them is hot at first, and moves as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topics.engine.log.archive import Shelf
from topics.engine.topic import Topic
from topics.engine.upkeep.rewriter import Rewriter
from topics.engine.upkeep.survey import Survey
from topics.storage.segment.rewrite import SEQS_MAX
from topics.storage.segment.segment import Segment

MERGE_SEGMENTS: Final = 8
LOOK_SEGMENTS: Final = 64
# A segment of this part of a whole one is large enough: to write it again would save hardly any files.
LARGE_PART: Final = 4


class Merger:
    """The topics with segments to merge."""

    def __init__(self, shelf: Shelf, survey: Survey, rewriter: Rewriter) -> None:
        self._shelf = shelf
        self._survey = survey
        self._rewriter = rewriter
        # In the order in which they came, with the place among their segments where there are some to merge.
        self._topics: dict[Topic, int] = {}
        self._looks = 0

    def look(self, topic: Topic) -> None:
        """Take a topic up if it has segments to merge."""
        n = len(topic.archive.segments)
        if n < 2 or topic in self._topics:
            return
        places = [max(0, n - LOOK_SEGMENTS)]
        if n > LOOK_SEGMENTS:
            self._looks += 1
            places.append(self._looks * (LOOK_SEGMENTS // 2) % n)
        for at in places:
            if self._find(topic, at):
                self._topics[topic] = at
                return

    def step(self) -> bool:
        """Begin the next merge if none runs and sealing does not need the disk more; returns whether one has begun."""
        if not self._topics or self._survey.is_short or self._survey.is_full or not self._rewriter.is_free:
            return False
        topic, at = next(iter(self._topics.items()))
        del self._topics[topic]
        found = [] if topic.deleted else self._find(topic, at)
        if found:
            self._rewriter.begin(topic, found, lambda replaced: self.look(topic) if replaced else None)
        return bool(found)

    def _find(self, topic: Topic, at: int) -> list[Segment]:
        return mergeable(topic.archive.segments[at : at + LOOK_SEGMENTS], self._shelf.max_bytes, MERGE_SEGMENTS)


def mergeable(segments: Sequence[Segment], whole_bytes: int, segments_min: int) -> list[Segment]:
    """The first neighbours among these that should become one segment of up to `whole_bytes`, or none."""
    group: list[Segment] = []
    size = largest = 0
    for segment in segments:
        own = segment.data_bytes
        usable = own <= whole_bytes // LARGE_PART and not (segment.moving or segment.rewriting)
        if group and usable and size + own > whole_bytes:
            # With the next one it would be too large: this is a whole one.
            if len(group) > 1:
                return group
            group, size, largest = [], 0, 0
        ends = not usable or (group and not _go_together(group[0], segment))
        if group and ends:
            if _are_many(group, size, largest, segments_min):
                return group
            group, size, largest = [], 0, 0
        if usable:
            group.append(segment)
            size += own
            largest = max(largest, own)
    return group if _are_many(group, size, largest, segments_min) else []


def _go_together(first: Segment, other: Segment) -> bool:
    """Whether two may be in one: what has moved to the cold tier does not come back for the sake of what has not."""
    return first.tier is other.tier and other.sealed_to - first.first_seq < SEQS_MAX


def _are_many(group: Sequence[Segment], size: int, largest: int, segments_min: int) -> bool:
    return len(group) >= segments_min and largest * 2 <= size
