"""Forward: the copies from one source into one destination (ROUTER-14 to ROUTER-16).

1. All routers between the same two topics share one Forward and one cursor: a source record is copied by each of them
   in turn, then the next record is. So the copies have one order.
2. Nothing of a copy is logged. What it becomes follows from the source record, the routers and `ts_min`, so the same
   copies come out, under the same seqs, whenever the same source records are copied from the same position.
3. A copy has the time of its source record. Where that is more than LATE_MS ago, or more than a tenth of the
   destination's TTL (backpressure), it would be too far from the time of copying, from which that TTL counts: then the
   present becomes `ts_min`, and a mark says so.
4. Source records that are lost before they were copied are a lost range of the destination, with the reason
   `source_trim`: they take as many of its seqs as their copies would have, and a mark says where.

What there is to copy is known by the Backlog, what the destination takes by Backpressure, when a copy may be shown by
Visibility, what the WAL says of it by Marks, and what later copies depend on by Notes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

from topics.engine.journal import Journal, Ticket
from topics.engine.log.loss import SOURCE_TRIM
from topics.engine.router import event as router_event
from topics.engine.router.backlog import SLICE_RECORDS, Backlog
from topics.engine.router.copying import Copies, Joins, Notes, Run, copy, room_for, take_over, whole
from topics.engine.router.event import ForwardImage
from topics.engine.router.lineage import Lineage
from topics.engine.router.router import EXACTLY_ONCE, Router
from topics.engine.router.visibility import DatedRun, Marks, Visibility
from topics.engine.topic import Topic
from topics.engine.write.arrival import derive
from topics.engine.write.unkept import KEPT
from topics.errors import TopicsError
from topics.storage.block import Block

CATCH_UP_SLICES: Final = 64
CATCH_UP_NS: Final = 8_000_000
# What making a copy again costs a restart, as bytes of WAL that it reads in the same time: over the bytes of the copy,
# for one that is taken over with its Block, and for one that is built by itself.
TAKEN_OVER_BYTES: Final = 64
BUILT_BYTES: Final = 1024
LATE_MS: Final = 1000
LATE_TTL_PART: Final = 10
BACKOFF_MS_MIN: Final = 10
BACKOFF_MS_MAX: Final = 1000


class Backpressure:
    """What a destination takes, and when to try again. `retry_ms` is None while nothing is in the way.

    A full destination that refuses (`discard: "reject"`), or a quota that is used up, takes copies only as far as they
    fit. Nothing is dropped: the rest is tried again with growing pauses, and whenever a client reads the destination.
    """

    __slots__ = ("_dest", "_quota_bytes", "backoff_ms", "retry_ms")

    def __init__(self, dest: Topic, quota_bytes: int) -> None:
        self._dest = dest
        self._quota_bytes = quota_bytes
        self.backoff_ms = 0
        self.retry_ms: int | None = None

    def block(self, steady_ms: int) -> None:
        """The destination refused: pause, for longer each time."""
        self.backoff_ms = min(max(BACKOFF_MS_MIN, self.backoff_ms * 2), BACKOFF_MS_MAX)
        self.retry_ms = steady_ms + self.backoff_ms

    def unblock(self) -> None:
        """The destination took something."""
        self.retry_ms, self.backoff_ms = None, 0

    def admit(self, runs: list[Run], routers: Sequence[Router], now: int) -> list[Run]:
        """The runs as far as the destination, and the quota over all topics, take their copies."""
        if self._dest.config.discard != "reject" and not self._quota_bytes:
            return runs
        self._dest.expire(now)
        return fitting(runs, routers, self._dest, self._quota_bytes)


class Forward:
    """The routers from one source into one destination, and how far they are."""

    __slots__ = (
        "_clock",
        "_joins",
        "_journal",
        "_lineage",
        "_retry_later",
        "_run_ts",
        "_unseen",
        "_visiting",
        "backlog",
        "dest",
        "marks",
        "notes",
        "pressure",
        "routers",
        "run",
        "source",
        "ts_min",
        "visibility",
    )

    def __init__(
        self,
        journal: Journal,
        lineage: Lineage,
        joins: Joins,
        quota_bytes: int,
        retry_later: Callable[[Forward], None],
        backlog: Backlog,
        dest: Topic,
    ) -> None:
        self._clock = journal.clock
        self._journal = journal
        self._lineage = lineage
        self._joins = joins
        self._retry_later = retry_later
        self.source = backlog.source
        self.dest = dest
        self.routers: list[Router] = []
        self.ts_min = 0
        self.backlog = backlog
        self.pressure = Backpressure(dest, quota_bytes)
        self.marks = Marks(journal, backlog, dest, self._end_dated_run)
        self.visibility = Visibility(journal, lineage, self.marks, self.source, dest)
        self.notes = Notes(dest)
        # Of copies that wait to be shown: the cursor before them, and how many each router made.
        self._unseen: deque[tuple[int, dict[Router, int]]] = deque()
        self._visiting = False
        # Where the copies since the last frame of the destination began, None where there are none.
        self.run: tuple[int, int] | None = None
        self._run_ts = 0

    @property
    def cursor(self) -> int:
        """The source seq up to which everything has been looked at."""
        return self.backlog.cursor

    @property
    def takes_all(self) -> bool:
        """Whether each router makes a copy of every source record after the cursor, whatever it is."""
        return not self._lineage.cyclic and all(
            router.match is None and router.rule.guarantee != EXACTLY_ONCE and router.start_seq <= self.cursor
            for router in self.routers
        )

    @property
    def has_backlog(self) -> bool:
        """Whether there are source records that were not looked at yet."""
        return self.backlog.cursor < self.source.log.head

    @property
    def lag(self) -> int:
        """How many seqs of the source were not looked at yet."""
        return max(0, self.source.log.head - self.backlog.cursor)

    def catch_up(self) -> None:
        """Copy what there is for a reader, all the way down the chain; the rest comes later. May raise Miss.

        It goes on for about CATCH_UP_NS, so that a reader of a destination that is far behind holds up nobody.
        """
        if self._visiting:
            return
        chain: dict[Forward, None] = {}
        forward: Forward | None = self
        while forward is not None and forward not in chain:
            chain[forward] = None
            forward = into(forward.source)
        deadline_ns = self._clock.elapsed_ns() + CATCH_UP_NS
        self._visiting = True
        try:
            for each in reversed(chain):
                each.drain(deadline_ns)
        finally:
            self._visiting = False

    def drain(self, deadline_ns: int = 1 << 62) -> None:
        """Copy what the source has, up to a bound, or until then. May raise Miss."""
        for _ in range(CATCH_UP_SLICES):
            if not self.has_backlog or not self.step() or self._clock.elapsed_ns() >= deadline_ns:
                return

    def step(self) -> bool:
        """Copy one slice; whether anything moved. May raise Miss."""
        source, backlog = self.source, self.backlog
        if source.deleted or self.dest.deleted:
            return False
        now = self._clock.now_ms()
        source.expire(now)
        before = backlog.cursor
        fate, end = source.unkept.run(before + 1)
        lost_to, runs = source.reading(backlog.next, max(1, SLICE_RECORDS // len(self.routers)), end)
        if lost_to:
            return self._lose(lost_to)
        if not runs:
            backlog.cursor = max(before, min(end, backlog.end()))
            return backlog.cursor > before
        return self._copy(runs, fate, now)

    def _copy(self, runs: list[Run], fate: int, now: int) -> bool:
        dest, visibility = self.dest, self.visibility
        runs = self.pressure.admit(runs, self.routers, now)
        if not runs:
            return self._block()
        try:
            awaited = visibility.waits_for(runs, len(self.routers), fate)
        except TopicsError:
            return self._block()
        if self.pressure.backoff_ms:
            self.pressure.unblock()
        ttl_ms = dest.config.ttl_ms
        late_ms = min(LATE_MS, ttl_ms // LATE_TTL_PART) if ttl_ms else LATE_MS
        if now - runs[0][0].ts_at(runs[0][1]) > late_ms and now > max(self.ts_min, dest.last_ts):
            awaited += self.marks.awaited(now)
            self.ts_min = now
        if visibility.unsure or fate != KEPT:
            awaited += visibility.turn_to(fate)
        before = self.backlog.cursor
        if self.run is None:
            self.run, self._run_ts = (dest.next_seq, before), dest.last_ts
        made = self.make(runs, dest.next_seq, dest.last_ts)
        if made.block is not None:
            self.notes.add_unkept(made.block, fate)
            self._unseen.append((before, made.counts))
            derive(dest, made.block, self._shown, awaited)
            visibility.mark_slice()
        return True

    def preview(self, runs: list[Run], first_seq: int, last_ts: int) -> tuple[Copies, int]:
        """What the copies of these runs would be from `first_seq` on, and what each costs a restart besides its bytes.

        Nothing has changed.
        """
        dest, routers, ts_min = self.dest, self.routers, max(self.ts_min, last_ts)
        hops_of = None
        if self._lineage.cyclic:
            inbound = into(self.source)
            hops_of = [] if inbound is None else inbound.notes.hops
        if hops_of is None and whole(runs, routers):
            block = self._joins.join(self.source, runs)
            return take_over(block, routers[0], dest.id, first_seq, ts_min), TAKEN_OVER_BYTES
        return copy(runs, routers, dest.id, first_seq, ts_min, self.notes.live_stamps(), hops_of), BUILT_BYTES

    def make(self, runs: list[Run], first_seq: int, last_ts: int) -> Copies:
        """The copies of these runs, from `first_seq` on; the cursor is after them then."""
        made, each_bytes = self.preview(runs, first_seq, last_ts)
        if made.block is not None and self.dest.config.durability != "ephemeral":
            self._journal.derived_bytes += len(made.block.raw) + each_bytes * made.block.n
        block, _, end = runs[-1]
        self.backlog.move(block.first_seq + end - 1)
        for router, count in made.counts.items():
            router.forwarded_total += count
        if made.hops:
            self.notes.add_hops(made.hops)
        return made

    def _shown(self, ticket: Ticket) -> None:
        """Copies became visible, or what they wait for failed: then they are made again later."""
        before, counts = self._unseen.popleft()
        if ticket.error is None:
            return
        self.backlog.cursor = min(self.backlog.cursor, before)
        self.run = None
        self.visibility.unsure = True
        for router, count in counts.items():
            router.forwarded_total -= count
        if self.dest.next_seq == ticket.last_seq + 1:
            self.dest.next_seq = ticket.first_seq
        self._block()

    def _block(self) -> bool:
        self.pressure.block(self._clock.steady_ms())
        self._retry_later(self)
        return False

    def _lose(self, cursor: int) -> bool:
        if self.dest.last_ticket is not None:
            # A lost range has no ticket: it waits until the writes before it are visible.
            return self._block()
        # Each of the routers would have made a copy.
        count = (cursor - self.backlog.cursor) * len(self.routers)
        self.pressure.retry_ms = None
        self.lose(count, cursor)
        return True

    def lose(self, count: int, cursor: int) -> None:
        """Log and show that `count` seqs of the destination stand for source records up to `cursor` that are lost."""
        dest = self.dest
        self.marks.lose(count, cursor)
        first = dest.log.head + 1
        dest.log.lose(first, first + count - 1, SOURCE_TRIM)
        dest.next_seq = dest.log.head + 1
        self.backlog.move(cursor)
        dest.notify()

    def mark(self, leaves: str = "ephemeral") -> None:
        """Log how far the copies are, for a frame after it that cannot say so; `leaves` is the class that follows."""
        self.marks.mark(leaves)

    def end_run(self) -> tuple[int, int]:
        """Where the last uninterrupted copies began, as (seq, source seq before the first); a frame ends them here."""
        run, self.run = self.run, None
        return (self.dest.next_seq, self.backlog.cursor) if run is None else run

    def _end_dated_run(self) -> DatedRun:
        """As `end_run`, with the time of the record before these copies."""
        ts = self.dest.last_ts if self.run is None else self._run_ts
        return self.end_run(), ts

    def note_stamps(self, block: Block) -> None:
        """A direct write to the destination: remember the stamps in it."""
        self.notes.add_stamps(block, self.routers)

    def capture(self) -> bytes:
        """How far the destination has been served, for a checkpoint; copies that are not visible yet do not count."""
        cursor = self._unseen[0][0] if self._unseen else self.backlog.cursor
        notes, totals = self.notes, {}
        for router in self.routers:
            totals[router.name] = router.forwarded_total - sum(counts.get(router, 0) for _, counts in self._unseen)
        return router_event.encode(ForwardImage(self.source.id, cursor, self.ts_min, totals, notes.hops, notes.stamps))

    def restore(self, image: ForwardImage) -> None:
        """Continue where a checkpoint was."""
        self.backlog.cursor = image.cursor
        self.ts_min = image.ts_min
        self.notes.hops = list(image.hops)
        self.notes.stamps = image.stamps
        for router in self.routers:
            router.forwarded_total = image.totals.get(router.name, 0)


def fitting(runs: list[Run], routers: Sequence[Router], dest: Topic, quota_bytes: int = 0) -> list[Run]:
    """The runs as far as there is room for their copies; a quota of 0 is none."""
    config, log = dest.config, dest.log
    records = bytes_ = 1 << 62
    if config.discard == "reject" and config.cap_records:
        records = config.cap_records - log.count - dest.pending_records
    if config.discard == "reject" and config.cap_bytes:
        bytes_ = config.cap_bytes - log.bytes - dest.pending_bytes
    if quota_bytes:
        bytes_ = min(bytes_, quota_bytes - log.totals.bytes - log.totals.pending_bytes)
    taken: list[Run] = []
    for block, a, b in runs:
        i = a
        while i < b:
            copies, size = room_for(block, i, routers)
            if copies and (records < copies or bytes_ < size):
                break
            records -= copies
            bytes_ -= size
            i += 1
        if i > a:
            taken.append((block, a, i))
        if i < b:
            break
    return taken


def into(topic: Topic) -> Forward | None:
    """The forward into a topic, which the topic itself knows by a protocol only."""
    return cast("Forward | None", topic.inbound)


def forward_of(router: Router) -> Forward:
    """The forward that a router is part of."""
    forward = into(router.dest)
    assert forward is not None
    return forward


def out_of(topic: Topic) -> Sequence[Forward]:
    """The forwards out of a topic."""
    return () if topic.outbound is None else cast("Sequence[Forward]", topic.outbound.forwards)
