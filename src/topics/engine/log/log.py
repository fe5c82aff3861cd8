"""The log of one topic: its Blocks in seq order, the two floors, and what was lost.

Rules it keeps (DESIGN §5, §7; documents 002 and 004):

1. `start` is the seq of the first live record, or head + 1 where there is none: this is `earliest_seq`. It never goes
   down.
2. `evict_floor` moves only when cap or TTL take *live* records. It never exceeds `start`. A cursor below it gets a
   tombstone; a cursor below `start` but not below it fell into a deleted gap, which is silent.
3. `count` and `bytes` are exact at every moment that a caller can see: every method leaves them so. Only disk space is
   reclaimed lazily.
4. A lost range (corruption, a lost tail, `source_trim`) lies above the floors and does not move them. A read stops
   before it, and a cursor at its edge gets one tombstone with exactly that range.
5. What is gone stays gone: a loosened TTL or cap, or a clock that steps back, brings nothing back.

An entry of the directory is a Block in memory or the stub of a sealed one; both answer the questions asked here without
reading record data. Small writes leave small Blocks: a run of them is merged, so that neither memory nor a read pays
per Block for long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from topics.storage.block import Block, Extent
from topics.storage.flags import DELETED
from topics.storage.splice import merge

SMALL_BLOCK_RECORDS: Final = 16
# Up to this size it is worth copying a Block once more so that there are fewer.
MERGE_BLOCK_RECORDS: Final = 64
MERGE_RUN_BLOCKS: Final = 512
MERGE_RUN_BYTES: Final = 256 * 1024
_TRIM_DIRECTORY_AT: Final = 512
# A seq behind every record.
ANYWHERE: Final = 1 << 62


class LostRange(NamedTuple):
    """Seqs that were assigned and acked, or derived, and cannot be read any more."""

    first: int
    last: int
    reason: str


class Totals:
    """Live records and bytes over all topics: what the quota and the metrics ask for."""

    __slots__ = ("bytes", "corruption_total", "count", "pending_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        # Of writes that have their seqs and are not visible yet.
        self.pending_bytes = 0
        self.corruption_total = 0


class Log:
    """Blocks, floors and lost ranges of one topic."""

    __slots__ = (
        "_base",
        "_run_blocks",
        "_run_bytes",
        "bytes",
        "cap_evicted",
        "count",
        "entries",
        "evicted_ts",
        "firsts",
        "head",
        "lost",
        "start",
        "tail_bytes",
        "tail_records",
        "totals",
        "ttl_expired",
    )

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self.entries: list[Extent] = []
        self.firsts: list[int] = []
        self._base = 0
        self._run_blocks = 0
        self._run_bytes = 0
        self.head = 0
        self.start = 1
        self.count = 0
        self.bytes = 0
        self.cap_evicted = 0
        self.ttl_expired = 0
        # The ts of the newest record that cap or TTL took: a read from an earlier time has lost something.
        self.evicted_ts = 0
        self.lost: list[LostRange] = []
        # What was published and not sealed, evicted records included: when it is enough, it becomes a segment.
        self.tail_records = 0
        self.tail_bytes = 0

    @property
    def evict_floor(self) -> int:
        """One above the highest seq that cap or TTL took."""
        return max(self.cap_evicted, self.ttl_expired) + 1

    def publish(self, block: Block) -> None:
        """Append a Block at the head; its records are visible from here on."""
        if not self.count:
            self.start = block.first_seq
        self.entries.append(block)
        self.firsts.append(block.first_seq)
        n = block.n
        size = block.live_bytes
        self.head = block.first_seq + n - 1
        self.tail_records += n
        self.tail_bytes += size
        self.count += n
        self.bytes += size
        totals = self.totals
        totals.count += n
        totals.bytes += size
        if n > MERGE_BLOCK_RECORDS or size > MERGE_RUN_BYTES:
            self._run_blocks = self._run_bytes = 0
            return
        self._run_blocks += 1
        self._run_bytes += size
        if self._run_blocks >= MERGE_RUN_BLOCKS or self._run_bytes >= MERGE_RUN_BYTES:
            self._merge_run()

    def _add(self, count: int, size: int) -> None:
        self.count += count
        self.bytes += size
        totals = self.totals
        totals.count += count
        totals.bytes += size

    def _merge_run(self) -> None:
        run = min(self._run_blocks, len(self.entries) - self._base)
        if run > 1:
            blocks = [entry for entry in self.entries[-run:] if isinstance(entry, Block)]
            # A gap (a lost range) or a sealed stub inside the run ends it; the rest merges with a later one.
            if len(blocks) == run and blocks[-1].last_seq - blocks[0].first_seq + 1 == sum(b.n for b in blocks):
                self.replace(blocks[0].first_seq, blocks[-1].last_seq, [merge(blocks)])
        self._run_blocks = self._run_bytes = 0

    def replace(self, first_seq: int, last_seq: int, entries: Iterable[Extent]) -> None:
        """Put `entries` in the place of those that hold [first_seq, last_seq]: a merge or a seal, content unchanged."""
        i = max(self._base, bisect_left(self.firsts, first_seq))
        j = max(i, bisect_right(self.firsts, last_seq))
        self._run_blocks = self._run_bytes = 0
        kept = [entry for entry in entries if entry.last_seq >= self.start]
        self.entries[i:j] = kept
        self.firsts[i:j] = [entry.first_seq for entry in kept]

    def retained(self) -> Iterator[Extent]:
        """The entries that still hold a live record or lie behind one, in order."""
        for k in range(self._base, len(self.entries)):
            yield self.entries[k]

    def restore(self, entries: list[Extent], start: int, head: int) -> None:
        """Take over the entries that a checkpoint holds, with its floors."""
        assert not self.entries
        self.entries = entries
        self.firsts = [entry.first_seq for entry in entries]
        self.head = head
        self.start = start
        for entry in entries:
            live, size = entry.live_in(max(0, min(entry.n, start - entry.first_seq)), entry.n)
            self._add(live, size)
        self._settle()

    def holds(self, seq: int) -> bool:
        """Whether an entry covers `seq`, live or not."""
        k = self.index_of(seq)
        return k < len(self.entries) and self.entries[k].first_seq <= seq

    def is_live(self, seq: int) -> bool:
        """Whether there is a record with this seq, not deleted, evicted or expired."""
        if not self.start <= seq <= self.head:
            return False
        k = self.index_of(seq)
        if k == len(self.entries) or self.entries[k].first_seq > seq:
            return False
        flags = self.entries[k].flags
        return flags is None or flags[seq - self.entries[k].first_seq] != DELETED

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Have the sealed Blocks that hold these seqs at hand, so that a delete needs no read. May raise Miss."""
        entries = self.entries
        for first, last in ranges:
            k = self.index_of(first)
            while k < len(entries) and entries[k].first_seq <= last:
                entries[k].block()
                k += 1

    def end_run(self) -> None:
        """Merge nothing published up to now with what comes: it is about to be sealed as it is."""
        self._run_blocks = self._run_bytes = 0

    def tail_first(self) -> Block | None:
        """The oldest Block that is not sealed, or None."""
        if not self.tail_records or self._base == len(self.entries):
            return None
        tail = self.tail()
        return tail[0] if tail else None

    def tail(self) -> list[Block]:
        """The Blocks that are not sealed, in order: they stand behind all sealed ones."""
        blocks: list[Block] = []
        for k in range(len(self.entries) - 1, self._base - 1, -1):
            entry = self.entries[k]
            if not isinstance(entry, Block):
                break
            blocks.append(entry)
        blocks.reverse()
        return blocks

    def sealed(self, first_seq: int, last_seq: int, entries: Iterable[Extent]) -> None:
        """The records [first_seq, last_seq] are in a segment now: `entries` stand in their place."""
        self.replace(first_seq, last_seq, entries)
        tail = self.tail()
        self.tail_records = sum(block.n for block in tail)
        self.tail_bytes = sum(block.live_bytes for block in tail)

    def drop_extent(self, seq: int, reason: str) -> tuple[int, int] | None:
        """The entry that holds `seq` cannot be read: its records are lost, from the first live seq on. The range."""
        k = self.index_of(seq)
        if k == len(self.entries) or self.entries[k].first_seq > seq:
            return None
        entry = self.entries[k]
        live, size = entry.live, entry.live_bytes
        if k == self._base and self.start > entry.first_seq:
            # Part of it was taken before, and how many bytes that was stands only in the bytes that cannot be read.
            others = list(self.retained())[1:]
            live = self.count - sum(other.live for other in others)
            size = self.bytes - sum(other.live_bytes for other in others)
        first = max(entry.first_seq, self.start)
        del self.entries[k], self.firsts[k]
        self._add(-live, -size)
        self._settle()
        self.lose(first, entry.last_seq, reason)
        return first, entry.last_seq

    def index_of(self, seq: int) -> int:
        """The directory index of the entry that holds `seq`, or of the first one behind it."""
        base = self._base
        k = bisect_right(self.firsts, seq, base)
        if k > base:
            entry = self.entries[k - 1]
            if seq < entry.first_seq + entry.n:
                return k - 1
        return k

    def first_ts(self) -> int | None:
        """The ts of the oldest Block that is retained, or None."""
        return self.entries[self._base].first_ts if self._base < len(self.entries) else None

    def seq_at_ts(self, ts: int) -> int:
        """The first seq whose record has a `$ts` of at least `ts`, or head + 1."""
        low, high = self._base, len(self.entries)
        while low < high:
            middle = (low + high) // 2
            if self.entries[middle].last_ts < ts:
                low = middle + 1
            else:
                high = middle
        if low == len(self.entries):
            return self.head + 1
        entry = self.entries[low]
        return entry.first_seq + entry.ts_index(ts)

    def cursor_at_ts(self, ts: int) -> int:
        """The cursor before the first record with a `$ts` of at least `ts`; 0 where such records were evicted.

        When lost records were written is lost with them, but for what the records around them say. So a cursor that
        would stand right behind a lost range stands before it, and its reader is told.
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
        """Take every record up to the seq `upto` whose ts is below `cutoff`: TTL (DESIGN §5.2)."""
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
            self._take(entry, i, j)

    def evict(self, cap_records: int, cap_bytes: int) -> None:
        """Take the oldest records until the caps hold; 0 is no cap (DESIGN §5.3)."""
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
            self._take(entry, i, j)

    def evictable_bytes(self, over: int, over_bytes: int) -> int:
        """About how many bytes go with the oldest records where so many of them, or so many bytes, are too many.

        No Block is looked into: the records of one count as equally large.
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
        """Take everything that cap and TTL are known to have taken: a restart, where they may see fewer records."""
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
        j = i
        while j < entry.n and (over > 0 or over_bytes > 0):
            live, size = entry.live_in(j, j + 1)
            over -= live
            over_bytes -= size
            j += 1
        return j

    def _take(self, entry: Extent, i: int, j: int) -> None:
        live, size = entry.live_in(i, j)
        self._add(-live, -size)
        self.start = entry.first_seq + j
        self._settle()

    def delete_below(self, before_seq: int) -> int:
        """Delete every record with a lower seq; how many there were."""
        before_seq = min(before_seq, self.head + 1)
        deleted = 0
        while self.start < before_seq:
            entry = self.entries[self._base]
            live, size = entry.delete(max(0, self.start - entry.first_seq), min(entry.n, before_seq - entry.first_seq))
            deleted += live
            self._add(-live, -size)
            self.start = min(entry.last_seq + 1, before_seq)
            self._settle()
        return deleted

    def delete_seqs(self, seqs: Iterable[int]) -> list[int]:
        """Delete these records; the ascending seqs of those that were live."""
        return self.delete_ranges(ranges(sorted(set(seqs))))[0]

    def delete_ranges(self, ranges: Iterable[tuple[int, int]]) -> tuple[list[int], bool]:
        """Delete the records of ascending ranges, both ends included.

        The ascending seqs of those that were live, and whether an entry has none left.
        """
        gone: list[int] = []
        emptied = False
        base = self._base
        for first, last in ranges:
            emptied |= self._delete_range(max(first, self.start), min(last, self.head), gone)
        self._settle()
        return gone, emptied or self._base != base

    def _delete_range(self, first: int, last: int, gone: list[int]) -> bool:
        entries = self.entries
        emptied = False
        for k in range(self.index_of(first), len(entries)):
            entry = entries[k]
            first_seq = entry.first_seq
            if first_seq > last:
                break
            i, j = max(0, first - first_seq), min(entry.n, last + 1 - first_seq)
            for a, b in list(entry.live_runs(i, j)):
                live, size = entry.delete(a, b)
                gone.extend(range(first_seq + a, first_seq + b))
                self._add(-live, -size)
            emptied |= not entry.live
        return emptied

    def _settle(self) -> None:
        """Move `start` to the first live record and drop what lies before it."""
        entries = self.entries
        base = self._base
        while base < len(entries):
            entry = entries[base]
            i = entry.next_live(max(0, self.start - entry.first_seq))
            if i < entry.n:
                self.start = entry.first_seq + i
                break
            base += 1
        else:
            self.start = self.head + 1
        self._base = base
        if base > _TRIM_DIRECTORY_AT and base * 2 > len(entries):
            del entries[:base], self.firsts[:base]
            self._base = 0
        if self.lost and self.lost[0].last < self.evict_floor:
            self.lost = [lost for lost in self.lost if lost.last >= self.evict_floor]

    def lose(self, first: int, last: int, reason: str) -> None:
        """Record that [first, last] cannot be read any more; where that lies behind the head, the head moves there."""
        if self.head < last:
            empty = not self.count
            self.head = last
            if empty:
                self.start = last + 1
        self.lost = _with_range(self.lost, LostRange(first, last, reason))

    def lost_at(self, seq: int) -> LostRange | None:
        """The lost range that holds `seq`, or None."""
        for lost in self.lost:
            if lost.first <= seq <= lost.last:
                return lost
            if lost.first > seq:
                break
        return None

    def lost_after(self, seq: int) -> int:
        """The first seq of the first lost range behind `seq`, or head + 1."""
        for lost in self.lost:
            if lost.first > seq:
                return lost.first
        return self.head + 1

    def clear(self) -> None:
        """Forget everything: the topic was deleted."""
        self._add(-self.count, -self.bytes)
        self.entries = []
        self.firsts = []
        self._base = 0
        self.start = self.head + 1


def ranges(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending seqs as ranges, both ends included."""
    if seqs and seqs[-1] - seqs[0] == len(seqs) - 1:
        return [(seqs[0], seqs[-1])]
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and found[-1][1] + 1 == seq:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return found


def _with_range(ranges: list[LostRange], added: LostRange) -> list[LostRange]:
    """Sorted, disjoint ranges with `added` among them; neighbours of the same reason join."""
    merged: list[LostRange] = []
    for lost in sorted([*ranges, added]):
        if (
            merged
            and lost.first <= merged[-1].last + 1
            and (lost.reason == merged[-1].reason or lost.first <= merged[-1].last)
        ):
            merged[-1] = LostRange(merged[-1].first, max(lost.last, merged[-1].last), merged[-1].reason)
        else:
            merged.append(lost)
    return merged
