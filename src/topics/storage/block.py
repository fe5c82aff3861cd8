"""Block: n consecutive records of one topic, stored by column.

A write request becomes one Block, or part of one, so its atomicity is the checksum's: all of it is there or none. The
same bytes are the payload of a WAL append frame, the tail of a topic in memory and the content of a sealed segment, so
recovery, reading, sealing and the Spark scan share this one codec and work on whole columns instead of record by
record.

Layout, little-endian, no padding:

    offset  size       field
    0       4          magic "TBLK"
    4       1          version, 1
    5       1          columns: bit 0 node, bit 1 tag, bit 2 meta; bit 3 "plain" (see below)
    6       2          reserved, 0
    8       4          n, the number of records, at least 1
    12      4          reserved, 0
    16      8          topic id
    24      8          first seq; record i has seq first_seq + i
    32      4 x 4      bytes of the node, tag, meta and data column
    48      8 x n      ts, signed, non-decreasing
    ..      2 x n      node lengths, 0xFFFF absent   (only with bit 0)
    ..      2 x n      tag lengths, 0xFFFF absent    (only with bit 1)
    ..      4 x n      meta lengths, 0 absent        (only with bit 2)
    ..      4 x n      data lengths, at least 1
    ..                 node, tag, meta, data bytes, each column back to back
    ..      8          XXH3-64 (seed 0) of everything above, as an unsigned integer
    ..      n          delete flags: 0xD5 deleted, anything else live

The flags stand behind the checksum, so flipping one in place touches a single byte that no checksum covers, and a torn
flip reads as live. An optional column that no record uses is left out, so that the common small write stays small.
"plain" says that no node and no tag needs escaping inside a JSON string, so that a reader may copy them as they are.

`node` and `tag` are stored as UTF-8 text, `meta` and `data` as the JSON text that the client sent.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

from xxhash import xxh3_64_intdigest

MAGIC: Final = b"TBLK"
VERSION: Final = 1
HEADER: Final = struct.Struct("<4sBBHIIQQIIII")
HEADER_BYTES: Final = HEADER.size
CHECKSUM_BYTES: Final = 8
DELETED: Final = 0xD5
ABSENT: Final = 0xFFFF

HAS_NODE: Final = 1
HAS_TAG: Final = 2
HAS_META: Final = 4
PLAIN: Final = 8

# What one record costs beyond its own text: ts, four lengths and the delete flag. `bytes` and `cap_bytes` count it.
RECORD_FRAMING_BYTES: Final = 21

_CHECKSUM = struct.Struct("<Q")
_TS = struct.Struct("<q")
_ONE = struct.Struct("<4sBBHIIQQIIIIqI")
_NEEDS_ESCAPE = re.compile(rb'[\x00-\x1f"\\]')

assert HEADER_BYTES == 48


class BlockError(Exception):
    """The bytes are not a valid Block."""


class Columns:
    """The decoded columns of a Block. `*_at` holds n + 1 offsets into the Block's bytes: text i is [at[i], at[i+1])."""

    __slots__ = ("data_at", "meta_at", "node_at", "node_len", "tag_at", "tag_len", "ts")

    def __init__(self, raw: bytes) -> None:
        _, _, bits, _, n, _, _, _, node_bytes, tag_bytes, meta_bytes, _ = HEADER.unpack_from(raw)
        at = HEADER_BYTES
        self.ts = _column("q", raw, at, n)
        at += 8 * n
        self.node_len = self.tag_len = meta_len = None
        if bits & HAS_NODE:
            self.node_len = _column("H", raw, at, n)
            at += 2 * n
        if bits & HAS_TAG:
            self.tag_len = _column("H", raw, at, n)
            at += 2 * n
        if bits & HAS_META:
            meta_len = _column("I", raw, at, n)
            at += 4 * n
        data_len = _column("I", raw, at, n)
        at += 4 * n
        self.node_at = _offsets_with_absent(self.node_len, at)
        at += node_bytes
        self.tag_at = _offsets_with_absent(self.tag_len, at)
        at += tag_bytes
        self.meta_at = None if meta_len is None else list(accumulate(meta_len, initial=at))
        at += meta_bytes
        self.data_at = list(accumulate(data_len, initial=at))


