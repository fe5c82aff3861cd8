"""Block: n consecutive records of one topic, stored by column.

A write request becomes one Block, or part of one, so it is as atomic as the checksum: all of it is there or none. The
same bytes are the payload of a WAL append frame, the tail of a topic in memory and the content of a sealed segment, so
recovery, reading, sealing and the Spark scan share this one codec and work on whole columns instead of record by
record.

docs/storage-format.md has the layout: a header, the columns (ts, the lengths of node, tag, meta and data, then their
texts), a checksum of all of that, and one delete flag per record (flags.py).

The flags come after the checksum: deleting a record in place changes a single byte that no checksum covers. An optional
column that no record uses is left out, so that the common small write stays small. "plain" says that no node and no tag
needs escaping inside a JSON string, so that a reader may copy them as they are. "erased" says that some records have no
data at all, which no record that was written lacks: they are deleted, whatever their flags say, and kept only for their
place in the order of seqs.

`node` and `tag` are stored as UTF-8 text, `meta` and `data` as the JSON text that the client sent.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import accumulate, compress, pairwise
from typing import Any, Final, cast

from xxhash import xxh3_64_intdigest

from topics.storage.flags import DELETED, Flagged

MAGIC: Final = b"TBLK"
VERSION: Final = 1
HEADER: Final = struct.Struct("<4sBBHIIQQIIII")
HEADER_BYTES: Final = HEADER.size
CHECKSUM_BYTES: Final = 8
ABSENT: Final = 0xFFFF
_ABSENT_BYTES: Final = b"\xff\xff"

BITS_AT: Final = 5
HAS_NODE: Final = 1
HAS_TAG: Final = 2
HAS_META: Final = 4
PLAIN: Final = 8
ERASED: Final = 16

# What one record costs beyond its own text: ts, four lengths and the delete flag. `bytes` and `cap_bytes` count it.
RECORD_FRAMING_BYTES: Final = 21

# What a Block of one record without optional columns (n = 1, no bit but "plain") takes beyond the text of its data, and
# where that text is in `raw`, as in `Columns.data_at`.
SINGLE_OVERHEAD_BYTES: Final = HEADER_BYTES + 8 + 4 + CHECKSUM_BYTES
SINGLE_DATA_AT: Final = (SINGLE_OVERHEAD_BYTES - CHECKSUM_BYTES, -CHECKSUM_BYTES)

_CHECKSUM = struct.Struct("<Q")
_TOPIC_ID = struct.Struct("<16xQ")
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
    some_absent = _ABSENT_BYTES in lengths.tobytes()
    return list(accumulate([length % ABSENT for length in lengths] if some_absent else lengths, initial=at))


class Extent(Flagged):
    """A run of consecutive records of a log, with content: in memory (`Block`), or on disk and read when asked for."""

    __slots__ = ()

    def block(self, *, keep: bool = True) -> Block:
        """The content. What is read for it is kept for the next reader, unless `keep` is False."""
        raise NotImplementedError

    def ts_index(self, cutoff: int) -> int:
        """The index of the first record with a ts of at least `cutoff`, or n."""
        raise NotImplementedError

    def ts_at(self, i: int) -> int:
        """The ts of record i."""
        raise NotImplementedError


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
    def topic_id(self) -> int:
        """The id of the topic that the records belong to."""
        topic_id: int = _TOPIC_ID.unpack_from(self.raw)[0]
        return topic_id

    @property
    def bits(self) -> int:
        """Which optional columns there are, and whether node and tag are plain."""
        return self.raw[BITS_AT]

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

    def tags(self) -> list[bytes | None]:
        """The tag column; no other is decoded for it."""
        raw, bits, n = self.raw, self.bits, self.n
        if not bits & HAS_TAG:
            return [None] * n
        lengths = _column("H", raw, HEADER_BYTES + (10 if bits & HAS_NODE else 8) * n, n)
        at = _offsets_with_absent(lengths, HEADER_BYTES + _per_record(bits) * n + HEADER.unpack_from(raw)[8]) or []
        found: list[bytes | None] = [raw[start:end] for start, end in pairwise(at)]
        if _ABSENT_BYTES not in lengths.tobytes():
            return found
        return [None if length == ABSENT else text for text, length in zip(found, lengths, strict=True)]

    def metas(self) -> list[bytes | None]:
        """The meta column."""
        return [None] * self.n if not self.bits & HAS_META else [self.meta(i) for i in range(self.n)]

    def finds_in_metas(self, text: bytes) -> bool:
        """Whether a text is anywhere in the meta column; nothing is decoded for it."""
        bits, n = self.bits, self.n
        if not bits & HAS_META:
            return False
        node_bytes, tag_bytes, meta_bytes, _ = HEADER.unpack_from(self.raw)[8:]
        at = HEADER_BYTES + _per_record(bits) * n + node_bytes + tag_bytes
        return self.raw.find(text, at, at + meta_bytes) >= 0

    def datas(self) -> list[bytes]:
        """The data column; no other is decoded for it."""
        raw, n = self.raw, self.n
        lengths = _column("I", raw, HEADER_BYTES + (_per_record(self.bits) - 4) * n, n)
        # To read one after the other takes less than half as long as to slice them; nothing is copied for it.
        reader = BytesIO(raw)
        reader.seek(len(raw) - CHECKSUM_BYTES - HEADER.unpack_from(raw)[11])
        return list(map(reader.read, lengths))

    def fitting(self, i: int, j: int, max_bytes: int) -> int:
        """Where as many of the records [i, j) end as have so many bytes of data, or the first of them."""
        at = self.columns.data_at
        return max(i + 1, bisect_right(at, at[i] + max_bytes, i + 1, j + 1) - 1)

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

    def masked_bytes(self, mask: bytes) -> int:
        """What the records that the mask names count towards `bytes`, deleted or not.

        It decodes the lengths alone and keeps nothing: a large delete asks once, and of every Block.
        """
        raw, bits, n = self.raw, self.bits, self.n
        total = RECORD_FRAMING_BYTES * (n - mask.count(0))
        at = HEADER_BYTES + 8 * n
        for code, bit in (("H", HAS_NODE), ("H", HAS_TAG), ("I", HAS_META), ("I", 0)):
            if bit and not bits & bit:
                continue
            column = _column(code, raw, at, n)
            at += column.itemsize * n
            lengths = list(compress(column, mask))
            total += sum(lengths) - (ABSENT * lengths.count(ABSENT) if code == "H" else 0)
        return total

    def ts_index(self, cutoff: int) -> int:
        """The index of the first record with a ts of at least `cutoff`, or n."""
        return bisect_left(self.columns.ts, cutoff)

    def ts_at(self, i: int) -> int:
        """The ts of record i."""
        return self.last_ts if i == self.n - 1 else self.columns.ts[i]

    def erased(self) -> bytes:
        """Flags with only the erased records deleted; b"" where there are none."""
        if not self.bits & ERASED:
            return b""
        return bytes([0 if a < b else DELETED for a, b in pairwise(self.columns.data_at)])

    def encoded(self) -> bytes:
        """The Block as it is in a file, flags included."""
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
    bits, lengths, texts, sizes = _lay_out(nodes, tags)
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


def _lay_out(
    nodes: Sequence[bytes | None] | None, tags: Sequence[bytes | None] | None
) -> tuple[int, list[bytes], list[bytes], list[int]]:
    """The bits of a Block with these labels, the columns of their lengths, their texts, and how long those are."""
    bits = PLAIN
    lengths: list[bytes] = []
    texts: list[bytes] = []
    sizes = [0, 0, 0]
    for k, (bit, column) in enumerate(((HAS_NODE, nodes), (HAS_TAG, tags))):
        if column is None:
            continue
        bits |= bit
        try:
            given = cast("Sequence[bytes]", column)
            joined, sized = b"".join(given), list(map(len, given))
        except TypeError:
            joined, sized = b"".join(filter(None, column)), [ABSENT if text is None else len(text) for text in column]
        lengths.append(array("H", sized).tobytes())
        if bits & PLAIN and _NEEDS_ESCAPE.search(joined):
            bits &= ~PLAIN
        texts.append(joined)
        sizes[k] = len(joined)
    return bits, lengths, texts, sizes


class Draft:
    """A large Block that is laid out step by step before its place in a topic is known.

    `add` the texts of all metas, then of all datas, a few at a time; then `place` costs a checksum and no copy.
    """

    __slots__ = ("_bits", "_buffer", "_end", "_n", "_sizes")

    def __init__(
        self,
        data_lengths: Sequence[int],
        nodes: Sequence[bytes | None] | None,
        tags: Sequence[bytes | None] | None,
        meta_lengths: Sequence[int] | None,
    ) -> None:
        bits, lengths, texts, sizes = _lay_out(nodes, tags)
        if meta_lengths is not None:
            bits |= HAS_META
            lengths.append(array("I", meta_lengths).tobytes())
            sizes[2] = sum(meta_lengths)
        self._n = n = len(data_lengths)
        self._bits = bits
        self._sizes = (*sizes, sum(data_lengths))
        self._end = HEADER_BYTES + _per_record(bits) * n + sum(self._sizes)
        # A BytesIO writes into the bytes that it was made of, and hands them out again, without a copy. Zeros cost
        # nothing before they are written to.
        self._buffer = BytesIO(bytes(self._end + CHECKSUM_BYTES))
        self._buffer.seek(HEADER_BYTES + 8 * n)
        self._buffer.writelines((*lengths, array("I", data_lengths).tobytes(), *texts))

    def add(self, texts: Iterable[bytes]) -> None:
        """The next texts; any bytes-like objects."""
        self._buffer.writelines(texts)

    def place(self, topic_id: int, first_seq: int, ts: int) -> Block:
        """The Block at this place. May be called again, for another place, where the first one did not come to be."""
        n, buffer, sizes, end = self._n, self._buffer, self._sizes, self._end
        assert buffer.tell() == end, "every text is there"
        with buffer.getbuffer() as view:
            HEADER.pack_into(view, 0, MAGIC, VERSION, self._bits, 0, n, 0, topic_id, first_seq, *sizes)
            view[HEADER_BYTES : HEADER_BYTES + 8 * n] = _TS.pack(ts) * n
            _CHECKSUM.pack_into(view, end, xxh3_64_intdigest(view[:end]))
        return Block(buffer.getvalue(), first_seq, n, ts, ts, sum(sizes) + RECORD_FRAMING_BYTES * n)


def _per_record(bits: int) -> int:
    """What the columns other than the texts take for one record."""
    return 12 + (2 if bits & HAS_NODE else 0) + (2 if bits & HAS_TAG else 0) + (4 if bits & HAS_META else 0)


def measure(buffer: bytes | memoryview, at: int, *, with_flags: bool) -> tuple[tuple[Any, ...], int]:
    """The unpacked header of the Block at `at`, and where its checksum is, which is not looked at.

    Raises BlockError.
    """
    if len(buffer) - at < HEADER_BYTES:
        raise BlockError(f"the block at offset {at} is cut off: {len(buffer) - at} bytes are too few for a header")
    header = HEADER.unpack_from(buffer, at)
    magic, version, bits, _, n, _, _, first_seq = header[:8]
    if magic != MAGIC or n == 0:
        raise BlockError(f"no block at offset {at}")
    if version != VERSION:
        raise BlockError(f"block format version {version} at offset {at}; this program reads version {VERSION}")
    end = at + HEADER_BYTES + _per_record(bits) * n + sum(header[8:])
    if end + CHECKSUM_BYTES + (n if with_flags else 0) > len(buffer):
        raise BlockError(f"the block at offset {at} (first seq {first_seq}) is cut off")
    return header, end


def check(buffer: bytes | memoryview, at: int, *, with_flags: bool) -> tuple[tuple[Any, ...], int]:
    """The unpacked header of the Block at `at`, and where its checksum is, once that is found right.

    Raises BlockError.
    """
    header, end = measure(buffer, at, with_flags=with_flags)
    if _CHECKSUM.unpack_from(buffer, end)[0] != xxh3_64_intdigest(memoryview(buffer)[at:end]):
        raise BlockError(f"the checksum of the block at offset {at} (first seq {header[7]}) does not match")
    return header, end


def decode(buffer: bytes | memoryview, at: int = 0, *, with_flags: bool = True) -> tuple[Block, int]:
    """The Block that starts at `at`, checked against its checksum, and the offset after it. Raises BlockError."""
    header, end = check(buffer, at, with_flags=with_flags)
    end += CHECKSUM_BYTES
    n, first_seq = header[4], header[7]
    # A slice of bytes from end to end is the same object: a read of a sealed Block copies nothing.
    raw = bytes(buffer[at:end])
    (first_ts,) = _TS.unpack_from(raw, HEADER_BYTES)
    (last_ts,) = _TS.unpack_from(raw, HEADER_BYTES + 8 * (n - 1))
    size_bytes = sum(header[8:]) + RECORD_FRAMING_BYTES * n
    block = Block(raw, first_seq, n, first_ts, last_ts, size_bytes)
    if with_flags:
        block.set_flags(bytes(buffer[end : end + n]))
        end += n
    return block, end
