"""Sealer: turns the tails of topics into segments, off the path of any request (STORE-1).

A tail that has enough records, bytes or age is merged on the loop in slices (seal.py) and written by a job. Readers see
the same records before, during and after. The segments of several topics are written by one job, which syncs their
directory once; at most `JOBS_MAX` such jobs run, so that reads find a thread, and a topic is in one of them only. So
the slower the disk is, the more each job writes, and the rate is the disk's own.

A topic that was sealed less than `BUSY_NS` ago gathers more for `gather_ns` first, unless memory is short: one that is
written at full speed gets a few large segments instead of many small ones, and a burst has the processor for itself.
One that was not written since its last segment was begun has nothing to gather: what a burst has left is sealed in one
go.

Where a job fails, nothing has changed: its tails are in memory and in the WAL, and are tried again after a while.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from topics.clock import Clock
from topics.engine.log.archive import Sealable, Shelf
from topics.engine.upkeep.seal import Seal
from topics.engine.upkeep.timing import Timing
from topics.storage.segment.segment import Segment

log = logging.getLogger("topics.sealer")

SLICE_NS: Final = 1_000_000
JOBS_MAX: Final = 2
BATCH_SEGMENTS: Final = 16
BATCH_BYTES: Final = 16 << 20
RETRY_NS: Final = 5_000_000_000
GATHER_NS: Final = 2_000_000_000
BUSY_NS: Final = 1_000_000_000
FOREVER_NS: Final = 1 << 62


class Sealer:
    """Makes the segments that the shelf was asked for."""

    def __init__(self, shelf: Shelf, clock: Clock, gather_ns: int = 0) -> None:
        self._shelf = shelf
        self._clock = clock
        self._gather_ns = gather_ns
        # What was asked for: what gathers, with the time at which it has done so, and what is sealed next.
        self._gathering: deque[tuple[int, Sealable]] = deque()
        self._ready: deque[Sealable] = deque()
        self._seal: Seal | None = None
        self._batch: list[Seal] = []
        self._jobs = 0
        # After a failure nothing is tried before then.
        self._retry_ns = 0
        self.held_bytes = 0
        """What is being sealed takes this much in memory."""
        self.timing = Timing()
        """Of the jobs that write segments."""

    @property
    def waits(self) -> bool:
        """Whether tails wait to be sealed."""
        return bool(self._shelf.asked or self._gathering or self._ready)

    @property
    def is_idle(self) -> bool:
        """Whether no tail waits to be sealed or is being sealed."""
        return not (self.waits or self._seal or self._batch or self._jobs)

    def step(self, *, at_once: bool = False) -> bool:
        """Do one slice; returns whether there is more to do at once. With `at_once`, nothing gathers any longer."""
        if self._jobs >= JOBS_MAX:
            return False
        now_ns = self._clock.elapsed_ns()
        if now_ns < self._retry_ns:
            return False
        self._sort(now_ns, FOREVER_NS if at_once else now_ns)
        until_ns = now_ns + SLICE_NS
        while self._seal is not None or self._begin():
            assert self._seal is not None
            if not self._seal.step():
                self._batch.append(self._seal)
                self._seal = None
                if self._is_full():
                    self._write()
                    return self._jobs < JOBS_MAX
            if self._clock.elapsed_ns() >= until_ns:
                return True
        if self._batch:
            self._write()
        return False

    def _sort(self, now_ns: int, due_ns: int) -> None:
        """Decide which topics gather; those that have done so until `due_ns` are ready."""
        asked, gathering, ready = self._shelf.asked, self._gathering, self._ready
        while asked:
            topic = asked.popleft()
            archive = topic.archive
            is_busy = now_ns - archive.sealed_ns < BUSY_NS and topic.log.head != archive.sealed_head
            if self._gather_ns and is_busy:
                gathering.append((now_ns + self._gather_ns, topic))
            else:
                ready.append(topic)
        while gathering and gathering[0][0] <= due_ns:
            ready.append(gathering.popleft()[1])

    def _begin(self) -> bool:
        shelf, ready = self._shelf, self._ready
        while ready:
            seal = Seal(ready.popleft(), shelf.max_events, shelf.max_bytes)
            if seal.held_bytes and not seal.topic.deleted:
                self._seal = seal
                seal.topic.archive.taken = True
                seal.topic.archive.sealed_head = seal.topic.log.head
                self.held_bytes += seal.held_bytes
                return True
            seal.topic.archive.sealing = False
        return False

    def _is_full(self) -> bool:
        batch = self._batch
        return len(batch) >= BATCH_SEGMENTS or sum(seal.held_bytes for seal in batch) >= BATCH_BYTES

    def _write(self) -> None:
        batch, self._batch = self._batch, []
        written = [seal for seal in batch if not seal.is_empty]
        self._finish([seal for seal in batch if seal.is_empty])
        if not written:
            return
        self._jobs += 1
        began_ns = self._clock.elapsed_ns()

        def sealed(segments: list[Segment], error: BaseException | None) -> None:
            self._jobs -= 1
            self.timing.ended(began_ns, self._clock.elapsed_ns(), failed=error is not None)
            if error is not None:
                self._retry_ns = self._clock.elapsed_ns() + RETRY_NS
                names = ", ".join(seal.topic.name for seal in written)
                log.error("segments could not be written (topics %s), and are tried again: %s", names, error)
            else:
                for seal, segment in zip(written, segments, strict=True):
                    self._take(seal, segment)
            self._finish(written)

        self._shelf.enqueue(self._shelf.segments.seal_job([seal.builder for seal in written], sealed))

    def _take(self, seal: Seal, segment: Segment) -> None:
        if seal.topic.deleted:
            self._shelf.segments.drop(segment)
        else:
            seal.topic.archive.take(segment)

    def _finish(self, seals: list[Seal]) -> None:
        for seal in seals:
            self.held_bytes -= seal.held_bytes
            seal.topic.archive.sealing = seal.topic.archive.taken = False
            seal.topic.archive.sealed_ns = self._clock.elapsed_ns()
            seal.topic.ask_seal()
