"""Digest: the records of a write in one number, by which a retry is told from another write under the same key.

It covers data, node, tag and meta of every record, as they are stored; so a restart works it out again from the Block
of the write. Two writes of different content have the same digest once in 2^64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from topics.engine.write.batch import Batch
from topics.storage.block import Block

UNKNOWN: Final = 0
"""The digest of a write of which nothing more than its seqs is remembered."""

Column = Sequence[bytes | None] | None

_encode: Final = msgspec.msgpack.Encoder().encode


def of_batch(batch: Batch) -> int:
    """The digest of a write."""
    return _digest(batch.datas, batch.nodes, batch.tags, batch.metas)


def of_block(block: Block, start: int, n: int) -> int:
    """The digest of the write whose records are `n` of a Block, from the index `start` on."""
    span = range(start, start + n)
    return _digest(
        [block.data(i) for i in span],
        [block.node(i) for i in span],
        [block.tag(i) for i in span],
        [block.meta(i) for i in span],
    )


def _digest(datas: Sequence[bytes], *labels: Column) -> int:
    # A column that no record uses may be missing. The data of a request is no bytes object, but can be joined.
    used = [column if column and any(each is not None for each in column) else None for column in labels]
    return xxh3_64_intdigest(_encode((list(map(len, datas)), *used)) + b"".join(datas)) or 1
