"""Blocks taken apart and put together by column, without a look at single records.

A Block holds each column as one piece of bytes (block.py, which has the layout), so joining Blocks joins their columns,
giving a Block to another topic changes its header, and blanking records overwrites ranges of four columns. The cost is
per Block and not per record. Every result is sealed with a checksum of its own.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from topics.storage.block import (
    BITS_AT,
    CHECKSUM_BYTES,
    ERASED,
    HAS_META,
    HAS_NODE,
    HAS_TAG,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PLAIN,
    RECORD_FRAMING_BYTES,
    SINGLE_DATA_AT,
    VERSION,
    Block,
    check,
    measure,
)
from topics.storage.flags import DELETED, deleted_runs

_CHECKSUM = struct.Struct("<Q")
_ALWAYS: Final = 0x100
# From this length on a run of dead records is left out, and what is around it becomes two Blocks: below, keeping the
# places of the dead costs less than another Block.
LEAVE_OUT_RECORDS: Final = 64
# The bit, the width and the absent value of each column of lengths, in the order in which a Block has them.
_LENGTHS: Final = ((HAS_NODE, 2, b"\xff\xff"), (HAS_TAG, 2, b"\xff\xff"), (HAS_META, 4, bytes(4)), (_ALWAYS, 4, b""))
_SINGLE_TS: Final = slice(HEADER_BYTES, HEADER_BYTES + 8)
_SINGLE_LENGTH: Final = slice(HEADER_BYTES + 8, SINGLE_DATA_AT[0])
_SINGLE_DATA: Final = slice(*SINGLE_DATA_AT)


class Spans(NamedTuple):
    """Where the columns of one Block are inside a buffer. Nothing is copied.

    The numbers are offsets; that of a column of lengths which the Block does not have is 0. Each text column is
    (begin, end).
    """

    buffer: memoryview
    first_seq: int
    n: int
    ts: int
    node_lengths: int
    tag_lengths: int
    meta_lengths: int
    data_lengths: int
    node: tuple[int, int]
    tag: tuple[int, int]
    meta: tuple[int, int]
    data: tuple[int, int]
    flags: bytes | memoryview


def walk(buffer: memoryview, at: int = 0, first: int = 0, last: int | None = None) -> Iterator[Spans]:
    """The Blocks from `at` to the end of a buffer. Raises BlockError.

    Those with seqs from `first` to `last` are checked against their checksums; of the others only their place is known.
    """
    while at < len(buffer):
        header, checksum = measure(buffer, at, with_flags=True)
        if header[7] + header[4] > first and (last is None or header[7] <= last):
            check(buffer, at, with_flags=True)
        _, _, bits, _, n, _, _, first_seq, node_bytes, tag_bytes, meta_bytes, _ = header
        ts = at + HEADER_BYTES
        lengths = ts + 8 * n
        starts: list[int] = []
        for bit, width, _ in _LENGTHS[:3]:
            starts.append(lengths if bits & bit else 0)
            lengths += width * n if bits & bit else 0
        node = lengths + 4 * n
        tag = node + node_bytes
        meta = tag + tag_bytes
        data = meta + meta_bytes
        at = checksum + CHECKSUM_BYTES + n
        yield Spans(
            buffer, first_seq, n, ts, starts[0], starts[1], starts[2], lengths,
            (node, tag), (tag, meta), (meta, data), (data, checksum), buffer[at - n : at],
        )  # fmt: skip


def merge(found: Iterable[Block]) -> Block:
    """One Block with the records of consecutive ones of one topic, flags kept."""
    found = list(found)
    if len(found) == 1:
        return found[0]
    bits = PLAIN
    for own in {block.raw[BITS_AT] for block in found}:
        bits = bits | (own & ~PLAIN) if own & PLAIN else (bits | own) & ~PLAIN
    parts = _MergedColumns(bits)
    n = sum([block.n for block in found])
    assert found[-1].last_seq == found[0].first_seq + n - 1, "only consecutive blocks merge"
    if n == len(found) and bits == PLAIN:
        parts.add_singles([block.raw for block in found])
    else:
        for block in found:
            parts.add(block.raw)
    node, tag, meta, data = (b"".join(texts) for texts in parts.texts)
    sizes = len(node), len(tag), len(meta), len(data)
    header = HEADER.pack(MAGIC, VERSION, bits, 0, n, 0, found[0].topic_id, found[0].first_seq, *sizes)
    columns = [b"".join(column) for column in (parts.ts, *parts.lengths)]
    raw = _seal(b"".join((header, *columns, node, tag, meta, data)))
    size_bytes = sum(sizes) + RECORD_FRAMING_BYTES * n
    merged = Block(raw, found[0].first_seq, n, found[0].first_ts, found[-1].last_ts, size_bytes)
    if any(block.flags is not None for block in found):
        merged.set_flags(b"".join(bytes(block.n) if block.flags is None else bytes(block.flags) for block in found))
    return merged


def readdress(block: Block, topic_id: int, first_seq: int, ts_min: int) -> Block:
    """The same records as another topic's, from `first_seq` on, none dated before `ts_min`, none deleted."""
    raw, n = block.raw, block.n
    header = HEADER.unpack_from(raw)
    head = HEADER.pack(*header[:6], topic_id, first_seq, *header[8:])
    if block.first_ts >= ts_min:
        first_ts, last_ts = block.first_ts, block.last_ts
        body = head + raw[HEADER_BYTES:-CHECKSUM_BYTES]
    else:
        times = array("q", [max(ts, ts_min) for ts in block.columns.ts])
        first_ts, last_ts = times[0], times[-1]
        body = b"".join((head, times.tobytes(), raw[HEADER_BYTES + 8 * n : -CHECKSUM_BYTES]))
    return Block(_seal(body), first_seq, n, first_ts, last_ts, sum(header[8:]) + RECORD_FRAMING_BYTES * n)