def _column(code: str, raw: bytes, at: int, n: int) -> array[int]:
    column = array(code)
    column.frombytes(memoryview(raw)[at : at + n * column.itemsize])
    return column


def _offsets_with_absent(lengths: array[int] | None, at: int) -> list[int] | None:
    if lengths is None:
        return None
    return list(accumulate((0 if length == ABSENT else length for length in lengths), initial=at))


class Extent:
    """A run of consecutive records as retention sees it: seqs, times, delete flags and running totals, no content.

    `Block` is an Extent with its content in memory; a sealed one is an Extent whose content has to be read. `flags` is
    None while nothing is deleted. `live` and `live_bytes` count the records that are not deleted; a log that has
    trimmed part of its first Extent keeps that apart.
    """

    __slots__ = ("first_seq", "first_ts", "flags", "last_ts", "live", "live_bytes", "n")

    def __init__(self, first_seq: int, n: int, first_ts: int, last_ts: int, size_bytes: int) -> None:
        self.first_seq = first_seq
        self.n = n
        self.first_ts = first_ts
        self.last_ts = last_ts
        self.flags: bytearray | None = None
        self.live = n
        self.live_bytes = size_bytes

    @property
    def last_seq(self) -> int:
        """The seq of the last record."""
        return self.first_seq + self.n - 1

    def block(self, *, keep: bool = True) -> Block:
        """The content. What has to be read for it is kept for the next reader, unless this one only passes by."""
        raise AssertionError("an Extent knows its content only in a subclass")

    def size_bytes(self, i: int, j: int) -> int:
        """What the records [i, j) count towards `bytes`, deleted or not."""
        raise AssertionError("an Extent knows its sizes only in a subclass")

    def ts_index(self, cutoff: int) -> int:
        """The index of the first record whose ts is at least `cutoff`, or n."""
        raise AssertionError("an Extent knows its times only in a subclass")

    def ts_at(self, i: int) -> int:
        """The ts of record i."""
        raise AssertionError("an Extent knows its times only in a subclass")

    def live_in(self, i: int, j: int) -> tuple[int, int]:
        """How many of the records [i, j) are live, and their bytes."""
        flags = self.flags
        if i == 0 and j == self.n:
            return self.live, self.live_bytes
        if i >= j:
            return 0, 0
        if flags is None or flags.find(DELETED, i, j) < 0:
            return j - i, self.size_bytes(i, j)
        count = size = 0
        for a, b in self.live_runs(i, j):
            count += b - a
            size += self.size_bytes(a, b)
        return count, size

    def live_runs(self, i: int, j: int) -> Iterator[tuple[int, int]]:
        """The runs of live records within [i, j)."""
        flags = self.flags
        if flags is None:
            if i < j:
                yield i, j
            return
        while i < j:
            while i < j and flags[i] == DELETED:
                i += 1
            if i == j:
                return
            end = flags.find(DELETED, i, j)
            end = j if end < 0 else end
            yield i, end
            i = end

    def next_live(self, i: int) -> int:
        """The index of the first live record at or after i, or n."""
        flags = self.flags
        if flags is None:
            return i
        while i < self.n and flags[i] == DELETED:
            i += 1
        return i

    def last_live(self, j: int) -> int:
        """The index of the last live record before j, or -1."""
        flags = self.flags
        j -= 1
        while flags is not None and j >= 0 and flags[j] == DELETED:
            j -= 1
        return j

    def delete(self, i: int, j: int) -> tuple[int, int]:
        """Flag the records [i, j) deleted; how many of them were live, and their bytes."""
        count, size = self.live_in(i, j)
        if count:
            if self.flags is None:
                self.flags = bytearray(self.n)
            self.flags[i:j] = bytes((DELETED,)) * (j - i)
            self.live -= count
            self.live_bytes -= size
        return count, size

    def set_flags(self, flags: bytes) -> None:
        """Take delete flags as they were read; anything but the sentinel is live."""
        assert len(flags) == self.n
        if DELETED in flags:
            for i, flag in enumerate(flags):
                if flag == DELETED:
                    self.delete(i, i + 1)


