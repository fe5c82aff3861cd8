"""Backlog: what a source has that is not copied yet.

1. The cursor is one number, whatever the number of routers between the two topics: every source record up to it has
   been looked at.
2. Records that a cap or a TTL took before they were copied are lost, and so are those that damage or a crash took. A
   copy of a record after them is not made before the destination says so.
3. Records that were deleted before they were copied are skipped without notice.
4. During a restart, held records stand in for what has left the source's log since they were copied.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Final

from topics.engine.log.log import Log
from topics.engine.router.copying import Run, live_runs
from topics.engine.topic import Topic
from topics.storage.wal.frame import Deletion

SLICE_RECORDS: Final = 1000
SLICE_BYTES: Final = 1 << 20


class Held:
    """What was in the source up to the seq `head`, for one destination: a restart keeps it until it is copied.

    The frames of a source and those of its destination come in any order, so something may leave the source's log
    before the destination has reached the place of its copy. It is held until then, together with the ranges that the
    source had lost by that time. Only a restart holds anything: once the server serves, a copy is made from what the
    source's log has, because no later restart could make it from anything else.
    """

    __slots__ = ("_lost", "_runs", "head")

    def __init__(self) -> None:
        self.head = 0
        self._runs: deque[Run] = deque()
        self._lost: deque[tuple[int, int]] = deque()

    def take(self, log: Log, cursor: int, upto: int) -> None:
        """Hold what the log has after the cursor up to `upto`. May raise Miss, and has changed nothing then."""
        after, upto = max(self.head, cursor), min(upto, log.head)
        if upto > after:
            self._runs.extend(list(live_runs(log, after + 1, upto)))
            lost = [(max(after + 1, each.first), min(each.last, upto)) for each in log.lost]
            self._lost.extend((first, last) for first, last in lost if first <= last)
            self.head = upto

    def runs(self, first: int, upto: int) -> Iterator[Run]:
        """The records with these seqs, both ends included."""
        for block, a, b in self._runs:
            i, j = max(a, first - block.first_seq), min(b, upto + 1 - block.first_seq)
            if i < j:
                yield block, i, j

    def lost_first(self) -> int | None:
        """Where the next lost range begins."""
        return self._lost[0][0] if self._lost else None

    def lost_to(self, seq: int) -> int:
        """Where the lost range that holds `seq` ends; 0 where `seq` is not lost."""
        return self._lost[0][1] if self._lost and self._lost[0][0] <= seq else 0

    def pass_by(self, cursor: int) -> None:
        """Hold nothing up to the cursor any more."""
        runs, lost = self._runs, self._lost
        while runs and runs[0][0].first_seq + runs[0][2] - 1 <= cursor:
            runs.popleft()
        while lost and lost[0][1] <= cursor:
            lost.popleft()

    def drop_deleted(self, after: int, delete: Deletion) -> None:
        """Hold nothing that a delete took after this seq: it was never copied."""
        runs = sorted(delete.runs())

        def is_kept(seq: int) -> bool:
            at = bisect_right(runs, seq, key=itemgetter(0)) - 1
            deleted = seq < delete.before_seq or (at >= 0 and seq <= runs[at][1])
            return seq <= after or not deleted

        singles = [(block, i, i + 1) for block, a, b in self._runs for i in range(a, b)]
        self._runs = deque(run for run in singles if is_kept(run[0].first_seq + run[1]))


class Backlog:
    """The records of a source after a cursor. `held` is there during a restart, and None afterwards."""

    __slots__ = ("cursor", "held", "source")

    def __init__(self, source: Topic, cursor: int, held: Held | None) -> None:
        self.source = source
        self.cursor = cursor
        self.held = held

    def next(self, records_max: int, upto: int) -> tuple[int, list[Run]]:
        """The next slice: up to where the source has lost records that come first, or else `runs`."""
        lost_to = self.lost_to()
        return lost_to, [] if lost_to else self.runs(records_max, upto)

    def runs(self, records_max: int, upto: int) -> list[Run]:
        """The next records: at most so many, none after the seq `upto` nor after a lost range. May raise Miss."""
        runs: list[Run] = []
        room, size = records_max, 0
        for block, a, b in self._runs(min(upto, self.end())):
            end = min(b, a + room)
            if block.live_bytes > SLICE_BYTES:
                end = block.fitting(a, end, SLICE_BYTES)
            runs.append((block, a, end))
            room -= end - a
            size += block.live_bytes
            if room == 0 or size >= SLICE_BYTES:
                break
        return runs

    def _runs(self, upto: int) -> Iterable[Run]:
        log, held, first = self.source.log, self.held, self.cursor + 1
        if held is None:
            return live_runs(log, first, upto)
        return chain(held.runs(first, upto), live_runs(log, max(first, held.head + 1), upto))

    def end(self) -> int:
        """The last source seq before the next lost range."""
        log, held, after = self.source.log, self.held, self.cursor
        if held is not None:
            lost_first = held.lost_first()
            if lost_first is not None:
                return lost_first - 1
            after = max(after, held.head)
        head = max(log.head, after)
        return min(log.lost_after(after) - 1, head) if log.lost else head

    def lost_to(self) -> int:
        """The last of the lost source seqs right after the cursor; 0 where there are none."""
        log, held, first = self.source.log, self.held, self.cursor + 1
        floor = log.evict_floor
        if first < floor and (held is None or first > held.head):
            return floor - 1
        return self.damaged_to() if log.lost or held is not None else 0

    def damaged_to(self) -> int:
        """As `lost_to`, but only for what damage or a crash took, and not for what retention took."""
        log, held, first = self.source.log, self.held, self.cursor + 1
        if held is not None and first <= held.head:
            return held.lost_to(first)
        found = log.lost_at(first) if log.lost else None
        return 0 if found is None else found.last

    def move(self, cursor: int) -> None:
        """Everything up to the source seq `cursor` has been looked at."""
        self.cursor = cursor
        if self.held is not None:
            self.held.pass_by(cursor)

    def rewind(self) -> None:
        """A source that came back without its newest records hands out their seqs again."""
        self.cursor = min(self.cursor, self.source.log.head)

    def hold(self, upto: int) -> None:
        """Hold the records up to the seq `upto`, which are about to leave the source's log. May raise Miss."""
        assert self.held is not None
        self.held.take(self.source.log, self.cursor, upto)
