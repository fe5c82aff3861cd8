"""Directory: the records of one topic that are there, as Blocks in seq order, counted exactly.

An entry is a Block in memory or the stub of a sealed one; both answer the questions asked here without reading record
data. `start` is the seq of the first live record, or head + 1 where there is none: this is `earliest_seq`, and it never
goes down. `count` and `bytes` are exact whenever a caller can see them: every method leaves them so. Only disk space is
reclaimed lazily.

Small writes leave small Blocks: a run of them is merged, so that neither memory nor a read pays per Block for long.

The Blocks that are not sealed are the tail. They come after all sealed ones, and their bytes in memory are counted
exactly, here and over all topics: a Block counts from its publish until it is sealed or holds nothing live any more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

from topics.storage.block import Block, Extent
from topics.storage.flags import DELETED, Cut
from topics.storage.splice import merge

SMALL_BLOCK_RECORDS: Final = 16
# Up to this size it is worth copying a Block once more so that there are fewer.
MERGE_BLOCK_RECORDS: Final = 64
MERGE_RUN_BLOCKS: Final = 512
MERGE_RUN_BYTES: Final = 256 * 1024
_TRIM_DIRECTORY_AT: Final = 512
# From here on ranges are deleted entry by entry, and not one by one.
_MANY_RANGES: Final = 64
_DELETED: Final = bytes((DELETED,))
# Takes the place of an entry that holds nothing live, so that its memory is free at once.
_GONE: Final = Extent(0, 0, 0, 0, 0)


class ByteCount:
    """Bytes of Blocks in memory, over all tails that count here."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Totals:
    """Live records and bytes over all topics: what the quota and the metrics ask for."""

    __slots__ = (
        "bytes",
        "corruption_total",
        "count",
        "dedupe_bytes",
        "evicted_total",
        "freed_bytes",
        "lost_total",
        "pending_bytes",
        "resident",
        "unsealed",
    )

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        # The tails that will be sealed, and those that stay in memory: of `ephemeral` topics, or without a directory.
        self.unsealed = ByteCount()
        self.resident = ByteCount()
        # Of writes that have their seqs and are not visible yet.
        self.pending_bytes = 0
        # Of everything on the disk that was live and is not any more, since the start.
        self.freed_bytes = 0
        self.corruption_total = 0
        # Records since the start, by the reason that a tombstone gives: taken by retention, and lost.
        self.evicted_total: dict[str, int] = {}
        self.lost_total: dict[str, int] = {}
        # What idempotency keys and producers take in memory.
        self.dedupe_bytes = 0


