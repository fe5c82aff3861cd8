"""Forward: everything that flows from one source into one destination (DESIGN §8.1, §8.2).

Rules:

1. There is one cursor per pair of topics, whatever the number of routers between them: a source record is copied by
   each of them in turn, then the next record. So a position is one number, and copies have one order.
2. Nothing of a copy is logged. What it becomes follows from the source record, the routers, and `ts_min`; so the same
   copies come out, under the same seqs, whenever the same source records are forwarded from the same position.
3. A copy is dated like its source record. Where forwarding is behind by more than `LATE_MS` (backpressure), that would
   be too far from the time of forwarding, which the TTL of the destination counts from: then the present becomes
   `ts_min`, and a CURSOR frame says so.
4. Source records that a cap or a TTL took before they were forwarded are lost, and the destination says so: they take
   as many of its seqs, as a lost range with the reason `source_trim`, and a CURSOR frame says where. Records that were
   deleted before they were forwarded are skipped in silence.
5. A destination that is full and refuses (`discard: "reject"`), or a quota that is used up, stops the cursor. It is
   tried again with growing pauses, and whenever somebody reads the destination.
6. `held` are records that were taken out of the source's log before something removed them from there; only a restart
   holds any, see recovery.
7. A reader of a destination that is to survive sees no copy under a seq that a crash could hand out again. Into
   `fsync`, a copy is shown once what it follows from is synced. Where the source itself does not survive (`ephemeral`,
   and `memory` when the power goes), or the destination has direct writes that may not, the seqs of copies lie below
   the destination's ceiling. And no copy is shown before the router that made it is durable (`change`).
8. Where a `disk` destination has direct writes too, and the power takes one, how many copies stood behind the last
   frame that is left cannot be told: they come again, behind the ceiling. So that these are few, the log is told every
   MARK_MS how far the copies are.
9. Behind copies of records that may not be kept (`Topic.unkept`), those of others are shown once the log says where
   they begin: how many seqs the former took is known only there.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec

from topics.engine.log.loss import SOURCE_TRIM
from topics.engine.router import event as router_event
from topics.engine.router.copying import STAMP, Copies, HopRun, Run, copy, room_for, take_over, whole
from topics.engine.router.event import ForwardImage, Moved
from topics.engine.router.router import EXACTLY_ONCE, Router
from topics.engine.write.derive import derive
from topics.engine.write.reserve import reserve_over
from topics.engine.write.ticket import Receipt, Ticket
from topics.engine.write.unkept import GONE, KEPT
from topics.errors import TopicsError
from topics.storage.damage import Corrupt
from topics.storage.wal import frame as frames

if TYPE_CHECKING:
    from topics.engine.engine import Engine
    from topics.engine.topic import Topic
    from topics.storage.block import Block

SLICE_RECORDS: Final = 1000
SLICE_BYTES: Final = 1 << 20
CATCH_UP_SLICES: Final = 64
LATE_MS: Final = 1000
BACKOFF_MS_MIN: Final = 10
BACKOFF_MS_MAX: Final = 1000
NOTES_MAX: Final = 64
MARK_MS: Final = 1000
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode
_FORGETFUL: Final = frozenset(("ephemeral", "memory"))
_KEEPING: Final = frozenset(("disk", "fsync"))


class Forward:
    """The routers from one source into one destination, and how far they are."""

    __slots__ = (
        "_engine",
        "_unseen",
        "backoff_ms",
        "change",
        "cursor",
        "dest",
        "held",
        "held_head",
        "held_lost",
        "hops",
        "keys",
        "mark_ms",
        "retry_ms",
        "routers",
        "source",
        "ts_min",
        "unsure",
        "visiting",
    )

    def __init__(self, engine: Engine, source: Topic, dest: Topic, cursor: int) -> None:
        self._engine = engine
        self.source = source
        self.dest = dest
        self.cursor = cursor
        self.routers: list[Router] = []
        self.ts_min = 0
        self.backoff_ms = 0
        # None while nothing stands in the way, otherwise when to try again.
        self.retry_ms: int | None = None
        self.held: deque[Run] = deque()
        self.held_head = 0
        # What was lost of the source by then, between the held records.
        self.held_lost: deque[tuple[int, int]] = deque()
        # Where cycles are possible: how often each copy in the destination was forwarded.
        self.hops: list[HopRun] = []
        # Stamps of `exactly_once` that direct writes brought into the destination, with their seqs.
        self.keys: dict[str, int] = {}
        self.visiting = False
        # When the log is next told how far the copies are, where nothing else may tell it.
        self.mark_ms = 0
        # Whether the last copies were of records that may not be kept, and the log does not say how many they were.
        self.unsure = False
        # The last change of the routers, which may be on its way to the disk.
        self.change: Receipt | None = None
        # Of copies that wait for a write before them: the cursor before them, and how many each router made.
        self._unseen: deque[tuple[int, list[int]]] = deque()

    @property
    def behind(self) -> bool:
        """Whether there are source records that were not looked at yet."""
        return self.cursor < self.source.log.head

    @property
    def blocked(self) -> bool:
        """Whether the destination refused the last copy."""
        return self.retry_ms is not None

    # Forwarding

    def catch_up(self) -> None:
        """Forward what there is, up to a bound; the source catches up with its own source first. May raise Miss."""
        if self.visiting:
            return
        self.visiting = True
        try:
            if self.source.inbound is not None:
                self.source.inbound.catch_up()
            for _ in range(CATCH_UP_SLICES):
                if not self.behind or not self.step():
                    return
        finally:
            self.visiting = False

    def step(self) -> bool:
        """Forward one slice; whether anything moved. May raise Miss."""
        if self.source.deleted or self.dest.deleted:
            return False
        now = self._engine.clock.now_ms()
        before = self.cursor
        while True:
            try:
                self.source.expire(now)
                lost = self._lost()
                if lost is not None:
                    return self._lose(*lost, now)
                fate, end = self.source.unkept.run(self.cursor + 1)
                runs = self._slice(SLICE_RECORDS, min(end, self.source.log.head))
                break
            except Corrupt as corrupt:
                self.source.lose(corrupt)
        if not runs:
            self.cursor = max(self.cursor, min(end, self._end()))
            return self.cursor > before
        return self._forward(runs, fate, now)

    def _forward(self, runs: list[Run], fate: int, now: int) -> bool:
        dest = self.dest
        runs = self._fitting(runs)
        if not runs:
            self._block(now)
            return False
        try:
            behind = self._behind(runs, fate)
        except TopicsError:
            self._block(now)
            return False
        self.retry_ms, self.backoff_ms = None, 0
        if now - runs[0][0].ts_at(runs[0][1]) > LATE_MS and now > max(self.ts_min, dest.last_ts):
            dated = Receipt(None, None, None)
            self._log(0, self.cursor, dated, ts_min=now)
            self.ts_min = now
            if dest.config.durability != "ephemeral":
                behind.append(dated)
        if self.unsure and fate != GONE and dest.config.durability in _KEEPING:
            marked = Receipt(None, None, None)
            self._log(0, self.cursor, marked)
            behind.append(marked)
        self.unsure = fate != KEPT
        before = self.cursor
        made = self.make(runs, dest.next_seq, dest.last_ts)
        if made.block is not None:
            self._note_unkept(made.block, GONE if dest.config.durability == "ephemeral" else fate)
            self._unseen.append((before, made.counts))
            derive(dest, made.block, self._seen, behind)
            # Seqs of a `memory` source may be used again after a loss of power, so nothing is to refer to them.
            if now >= self.mark_ms and self._mixed and self.source.config.durability in _KEEPING:
                self.mark_ms = now + MARK_MS
                self.mark()
        return True

    def _seen(self, ticket: Ticket) -> None:
        before, counts = self._unseen.popleft()
        if ticket.error is None:
            return
        self.cursor = min(self.cursor, before)
        self.unsure = True
        for router, count in zip(self.routers, counts, strict=False):
            router.forwarded_total -= count
        if self.dest.next_seq == ticket.last_seq + 1:
            self.dest.next_seq = ticket.first_seq
        self._block(self._engine.clock.now_ms())

    def _behind(self, runs: list[Run], fate: int) -> list[Receipt]:
        """What has to be on disk before copies of these runs are shown (rule 7); raises where that cannot be had."""
        engine, dest, source_class = self._engine, self.dest, self.source.config.durability
        dest_class = dest.config.durability
        if dest_class not in _KEEPING:
            return []
        behind: list[Receipt] = [] if self.change is None else [self.change]
        # What was written before the source became `fsync` is safe once that change is.
        settled = self.source.last_config is None or self.source.last_config.done
        if dest_class == "fsync" and not (source_class == "fsync" and settled):
            shards = {engine.store.shard_of(topic.id) for topic in engine.routers.lineage.upstream(self.source)}
            for shard in shards:
                synced = Receipt(None, None, None)
                shard.after_sync(synced)
                behind.append(synced)
            engine.journal.wake()
        # Behind a direct write that the power may take, a copy could come back under another seq.
        if self._mixed or (dest_class == "disk" and source_class in _FORGETFUL) or self.forgets or fate != KEPT:
            copies = sum(b - a for _, a, b in runs) * len(self.routers)
            behind += reserve_over(engine.journal, dest, dest.next_seq + copies - 1)
        for receipt in behind:
            if receipt.error is not None:
                raise receipt.error
        return [receipt for receipt in behind if not receipt.done]

    @property
    def _mixed(self) -> bool:
        """Whether the destination has direct writes that the power may take, and with them the place of copies."""
        return self.dest.config.durability == "disk" and self.dest.ceiling.asked > 0

    @property
    def forgets(self) -> bool:
        """Whether the mere death of the process leaves fewer source records than were copied."""
        source, seen = self.source, set()
        while source.config.durability == "memory" and source.inbound is not None and source not in seen:
            seen.add(source)
            source = source.inbound.source
        return source.config.durability == "ephemeral"

    def reserve(self) -> None:
        """Have the destination's ceiling raised before the first copies come, where they will need it."""
        if self.source.config.durability in _FORGETFUL and self.dest.config.durability in _KEEPING:
            with contextlib.suppress(TopicsError):
                reserve_over(self._engine.journal, self.dest, self.dest.next_seq)

    def make(self, runs: list[Run], first_seq: int, last_ts: int) -> Copies:
        """The copies of these runs, from `first_seq` on; the cursor stands behind them then."""
        ts_min = max(self.ts_min, last_ts)
        engine, dest = self._engine, self.dest
        hops_of = None
        if engine.routers.cyclic:
            inbound = into(self.source)
            hops_of = [] if inbound is None else inbound.hops
        if hops_of is None and whole(runs, self.routers):
            made = take_over(runs, dest.id, first_seq, ts_min)
        else:
            self._drop_stale_keys()
            made = copy(runs, self.routers, dest.id, first_seq, ts_min, self.keys, hops_of)
        block, _, end = runs[-1]
        self.move(block.first_seq + end - 1)
        for router, count in zip(self.routers, made.counts, strict=True):
            router.forwarded_total += count
        if made.hops:
            self._note_hops(made.hops)
        return made

    def move(self, cursor: int) -> None:
        """Stand behind the source record `cursor`."""
        self.cursor = cursor
        held = self.held
        while held and held[0][0].first_seq + held[0][2] - 1 <= cursor:
            held.popleft()
        while self.held_lost and self.held_lost[0][1] <= cursor:
            self.held_lost.popleft()

    def take(self, records_max: int, upto: int) -> list[Run]:
        """The next runs for a restart: at most so many records, none behind the source seq `upto`."""
        return self._slice(records_max, min(upto, max(self.source.log.head, self.held_head)))

    def _slice(self, records_max: int, upto: int) -> list[Run]:
        runs: list[Run] = []
        room, size = records_max, 0
        for block, a, b in self._runs(upto):
            end = min(b, a + room)
            runs.append((block, a, end))
            room -= end - a
            size += block.live_bytes
            if room == 0 or size >= SLICE_BYTES:
                break
        return runs

    def _runs(self, upto: int) -> Iterator[Run]:
        """The records behind the cursor up to `upto` that are live, or are held."""
        first = self.cursor + 1
        upto = min(upto, self._end())
        for block, a, b in self.held:
            i = max(a, first - block.first_seq)
            j = min(b, upto + 1 - block.first_seq)
            if i < j:
                yield block, i, j
        log = self.source.log
        first = max(first, self.held_head + 1, log.start)
        for k in range(log.index_of(first), len(log.entries)):
            entry = log.entries[k]
            if entry.first_seq > upto:
                return
            for i, j in entry.live_runs(max(0, first - entry.first_seq), min(entry.n, upto + 1 - entry.first_seq)):
                yield entry.block(), i, j

    def _end(self) -> int:
        """The last source seq before the next lost range."""
        log = self.source.log
        if self.held_lost:
            return self.held_lost[0][0] - 1
        after = max(self.cursor, self.held_head)
        return min(log.lost_after(after) - 1, max(log.head, after)) if log.lost else max(log.head, after)

    # Loss

    def _lost(self) -> tuple[int, int] | None:
        """How many source records right behind the cursor are lost, and the cursor behind them; None for none."""
        log = self.source.log
        first = self.cursor + 1
        if first > self.held_head and first < log.evict_floor:
            return log.evict_floor - first, log.evict_floor - 1
        return self.lost_next()

    def lost_next(self) -> tuple[int, int] | None:
        """As `_lost`, but only what was lost by damage or a crash, and not what retention took."""
        first = self.cursor + 1
        if first <= self.held_head:
            lost = self.held_lost[0] if self.held_lost else None
            return None if lost is None or lost[0] > first else (lost[1] - self.cursor, lost[1])
        log = self.source.log
        found = log.lost_at(first) if log.lost else None
        return None if found is None else (found.last - self.cursor, found.last)

    def _lose(self, count: int, cursor: int, now: int) -> bool:
        dest = self.dest
        if dest.last_ticket is not None:
            # A lost range has no ticket: it waits until the writes before it are visible.
            self._block(now)
            return False
        # Each of the routers would have made a copy.
        count *= len(self.routers)
        self._log(count, cursor)
        self.retry_ms = None
        self.lose(count, cursor)
        return True

    def lose(self, count: int, cursor: int) -> None:
        """Let `count` seqs of the destination stand for source records up to `cursor` that are gone."""
        dest = self.dest
        first = dest.log.head + 1
        dest.log.lose(first, first + count - 1, SOURCE_TRIM)
        dest.next_seq = dest.log.head + 1
        self.move(cursor)
        for listener in tuple(dest.listeners):
            listener(dest)

    # Backpressure

    def _fitting(self, runs: list[Run]) -> list[Run]:
        engine = self._engine
        quota = engine.limits.max_total_bytes
        if self.dest.config.discard != "reject" and not quota:
            return runs
        self.dest.expire(engine.clock.now_ms())
        return self.fitting(runs, quota)

    def fitting(self, runs: list[Run], quota: int = 0) -> list[Run]:
        """The runs as far as the destination, and a quota over all topics, take their copies."""
        engine, dest, config = self._engine, self.dest, self.dest.config
        records = bytes_ = 1 << 62
        if config.discard == "reject" and config.cap_records:
            records = config.cap_records - dest.log.count - dest.pending.records
        if config.discard == "reject" and config.cap_bytes:
            bytes_ = config.cap_bytes - dest.log.bytes - dest.pending.bytes
        if quota:
            bytes_ = min(bytes_, quota - engine.totals.bytes - engine.totals.pending_bytes)
        fitting: list[Run] = []
        for block, a, b in runs:
            i = a
            while i < b:
                copies, size = room_for(block, i, self.routers)
                if copies and (records < copies or bytes_ < size):
                    break
                records -= copies
                bytes_ -= size
                i += 1
            if i > a:
                fitting.append((block, a, i))
            if i < b:
                break
        return fitting

    def _block(self, now: int) -> None:
        self.backoff_ms = min(max(BACKOFF_MS_MIN, self.backoff_ms * 2), BACKOFF_MS_MAX)
        self.retry_ms = now + self.backoff_ms
        self._engine.routers.retry_later(self)

    # What is remembered about copies

    def _note_hops(self, hops: list[HopRun]) -> None:
        self.hops += hops
        if len(self.hops) > NOTES_MAX:
            low = self._copied_on()
            self.hops = [run for run in self.hops if run[1] > low]

    def _note_unkept(self, block: Block, fate: int) -> None:
        unkept = self.dest.unkept
        if fate != KEPT:
            unkept.add(block.first_seq, block.last_seq, fate)
            if len(unkept) > NOTES_MAX:
                unkept.forget(self._copied_on())

    def _copied_on(self) -> int:
        """The seq of the destination up to which everybody has looked who copies from there."""
        outbound = self.dest.outbound
        cursors = [forward.cursor for forward in outbound.forwards] if outbound is not None else []
        return min(cursors, default=self.dest.log.head)

    def note_keys(self, block: Block) -> None:
        """A direct write to the destination: remember the stamps in it, whoever wrote them."""
        if not any(router.rule.guarantee == EXACTLY_ONCE for router in self.routers):
            return
        for i in range(block.n):
            meta = block.meta(i)
            if meta is not None and STAMP.encode() in meta:
                stamp = _stamp_in(meta)
                if stamp is not None:
                    self.keys[stamp] = block.first_seq + i

    def _drop_stale_keys(self) -> None:
        if self.keys:
            log = self.dest.log
            self.keys = {key: seq for key, seq in self.keys.items() if log.is_live(seq) or seq > log.head}

    # The log

    def mark(self, leaves: str = "ephemeral") -> None:
        """Say in the WAL where the copies stand, for a frame behind it that cannot say it itself.

        An `ephemeral` destination has nothing to say, unless it becomes something else: what it `leaves` for.
        """
        self._log(0, self.cursor, into=leaves)

    def _log(
        self, lost: int, cursor: int, receipt: Receipt | None = None, ts_min: int = 0, into: str = "ephemeral"
    ) -> None:
        engine, dest = self._engine, self.dest
        if dest.config.durability == into == "ephemeral":
            return
        moved = Moved(self.cursor, dest.next_seq, cursor, lost, ts_min, self.source.id)
        frame = frames.encode(frames.CURSOR, engine.journal.next_lsn(), dest.id, router_event.encode(moved))
        try:
            engine.journal.submit(dest, frame, receipt is not None and dest.config.durability in _KEEPING, receipt)
        except TopicsError as error:
            # The shard takes nothing any more; what follows is not acked either.
            if receipt is not None:
                receipt.fail(error)

    # Restart

    def hold(self, upto: int) -> None:
        """Take over the records up to `upto` before something removes them from the source."""
        log = self.source.log
        upto = min(upto, log.head)
        if upto > max(self.held_head, self.cursor):
            behind = max(self.held_head, self.cursor)
            self.held.extend(list(self._runs_behind(behind, upto)))
            lost = [(max(behind + 1, each.first), min(each.last, upto)) for each in log.lost]
            self.held_lost.extend((first, last) for first, last in lost if first <= last)
            self.held_head = upto

    def let_go(self, cursor: int, delete: frames.Deletion) -> None:
        """Hold no longer what a delete took behind `cursor`: it was never copied."""

        def kept(block: Block, a: int, b: int) -> Iterator[Run]:
            for i in range(a, b):
                seq = block.first_seq + i
                gone = seq < delete.before_seq or any(first <= seq <= last for first, last in delete.ranges)
                if seq <= cursor or not gone:
                    yield block, i, i + 1

        self.held = deque(run for held in self.held for run in kept(*held))

    def _runs_behind(self, cursor: int, upto: int) -> Iterator[Run]:
        log = self.source.log
        first = max(cursor + 1, log.start)
        for k in range(log.index_of(first), len(log.entries)):
            entry = log.entries[k]
            if entry.first_seq > upto:
                return
            for i, j in entry.live_runs(max(0, first - entry.first_seq), min(entry.n, upto + 1 - entry.first_seq)):
                yield entry.block(), i, j

    def resume(self) -> None:
        """Before anybody is served again: lose what the source cannot give again, as far as it may have been seen."""
        dest = self.dest
        lost = dest.ceiling.seq - dest.log.head
        if lost > 0 and dest.config.durability in _KEEPING and self.forgets:
            self._log(lost, self.cursor)
            self.lose(lost, self.cursor)
        if self.source.log.lost or self._lost() is not None:
            # What stands behind a loss could not be derived before it.
            self.catch_up()

    def rewind(self) -> None:
        """A source that came back without its newest records hands out their seqs again."""
        self.cursor = min(self.cursor, self.source.log.head)

    def skip_all(self) -> None:
        """Copy nothing of what is there: the destination keeps nothing over a restart."""
        self.cursor = self.source.log.head

    def release(self) -> None:
        """Hold nothing any more: from here on a copy follows from what its source has, or no restart could make it."""
        self.held.clear()
        self.held_lost.clear()
        self.held_head = 0

    def capture(self) -> bytes:
        """How far the destination has been served, for a checkpoint; copies that are not visible yet do not count."""
        cursor = self._unseen[0][0] if self._unseen else self.cursor
        unseen = [sum(counts) for counts in zip(*(each[1] for each in self._unseen), strict=True)]
        unseen += [0] * (len(self.routers) - len(unseen))
        totals = {each.name: each.forwarded_total - n for each, n in zip(self.routers, unseen, strict=True)}
        image = ForwardImage(self.source.id, cursor, self.ts_min, totals, self.hops, self.keys)
        return router_event.encode(image)

    def restore(self, image: ForwardImage) -> None:
        """Go on where a checkpoint stood."""
        self.cursor = image.cursor
        self.ts_min = image.ts_min
        self.hops = list(image.hops)
        self.keys = image.keys
        for router in self.routers:
            router.forwarded_total = image.totals.get(router.name, 0)


def into(topic: Topic) -> Forward | None:
    """The way by which copies get into a topic, or None."""
    return cast("Forward | None", topic.inbound)


def out_of(topic: Topic) -> Sequence[Forward]:
    """The ways by which copies of a topic's records get elsewhere."""
    return () if topic.outbound is None else cast("Sequence[Forward]", topic.outbound.forwards)


def _stamp_in(meta: bytes) -> str | None:
    return _decode_meta(meta).get(STAMP)