class Block(Extent):
    """One immutable Block in memory. `raw` is the body and its checksum, without the flags."""

    __slots__ = ("_columns", "raw")

    def __init__(self, raw: bytes, first_seq: int, n: int, first_ts: int, last_ts: int, size_bytes: int) -> None:
        self.raw = raw
        self.first_seq = first_seq
        self.n = n
        self.first_ts = first_ts
        self.last_ts = last_ts
        self.flags = None
        self.live = n
        self.live_bytes = size_bytes
        self._columns: Columns | None = None

    @property
    def columns(self) -> Columns:
        """The decoded columns, kept once decoded."""
        columns = self._columns
        if columns is None:
            columns = self._columns = Columns(self.raw)
        return columns

    @property
    def bits(self) -> int:
        """Which optional columns there are, and whether node and tag are plain."""
        return self.raw[5]

    def block(self, *, keep: bool = True) -> Block:
        """Itself."""
        return self

    def forget_columns(self) -> None:
        """Drop what was decoded; it is decoded again when next needed."""
        self._columns = None

    def data(self, i: int) -> bytes:
        """The JSON text of record i's data."""
        at = self.columns.data_at
        return self.raw[at[i] : at[i + 1]]

    def meta(self, i: int) -> bytes | None:
        """The JSON text of record i's meta, or None."""
        at = self.columns.meta_at
        return None if at is None else self.raw[at[i] : at[i + 1]] or None

    def node(self, i: int) -> bytes | None:
        """Record i's origin node, or None."""
        columns = self.columns
        if columns.node_len is None or columns.node_len[i] == ABSENT:
            return None
        assert columns.node_at is not None
        return self.raw[columns.node_at[i] : columns.node_at[i + 1]]

    def tag(self, i: int) -> bytes | None:
        """Record i's tag, or None."""
        columns = self.columns
        if columns.tag_len is None or columns.tag_len[i] == ABSENT:
            return None
        assert columns.tag_at is not None
        return self.raw[columns.tag_at[i] : columns.tag_at[i + 1]]

    def nodes(self) -> list[bytes | None]:
        """The node column."""
        return [None] * self.n if not self.bits & HAS_NODE else [self.node(i) for i in range(self.n)]

    def tags(self) -> list[bytes | None]:
        """The tag column."""
        return [None] * self.n if not self.bits & HAS_TAG else [self.tag(i) for i in range(self.n)]

    def metas(self) -> list[bytes | None]:
        """The meta column."""
        return [None] * self.n if not self.bits & HAS_META else [self.meta(i) for i in range(self.n)]

    def datas(self) -> list[bytes]:
        """The data column."""
        raw = self.raw
        return [raw[a:b] for a, b in pairwise(self.columns.data_at)]

    def size_bytes(self, i: int, j: int) -> int:
        """What the records [i, j) count towards `bytes`, deleted or not."""
        if i == 0 and j == self.n:
            text_bytes: int = sum(HEADER.unpack_from(self.raw)[8:])
            return text_bytes + RECORD_FRAMING_BYTES * j
        columns = self.columns
        total: int = columns.data_at[j] - columns.data_at[i] + RECORD_FRAMING_BYTES * (j - i)
        for at in (columns.node_at, columns.tag_at, columns.meta_at):
            if at is not None:
                total += at[j] - at[i]
        return total

    def ts_index(self, cutoff: int) -> int:
        """The index of the first record whose ts is at least `cutoff`, or n."""
        return bisect_left(self.columns.ts, cutoff)

    def ts_at(self, i: int) -> int:
        """The ts of record i."""
        return self.last_ts if i == self.n - 1 else self.columns.ts[i]

    def encoded(self) -> bytes:
        """The Block as it stands in a file, flags included."""
        return self.raw + (bytes(self.n) if self.flags is None else bytes(self.flags))