class Directory:
    """The entries of one topic."""

    __slots__ = (
        "_base",
        "_run_blocks",
        "_run_bytes",
        "bytes",
        "count",
        "entries",
        "firsts",
        "head",
        "held",
        "sealed_to",
        "start",
        "tail_bytes",
        "tail_records",
        "totals",
    )

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self.entries: list[Extent] = []
        self.firsts: list[int] = []
        # Entries before this index hold nothing live; they are dropped in bulk.
        self._base = 0
        self._run_blocks = 0
        self._run_bytes = 0
        self.head = 0
        self.start = 1
        self.count = 0
        self.bytes = 0
        # Everything up to here was sealed.
        self.sealed_to = 0
        # The Blocks of the tail: when there is enough of them, they become a segment.
        self.tail_records = 0
        self.tail_bytes = 0
        self.held = totals.resident

    def publish(self, block: Block) -> None:
        """Append a Block at the head; its records are visible from here on."""
        if not self.count:
            self.start = block.first_seq
        self.entries.append(block)
        self.firsts.append(block.first_seq)
        n = block.n
        size = block.live_bytes
        held_bytes = len(block.raw)
        self.head = block.first_seq + n - 1
        self.tail_records += n
        self.tail_bytes += held_bytes
        self.held.bytes += held_bytes
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
        if size < 0 and self.held is totals.unsealed:
            totals.freed_bytes -= size

    def _hold(self, records: int, held_bytes: int) -> None:
        self.tail_records += records
        self.tail_bytes += held_bytes
        self.held.bytes += held_bytes

    def hold_in(self, held: ByteCount) -> None:
        """Count the tail, and what is published from now on, in another place."""
        self.held.bytes -= self.tail_bytes
        held.bytes += self.tail_bytes
        self.held = held

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
        records, size = held_by(kept)
        records_before, size_before = held_by(self.entries[i:j])
        self._hold(records - records_before, size - size_before)
        self.entries[i:j] = kept
        self.firsts[i:j] = [entry.first_seq for entry in kept]

    def retained(self) -> Iterator[Extent]:
        """The entries from the first one with a live record on, in order."""
        for k in range(self._base, len(self.entries)):
            yield self.entries[k]

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
        """Have the sealed Blocks that hold these seqs in memory, so that a delete needs no read. May raise Miss."""
        entries = self.entries
        for first, last in ranges:
            k = self.index_of(first)
            while k < len(entries) and entries[k].first_seq <= last:
                entries[k].block()
                k += 1

    def end_run(self) -> None:
        """Do not merge what is published by now with what follows: it is about to be sealed as it is."""
        self._run_blocks = self._run_bytes = 0

    def _tail_at(self) -> int:
        return max(self._base, bisect_right(self.firsts, self.sealed_to))

    def tail_first(self) -> Block | None:
        """The oldest Block that is not sealed, or None."""
        at = self._tail_at()
        return cast("Block", self.entries[at]) if at < len(self.entries) else None

    def unsealed(self) -> Iterator[Block]:
        """The Blocks that are not sealed, in order, one by one: the log must not change in between."""
        for k in range(self._tail_at(), len(self.entries)):
            entry = self.entries[k]
            assert isinstance(entry, Block)
            yield entry

    def tail(self) -> list[Block]:
        """The Blocks that are not sealed, in order."""
        return cast("list[Block]", self.entries[self._tail_at() :])

    def sealed(self, first_seq: int, last_seq: int, entries: Iterable[Extent]) -> None:
        """The records [first_seq, last_seq] are in a segment now: `entries` take their place."""
        self.sealed_to = last_seq
        self.replace(first_seq, last_seq, entries)

    def index_of(self, seq: int) -> int:
        """The directory index of the entry that holds `seq`, or of the first one after it."""
        base = self._base
        k = bisect_right(self.firsts, seq, base)
        if k > base:
            entry = self.entries[k - 1]
            if seq < entry.first_seq + entry.n:
                return k - 1
        return k

    def seq_at_ts(self, ts: int) -> int:
        """The seq of the first record with a `$ts` of at least `ts`, or head + 1."""
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

    def delete_below(self, before_seq: int) -> int:
        """Delete every record with a lower seq; returns how many there were."""
        before_seq = min(before_seq, self.head + 1)
        deleted = 0
        while self.start < before_seq:
            entry = self.entries[self._base]
            i, j = max(0, self.start - entry.first_seq), min(entry.n, before_seq - entry.first_seq)
            live, size = entry.delete(i, j)
            deleted += live
            self._add(-live, -size)
            self.start = min(entry.last_seq + 1, before_seq)
            self._move_start()
        return deleted

    def delete_seqs(self, seqs: Iterable[int]) -> list[int]:
        """Delete these records; returns the ascending seqs of those that were live."""
        return self.delete_ranges(ranges(sorted(set(seqs))))[0]

    def delete_ranges(self, ranges: Sequence[tuple[int, int]]) -> tuple[list[int], bool]:
        """Delete the records of ascending ranges, both ends included.

        Returns the ascending seqs of those that were live, and whether an entry has none left.
        """
        gone: list[int] = []
        emptied = False
        base = self._base
        if len(ranges) > _MANY_RANGES:
            for cut in self._cuts(ranges):
                first_seq = cut.entry.first_seq
                for a, b in cut.runs():
                    gone.extend(range(first_seq + a, first_seq + b))
                emptied |= self._apply(cut)
        else:
            for first, last in ranges:
                emptied |= self._delete_range(max(first, self.start), min(last, self.head), gone)
        self._move_start()
        return gone, emptied or self._base != base

    def _cuts(self, ranges: Sequence[tuple[int, int]]) -> Iterator[Cut]:
        """What it changes to delete the records of these ranges, entry by entry; may raise as `delete_ranges`."""
        at, k = 0, self.index_of(ranges[0][0])
        while at < len(ranges) and k < len(self.entries):
            entry = self.entries[k]
            first_seq, n = entry.first_seq, entry.n
            mask = bytearray(n)
            while at < len(ranges) and ranges[at][0] < first_seq + n:
                i, j = max(0, ranges[at][0] - first_seq), min(n, ranges[at][1] + 1 - first_seq)
                if i < j:
                    mask[i:j] = _DELETED * (j - i)
                if ranges[at][1] >= first_seq + n:
                    break
                at += 1
            cut = self.cut(k, bytes(mask))
            if cut is not None:
                yield cut
            k += 1

    def cut(self, k: int, mask: bytes) -> Cut | None:
        """What it changes to delete the records of an entry that the mask names; None where nothing of it is live.

        May raise Miss, Corrupt and what else reading a Block may raise.
        """
        entry = self.entries[k]
        taken = self.start - entry.first_seq
        return entry.cut(mask if taken <= 0 else bytes(taken) + mask[taken:])

    def allows(self, cut: Cut) -> bool:
        """Whether a cut is still valid: its entry is there, and has the records that it had."""
        entry = cut.entry
        k = bisect_left(self.firsts, entry.first_seq, self._base)
        return (
            k < len(self.entries)
            and self.entries[k] is entry
            and entry.live == cut.live
            and (entry.first_seq >= self.start or cut.mask.find(DELETED, 0, self.start - entry.first_seq) < 0)
        )

    def apply(self, cuts: Iterable[Cut]) -> bool:
        """Delete what valid cuts say; whether an entry has no live record left."""
        base, emptied = self._base, False
        for cut in cuts:
            emptied |= self._apply(cut)
        self._move_start()
        return emptied or self._base != base

    def _apply(self, cut: Cut) -> bool:
        cut.entry.apply(cut)
        self._add(-cut.count, -cut.size)
        return not cut.entry.live

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

    def _move_start(self) -> None:
        """Move `start` to the first live record and drop what is before it."""
        entries = self.entries
        base = self._base
        while base < len(entries):
            entry = entries[base]
            i = entry.next_live(max(0, self.start - entry.first_seq))
            if i < entry.n:
                self.start = entry.first_seq + i
                break
            if isinstance(entry, Block):
                self._hold(-entry.n, -len(entry.raw))
            entries[base] = _GONE
            base += 1
        else:
            self.start = self.head + 1
        self._base = base
        if base > _TRIM_DIRECTORY_AT and base * 2 > len(entries):
            del entries[:base], self.firsts[:base]
            self._base = 0

    def clear(self) -> list[Extent]:
        """Forget everything: the topic was deleted. Returns what there was."""
        self._add(-self.count, -self.bytes)
        self._hold(-self.tail_records, -self.tail_bytes)
        entries, self.entries = self.entries, []
        self.firsts = []
        self._base = 0
        self.start = self.head + 1
        return entries


def held_by(entries: Iterable[Extent]) -> tuple[int, int]:
    """The records of those entries that are Blocks in memory, and their bytes."""
    blocks = [entry for entry in entries if isinstance(entry, Block)]
    return sum([block.n for block in blocks]), sum([len(block.raw) for block in blocks])


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
