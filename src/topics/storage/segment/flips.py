"""Flips: delete flags of sealed records that are not on disk yet.

A delete in a sealed segment changes the flag in memory at once and is noted here. The WAL covers it until the flag is
on disk, which a job sees to whenever the WAL is synced, or the next checkpoint, whichever comes first. A flag on disk
only ever goes from live to deleted, and is there before a checkpoint trims the DELETE frame that explains it.

Where the WAL is synced hundreds of times a second, as it is for the acks of a busy queue, a write and a sync of the
flags after each of them would cost as much as those. So there is a pause between two such jobs (`pause_ns`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from topics.storage.flags import DELETED, deleted_runs
from topics.storage.job import Job, Task
from topics.storage.segment.format import HEADER_BYTES, SOME_DELETED
from topics.storage.segment.segment import SealedBlock, Segment
from topics.storage.segment.tier import Tier

_DELETED: Final = bytes((DELETED,))
_Noted = dict[Segment, list[tuple[SealedBlock, int, int, bytes | None]]]


class Flips:
    """What is to be written, by segment. True while there is anything."""

    def __init__(self, hot: Tier) -> None:
        self._hot = hot
        self._noted: _Noted = {}
        self._writing: _Noted | None = None
        self.pause_ns = 0
        """How long after the beginning of one job the next one begins; a server sets it."""
        self._due_ns = 0
        self.capturing = False
        """Whether a checkpoint is being captured: it may list a segment that is dropped before it is durable."""

    def __bool__(self) -> bool:
        return bool(self._noted)

    def note(self, sealed: SealedBlock, i: int, j: int, mask: bytes | None) -> None:
        """The flags [i, j) of a Block are to be written, or those of them that the mask names."""
        self._noted.setdefault(sealed.segment, []).append((sealed, i, j, mask))

    def forget(self, segment: Segment) -> None:
        """A segment was dropped: its flags no longer matter, unless a checkpoint that is being captured lists it."""
        if not self.capturing:
            self._noted.pop(segment, None)

    def next_due_ns(self, now_ns: int) -> int | None:
        """When `job` will have one, where that depends on nothing but time."""
        return self._due_ns if self._noted and self._writing is None and now_ns < self._due_ns else None

    def job(self, now_ns: int) -> Job | None:
        """The writing of everything noted, or None where there is nothing, one already runs, or it is too early."""
        if self._writing is not None or now_ns < self._due_ns:
            return None
        taken = self._take()
        if not taken:
            return None
        self._writing = taken
        self._due_ns = now_ns + self.pause_ns

        def finish(error: BaseException | None) -> None:
            self._writing = None
            if error is not None:
                # The WAL still covers them: they are tried again, at the latest with the next checkpoint.
                self._give_back(taken)

        return Task("flip", lambda: self._write(taken), finish)

    def checkpoint(self) -> tuple[Callable[[], None], Callable[[BaseException | None], None]]:
        """What a checkpoint does first: write every flip noted so far; and what to call with the outcome.

        A running job may not be done in time, so its flips are written here too. A segment that is being moved gets
        them into its hot records, which stay until the next checkpoint, and keeps them noted for the end of the move.
        """
        self.capturing = False
        moving = {segment: list(ranges) for segment, ranges in self._noted.items() if segment.moving}
        taken = self._take()
        running = dict(self._writing or {})

        def work() -> None:
            for flips in (running, moving, taken):
                self._write(flips)

        def finish(error: BaseException | None) -> None:
            if error is not None:
                self._give_back(taken)

        return work, finish

    def _take(self) -> _Noted:
        """The flips that can be written now: those of a segment that is being moved wait for the end of the move."""
        taken = {segment: ranges for segment, ranges in self._noted.items() if not segment.moving}
        for segment in taken:
            del self._noted[segment]
        return taken

    def _give_back(self, taken: _Noted) -> None:
        for segment, ranges in taken.items():
            if not segment.dropped:
                self._noted[segment] = ranges + self._noted.get(segment, [])

    def _write(self, flips: _Noted) -> None:
        for segment, ranges in flips.items():
            name, cold = segment.name, segment.is_cold
            places = []
            for sealed, i, j, mask in ranges:
                at = HEADER_BYTES + sealed.flags_at if cold else sealed.offset + sealed.length
                places += [(at + a, at + b) for a, b in ([(i, j)] if mask is None else deleted_runs(mask))]
            writes = [(a, _DELETED * (b - a)) for a, b in _joined(places)]
            if segment.all_live_at is not None and not cold:
                # First: whoever copies the file while it changes finds at its end that flags may be set.
                writes.insert(0, (segment.all_live_at, SOME_DELETED))
            try:
                self._hot.patch(name.flags_file if cold else name.data_file, writes)
            except FileNotFoundError:
                # Dropped, and its files removed, since the flips were noted.
                if not segment.dropped:
                    raise


def _joined(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same places with those in one that touch each other: many workers ack neighbours, each a few."""
    places.sort()
    joined: list[tuple[int, int]] = []
    for a, b in places:
        if joined and a <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(b, joined[-1][1]))
        else:
            joined.append((a, b))
    return joined
