"""Merger: has small segments of a topic become large ones: files grow in number with bytes and not with records.

Segments next to each other are merged when together they make about one whole segment, or when there are many of them
and none is larger than the others together: then each record is rewritten a few times in its life, not with every new
segment. Only the newest are looked at: the older ones were looked at when they were the newest. Segments of the cold
tier are merged among themselves; what is made of them is hot at first, and moves as any other.
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
    """Looks for segments to merge."""

    def __init__(self, shelf: Shelf, survey: Survey, rewriter: Rewriter) -> None:
        self._shelf = shelf
        self._survey = survey
        self._rewriter = rewriter

    def look(self, topic: Topic) -> None:
        """Begin to merge segments of this topic, if there are enough and sealing does not need the disk more."""
        segments = topic.archive.segments
        if len(segments) < 2 or self._survey.is_short or self._survey.is_full or not self._rewriter.is_free:
            return
        found = mergeable(segments[-LOOK_SEGMENTS:], self._shelf.max_bytes, MERGE_SEGMENTS)
        if found:
            self._rewriter.begin(topic, found, lambda replaced: None)


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
