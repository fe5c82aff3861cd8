"""Marks: what the WAL says about the place of copies beside the frames of their destination (CURSOR).

Copies are logged nowhere. A frame of the destination says how far they had come, and between two such frames they
follow from the source. A mark is logged where that is not enough: source records were lost before they were copied,
copies are dated later than their source records, or there may be no other frame that says how far they had come. An
`ephemeral` destination needs no mark, since its copies do not survive.
"""

from __future__ import annotations

from typing import Final

from topics.engine.journal import Journal
from topics.engine.router import event as router_event
from topics.engine.router.backlog import Backlog
from topics.engine.router.event import Moved
from topics.engine.topic import Topic
from topics.engine.write.ticket import Receipt
from topics.errors import TopicsError
from topics.storage.wal import frame as frames

# The classes that hand out no seq twice, whatever happens.
LASTING: Final = frozenset(("disk", "fsync"))


class Marks:
    """Logs the place of the copies in one destination."""

    __slots__ = ("_backlog", "_dest", "_journal")

    def __init__(self, journal: Journal, backlog: Backlog, dest: Topic) -> None:
        self._journal = journal
        self._backlog = backlog
        self._dest = dest

    def mark(self, leaves: str = "ephemeral") -> None:
        """Log how far the copies are, for a frame after it that cannot say so; `leaves` is the class that follows."""
        if leaves != "ephemeral" or self._dest.config.durability != "ephemeral":
            self._log(self._backlog.cursor)

    def lose(self, count: int, cursor: int) -> None:
        """Log that `count` seqs of the destination stand for source records up to `cursor` that are lost."""
        if self._dest.config.durability != "ephemeral":
            self._log(cursor, count)

    def awaited(self, ts_min: int = 0) -> list[Receipt]:
        """Log how far the copies are, and the time below which none after it is dated: what these have to wait for."""
        if self._dest.config.durability == "ephemeral":
            return []
        logged = Receipt()
        self._log(self._backlog.cursor, 0, ts_min, logged)
        return [logged]

    def _log(self, cursor: int, lost: int = 0, ts_min: int = 0, logged: Receipt | None = None) -> None:
        journal, dest, backlog = self._journal, self._dest, self._backlog
        moved = Moved(backlog.cursor, dest.next_seq, cursor, lost, ts_min, backlog.source.id)
        frame = frames.encode(frames.CURSOR, journal.next_lsn(), dest.id, router_event.encode(moved))
        try:
            journal.submit(dest, frame, logged is not None and dest.config.durability in LASTING, logged)
        except TopicsError as error:
            # The shard takes nothing any more, so what follows is not acked either.
            if logged is not None:
                logged.fail(error)
