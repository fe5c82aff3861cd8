"""Whole Blocks over HTTP: how a scan reads a topic by column instead of record by record.

`GET /v0/topics/:topic/plan` answers, as JSON, what a scan has to know before it starts: the epoch, the floors, the lost
ranges, for a range of seqs the gaps in it, with `segments=true` where the sealed segments are and what was deleted from
them, and with `deleted=true` which seqs of the range clients deleted, for a copy elsewhere that has to follow.
`GET /v0/topics/:topic/blocks` answers with the Blocks after a cursor:

    offset  size   field
    0       4      magic "TBKS"
    4       4      bytes of the header, little-endian
    8       ..     the header, a JSON object
    ..      ..     Blocks with their delete flags, back to back (storage/block.py), to the end of the body

The header has the fields at the end of a diff: `next_from_seq`, the floors and at most one tombstone, which the reader
must see before the Blocks. As in a diff, an answer ends before the next lost range, so that its tombstone comes first
in the next one. Blocks are whole: the first may begin at or below the cursor, and the last may end after `to_seq`. Only
one that is far larger than an answer comes in parts, which are Blocks too.

An answer keeps the loop busy for as long as a hundred small requests do. So scans take turns, however many there are,
and before each answer the loop goes round as often as a write that arrived meanwhile needs: once to be committed, and
once more to be answered. A write waits for at most one scan's answer, the one that was being made when it came.

What a reader may not see leaves the server neither as a record nor as bytes: records that were deleted, evicted or have
expired are flagged 0xD5 and their text is blanked. Small Blocks are merged, so that the cost of a scan does not depend
on how the records were written.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge as merge_sorted
from typing import Any, Final, TypeVar

from topics.engine import Engine
from topics.engine.log.difference import Tombstone, gap_at
from topics.engine.log.log import Log
from topics.engine.log.loss import RECREATED
from topics.engine.topic import Topic
from topics.errors import InvalidRequest
from topics.server.api.answers import answer, encoded
from topics.server.api.attempts import Attempts
from topics.server.api.shapes import BlocksHeader, Gap, Lost, Plan, SealedSegment
from topics.server.http.account import Account
from topics.server.http.exchange import Exchange
from topics.server.http.query import Query
from topics.server.http.reply import prefix
from topics.storage.block import Block, Extent
from topics.storage.flags import DELETED, deleted_runs
from topics.storage.segment.segment import Segment
from topics.storage.splice import blanked, cut, merge

MAGIC: Final = b"TBKS"
CONTENT_TYPE: Final = b"application/octet-stream"
BYTES_DEFAULT: Final = 1 << 20
BYTES_MAX: Final = 8 << 20
LIMIT_MAX: Final = 100_000
TURNS_BETWEEN: Final = 2
GAPS_MAX: Final = 1000
DELETED_RUNS_MAX: Final = 1000
DELETED_ENTRIES_MAX: Final = 4000
MERGE_BELOW_RECORDS: Final = 256
MERGED_RECORDS: Final = 1024
MERGED_BYTES: Final = 256 * 1024
WHOLE_BYTES_MAX: Final = 2 << 20
PART_BYTES: Final = 1 << 20
"""A Block over the first, which is a write of tens of MiB, is sent in Blocks of about the second."""

_LEAD: Final = struct.Struct("<4sI")
_TS_MAX: Final = 2**63 - 1

T = TypeVar("T")


class BlockHandlers:
    """Answers the routes that a scan uses."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, attempts: Attempts, account: Account) -> None:
        self._account = account
        self._engine = engine
        self._loop = loop
        self._attempts = attempts
        self._waiting: deque[Exchange] = deque()

    def plan(self, exchange: Exchange) -> None:
        """`GET /v0/topics/:topic/plan`."""
        answer(exchange, 200, self._readable(exchange, _plan))

    def blocks(self, exchange: Exchange) -> None:
        """`GET /v0/topics/:topic/blocks`."""
        if not self._waiting:
            self._loop.call_soon(self._next)
        self._waiting.append(exchange)

    def _next(self, turns: int = TURNS_BETWEEN) -> None:
        if turns:
            self._loop.call_soon(self._next, turns - 1)
            return
        exchange = self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._next)
        self._attempts.handle(exchange, self._answer)

    def _answer(self, exchange: Exchange) -> None:
        if self._account.full:
            raise self._account.refusal()
        bytes_max = min(BYTES_MAX, self._account.share_bytes())
        fields, chunks = self._readable(exchange, partial(_blocks, bytes_max))
        header = encoded(exchange, fields)
        body = (_LEAD.pack(MAGIC, len(header)), header, *chunks)
        size = sum(map(len, body))
        exchange.respond_raw(b"".join((prefix(200, CONTENT_TYPE), b"%d\r\n\r\n" % size, *body)))

    def _readable(self, exchange: Exchange, look: Callable[[Topic, Query], T]) -> T:
        """What `look` finds in the topic asked for, its router and its TTL applied. May raise Miss.

        A scan is not a consumer: it does not count as a read.
        """
        route = exchange.head.route
        topic = self._engine.topic(route.name)
        topic.catch_up()
        topic.expire(self._engine.clock.now_ms())
        return topic.reading(look, topic, route.query)


