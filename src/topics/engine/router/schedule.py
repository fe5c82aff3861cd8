"""Schedule: which sources have something to copy (ROUTER-14), and which destinations to try again.

A publish marks the Fanout of its source once, whatever the number of destinations: the write that caused it pays
nothing for them. The forwards then take turns, a slice each. Copying happens off the path of any ack, in slices, for
about a millisecond per turn. A source with a Block that has to be read from disk first is put aside until that is done,
and holds up no other.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final, cast

from topics.clock import Clock
from topics.engine.journal import Journal
from topics.engine.router.copying import Joins
from topics.engine.router.forward import Forward
from topics.engine.slices import Work
from topics.engine.topic import Topic
from topics.storage.job import Miss

STEP_NS: Final = 1_000_000
# Where the copies that a cap demanded took longer than this, the source rests: others come first.
LONG_NS: Final = 5_000_000


class Fanout:
    """The forwards out of one source, and whether they have work. `enqueue` asks for steps until one returns False."""

    __slots__ = (
        "_again",
        "_at",
        "_clock",
        "_done_seq",
        "_enqueue",
        "_rests_to_ns",
        "_slowest_seq",
        "dirty",
        "forwards",
        "source",
    )

    def __init__(self, source: Topic, clock: Clock, enqueue: Callable[[Fanout], None]) -> None:
        self._clock = clock
        self._enqueue = enqueue
        self.source = source
        self.forwards: list[Forward] = []
        self.dirty = False
        # Up to here every forward that is not blocked has looked at the source.
        self._done_seq = 0
        # While dirty: where the slowest of them was when the round began.
        self._slowest_seq = 0
        self._at = 0
        self._again = False
        self._rests_to_ns = 0
        source.listeners[self.published] = None

    def published(self, topic: Topic) -> None:
        """The source has something new."""
        if self.dirty:
            self._again = True
        elif not topic.deleted:
            self.dirty = True
            self._again = False
            self._begin_round()
            self._enqueue(self)

    def _begin_round(self) -> None:
        self._at = 0
        cursors = [forward.cursor for forward in self.forwards if forward.pressure.retry_ms is None]
        self._slowest_seq = min(cursors, default=self.source.log.head)

    @property
    def behind(self) -> int:
        """About how many copies are still to be made: a start would make them before it serves (ROUTER-34)."""
        return (self.source.log.head - self._slowest_seq) * len(self.forwards) if self.dirty else 0

    @property
    def rests(self) -> bool:
        """Whether the source gives way, after copies that a cap demanded and that held up others (ROUTER-35)."""
        if self._rests_to_ns and self._clock.elapsed_ns() >= self._rests_to_ns:
            self._rests_to_ns = 0
        return self._rests_to_ns > 0

    def step(self) -> bool:
        """Copy the next forward's slice; whether there is more to do. May raise Miss."""
        forwards = self.forwards
        while self._at < len(forwards):
            forward = forwards[self._at]
            self._at += 1
            if not forward.has_backlog:
                # A reader, or a cap, was first.
                continue
            forward.step()
            if forward.has_backlog and forward.pressure.retry_ms is None:
                self._again = True
            break
        if self._at < len(forwards):
            return True
        self.dirty = self._again
        if self._again:
            self._begin_round()
            self._again = False
        else:
            self._done_seq = self.source.log.head
        return self.dirty

    def catch_up(self) -> None:
        """Copy everything to every destination that is not blocked: something is about to leave the source."""
        for forward in self.forwards:
            if forward.has_backlog:
                forward.drain()

    def catching_up(self, upto: int) -> Work:
        """As `catch_up`, in slices: copy everything up to the source seq `upto`."""
        for forward in list(self.forwards):
            while forward.cursor < min(upto, self.source.log.head):
                try:
                    moved = forward.step()
                except Miss as miss:
                    yield miss
                    continue
                yield None
                if not moved:
                    break

    def before_eviction(self) -> None:
        """A cap is about to take the oldest records: copy them first where they are not copied yet."""
        log, config = self.source.log, self.source.config
        if self.forwards[0].backlog.held is not None:
            for forward in self.forwards:
                forward.backlog.hold(log.head)
            return
        waiting = log.head - self._done_seq
        if (config.cap_records and waiting > config.cap_records) or (
            config.cap_bytes and log.count and waiting * (log.bytes // log.count + 1) > config.cap_bytes // 2
        ):
            began_ns = self._clock.elapsed_ns()
            self.catch_up()
            now_ns = self._clock.elapsed_ns()
            if now_ns - began_ns > LONG_NS:
                self._rests_to_ns = 2 * now_ns - began_ns

    def lagging(self) -> list[tuple[int, int]]:
        """(destination id, cursor) of each forward that has not looked at everything."""
        return [(forward.dest.id, forward.cursor) for forward in self.forwards if forward.has_backlog]

    def mark(self) -> None:
        """Log how far the copies in each destination are."""
        for forward in self.forwards:
            forward.mark()

    def leave(self, closed: Sequence[Forward]) -> bool:
        """Copy nothing more with these forwards; whether no destination is left."""
        gone = set(closed)
        # What comes after them keeps its turn.
        self._at -= sum(forward in gone for forward in islice(self.forwards, self._at))
        self.forwards = [forward for forward in self.forwards if forward not in gone]
        if not self.forwards:
            self.source.listeners.pop(self.published, None)
        return not self.forwards


class Schedule:
    """The sources that wait for their turn, and the forwards into destinations that refused."""

    def __init__(self, journal: Journal, joins: Joins) -> None:
        self._clock = journal.clock
        self._wake = journal.wake
        self._joins = joins
        self.dirty: deque[Fanout] = deque()
        self.blocked: dict[Forward, None] = {}
        # When to look at each of these again, the first one first; some are not blocked any more.
        self._due: list[tuple[int, int, Forward]] = []
        self._serial = 0

    def enqueue(self, fanout: Fanout) -> None:
        """A source has something to copy."""
        self.dirty.append(fanout)
        self._wake()

    def retry_later(self, forward: Forward) -> None:
        """A destination refused."""
        if forward not in self.blocked:
            self.blocked[forward] = None
            self._look_again(forward)
        self._wake()

    def _look_again(self, forward: Forward) -> None:
        self._serial += 1
        heapq.heappush(self._due, (forward.pressure.retry_ms or 0, self._serial, forward))

    def forget(self, forward: Forward) -> None:
        """A forward is gone."""
        self.blocked.pop(forward, None)

    def next_due_ms(self) -> int | None:
        """When a destination that refused is to be tried again, or None."""
        if not self.blocked:
            self._due.clear()
        return self._due[0][0] if self._due else None

    def step(self) -> None:
        """Copy for about STEP_NS; `dirty` holds what is left."""
        if self.blocked:
            self._retry()
        clock, dirty = self._clock, self.dirty
        deadline_ns = clock.elapsed_ns() + STEP_NS
        while dirty:
            fanout = dirty[0]
            try:
                if fanout.step():
                    dirty.rotate(-1)
                else:
                    dirty.popleft()
            except Miss as miss:
                dirty.popleft()
                fanout.dirty = False
                fanout.source.read_then(miss, partial(fanout.published, fanout.source))
            if clock.elapsed_ns() >= deadline_ns:
                break
        if not dirty:
            self._joins.forget()

    def _retry(self) -> None:
        now, due = self._clock.steady_ms(), self._due
        while due and due[0][0] <= now:
            forward = heapq.heappop(due)[2]
            source, pressure = forward.source, forward.pressure
            if forward not in self.blocked:
                continue
            if forward.has_backlog and pressure.retry_ms is not None and pressure.retry_ms > now:
                self._look_again(forward)
                continue
            del self.blocked[forward]
            pressure.retry_ms = None
            if forward.has_backlog and source.outbound is not None:
                source.outbound.published(source)


def fanout_of(topic: Topic) -> Fanout | None:
    """The fanout of a source, which the topic itself knows by a protocol only."""
    return cast("Fanout | None", topic.outbound)
