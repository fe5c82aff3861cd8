"""Log: the records of one topic that readers may see, and what a reader has to learn about those that are gone.

What it keeps of the LOSS, RETAIN and DELETE rules:

1. `evict_floor` moves only when cap or TTL take *live* records. It never exceeds `start`. A cursor below it gets a
   tombstone; a cursor below `start` but not below it fell into a deleted gap, which is silent.
2. A lost range (corruption, a lost tail, `source_trim`) is above the floors and does not move them. A read stops
   before it, and a cursor at its edge gets one tombstone with exactly that range.
3. What is gone stays gone: a loosened TTL or cap, or a clock that steps back, brings nothing back.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import Final

from topics.engine.log.directory import Directory, Totals, held_by
from topics.engine.log.loss import CAP, CORRUPTION, TTL, LostRange, with_range
from topics.errors import StorageUnreadable
from topics.storage.block import Block, Extent

# A seq after every record.
ANYWHERE: Final = 1 << 62


class Log(Directory):
    """Blocks, floors and lost ranges of one topic."""

    __slots__ = ("cap_evicted", "evicted_ts", "lost", "ttl_expired")

    def __init__(self, totals: Totals) -> None:
        super().__init__(totals)
        self.cap_evicted = 0
        self.ttl_expired = 0
        # The ts of the newest record that cap or TTL took: a read from an earlier time has lost something.
        self.evicted_ts = 0
        self.lost: list[LostRange] = []

    @property
    def evict_floor(self) -> int:
        """One above the highest seq that cap or TTL took."""
        return max(self.cap_evicted, self.ttl_expired) + 1

    def restore(self, entries: list[Extent], start: int, head: int) -> None:
        """Take over the entries that a checkpoint holds, with its floors; `lost` is set before.

        A segment goes on listing a Block that turned out to be damaged. Its records were reported as lost, and stay so.
        """
        assert not self.entries
        self.sealed_to = next((entry.last_seq for entry in reversed(entries) if not isinstance(entry, Block)), 0)
        if self.lost:
            damaged = [lost for lost in self.lost if lost.reason == CORRUPTION]
            entries = [entry for entry in entries if not _within(entry, start, damaged)]
        self.entries = entries
        self.firsts = [entry.first_seq for entry in entries]
        self.head = head
        self.start = start
        self._hold(*held_by(entries))
        whole = bisect_left(self.firsts, start)
        for entry in entries[:whole]:
            self._add(*entry.live_in(min(entry.n, start - entry.first_seq), entry.n))
        self._add(sum([entry.live for entry in entries[whole:]]), sum([entry.live_bytes for entry in entries[whole:]]))
        self._move_start()
        if self.lost:
            self._forget_losses()

    def cursor_at_ts(self, ts: int) -> int:
        """The cursor before the first record with a `$ts` of at least `ts`; 0 where such records were evicted.

        When lost records were written is known only from the records around them. So a cursor that
        would be right after a lost range is put before it, so that its reader gets the tombstone.
        """
        if self.evict_floor > 1 and ts <= self.evicted_ts:
            return 0
        seq = self.seq_at_ts(ts)
        for lost in self.lost:
            if lost.first >= seq:
                break
            k = self.index_of(lost.last + 1)
            if k == len(self.entries) or self.entries[k].first_seq >= seq:
                return lost.first - 1
        return seq - 1

    def expire(self, cutoff: int, upto: int = ANYWHERE) -> None:
        """Take every record up to the seq `upto` with a ts below `cutoff`: TTL (RETAIN-1)."""
        entries = self.entries
        while self._base < len(entries):
            entry = entries[self._base]
            if entry.first_ts >= cutoff:
                return
            i = self.start - entry.first_seq
            j = entry.n if entry.last_ts < cutoff else entry.ts_index(cutoff)
            j = min(j, upto + 1 - entry.first_seq)
            if j <= i:
                return
            self.ttl_expired = max(self.ttl_expired, entry.first_seq + entry.last_live(j))
            self.evicted_ts = max(self.evicted_ts, entry.ts_at(j - 1))
            self._count_evicted(TTL, self._take(entry, i, j))

    def evict(self, cap_records: int, cap_bytes: int) -> None:
        """Take the oldest records until the caps hold; 0 is no cap (RETAIN-4)."""
        while (cap_records and self.count > cap_records) or (cap_bytes and self.bytes > cap_bytes):
            entry = self.entries[self._base]
            i = self.start - entry.first_seq
            over = self.count - cap_records if cap_records else 0
            over_bytes = self.bytes - cap_bytes if cap_bytes else 0
            live, size = entry.live_in(i, entry.n)
            whole = live <= over or size <= over_bytes
            j = entry.n if whole else self._cut(entry, i, over, over_bytes)
            self.cap_evicted = max(self.cap_evicted, entry.first_seq + entry.last_live(j))
            self.evicted_ts = max(self.evicted_ts, entry.ts_at(j - 1))
            self._count_evicted(CAP, self._take(entry, i, j))

    def evictable_bytes(self, over: int, over_bytes: int) -> int:
        """About how many bytes would go if the oldest `over` records, or records of `over_bytes`, had to.

        No Block is opened: its records count as equally large.
        """
        freed_bytes = 0
        for entry in self.retained():
            if over <= 0 and over_bytes <= 0:
                break
            live, size = entry.live, entry.live_bytes
            if live > over and size > over_bytes:
                taken = max(over, -(-over_bytes * live // size))
                live, size = taken, size * taken // live
            freed_bytes += size
            over -= live
            over_bytes -= size
        return freed_bytes

    def raise_floors(self, cap_evicted: int, ttl_expired: int) -> None:
        """Take everything that cap and TTL are known to have taken: for a restart, where they may see fewer records."""
        self.cap_evicted = max(self.cap_evicted, cap_evicted)
        self.ttl_expired = max(self.ttl_expired, ttl_expired)
        while self.start < self.evict_floor and self._base < len(self.entries):
            entry = self.entries[self._base]
            i = max(0, self.start - entry.first_seq)
            j = max(i, min(entry.n, self.evict_floor - entry.first_seq))
            if i < j:
                self.evicted_ts = max(self.evicted_ts, entry.ts_at(j - 1))
            self._take(entry, i, j)

    @staticmethod
    def _cut(entry: Extent, i: int, over: int, over_bytes: int) -> int:
        if over_bytes <= 0 and entry.live == entry.n:
            return i + over
        for a, b in entry.live_runs(i, entry.n):
            count, size = b - a, entry.size_bytes(a, b)
            if count > over and size > over_bytes:
                by_records = a + max(0, over)
                by_bytes = bisect_left(range(a, b), over_bytes, key=partial(entry.size_bytes, a)) + a
                return max(by_records, by_bytes)
            over -= count
            over_bytes -= size
            if over <= 0 and over_bytes <= 0:
                return b
        return entry.n

    def _count_evicted(self, reason: str, records: int) -> None:
        total = self.totals.evicted_total
        total[reason] = total.get(reason, 0) + records

    def _take(self, entry: Extent, i: int, j: int) -> int:
        """The records [i, j) of an entry are gone; how many of them were live."""
        try:
            live, size = entry.live_in(i, j)
        except StorageUnreadable:
            if j < entry.n:
                raise
            live, size = self._left_in_first()
        self._add(-live, -size)
        self.start = entry.first_seq + j
        self._move_start()
        if self.lost:
            self._forget_losses()
        return live

    def _forget_losses(self) -> None:
        """A cursor below the floor gets the tombstone of the floor, whatever was lost there."""
        if self.lost[0].last < self.evict_floor:
            self.lost = [lost for lost in self.lost if lost.last >= self.evict_floor]

    def drop_extent(self, seq: int, reason: str) -> tuple[int, int] | None:
        """The entry that holds `seq` cannot be read: lose its records from the first live one on. Returns them."""
        k = self.index_of(seq)
        if k == len(self.entries) or self.entries[k].first_seq > seq:
            return None
        entry = self.entries[k]
        live, size = entry.live, entry.live_bytes
        if k == self._base and self.start > entry.first_seq:
            # Part of it was taken before.
            live, size = self._left_in_first()
        first = max(entry.first_seq, self.start)
        self.replace(entry.first_seq, entry.last_seq, [])
        self._add(-live, -size)
        self._move_start()
        self.lose(first, entry.last_seq, reason)
        return first, entry.last_seq

    def _left_in_first(self) -> tuple[int, int]:
        """How many records of the first entry are left, and their bytes, without its content: the others tell."""
        others = list(self.retained())[1:]
        return self.count - sum(other.live for other in others), self.bytes - sum(other.live_bytes for other in others)

    def lose(self, first: int, last: int, reason: str) -> None:
        """Record that [first, last] cannot be read any more; where that is beyond the head, the head moves there."""
        if self.head < last:
            empty = not self.count
            self.head = last
            if empty:
                self.start = last + 1
        self.lost = with_range(self.lost, LostRange(first, last, reason))
        total = self.totals.lost_total
        total[reason] = total.get(reason, 0) + last + 1 - first

    def lost_at(self, seq: int) -> LostRange | None:
        """The lost range that holds `seq`, or None."""
        for lost in self.lost:
            if lost.first <= seq <= lost.last:
                return lost
            if lost.first > seq:
                break
        return None

    def lost_after(self, seq: int) -> int:
        """The first seq of the first lost range after `seq`, or head + 1."""
        for lost in self.lost:
            if lost.first > seq:
                return lost.first
        return self.head + 1


def _within(entry: Extent, start: int, ranges: list[LostRange]) -> bool:
    """Whether all that a reader could get of an entry is in one of the ranges."""
    first = max(entry.first_seq, start)
    return any(lost.first <= first and entry.last_seq <= lost.last for lost in ranges)
