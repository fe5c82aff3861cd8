"""Blocks to Arrow record batches, by column: no Python per record, only per Block.

A Block holds its columns back to back (storage/block.py), which is nearly what Arrow wants: a column of texts is one
buffer of bytes and one of offsets, and the offsets are the running sum of the Block's lengths. So a batch is made by
joining the slices of its Blocks column by column and summing the lengths, and columns that the query does not ask
for are not even looked at. Only `meta` is JSON that has to become a map: each distinct text is parsed once.

The types are exactly those that Spark derives from the schema, because Spark compares them.

Arrays and scalars are made from buffers and never from Python values, because then pyarrow imports pandas: half a
second in every worker that starts.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from topics.spark.client import Gap
from topics.spark.errors import SourceError
from topics.spark.prune import Prune
from topics.storage import splice
from topics.storage.block import BlockError
from topics.storage.flags import DELETED
from topics.storage.splice import Spans

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 8 << 20
"""A batch ends with the Block that reaches either. Spark takes a while for each batch: a scan with a quarter of them
takes 2 to 8 percent longer."""

_made_topics: Final[dict[str, Any]] = {}
"""The topic that was scanned last, as the column of its longest batch."""
_ABSENT_LENGTH: Final = b"\xff\xff"
_DELETED_BYTE: Final = bytes((DELETED,))

TYPES: Final = {
    "topic": pa.string(),
    "seq": pa.int64(),
    "ts": pa.timestamp("us", tz="UTC"),
    "node": pa.string(),
    "tag": pa.string(),
    "meta": pa.map_(pa.string(), pa.field("value", pa.string(), nullable=True)),
    "data": pa.string(),
    "tombstone": pa.struct(
        [("gap_from", pa.int64()), ("gap_to", pa.int64()), ("reason", pa.string()), ("missed_estimate", pa.int64())]
    ),
}


def walk(buffer: memoryview, at: int = 0, first: int = 0, last: int | None = None) -> Iterator[Spans]:
    """The Blocks of a buffer; those with seqs from `first` to `last` are checked against their checksums."""
    try:
        yield from splice.walk(buffer, at, first, last)
    except BlockError as error:
        raise SourceError(str(error)) from error


def batches(topic: str, found: Iterable[tuple[Spans, int, int]], schema: pa.Schema, prune: Prune) -> Iterator[Any]:
    """Record batches of the live records in the ranges [lo, hi] of seqs that come with each Block."""
    group: list[tuple[Spans, int, int]] = []
    rows = size = 0
    for block, lo, hi in found:
        if hi < block.first_seq or lo >= block.first_seq + block.n:
            continue
        group.append((block, lo, hi))
        rows += block.n
        size += block.data[1] - block.ts
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield from _batch(topic, group, schema, prune)
            group, rows, size = [], 0, 0
    if group:
        yield from _batch(topic, group, schema, prune)


def gap_batch(topic: str, gap: Gap, schema: pa.Schema) -> Any:
    """One row that says which records are gone."""
    fields = list(TYPES["tombstone"])
    numbers = _fixed(pa.int64(), array("q", (gap.gap_from, gap.gap_to, gap.missed_estimate)), 3)
    parts = [numbers[0:1], numbers[1:2], _strings([gap.reason]), numbers[2:3]]
    row = {"topic": _strings([topic]), "tombstone": pa.StructArray.from_arrays(parts, fields=fields)}
    arrays = [row.get(field.name, pa.nulls(1, field.type)).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batch(topic: str, group: list[tuple[Spans, int, int]], schema: pa.Schema, prune: Prune) -> Iterator[Any]:
    blocks = [block for block, _, _ in group]
    n = sum([block.n for block in blocks])
    keep = _kept(group, n, prune)
    arrays = []
    for field in schema:
        array = _column(field.name, topic, blocks, n)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if keep is not None:
        batch = batch.filter(keep)
    if batch.num_rows:
        yield batch


def _kept(group: list[tuple[Spans, int, int]], n: int, prune: Prune) -> Any:
    """Which of the n records are wanted and live, or None for all."""
    keep = None
    flags = b"".join([block.flags for block, _, _ in group])
    if _DELETED_BYTE in flags:
        keep = pc.not_equal(_fixed(pa.uint8(), flags, n), _DELETED)
    if any(lo > block.first_seq or hi < block.first_seq + block.n - 1 for block, lo, hi in group):
        inside = bytearray()
        for block, lo, hi in group:
            i = max(0, lo - block.first_seq)
            j = min(block.n, hi - block.first_seq + 1)
            inside += bytes(i) + b"\x01" * (j - i) + bytes(block.n - j)
        keep = _both(keep, pc.equal(_fixed(pa.uint8(), bytes(inside), n), _INSIDE))
    if prune.tags or prune.nodes:
        blocks = [block for block, _, _ in group]
        for name, wanted in (("tag", prune.tags), ("node", prune.nodes)):
            if wanted:
                keep = _both(keep, pc.is_in(_column(name, "", blocks, n), value_set=_strings(list(wanted))))
    return keep


def _both(one: Any, other: Any) -> Any:
    return other if one is None else pc.and_(one, other)


def _column(name: str, topic: str, blocks: list[Spans], n: int) -> Any:
    if name == "topic":
        return _topics(topic, n)
    if name == "seq":
        return _seqs(blocks)
    if name == "ts":
        ts = _fixed(pa.int64(), _slices(blocks, [block.ts for block in blocks], 8), n)
        return pc.multiply(ts, _US_PER_MS).cast(TYPES["ts"])
    if name == "data":
        lengths = _fixed(pa.uint32(), _slices(blocks, [block.data_lengths for block in blocks], 4), n)
        return _texts(lengths, [block.buffer[slice(*block.data)] for block in blocks])
    if name == "meta":
        return _maps(blocks, n)
    if name == "tombstone":
        return pa.nulls(n, TYPES["tombstone"])
    starts = [block.node_lengths if name == "node" else block.tag_lengths for block in blocks]
    if not any(starts):
        return pa.nulls(n, pa.string())
    spans = [block.node if name == "node" else block.tag for block in blocks]
    lengths = _fixed(pa.uint16(), _slices(blocks, starts, 2, _ABSENT_LENGTH), n)
    present = pc.not_equal(lengths, _ABSENT)
    lengths = pc.if_else(present, lengths, _EMPTY)
    return _texts(lengths, [block.buffer[slice(*span)] for block, span in zip(blocks, spans, strict=True)], present)


def _topics(topic: str, n: int) -> Any:
    """The topic column, a part of one that is made once for a scan."""
    made = _made_topics.get(topic)
    if made is None or len(made) < n:
        _made_topics.clear()
        made = _made_topics[topic] = pa.repeat(_strings([topic])[0], n)
    return made[:n]


def _slices(blocks: list[Spans], starts: list[int], width: int, absent: bytes = b"") -> bytes:
    """The fixed-width columns of the Blocks, joined; a Block that lacks the column (start 0) counts as absent."""
    return b"".join(
        [
            block.buffer[start : start + width * block.n] if start else absent * block.n
            for block, start in zip(blocks, starts, strict=True)
        ]
    )


def _fixed(type: Any, content: bytes | array[int], n: int) -> Any:
    return pa.Array.from_buffers(type, n, [None, pa.py_buffer(content)])


def _texts(lengths: Any, pieces: list[memoryview], present: Any = None) -> Any:
    """A string column: the pieces joined, and the running sum of the lengths as offsets."""
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([_ZERO, ends])
    content = pa.py_buffer(pieces[0] if len(pieces) == 1 else b"".join(pieces))
    validity = None if present is None else present.buffers()[1]
    return pa.Array.from_buffers(pa.string(), len(lengths), [validity, offsets.buffers()[1], content])


def _seqs(blocks: list[Spans]) -> Any:
    runs: list[list[int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block.first_seq:
            runs[-1][1] += block.n
        else:
            runs.append([block.first_seq, block.first_seq + block.n])
    return pa.concat_arrays([pa.arange(first, end) for first, end in runs])


def _maps(blocks: list[Spans], n: int) -> Any:
    """The meta column: each distinct text is parsed once, then every record takes its own."""
    starts = [block.meta_lengths for block in blocks]
    if not any(starts):
        return pa.nulls(n, TYPES["meta"])
    lengths = _fixed(pa.uint32(), _slices(blocks, starts, 4, bytes(4)), n)
    texts = _texts(lengths, [block.buffer[slice(*block.meta)] for block in blocks], pc.greater(lengths, _NO_META))
    encoded = texts.dictionary_encode()
    # A blank is the meta of a record that is gone.
    distinct = [{} if text.isspace() else json.loads(text) for text in encoded.dictionary.to_pylist()]
    ends = _fixed(pa.int32(), array("i", accumulate(map(len, distinct), initial=0)), len(distinct) + 1)
    keys = _strings([key for each in distinct for key in each])
    values = _strings([value for each in distinct for value in each.values()])
    return pa.MapArray.from_arrays(ends, keys, values, type=TYPES["meta"]).take(encoded.indices)


def _strings(texts: list[str]) -> Any:
    pieces = [text.encode() for text in texts]
    ends = pa.py_buffer(array("i", accumulate(map(len, pieces), initial=0)))
    return pa.Array.from_buffers(pa.string(), len(pieces), [None, ends, pa.py_buffer(b"".join(pieces))])


_ZERO: Final = _fixed(pa.int32(), bytes(4), 1)
_DELETED: Final = _fixed(pa.uint8(), _DELETED_BYTE, 1)[0]
_INSIDE: Final = _fixed(pa.uint8(), b"\x01", 1)[0]
_ABSENT: Final = _fixed(pa.uint16(), _ABSENT_LENGTH, 1)[0]
_EMPTY: Final = _fixed(pa.uint16(), bytes(2), 1)[0]
_NO_META: Final = _fixed(pa.uint32(), bytes(4), 1)[0]
_US_PER_MS: Final = _fixed(pa.int64(), array("q", (1000,)), 1)[0]
