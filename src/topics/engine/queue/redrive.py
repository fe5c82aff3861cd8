"""Redrive: dead letters go back to the queue that they came from, as new jobs (QUEUE-27).

A job that was put back is a new record, so its deliveries are counted from the start; its `$dead_letter_*` fields are
taken off. Letters of other queues, and letters that are leased right now, are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from topics.engine.log.tags import parse_match
from topics.engine.meta import without_fields
from topics.engine.queue.dead_letter import DELIVERIES, FROM, SRC_SEQ
from topics.engine.queue.lease import LEASED
from topics.engine.queue.queue import Queue
from topics.engine.requests import NO_RAW, RecordIn

if TYPE_CHECKING:
    from topics.engine.queue.requests import RedriveJobs
    from topics.engine.topic import Topic
    from topics.storage.block import Block

_FIELDS = frozenset((FROM, DELIVERIES, SRC_SEQ))
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode


def find(letters: Topic, queue: str, request: RedriveJobs, limit: int) -> list[tuple[Block, int]]:
    """The first dead letters of a queue that a request names, at most `limit`. May raise Miss or Corrupt."""
    match = None if request.match is None else parse_match(request.match)
    wanted = None if request.seqs is None else set(request.seqs)
    found = []
    for block, i in _live(letters):
        if wanted is not None and block.first_seq + i not in wanted:
            continue
        if (match is None or match(block.tag(i))) and _is_from(block.meta(i), queue):
            found.append((block, i))
            if len(found) == limit:
                break
    return found


def _live(letters: Topic) -> Iterator[tuple[Block, int]]:
    log, queue = letters.log, letters.queue
    leases = queue.leases if isinstance(queue, Queue) else {}
    for entry in log.retained():
        for a, b in entry.live_runs(max(0, log.start - entry.first_seq), entry.n):
            block = entry.block()
            for i in range(a, b):
                lease = leases.get(entry.first_seq + i)
                if lease is None or lease.state is not LEASED:
                    yield block, i


def _is_from(meta: bytes | None, queue: str) -> bool:
    return meta is not None and FROM.encode() in meta and _decode_meta(meta).get(FROM) == queue


def record_of(block: Block, i: int) -> RecordIn:
    """A dead letter as the job that it was."""
    tag, node, meta = block.tag(i), block.node(i), without_fields(block.meta(i), _FIELDS)
    return RecordIn(
        msgspec.Raw(block.data(i)),
        None if tag is None else tag.decode(),
        None if node is None else node.decode(),
        NO_RAW if meta is None else msgspec.Raw(meta),
    )