def _plan(topic: Topic, query: Query) -> Plan:
    log = topic.log
    asked: dict[str, Any] = {}
    for name, resolve in (("from_ts", log.cursor_at_ts), ("to_ts", lambda ts: log.seq_at_ts(ts) - 1)):
        if query.has(name):
            asked[f"{name}_seq"] = resolve(min(query.number(name, 0), _TS_MAX))
    from_seq, to_seq = query.number("from_seq", 0), query.number("to_seq", log.head)
    if query.has("from_seq"):
        asked["gaps"] = list(_gaps(log, from_seq, to_seq))
    if query.flag("deleted", False):
        asked["deleted"], asked["deleted_to_seq"] = _deleted(log, from_seq, to_seq)
    if query.flag("segments", False):
        found = (_segment(segment) for segment in topic.archive.segments)
        asked["segments"] = [segment for segment in found if segment is not None]
    lost = [Lost(lost.first, lost.last, lost.reason) for lost in log.lost]
    return Plan(**_floors(topic), count=log.count, bytes=log.bytes, lost=lost, **asked)


def _segment(segment: Segment) -> SealedSegment | None:
    """Where a sealed segment is and what was deleted from it; None where that is too much to list.

    The flags after the Blocks of the file may be out of date, because they are written by a later job.
    """
    deleted: list[tuple[int, int]] = []
    for sealed in segment.blocks:
        if sealed.flags is not None:
            deleted += [(sealed.first_seq + i, sealed.first_seq + j - 1) for i, j in deleted_runs(sealed.flags)]
            if len(deleted) > DELETED_RUNS_MAX:
                return None
    first_seq, last_seq = segment.first_seq, segment.last_seq
    return SealedSegment(first_seq, last_seq, segment.name.data_file, segment.is_cold, segment.data_bytes, deleted)


def _deleted(log: Log, from_seq: int, to_seq: int) -> tuple[list[tuple[int, int]], int]:
    """The runs of seqs in (from_seq, to_seq] that clients deleted, and up to which seq this answer knows.

    What was deleted below `evict_floor` is not known any more. A lost range is not a delete. An answer ends after a
    bounded number of runs and entries; the next one goes on from there.
    """
    runs: list[tuple[int, int]] = []
    cursor = max(from_seq, log.evict_floor - 1)
    to_seq = min(to_seq, log.head)
    k = log.index_of(cursor + 1)
    stop = k + DELETED_ENTRIES_MAX
    if stop < len(log.entries):
        to_seq = min(to_seq, log.firsts[stop] - 1)
    lost = ((found.first, found.last) for found in log.lost if found.last > cursor)
    for first, last in merge_sorted(lost, _live(log, k, stop)):
        if first > to_seq:
            break
        if first > cursor + 1:
            runs.append((cursor + 1, first - 1))
        cursor = max(cursor, min(last, to_seq))
        if len(runs) == DELETED_RUNS_MAX:
            return runs, cursor
    if cursor < to_seq:
        runs.append((cursor + 1, to_seq))
    return runs, max(to_seq, from_seq)


def _live(log: Log, k: int, stop: int) -> Iterator[tuple[int, int]]:
    for entry in log.entries[k:stop]:
        first = entry.first_seq
        for i, j in entry.live_runs(max(0, log.start - first), entry.n):
            yield first + i, first + j - 1