def encode(
    topic_id: int,
    first_seq: int,
    ts: int | Sequence[int],
    datas: Sequence[bytes],
    nodes: Sequence[bytes | None] | None = None,
    tags: Sequence[bytes | None] | None = None,
    metas: Sequence[bytes | None] | None = None,
) -> Block:
    """The Block of these records. `datas` may hold any bytes-like objects; a column that is None is left out."""
    n = len(datas)
    assert n > 0, "a Block holds at least one record"
    if n == 1 and nodes is None and tags is None and metas is None and isinstance(ts, int):
        data = datas[0]
        size = len(data)
        body = _ONE.pack(MAGIC, VERSION, PLAIN, 0, 1, 0, topic_id, first_seq, 0, 0, 0, size, ts, size) + data
        raw = body + _CHECKSUM.pack(xxh3_64_intdigest(body))
        return Block(raw, first_seq, 1, ts, ts, size + RECORD_FRAMING_BYTES)
    if isinstance(ts, int):
        first_ts = last_ts = ts
        ts_column = _TS.pack(ts) * n
    else:
        first_ts, last_ts = ts[0], ts[-1]
        ts_column = array("q", ts).tobytes()
    bits = PLAIN
    lengths: list[bytes] = []
    texts: list[bytes] = []
    sizes = [0, 0, 0]
    for k, (bit, column) in enumerate(((HAS_NODE, nodes), (HAS_TAG, tags))):
        if column is None:
            continue
        bits |= bit
        lengths.append(array("H", [ABSENT if text is None else len(text) for text in column]).tobytes())
        joined = b"".join([text for text in column if text])
        if bits & PLAIN and _NEEDS_ESCAPE.search(joined):
            bits &= ~PLAIN
        texts.append(joined)
        sizes[k] = len(joined)
    if metas is not None:
        bits |= HAS_META
        lengths.append(array("I", [len(meta) if meta else 0 for meta in metas]).tobytes())
        joined = b"".join([meta for meta in metas if meta])
        texts.append(joined)
        sizes[2] = len(joined)
    data_lengths = list(map(len, datas))
    data_bytes = sum(data_lengths)
    header = HEADER.pack(MAGIC, VERSION, bits, 0, n, 0, topic_id, first_seq, *sizes, data_bytes)
    body = b"".join((header, ts_column, *lengths, array("I", data_lengths).tobytes(), *texts, *datas))
    raw = body + _CHECKSUM.pack(xxh3_64_intdigest(body))
    return Block(raw, first_seq, n, first_ts, last_ts, sum(sizes) + data_bytes + RECORD_FRAMING_BYTES * n)


def body_bytes(header: tuple[Any, ...]) -> int:
    """How many bytes the body takes whose unpacked header this is."""
    bits, n = header[2], header[4]
    per_record = 12 + (2 if bits & HAS_NODE else 0) + (2 if bits & HAS_TAG else 0) + (4 if bits & HAS_META else 0)
    total: int = HEADER_BYTES + per_record * n + sum(header[8:])
    return total


def decode(buffer: bytes | memoryview, at: int = 0, *, with_flags: bool = True) -> tuple[Block, int]:
    """The Block that starts at `at`, checked against its checksum, and the offset behind it. Raises BlockError."""
    if len(buffer) - at < HEADER_BYTES:
        raise BlockError(f"{len(buffer) - at} bytes at offset {at}: too short for a block header")
    header = HEADER.unpack_from(buffer, at)
    magic, version, _, _, n, _, _, first_seq = header[:8]
    if magic != MAGIC or n == 0:
        raise BlockError(f"no block at offset {at}")
    if version != VERSION:
        raise BlockError(f"block format version {version} at offset {at}; this program reads version {VERSION}")
    body = body_bytes(header)
    end = at + body + CHECKSUM_BYTES
    if end + (n if with_flags else 0) > len(buffer):
        raise BlockError(f"the block at offset {at} ends behind the buffer")
    # Bytes that are this Block and nothing else are taken as they are: a read of a sealed Block copies nothing.
    raw = buffer if isinstance(buffer, bytes) and end - at == len(buffer) else bytes(memoryview(buffer)[at:end])
    (checksum,) = _CHECKSUM.unpack_from(raw, body)
    if checksum != xxh3_64_intdigest(memoryview(raw)[:body]):
        raise BlockError(f"the checksum of the block at offset {at} does not match")
    (first_ts,) = _TS.unpack_from(raw, HEADER_BYTES)
    (last_ts,) = _TS.unpack_from(raw, HEADER_BYTES + 8 * (n - 1))
    size_bytes = sum(header[8:]) + RECORD_FRAMING_BYTES * n
    block = Block(raw, first_seq, n, first_ts, last_ts, size_bytes)
    if with_flags:
        block.set_flags(bytes(memoryview(buffer)[end : end + n]))
        end += n
    return block, end


