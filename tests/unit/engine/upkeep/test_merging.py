"""Which topics are merged, and when (SPACE-1)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from topics.engine.upkeep.merger import LOOK_SEGMENTS, MERGE_SEGMENTS, Merger

WHOLE_BYTES = 64 << 20


class Rewrites:
    """A rewriter that is busy until a test says that it has done its work."""

    def __init__(self) -> None:
        self.done: Any = None
        self.begun: list[tuple[Any, int]] = []

    @property
    def is_free(self) -> bool:
        return self.done is None

    def begin(self, topic: Any, sources: list[Any], on_done: Any) -> None:
        at = topic.archive.segments.index(sources[0])
        self.begun.append((topic, len(sources)))
        made = segment(at, sum(each.data_bytes for each in sources))
        topic.archive.segments[at : at + len(sources)] = [made]
        self.done = on_done

    def finish(self) -> None:
        done, self.done = self.done, None
        done(True)


def segment(first_seq: int, data_bytes: int) -> Any:
    return SimpleNamespace(
        first_seq=first_seq, sealed_to=first_seq, data_bytes=data_bytes, tier="hot", moving=False, rewriting=False
    )


def topic_of(*sizes: int) -> Any:
    segments = [segment(seq, size) for seq, size in enumerate(sizes)]

    class Topic:
        archive = SimpleNamespace(segments=segments)
        deleted = False

    return Topic()


def merger_of(rewrites: Any) -> tuple[Merger, Any]:
    survey = SimpleNamespace(is_short=False, is_full=False)
    shelf: Any = SimpleNamespace(max_bytes=WHOLE_BYTES)
    return Merger(shelf, survey, rewrites), survey  # type: ignore[arg-type]


def test_the_next_merge_begins_when_the_last_one_has_ended() -> None:
    """SPACE-1: also without another round, one at a time."""
    rewrites = Rewrites()
    merger, survey = merger_of(rewrites)
    topics = [topic_of(*[1 << 20] * MERGE_SEGMENTS) for _ in range(3)]
    for topic in topics:
        merger.look(topic)
    survey.is_short = True
    merger.step()
    assert not rewrites.begun, "sealing needs the disk more"
    survey.is_short = False
    for n in range(1, 4):
        merger.step()
        merger.step()
        assert len(rewrites.begun) == n
        rewrites.finish()
    merger.step()
    assert rewrites.begun == [(topic, MERGE_SEGMENTS) for topic in topics]


def test_a_topic_that_was_deleted_meanwhile_is_left_alone() -> None:
    """SPACE-1."""
    rewrites = Rewrites()
    merger, _ = merger_of(rewrites)
    topic = topic_of(*[1 << 20] * MERGE_SEGMENTS)
    merger.look(topic)
    topic.deleted = True
    merger.step()
    assert rewrites.begun == []


def test_small_segments_among_the_older_ones_are_found_too() -> None:
    """SPACE-1: they were written faster than they could be merged."""
    rewrites = Rewrites()
    merger, _ = merger_of(rewrites)
    topic = topic_of(*[1 << 16] * (5 * LOOK_SEGMENTS), *[WHOLE_BYTES] * LOOK_SEGMENTS)
    for _ in range(200):
        merger.look(topic)
        merger.step()
        if not rewrites.is_free:
            rewrites.finish()
    small = [each for each in topic.archive.segments if each.data_bytes < WHOLE_BYTES // 4]
    assert len(small) < LOOK_SEGMENTS
