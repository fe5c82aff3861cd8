"""Held: source records that a restart keeps so that they can still be copied.

The frames of a source and those of its destination come in any order, so something may leave the source's log before
the destination has reached the place of its copy. It is held until then, together with the ranges that the source had
lost by that time. Only a restart holds anything: once the server serves, a copy is made from what the source's log has,
because no later restart could make it from anything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from topics.engine.log.log import Log
from topics.engine.router.copying import Run, live_runs
from topics.storage.wal.frame import Deletion


class Held:
    """What was in the source up to the seq `head`, for one destination."""

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

        def is_kept(seq: int) -> bool:
            deleted = seq < delete.before_seq or any(first <= seq <= last for first, last in delete.ranges)
            return seq <= after or not deleted

        singles = [(block, i, i + 1) for block, a, b in self._runs for i in range(a, b)]
        self._runs = deque(run for run in singles if is_kept(run[0].first_seq + run[1]))