def topic_id_of(block: Block) -> int:
    """The id of the topic whose records these are."""
    topic_id: int = HEADER.unpack_from(block.raw)[6]
    return topic_id


def merge(blocks: Iterable[Block]) -> Block:
    """One Block with the records of consecutive ones of one topic, flags kept.

    Works by column: the bytes of each column are joined as they are, so the cost is per Block and not per record.
    """
    blocks = list(blocks)
    if len(blocks) == 1:
        return blocks[0]
    bits = PLAIN
    for own in {block.raw[5] for block in blocks}:
        bits = bits | (own & ~PLAIN) if own & PLAIN else (bits | own) & ~PLAIN
    parts = _MergedColumns(bits)
    n = sum([block.n for block in blocks])
    assert blocks[-1].last_seq == blocks[0].first_seq + n - 1, "only consecutive blocks merge"
    if n == len(blocks) and bits == PLAIN:
        parts.add_singles([block.raw for block in blocks])
    else:
        for block in blocks:
            parts.add(block.raw)
    node, tag, meta, data = (b"".join(texts) for texts in parts.texts)
    sizes = len(node), len(tag), len(meta), len(data)
    header = HEADER.pack(MAGIC, VERSION, bits, 0, n, 0, topic_id_of(blocks[0]), blocks[0].first_seq, *sizes)
    columns = [b"".join(column) for column in (parts.ts, *parts.lengths)]
    body = b"".join((header, *columns, node, tag, meta, data))
    raw = body + _CHECKSUM.pack(xxh3_64_intdigest(body))
    size_bytes = sum(sizes) + RECORD_FRAMING_BYTES * n
    merged = Block(raw, blocks[0].first_seq, n, blocks[0].first_ts, blocks[-1].last_ts, size_bytes)
    if any(block.flags is not None for block in blocks):
        merged.set_flags(b"".join(bytes(block.n) if block.flags is None else bytes(block.flags) for block in blocks))
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
        column = _column("q", raw, HEADER_BYTES, n)
        times = array("q", [max(ts, ts_min) for ts in column])
        first_ts, last_ts = times[0], times[-1]
        body = b"".join((head, times.tobytes(), raw[HEADER_BYTES + 8 * n : -CHECKSUM_BYTES]))
    copied = body + _CHECKSUM.pack(xxh3_64_intdigest(body))
    return Block(copied, first_seq, n, first_ts, last_ts, sum(header[8:]) + RECORD_FRAMING_BYTES * n)


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
        self.ts += [raw[48:56] for raw in raws]
        self.lengths[3].extend([raw[56:60] for raw in raws])
        self.texts[3].extend([raw[60:-8] for raw in raws])

    def add(self, raw: bytes) -> None:
        """Append the columns of the Block whose body and checksum `raw` is."""
        _, _, own, _, n, _, _, _, *sizes = HEADER.unpack_from(raw)
        at = HEADER_BYTES + 8 * n
        self.ts.append(raw[HEADER_BYTES:at])
        for k, (bit, width, absent) in enumerate(_LENGTH_COLUMNS):
            if (own | _ALWAYS) & bit:
                self.lengths[k].append(raw[at : at + width * n])
                at += width * n
            elif self.bits & bit:
                self.lengths[k].append(absent * n)
        for k, size in enumerate(sizes):
            if size:
                self.texts[k].append(raw[at : at + size])
                at += size


_ALWAYS = 0x100
_LENGTH_COLUMNS = ((HAS_NODE, 2, b"\xff\xff"), (HAS_TAG, 2, b"\xff\xff"), (HAS_META, 4, bytes(4)), (_ALWAYS, 4, b""))
