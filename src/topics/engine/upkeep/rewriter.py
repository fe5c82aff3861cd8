"""Rewriter: puts one segment in the place of neighbours of a topic, one such piece of work at a time.

Merging, compacting and erasing come down to this (storage/segment/rewrite.py). Readers see the same records before,
during and after; what is deleted while the new segment is written is deleted from it before it is used. Afterwards the
rewriter rests for as long as it worked, so that it never takes more than half of the disk's time.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from topics.clock import Clock
from topics.engine.log.archive import Shelf
from topics.engine.topic import Topic
from topics.errors import TopicsError
from topics.storage.damage import Corrupt
from topics.storage.flags import deleted_runs
from topics.storage.job import Job, Miss, Task
from topics.storage.segment.rewrite import Rewrite
from topics.storage.segment.segment import SealedBlock, Segment
from topics.storage.store import Store

log = logging.getLogger("topics.rewriter")

RETRY_NS: Final = 30_000_000_000
# On a full disk, there has to be room for this many times what is written.
ROOM_TIMES: Final = 2

# Called at the end, with whether the segments were replaced.
OnDone = Callable[[bool], None]


class Rewriter:
    """The rewrite that is under way, if any."""

    def __init__(self, clock: Clock, shelf: Shelf, store: Store, wake: Callable[[], None]) -> None:
        """`wake` asks for a turn: the next slice follows when a job is done."""
        self._store = store
        self._clock = clock
        self._wake = wake
        self._shelf = shelf
        self._rewrite: Rewrite | None = None
        self._began_ns = self._began_ms = 0
        self._rest_until_ns = 0

    @property
    def is_free(self) -> bool:
        """Whether the next rewrite may begin: not on a full disk, where the old and the new do not fit together."""
        return not self.is_busy and not self._store.is_full

    @property
    def is_busy(self) -> bool:
        """Whether a rewrite is under way, or the rest after it."""
        return self._rewrite is not None or self._clock.elapsed_ns() < self._rest_until_ns

    def fits(self, size_bytes: int) -> bool:
        """Whether there is room for a rewrite that writes this much, and frees more: also on a disk that is full."""
        store = self._store
        return not store.is_full or store.free_bytes - store.owed_bytes() >= ROOM_TIMES * size_bytes

    def begin(self, topic: Topic, sources: Sequence[Segment], on_done: OnDone) -> None:
        """Begin to put one segment in the place of these, which are next to each other."""
        self._began_ns, self._began_ms = self._clock.elapsed_ns(), self._clock.now_ms()

        def rewritten(made: Segment | None, error: BaseException | None) -> None:
            assert self._rewrite is not None
            if error is not None:
                log.warning("topic %s: a segment could not be rewritten, and stays: %s", topic.name, error)
                self._rest(RETRY_NS)
                on_done(False)
            else:
                self._exchange(topic, self._rewrite, made, on_done)

        shelf = self._shelf
        self._rewrite = shelf.segments.rewrite(sources, topic.log.start, self._enqueue, topic.lose, rewritten)

    def _enqueue(self, job: Job) -> None:
        def finish(error: BaseException | None) -> None:
            job.done(error)
            self._wake()

        self._shelf.enqueue(Task(job.name, job.run, finish))

    def step(self) -> bool:
        """Do one slice; returns whether there is more to do at once."""
        return self._rewrite is not None and self._rewrite.step()

    def _rest(self, at_least_ns: int = 0) -> None:
        now_ns = self._clock.elapsed_ns()
        self._rewrite = None
        self._rest_until_ns = now_ns + max(at_least_ns, now_ns - self._began_ns)

    def _exchange(self, topic: Topic, rewrite: Rewrite, made: Segment | None, on_done: OnDone) -> None:
        """Have the new segment take the place of the others, with what was deleted from them meanwhile.

        There is none where nothing live was left.
        """
        segments, archive = self._shelf.segments, topic.archive
        try:
            if made is not None:
                made.erased_ts = self._began_ms
                _delete_since(topic, rewrite, made)
        except Miss as miss:
            topic.read_then(miss, lambda: self._exchange(topic, rewrite, made, on_done))
            return
        except (Corrupt, TopicsError) as error:
            log.warning("topic %s: a segment that was just written cannot be read: %s", topic.name, error)
            assert made is not None
            segments.drop(made)
            self._rest(RETRY_NS)
            on_done(False)
            return
        kept = [source for source in rewrite.sources if not source.dropped]
        if kept and not topic.deleted:
            archive.exchange(kept, made)
        elif made is not None:
            segments.drop(made)
        self._rest()
        on_done(True)


def _delete_since(topic: Topic, rewrite: Rewrite, made: Segment) -> None:
    """Delete from a new segment what is gone from its sources by now. May raise Miss, and can then be called again."""
    directory = topic.log
    first, last = rewrite.sources[0].first_seq, rewrite.sources[-1].sealed_to
    held = set(directory.entries[bisect_left(directory.firsts, first) : bisect_right(directory.firsts, last)])
    for source in rewrite.sources:
        for sealed in source.blocks:
            if sealed.last_seq < directory.start:
                continue
            if sealed not in held:
                # Dropped with its segment, or found damaged and reported as lost.
                _delete(made.blocks, sealed.first_seq, sealed.last_seq)
            elif rewrite.since(sealed):
                assert sealed.flags is not None
                for i, j in deleted_runs(sealed.flags):
                    _delete(made.blocks, sealed.first_seq + i, sealed.first_seq + j - 1)


def _delete(blocks: Sequence[SealedBlock], first: int, last: int) -> None:
    k = bisect_left(blocks, first, key=lambda sealed: sealed.last_seq)
    for sealed in islice(blocks, k, None):
        if sealed.first_seq > last:
            return
        i, j = max(0, first - sealed.first_seq), min(sealed.n, last + 1 - sealed.first_seq)
        if i < j:
            for a, b in list(sealed.live_runs(i, j)):
                sealed.delete(a, b)
