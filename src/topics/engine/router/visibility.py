"""Visibility: when the copies in a destination may be shown.

A reader of a destination that is to survive (`disk`, `fsync`) sees no copy under a seq that a crash could hand out
again. What that takes depends on the classes of the two topics:

1. No copy is shown before the routers between the two topics are durable as they were when it was made: those that had
   come, and those that had changed or gone.
2. Into `fsync`, a copy is shown once what it follows from is synced, in whichever shards that is.
3. Where the source itself does not survive (`ephemeral`, and `memory` when the power goes), or the destination has
   direct writes that may not, the seqs of the copies are below the destination's ceiling.
4. Where a `disk` destination has direct writes too, and a loss of power takes one of them, nothing says how many copies
   came after the last frame that is left: they are made again above the ceiling. To keep these few, a mark is logged
   with every slice.
5. After copies of records that may not be kept (`Topic.unkept`), a copy of another record is shown once a mark says
   where it is: nothing else says how many seqs the former took.
6. Where the destination rejects what is too much, a copy is shown once the delete or the config that made room for it
   is as durable as the destination's class: without that, a restart would have no room for the copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from topics.engine.journal import Journal
from topics.engine.promise import Receipt
from topics.engine.router import event as router_event
from topics.engine.router.backlog import Backlog
from topics.engine.router.copying import Run
from topics.engine.router.event import Moved
from topics.engine.router.lineage import Lineage
from topics.engine.topic import Topic
from topics.engine.write.unkept import GONE, KEPT
from topics.errors import TopicsError
from topics.storage.wal import frame as frames

# The classes that hand out no seq twice, whatever happens.
LASTING: Final = frozenset(("disk", "fsync"))
# The classes that a loss of power may leave with fewer records than were copied.
_FORGETFUL: Final = frozenset(("ephemeral", "memory"))

DatedRun = tuple[tuple[int, int], int]
"""Where copies began, as (seq, source seq before the first), and the time of the record before them."""


class Marks:
    """What the WAL says about the place of copies besides the frames of their destination (CURSOR).

    Copies are logged nowhere. A frame of the destination says how far they had come, and between two such frames they
    follow from the source. A mark is logged where that is not enough: source records were lost before they were copied,
    copies are dated later than their source records, or there may be no other frame that says how far they had come. An
    `ephemeral` destination needs no mark, since its copies do not survive.
    """

    __slots__ = ("_backlog", "_dest", "_end_run", "_journal")

    def __init__(self, journal: Journal, backlog: Backlog, dest: Topic, end_run: Callable[[], DatedRun]) -> None:
        self._journal = journal
        self._backlog = backlog
        self._dest = dest
        self._end_run = end_run

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
        moved = Moved(backlog.cursor, dest.next_seq, cursor, lost, ts_min, backlog.source.id, *self._end_run())
        frame = frames.encode(frames.CURSOR, journal.next_lsn(), dest.id, router_event.encode(moved))
        try:
            journal.submit(dest, frame, logged is not None and dest.config.durability in LASTING, logged)
        except TopicsError as error:
            # The shard takes nothing any more, so what follows is not acked either.
            if logged is not None:
                logged.fail(error)


class Visibility:
    """What copies from one source into one destination wait for."""

    __slots__ = ("_dest", "_journal", "_lineage", "_marks", "_source", "changes", "unsure")

    def __init__(self, journal: Journal, lineage: Lineage, marks: Marks, source: Topic, dest: Topic) -> None:
        self._journal = journal
        self._lineage = lineage
        self._marks = marks
        self._source = source
        self._dest = dest
        # The last changes of the routers, which may be on their way to the disk, in whichever shards.
        self.changes: list[Receipt] = []
        # Whether the last copies were of records that may not be kept, and no mark says how many they were.
        self.unsure = False

    def follow(self, change: Receipt) -> None:
        """Copies from here on wait for a change of the routers, besides those that are on their way already."""
        self.changes = [*(before for before in self.changes if not before.done), change]

    def waits_for(self, runs: list[Run], routers: int, fate: int) -> list[Receipt]:
        """What has to be on disk before so many routers' copies of these runs are shown; raises where it cannot be."""
        source, dest = self._source, self._dest
        source_class, dest_class = source.config.durability, dest.config.durability
        if dest_class not in LASTING:
            return []
        awaited = self.changes.copy()
        # What was written before the source became `fsync` is safe once that change is.
        is_safe = source_class == "fsync" and (source.last_config is None or source.last_config.done)
        if dest_class == "fsync" and not is_safe:
            awaited += self._syncs()
        # After a direct write that a loss of power may take, a copy could come back under another seq.
        if self._is_mixed or (dest_class == "disk" and source_class in _FORGETFUL) or self.forgets or fate != KEPT:
            copies = sum(b - a for _, a, b in runs) * routers
            awaited += self._journal.reserve(dest, dest.next_seq + copies - 1)
        if dest.config.discard == "reject" and dest.last_change is not None:
            awaited.append(dest.last_change)
        for receipt in awaited:
            if receipt.error is not None:
                raise receipt.error
        return [receipt for receipt in awaited if not receipt.done]

    def _syncs(self) -> list[Receipt]:
        syncs: list[Receipt] = []
        for shard in {self._journal.store.shard_of(topic.id) for topic in self._lineage.upstream(self._source)}:
            syncs.append(Receipt())
            shard.after_sync(syncs[-1])
        self._journal.wake()
        return syncs

    def turn_to(self, fate: int) -> list[Receipt]:
        """Copies of records with this fate come next: what they wait for because of those before them."""
        marked = self.unsure and fate != GONE and self._dest.config.durability in LASTING
        self.unsure = fate != KEPT
        return self._marks.awaited() if marked else []

    def mark_slice(self) -> None:
        """Log how far the copies are where a loss of power may take records among them."""
        dest = self._dest
        if self._is_mixed or (dest.outbound is not None and dest.config.durability == "memory"):
            self._marks.mark()

    def reserve(self) -> None:
        """Have the destination's ceiling raised before the first copies come, where they will need it."""
        if self._source.config.durability in _FORGETFUL and self._dest.config.durability in LASTING:
            with contextlib.suppress(TopicsError):
                self._journal.reserve(self._dest, self._dest.next_seq)

    @property
    def _is_mixed(self) -> bool:
        """Whether a loss of power may take direct writes to the destination, and with them the place of copies."""
        return self._dest.config.durability == "disk" and self._dest.ceiling.asked > 0

    @property
    def forgets(self) -> bool:
        """Whether the mere death of the process leaves fewer source records than were copied."""
        source, seen = self._source, set()
        while source.config.durability == "memory" and source.inbound is not None and source not in seen:
            seen.add(source)
            source = source.inbound.source
        return source.config.durability == "ephemeral"
