"""Hidden: the jobs from the claim cursor on that were written to be delivered later.

Only a job that was delayed when it was written has a Lease and yet comes after the claim cursor. So a claim passes such
jobs by the run, and not by the job: a million of them cost it as much as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator


class Hidden:
    """Ascending runs [first, last] of seqs; where there are none, there is nothing to ask."""

    __slots__ = ("runs",)

    def __init__(self, seqs: Iterable[int] = ()) -> None:
        self.runs: deque[tuple[int, int]] = deque()
        self.add(seqs)

    def add(self, seqs: Iterable[int]) -> None:
        """Add ascending seqs that follow those that are there."""
        runs = self.runs
        for seq in seqs:
            if runs and runs[-1][1] + 1 == seq:
                runs[-1] = (runs[-1][0], seq)
            else:
                runs.append((seq, seq))

    def forget(self, before: int) -> None:
        """Nobody asks about seqs below `before` any more."""
        runs = self.runs
        while runs and runs[0][1] < before:
            runs.popleft()

    def between(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The runs [i, j) of seqs in [first, end) that are not hidden."""
        for hidden_first, hidden_last in self.runs:
            if first >= end or hidden_first >= end:
                break
            if hidden_first > first:
                yield first, hidden_first
            first = max(first, hidden_last + 1)
        if first < end:
            yield first, end

    def past(self, seq: int) -> int:
        """The first seq from `seq` on that is not hidden, where what is hidden before it was forgotten."""
        return self.runs[0][1] + 1 if self.runs and self.runs[0][0] <= seq <= self.runs[0][1] else seq
