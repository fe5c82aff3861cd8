"""Dead letters: a job that was delivered too often moves to another topic (API §10.6, DESIGN §10.7).

The move is one frame in the queue's shard that says both: these jobs are deleted, and this is the Block of their copies
in the dead-letter topic, which is logged nowhere else. So after a crash both halves have happened or neither has. The
frame holds the Block, because the delete may be on the disk already when the frame is replayed. A copy keeps node, tag,
meta and data, and says in its meta where it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from topics.engine.meta import with_fields
from topics.storage import block as blocks
from topics.storage.block import HAS_NODE, HAS_TAG, Block

if TYPE_CHECKING:
    from topics.engine.queue import Candidate

FROM = "$dead_letter_from"
DELIVERIES = "$dead_letter_deliveries"
SRC_SEQ = "$dead_letter_src_seq"


class Letter(msgspec.Struct, frozen=True):
    """A job on its way: its record, and how often it was delivered."""

    block: Block
    index: int
    seq: int
    deliveries: int


def letters_of(jobs: Sequence[Candidate]) -> list[Letter]:
    """The letters of these jobs."""
    return [Letter(block, seq - block.first_seq, seq, lease.deliveries if lease else 0) for seq, block, lease in jobs]


def size_bytes(letters: Sequence[Letter]) -> int:
    """About what the copies will count towards `bytes`."""
    return sum(letter.block.size_bytes(letter.index, letter.index + 1) for letter in letters)


def copies(queue: str, letters: Sequence[Letter], dest_id: int, first_seq: int, ts: int) -> Block:
    """The Block of the copies."""
    nodes = [letter.block.node(letter.index) if letter.block.bits & HAS_NODE else None for letter in letters]
    tags = [letter.block.tag(letter.index) if letter.block.bits & HAS_TAG else None for letter in letters]
    metas = [
        with_fields(
            letter.block.meta(letter.index),
            {FROM: queue, DELIVERIES: str(letter.deliveries), SRC_SEQ: str(letter.seq)},
        )
        for letter in letters
    ]
    return blocks.encode(
        dest_id,
        first_seq,
        ts,
        [letter.block.data(letter.index) for letter in letters],
        nodes if any(node is not None for node in nodes) else None,
        tags if any(tag is not None for tag in tags) else None,
        metas,
    )
