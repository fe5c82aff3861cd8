"""Records as the JSON text that clients read, rendered once per Block and shared by every reader.

A `Wire` is a whole Block in one piece of text, records separated by commas, with the offset of each; a read of any
part of it is a slice. Which fields are in it depends on the reader's `Fields`, so a Block keeps one Wire per
combination in use. `data` and `meta` are the bytes that the client sent, never parsed.

Of a Block over WHOLE_BYTES_MAX only the records that are read are rendered (`Each`): a read of one does not pay for
all of them.

`WireCache` bounds the bytes kept in this way over all topics, those of the Blocks included, which may be in no log and
no other cache any more: what was read least recently goes first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, pairwise, repeat
from operator import add
from typing import Final

import msgspec

from topics.engine.log.tags import TagMatch
from topics.storage.block import ABSENT, HAS_META, HAS_NODE, HAS_TAG, PLAIN, SINGLE_DATA_AT, Block

WITH_TAG: Final = 1
WITH_META: Final = 2
WITH_DATA: Final = 4

WIRE_CACHE_BYTES_MAX: Final = 128 * 1024 * 1024
LARGE_BYTES: Final = 64 * 1024
WHOLE_BYTES_MAX: Final = 2 * 1024 * 1024
"""The largest Block that is rendered as a whole: a large record, or about what a sealed Block has."""
_LARGE_DATA_BYTES: Final = 4096
"""From this average on, the texts of a column are not copied out of the Block before they are joined."""
_SINGLE_DATA: Final = slice(*SINGLE_DATA_AT)
_TIMES_RUN: Final = 16
"""Where as many records have the same time, to find the end of each run is faster than to look at each of them."""
_OPEN: Final = b'{"$seq":'
_BETWEEN: Final = b'},{"$seq":'

_encode = msgspec.json.Encoder().encode


class Wire:
    """The rendered records of one Block: record i is text[at[i] : at[i + 1] - 1]."""

    __slots__ = ("at", "text")

    def __init__(self, text: bytes, at: array[int]) -> None:
        self.text = text
        self.at = at

    def slice(self, i: int, j: int) -> bytes:
        """The records [i, j), separated by commas."""
        at = self.at
        return self.text[at[i] : at[j] - 1]


class WireCache:
    """Rendered Blocks, least recently read first, up to a number of bytes."""

    __slots__ = ("_wires", "bytes", "bytes_max")

    def __init__(self, bytes_max: int = WIRE_CACHE_BYTES_MAX) -> None:
        # With what each takes in memory.
        self._wires: OrderedDict[tuple[int, int], tuple[Block, Wire, int]] = OrderedDict()
        self.bytes = 0
        self.bytes_max = bytes_max

    def get(self, block: Block, fields: int) -> Wire:
        """The Block as text with these fields, rendered now if it is not kept."""
        key = (id(block), fields)
        found = self._wires.get(key)
        if found is not None:
            self._wires.move_to_end(key)
            return found[1]
        wire = render_whole(block, fields)
        block.forget_columns()
        size = len(wire.text) + len(wire.at) * wire.at.itemsize + len(block.raw)
        self._wires[key] = (block, wire, size)
        self.bytes += size
        while self.bytes > self.bytes_max and len(self._wires) > 1:
            self.bytes -= self._wires.popitem(last=False)[1][2]
        return wire


def render(block: Block, fields: int) -> list[bytes]:
    """Each record of the Block as a JSON object."""
    bits = block.bits
    first_seq = block.first_seq
    if not bits & (HAS_NODE | HAS_TAG | HAS_META) and fields & WITH_DATA:
        if block.n == 1:
            return [b'{"$seq":%d,"$ts":%d,"data":%b}' % (first_seq, block.first_ts, block.raw[_SINGLE_DATA])]
        raw = block.raw
        columns = block.columns
        at = columns.data_at
        return [
            b'{"$seq":%d,"$ts":%d,"data":%b}' % (seq, ts, raw[a:b])
            for seq, (ts, a, b) in enumerate(zip(columns.ts, at, at[1:], strict=False), first_seq)
        ]
    return [
        b'{"$seq":%d,"$ts":%d%b%b%b%b}' % (seq, ts, node, tag, data, meta)
        for seq, (ts, node, tag, data, meta) in enumerate(
            zip(
                block.columns.ts,
                _labels(b',"$node":', block, HAS_NODE),
                _labels(b',"$tag":', block, HAS_TAG if fields & WITH_TAG else 0),
                [b',"data":' + data for data in block.datas()] if fields & WITH_DATA else [b""] * block.n,
                _metas(block, fields),
                strict=True,
            ),
            first_seq,
        )
    ]


class Each:
    """The records of a Block, each rendered when it is asked for."""

    __slots__ = ("_block", "_fields", "_view")

    def __init__(self, block: Block, fields: int) -> None:
        self._block = block
        self._fields = fields
        self._view = memoryview(block.raw)

    def __getitem__(self, i: int) -> bytes:
        """Record i as a JSON object. Its data is copied only once."""
        block, fields = self._block, self._fields
        columns = block.columns
        parts: list[bytes | memoryview] = [b'{"$seq":%d,"$ts":%d' % (block.first_seq + i, columns.ts[i])]
        node, tag = block.node(i), block.tag(i) if fields & WITH_TAG else None
        if node is not None:
            parts.append(b',"$node":' + _encode(node.decode()))
        if tag is not None:
            parts.append(b',"$tag":' + _encode(tag.decode()))
        if fields & WITH_DATA:
            parts += b',"data":', self._view[columns.data_at[i] : columns.data_at[i + 1]]
        meta = block.meta(i) if fields & WITH_META else None
        if meta is not None:
            parts.append(b',"meta":' + meta)
        parts.append(b"}")
        return b"".join(parts)


def render_whole(block: Block, fields: int) -> Wire:
    """The whole Block as text: what `render` gives, joined by commas.

    Works by column: the pieces of all records are interleaved in one list and joined once, at half the cost of
    formatting record by record.
    """
    n = block.n
    with_data = bool(fields & WITH_DATA)
    label_bits = block.bits & (HAS_NODE | (HAS_TAG if fields & WITH_TAG else 0))
    with_meta = bool(block.bits & HAS_META and fields & WITH_META)
    data_key = b',"data":' if with_data else b""
    columns: list[Sequence[bytes | memoryview]] = [
        _encode([*range(block.first_seq, block.first_seq + n)])[1:-1].split(b","),
        _times(block, b"" if label_bits else data_key),
    ]
    if label_bits:
        columns += [
            _labels(key, block, bit)
            for key, bit in ((b',"$node":', HAS_NODE), (b',"$tag":', HAS_TAG))
            if label_bits & bit
        ]
        columns.append([data_key] * n)
    if with_data:
        columns.append(_datas(block))
    if with_meta:
        columns.append(_metas(block, fields))
    width = len(columns) + 1
    parts: list[bytes | memoryview] = [_BETWEEN] * (width * n)
    parts[0] = _OPEN
    for k, column in enumerate(columns, 1):
        parts[k::width] = column
    parts.append(b"}")
    text = b"".join(parts)
    if with_data and not label_bits and not with_meta and _is_even(columns[0]) and _is_even(columns[1]):
        return Wire(text, _offsets_by_data(block.columns.data_at, columns, n))
    return Wire(text, _offsets(columns))


def _datas(block: Block) -> Sequence[bytes | memoryview]:
    """The data column, to be joined."""
    if len(block.raw) < block.n * _LARGE_DATA_BYTES:
        return block.datas()
    view = memoryview(block.raw)
    return [view[a:b] for a, b in pairwise(block.columns.data_at)]


def _times(block: Block, suffix: bytes) -> list[bytes]:
    """The times as text, with the bytes that follow them."""
    if block.first_ts == block.last_ts:
        return [b',"$ts":%d%b' % (block.first_ts, suffix)] * block.n
    column = block.columns.ts
    texts = {ts: b',"$ts":%d%b' % (ts, suffix) for ts in set(column)}
    if len(texts) * _TIMES_RUN > block.n:
        return [texts[ts] for ts in column]
    # They ascend, so the same ones are next to each other: as many as a write had, or several.
    found: list[bytes] = []
    for ts in sorted(texts):
        found += [texts[ts]] * (bisect_right(column, ts, len(found)) - len(found))
    return found


def _is_even(numbers: Sequence[bytes | memoryview]) -> bool:
    """Whether ascending numbers all have the same count of digits."""
    return len(numbers[0]) == len(numbers[-1])


def _offsets_by_data(data_at: list[int], columns: list[Sequence[bytes | memoryview]], n: int) -> array[int]:
    """The offsets of records that differ in length by their data alone."""
    each = len(_BETWEEN) + len(columns[0][0]) + len(columns[1][0])
    return array("I", map(add, data_at, range(-data_at[0], each * (n + 1), each)))


def _offsets(columns: list[Sequence[bytes | memoryview]]) -> array[int]:
    """The offsets of the records that are made of these pieces."""
    lengths: Iterable[int] = repeat(len(_BETWEEN))
    for column in columns:
        lengths = map(add, lengths, map(len, column))
    return array("I", accumulate(lengths, initial=0))


def _labels(key: bytes, block: Block, bit: int) -> list[bytes]:
    if not block.bits & bit:
        return [b""] * block.n
    columns = block.columns
    at, lengths = (columns.node_at, columns.node_len) if bit == HAS_NODE else (columns.tag_at, columns.tag_len)
    assert at is not None
    assert lengths is not None
    raw = block.raw
    if block.bits & PLAIN:
        return [
            b"" if length == ABSENT else b'%b"%b"' % (key, raw[a : a + length])
            for a, length in zip(at, lengths, strict=False)
        ]
    return [
        b"" if length == ABSENT else key + _encode(raw[a : a + length].decode())
        for a, length in zip(at, lengths, strict=False)
    ]


def _metas(block: Block, fields: int) -> list[bytes]:
    if not (block.bits & HAS_META and fields & WITH_META):
        return [b""] * block.n
    return [b"" if meta is None else b',"meta":' + meta for meta in block.metas()]


def foreign_runs(block: Block, i: int, j: int, nodes: Collection[bytes]) -> list[tuple[int, int]]:
    """The runs of records in [i, j) with a node that is not in `nodes`."""
    if not block.bits & HAS_NODE:
        return [(i, j)]
    return _runs([block.node(k) not in nodes for k in range(i, j)], i)


def matching_runs(block: Block, i: int, j: int, match: TagMatch) -> list[tuple[int, int]]:
    """The runs of records in [i, j) with a matching tag."""
    if not block.bits & HAS_TAG:
        return []
    return _runs([match(block.tag(k)) for k in range(i, j)], i)


def _runs(keep: list[bool], base: int) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    at = 0
    while True:
        try:
            begin = keep.index(True, at)
        except ValueError:
            return runs
        try:
            at = keep.index(False, begin)
        except ValueError:
            at = len(keep)
        runs.append((base + begin, base + at))
