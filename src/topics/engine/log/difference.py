"""Reading a topic from a cursor: the one read path of diff, long-poll, SSE and WebSocket (the READ rules, LOSS-11).

In order: the floors (tombstone or silent gap), TTL and deletes (already applied by the log), then the node filter and
the tag predicate, which are silent. Every seq that was examined advances the cursor, whether it is delivered or not.
A filtered read takes a window of at most `limit` live seqs and filters that: it never scans on to fill a batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import Any, Final

import msgspec

from topics.engine.log import loss
from topics.engine.log.directory import SMALL_BLOCK_RECORDS
from topics.engine.log.log import Log
from topics.engine.log.render import (
    LARGE_BYTES,
    WHOLE_BYTES_MAX,
    Each,
    WireCache,
    foreign_runs,
    matching_runs,
    render,
)
from topics.engine.log.tags import TagMatch
from topics.storage.block import Block, Extent

SEQ_BASE: Final = 1


class Tombstone(msgspec.Struct, frozen=True):
    """An explicit gap: [gap_from, gap_to] was lost, both ends included."""

    gap_from: int
    gap_to: int
    reason: str
    earliest_seq: int
    head_seq: int

    @property
    def missed_estimate(self) -> int:
        """About how many records were lost."""
        return max(0, self.gap_to - self.gap_from + 1)

    def wire(self) -> bytes:
        """The gap marker as the JSON object that a diff carries."""
        return (
            b'{"$type":"tombstone","$seq":%d,"gap_from":%d,"gap_to":%d,"reason":"%b","missed_estimate":%d,'
            b'"earliest_seq":%d,"head_seq":%d}'
            % (
                self.earliest_seq,
                self.gap_from,
                self.gap_to,
                self.reason.encode(),
                self.missed_estimate,
                self.earliest_seq,
                self.head_seq,
            )
        )


class Difference:
    """What comes after a cursor: rendered records, the cursor to continue from, and at most one tombstone."""

    __slots__ = ("count", "earliest_seq", "head_seq", "next_from_seq", "pieces", "runs", "scanned", "tombstone")

    def __init__(self, log: Log, next_from_seq: int, tombstone: Tombstone | None) -> None:
        self.pieces: list[bytes] = []
        self.count = 0
        self.scanned = 0
        self.next_from_seq = next_from_seq
        self.head_seq = log.head
        self.earliest_seq = log.start
        self.tombstone = tombstone
        # Which records of which Block were delivered, for a caller that filters the same records in many ways.
        self.runs: list[tuple[Block, int, int]] | None = None

    @property
    def caught_up(self) -> bool:
        """Whether there is nothing more right now."""
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        """How many seqs there still are after the cursor."""
        return self.head_seq - self.next_from_seq

    @property
    def text(self) -> bytes:
        """The records as JSON objects separated by commas."""
        return self.pieces[0] if len(self.pieces) == 1 else b",".join(self.pieces)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records decoded: for embedded use and tests; the server sends `text` as it is."""
        decoded: list[dict[str, Any]] = msgspec.json.decode(b"[" + self.text + b"]")
        return decoded


class Window:
    """What a reader asks for: how much, which fields, and what to leave out."""

    __slots__ = ("bytes_max", "fields", "limit", "match", "nodes")

    def __init__(
        self,
        limit: int,
        bytes_max: int,
        fields: int,
        nodes: Collection[bytes] = (),
        match: TagMatch | None = None,
    ) -> None:
        self.limit = limit
        self.bytes_max = bytes_max
        self.fields = fields
        self.nodes = nodes
        self.match = match


def gap_at(log: Log, from_seq: int) -> tuple[Tombstone | None, int]:
    """The tombstone that a cursor must see before anything else, if any, and the cursor after it."""
    if from_seq > log.head:
        return Tombstone(SEQ_BASE, log.head, loss.RECREATED, log.start, log.head), log.start - 1
    first = from_seq + 1
    if first < log.evict_floor:
        cap, ttl = log.cap_evicted >= first, log.ttl_expired >= first
        reason = loss.MIXED if cap and ttl else loss.CAP if cap else loss.TTL
        return Tombstone(first, log.start - 1, reason, log.start, log.head), log.start - 1
    lost = log.lost_at(first) if log.lost else None
    if lost is not None:
        return Tombstone(first, lost.last, lost.reason, log.start, log.head), lost.last
    return None, from_seq