def blanked(block: Block, flags: bytes | bytearray) -> bytes:
    """The bytes of a Block with spaces for every text of the records that `flags` has as deleted."""
    raw = bytearray(block.raw)
    columns = block.columns
    for i, j in deleted_runs(flags):
        for at in (columns.node_at, columns.tag_at, columns.meta_at, columns.data_at):
            if at is not None:
                raw[at[i] : at[j]] = b" " * (at[j] - at[i])
    return _seal(bytes(memoryview(raw)[:-CHECKSUM_BYTES]))


def erased(block: Block, dead: bytes | bytearray, i: int = 0, j: int | None = None) -> Block:
    """The records [i, j) as a Block of their own, deleted as `dead` says, and without text where they are."""
    j = block.n if j is None else j
    raw, columns = block.raw, block.columns
    flags = bytes(dead[i:j])
    gone = list(deleted_runs(flags))
    bits = block.bits | ERASED if gone else block.bits
    live = [(b + i, a + i) for (_, b), (a, _) in pairwise([(0, 0), *gone, (j - i, 0)]) if b < a]
    at = HEADER_BYTES
    lengths = [raw[at + 8 * i : at + 8 * j]]
    at += 8 * block.n
    for bit, width, absent in _LENGTHS:
        if (bits | _ALWAYS) & bit:
            column = bytearray(raw[at + width * i : at + width * j])
            for a, b in gone:
                column[width * a : width * b] = (absent or bytes(4)) * (b - a)
            lengths.append(bytes(column))
            at += width * block.n
    texts = [
        b"" if at is None else b"".join([raw[at[a] : at[b]] for a, b in live])
        for at in (columns.node_at, columns.tag_at, columns.meta_at, columns.data_at)
    ]
    sizes = [len(text) for text in texts]
    header = HEADER.pack(MAGIC, VERSION, bits, 0, j - i, 0, block.topic_id, block.first_seq + i, *sizes)
    size_bytes = sum(sizes) + RECORD_FRAMING_BYTES * (j - i)
    first_ts, last_ts = (block.first_ts if i == 0 else columns.ts[i]), block.ts_at(j - 1)
    made = Block(_seal(b"".join((header, *lengths, *texts))), block.first_seq + i, j - i, first_ts, last_ts, size_bytes)
    made.set_flags(flags)
    return made


def cut(block: Block, i: int, j: int) -> Block:
    """The records [i, j) as a Block of their own, none of them deleted."""
    return erased(block, bytes(block.n), i, j)


def without(block: Block, dead: bytes | bytearray) -> list[Block]:
    """The records of a Block without the dead: their text is erased, and long runs of them are left out altogether."""
    if DELETED not in dead:
        return [block]
    ends = [(0, 0), *((a, b) for a, b in deleted_runs(dead) if b - a >= LEAVE_OUT_RECORDS), (block.n, 0)]
    pieces = [(b, a) for (_, b), (a, _) in pairwise(ends) if b < a and dead.count(DELETED, b, a) < a - b]
    return [erased(block, dead, i, j) for i, j in pieces]


def _seal(body: bytes) -> bytes:
    return body + _CHECKSUM.pack(xxh3_64_intdigest(body))


class _MergedColumns:
    """The columns of several Blocks, gathered piece by piece; a column that a Block lacks is filled as absent."""

    __slots__ = ("bits", "lengths", "texts", "ts")

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.ts: list[bytes] = []
        self.lengths: tuple[list[bytes], ...] = ([], [], [], [])
        self.texts: tuple[list[bytes], ...] = ([], [], [], [])

    def add_singles(self, raws: list[bytes]) -> None:
        """Append Blocks of one record each, none with an optional column: what small writes leave."""
        self.ts += [raw[_SINGLE_TS] for raw in raws]
        self.lengths[3].extend([raw[_SINGLE_LENGTH] for raw in raws])
        self.texts[3].extend([raw[_SINGLE_DATA] for raw in raws])

    def add(self, raw: bytes) -> None:
        """Append the columns of the Block with these bytes."""
        _, _, own, _, n, _, _, _, *sizes = HEADER.unpack_from(raw)
        at = HEADER_BYTES + 8 * n
        self.ts.append(raw[HEADER_BYTES:at])
        for k, (bit, width, absent) in enumerate(_LENGTHS):
            if (own | _ALWAYS) & bit:
                self.lengths[k].append(raw[at : at + width * n])
                at += width * n
            elif self.bits & bit:
                self.lengths[k].append(absent * n)
        for k, size in enumerate(sizes):
            if size:
                self.texts[k].append(raw[at : at + size])
                at += size