def _blocks(bytes_max: int, topic: Topic, query: Query) -> tuple[BlocksHeader, list[bytes]]:
    log = topic.log
    from_seq = query.number("from_seq", 0)
    limit = min(query.number("limit", LIMIT_MAX, least=1), LIMIT_MAX)
    bytes_max = min(query.number("bytes", BYTES_DEFAULT, least=1), bytes_max)
    to_seq = query.number("to_seq", log.head)
    if query.has("to_seq") and to_seq < from_seq:
        raise InvalidRequest(f"to_seq {to_seq} is before from_seq {from_seq}", field="to_seq", from_seq=from_seq)
    tombstone, cursor = gap_at(log, from_seq)
    chunks, next_from_seq, sent = _scan(log, cursor, max(to_seq, cursor), limit, bytes_max)
    header = BlocksHeader(
        **_floors(topic),
        from_seq=from_seq,
        next_from_seq=next_from_seq,
        caught_up=next_from_seq >= log.head,
        tombstone=None if tombstone is None else _gap(tombstone, tombstone.gap_to),
        blocks=sent,
    )
    return header, chunks


def _floors(topic: Topic) -> dict[str, Any]:
    log = topic.log
    return {
        "topic": topic.name,
        "epoch": topic.id,
        "head_seq": log.head,
        "earliest_seq": log.start,
        "evict_floor": log.evict_floor,
    }


def _gap(tombstone: Tombstone, gap_to: int) -> Gap:
    return Gap(tombstone.gap_from, gap_to, tombstone.reason, max(0, gap_to - tombstone.gap_from + 1))


def _gaps(log: Log, from_seq: int, to_seq: int) -> Iterator[Gap]:
    """The gaps that a cursor meets on its way from `from_seq` to `to_seq`, cut to that range."""
    cursor = from_seq
    for _ in range(GAPS_MAX):
        tombstone, after = gap_at(log, cursor)
        if tombstone is not None:
            if tombstone.reason == RECREATED:
                yield _gap(tombstone, tombstone.gap_to)
                return
            yield _gap(tombstone, min(tombstone.gap_to, to_seq))
        cursor = max(after, log.lost_after(after) - 1)
        if cursor >= min(to_seq, log.head):
            return


def _scan(log: Log, cursor: int, to_seq: int, limit: int, bytes_max: int) -> tuple[list[bytes], int, int]:
    """Encoded Blocks after `cursor`, the cursor after them, and how many Blocks. May raise Miss."""
    stop = min(to_seq, log.lost_after(cursor) - 1, log.head)
    seq = max(cursor + 1, log.start)
    chunks: list[bytes] = []
    sent = records = size = 0
    for group in _groups(log, seq, stop):
        for block, flags in _readable(group, log.start, seq):
            raw = blanked(block, flags) if DELETED in flags else block.raw
            chunks += (raw, flags)
            sent += 1
            records += block.n
            size += len(raw) + block.n
            if size >= bytes_max or records >= limit or block.last_seq >= stop:
                return chunks, min(block.last_seq, stop), sent
    return chunks, max(stop, cursor), sent


def _groups(log: Log, seq: int, stop: int) -> Iterator[list[Extent]]:
    """The entries with live records from `seq` to `stop`; neighbours that are small come together."""
    entries = log.entries
    group: list[Extent] = []
    records = size = 0
    k = log.index_of(seq) if seq <= stop else len(entries)
    while k < len(entries) and entries[k].first_seq <= stop:
        entry = entries[k]
        k += 1
        small = entry.n < MERGE_BELOW_RECORDS and isinstance(entry, Block) and entry.live_bytes < MERGED_BYTES
        fits = records + entry.n <= MERGED_RECORDS and size < MERGED_BYTES
        if group and not (small and fits and entry.first_seq == group[-1].last_seq + 1):
            yield group
            group, records, size = [], 0, 0
        if not entry.live:
            continue
        if not small:
            yield [entry]
            continue
        group.append(entry)
        records += entry.n
        size += entry.live_bytes
    if group:
        yield group


def _readable(group: list[Extent], start: int, seq: int) -> Iterator[tuple[Block, bytes]]:
    """One Block of these entries, and its flags with all that is gone; a large one in parts, from `seq` on."""
    # A scan reads everything once: it must not evict what others read again and again.
    block = merge([entry.block(keep=False) for entry in group])
    flags = bytearray().join([bytes(entry.n) if entry.flags is None else entry.flags for entry in group])
    trimmed = max(0, start - block.first_seq)
    flags[:trimmed] = bytes((DELETED,)) * trimmed
    if len(block.raw) <= WHOLE_BYTES_MAX:
        yield block, bytes(flags)
        return
    i = max(0, seq - block.first_seq)
    while i < block.n:
        j = block.fitting(i, block.n, PART_BYTES)
        yield cut(block, i, j), bytes(flags[i:j])
        i = j
