"""Selection: the seqs that a delete has chosen, and what it changes to delete them.

Seqs are kept as masks, a byte each, in spans that exist only where something is chosen. `plan` works out entry by entry
what the delete changes (storage/flags.py); until it is applied, entries may be sealed, merged or evicted, and records
deleted by others. `stale` says where the plan has to be made again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Final

from topics.engine.log.log import ANYWHERE, Log
from topics.engine.slices import Work
from topics.engine.topic import Topic
from topics.storage.damage import Corrupt
from topics.storage.flags import DELETED, Cut, to_bits
from topics.storage.job import Miss

_SHIFT: Final = 13
_SPAN: Final = 1 << _SHIFT
_GONE: Final = bytes((DELETED,))
# Fewer runs than this are kept as they are, so that those of neighbouring Blocks become one.
_FEW_RUNS: Final = 16

Range = tuple[int, int]
Picked = tuple[int, bytes]
"""Seqs here and there: the first seq of an entry, and a bit for each of its records."""


class Selection:
    """Seqs of one topic that are to be deleted."""

    __slots__ = ("_masks", "_plan", "_topic")

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._masks: dict[int, bytearray] = {}
        # By the first seq of the entry: what changes there, and what goes, as ranges where they are few.
        self._plan: dict[int, tuple[Cut, list[Range] | Picked]] = {}

    def add(self, seqs: list[int]) -> None:
        """Choose these seqs, in any order; some may be chosen already."""
        seqs.sort()
        at = 0
        while at < len(seqs):
            span = seqs[at] >> _SHIFT
            first = span << _SHIFT
            end = bisect_left(seqs, first + _SPAN, at)
            mask = self._masks.get(span)
            if mask is None:
                mask = self._masks[span] = bytearray(_SPAN)
            a, b = seqs[at] - first, seqs[end - 1] - first + 1
            if b - a == end - at:
                mask[a:b] = _GONE * (b - a)
            else:
                for seq in seqs[at:end]:
                    mask[seq - first] = DELETED
            at = end

    def mask(self, first_seq: int, n: int) -> bytes:
        """The mask of n seqs from `first_seq` on."""
        first, last = first_seq >> _SHIFT, (first_seq + n - 1) >> _SHIFT
        nothing = bytes(_SPAN)
        mask = b"".join([self._masks.get(span, nothing) for span in range(first, last + 1)])
        i = first_seq - (first << _SHIFT)
        return mask[i : i + n]

    def plan(self, first: int = 0, last: int = ANYWHERE) -> Work:
        """Work out what it changes to delete what is chosen in [first, last]."""
        log, topic = self._topic.log, self._topic
        at = first
        for span in sorted(self._masks):
            end = min(last, (span << _SHIFT) + _SPAN - 1)
            at = max(at, span << _SHIFT)
            while at <= end:
                k = log.index_of(max(at, log.start))
                if k == len(log.entries) or log.entries[k].first_seq > end:
                    break
                entry = log.entries[k]
                try:
                    self._plan_entry(log, k)
                except Miss as miss:
                    yield miss
                    continue
                except Corrupt as corrupt:
                    topic.lose(corrupt)
                    continue
                at = entry.last_seq + 1
                yield None

    def plan_now(self, first: int, last: int) -> Work:
        """As `plan`, but in one piece, unless something has to be read."""
        for miss in self.plan(first, last):
            if miss is not None:
                yield miss

    def _plan_entry(self, log: Log, k: int) -> None:
        entry = log.entries[k]
        mask = self.mask(entry.first_seq, entry.n)
        cut = log.cut(k, mask) if mask.find(DELETED) >= 0 else None
        if cut is None:
            self._plan.pop(entry.first_seq, None)
            return
        first_seq = entry.first_seq
        ranges = [(first_seq + a, first_seq + b - 1) for a, b in islice(cut.runs(), _FEW_RUNS)]
        self._plan[first_seq] = cut, ranges if len(ranges) < _FEW_RUNS else (first_seq, to_bits(cut.mask))

    def stale(self) -> list[Range]:
        """Where the plan is not valid any more, as the seqs of the entries that were there; it is forgotten there."""
        log = self._topic.log
        stale = [cut.entry for cut, _ in self._plan.values() if not log.allows(cut)]
        for entry in stale:
            del self._plan[entry.first_seq]
        return [(entry.first_seq, entry.last_seq) for entry in stale]

    def cuts(self) -> list[Cut]:
        """What the plan changes, in the order of the seqs."""
        return [cut for _, (cut, _) in sorted(self._plan.items())]

    def ranges(self) -> list[Range | Picked]:
        """What the plan deletes, ascending."""
        found: list[Range | Picked] = []
        for _, (_, ranges) in sorted(self._plan.items()):
            if isinstance(ranges, tuple):
                found.append(ranges)
                continue
            if found and isinstance(last := found[-1][1], int) and last + 1 == ranges[0][0]:
                ranges = [(found.pop()[0], ranges[0][1]), *ranges[1:]]
            found += ranges
        return found

    def seqs(self) -> Iterator[range]:
        """The seqs that the plan deletes, in runs."""
        for cut in self.cuts():
            first_seq = cut.entry.first_seq
            for a, b in cut.runs():
                yield range(first_seq + a, first_seq + b)