def read(
    log: Log, wires: WireCache, from_seq: int, window: Window, upto: int | None = None, keep_runs: bool = False
) -> Difference:
    """The records after `from_seq`, as far as the window goes, and up to `upto` where that is given.

    May raise Miss where a sealed Block has to be read.
    """
    tombstone, cursor = gap_at(log, from_seq)
    difference = Difference(log, cursor, tombstone)
    if keep_runs:
        difference.runs = []
    # A read ends before the next lost range, so that its tombstone comes to a cursor right before it.
    stop = log.lost_after(cursor) - 1 if log.lost else log.head
    if upto is not None and upto < stop:
        stop = upto
    seq = max(cursor + 1, log.start)
    room = window.limit
    bytes_left = window.bytes_max
    entries = log.entries
    k = log.index_of(seq) if seq <= stop else len(entries)
    while k < len(entries) and entries[k].first_seq <= stop:
        entry = entries[k]
        first_seq, n = entry.first_seq, entry.n
        # Without min and max: this is done for each Block of every read.
        i = seq - first_seq if seq > first_seq else 0
        for a, b in entry.live_runs(i, n if first_seq + n <= stop else stop - first_seq + 1):
            end = b if b - a < room else a + room
            room -= end - a
            end, bytes_left = _take(difference, wires, entry, a, end, window, bytes_left)
            difference.next_from_seq = first_seq + end - 1
            if room == 0 or bytes_left <= 0:
                difference.scanned = difference.next_from_seq - cursor
                return difference
        k += 1
    difference.next_from_seq = max(stop, cursor)
    difference.scanned = difference.next_from_seq - cursor
    return difference


def labelled(difference: Difference, wires: WireCache, fields: int) -> list[tuple[bytes | None, bytes]]:
    """Each record of a read that kept its runs: its node, and its text."""
    found: list[tuple[bytes | None, bytes]] = []
    for block, a, run_end in difference.runs or ():
        # A read that ran out of bytes may have delivered less than its last run.
        b = min(run_end, a + difference.count - len(found))
        parts = _each(block, fields)
        if parts is None:
            wire = wires.get(block, fields)
            texts = [wire.slice(i, i + 1) for i in range(a, b)]
        else:
            texts = [parts[i] for i in range(a, b)]
        found += zip([block.node(i) for i in range(a, b)], texts, strict=True)
    return found


def _each(block: Block, fields: int) -> list[bytes] | Each | None:
    """The records one by one, where that is better than the whole Block as text, which is kept for the next reader.

    It is for few small records. A large one is worth keeping: to copy it for each reader takes long.
    """
    size = len(block.raw)
    if size <= LARGE_BYTES:
        return render(block, fields) if block.n <= SMALL_BLOCK_RECORDS else None
    return Each(block, fields) if size > WHOLE_BYTES_MAX else None


def _take(
    difference: Difference, wires: WireCache, entry: Extent, a: int, b: int, window: Window, bytes_left: int
) -> tuple[int, int]:
    """Deliver the live records [a, b) of an entry; the index after the last one examined, and the bytes still left."""
    block = entry.block()
    runs = [(a, b)] if not window.nodes else foreign_runs(block, a, b, window.nodes)
    if window.match is not None:
        runs = [run for c, d in runs for run in matching_runs(block, c, d, window.match)]
    if difference.runs is not None:
        difference.runs += [(block, c, d) for c, d in runs]
    # Asked here, without a call, what `_each` decides: this is done for each Block of every read.
    odd = block.n <= SMALL_BLOCK_RECORDS or len(block.raw) > WHOLE_BYTES_MAX
    parts = _each(block, window.fields) if odd else None
    if parts is not None:
        for c, d in runs:
            for i in range(c, d):
                text = parts[i]
                difference.pieces.append(text)
                difference.count += 1
                bytes_left -= len(text)
                if bytes_left <= 0:
                    return i + 1, bytes_left
        return b, bytes_left
    wire = wires.get(block, window.fields)
    at = wire.at
    for c, d in runs:
        end = d
        if at[d] - at[c] >= bytes_left:
            end = min(d, bisect_left(at, at[c] + bytes_left, c + 1, d + 1))
        difference.pieces.append(wire.slice(c, end))
        difference.count += end - c
        bytes_left -= at[end] - at[c]
        if bytes_left <= 0:
            return end, bytes_left
    return b, bytes_left
