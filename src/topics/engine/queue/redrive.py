"""Redrive: dead letters go back into the queue that they came from, as new jobs (QUEUE-27).

Deliveries are counted from the start, and the `$dead_letter_*` fields are taken off. Letters of other queues, and
letters that are leased right now, are left alone. Finding them is a Work (slices.py): a dead-letter topic may hold any
number of letters, and most of them may be of other queues. What has gone or was leased since it was found is left out.

The jobs are appended first and the letters deleted once that is committed, so a crash in between leaves a letter that
was put back already: at least once, as everything about a queue.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

import msgspec

from topics.engine.log.tags import TagMatch, parse_match
from topics.engine.meta import without_fields
from topics.engine.queue.dead_letter import DELIVERIES, FROM, SRC_SEQ
from topics.engine.queue.lease import LEASED
from topics.engine.queue.queue import queue_of
from topics.engine.queue.requests import RedriveJobs
from topics.engine.requests import NO_RAW, RecordIn
from topics.engine.topic import Topic
from topics.storage.block import Block
from topics.storage.damage import Corrupt
from topics.storage.job import Miss

Letter = tuple[Block, int]
"""A Block, and which of its records."""

PIECE_RECORDS: Final = 500

_FIELDS: Final = frozenset((FROM, DELIVERIES, SRC_SEQ))
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode


class Letters:
    """The dead letters that a request names."""

    __slots__ = ("_from", "_match", "_queue", "_seqs", "_topic")

    def __init__(self, topic: Topic, queue: str, request: RedriveJobs) -> None:
        """`topic` holds the letters, and `queue` is what they came from."""
        self._topic = topic
        self._queue = queue
        self._from = queue.encode()
        self._match: TagMatch | None = None if request.match is None else parse_match(request.match)
        self._seqs = None if request.seqs is None else sorted(set(request.seqs))

    def find(self, limit: int) -> Generator[Miss | None, None, list[Letter]]:
        """The first of them, at most `limit`; in slices."""
        log = self._topic.log
        found: list[Letter] = []
        at, head = log.start, log.head
        while at <= head and len(found) < limit:
            if self._seqs is not None:
                at = next((seq for seq in self._seqs if seq >= at), head + 1)
            k = log.index_of(max(at, log.start))
            if k == len(log.entries):
                break
            entry = log.entries[k]
            try:
                block = entry.block()
            except Miss as miss:
                yield miss
                continue
            except Corrupt as corrupt:
                self._topic.lose(corrupt)
                continue
            last_seq = min(head, block.last_seq)
            if self._may_hold(block):
                for first in range(max(at, block.first_seq), last_seq + 1, PIECE_RECORDS):
                    found += self._among(block, range(first, min(last_seq + 1, first + PIECE_RECORDS)))
                    if len(found) >= limit:
                        found = self.still(found)
                    if len(found) >= limit:
                        break
                    yield None
            at = last_seq + 1
            yield None
        return self.still(found)[:limit]

    def still(self, found: Iterable[Letter]) -> list[Letter]:
        """Those that are there, and not leased."""
        log, queue = self._topic.log, queue_of(self._topic)
        leases = {} if queue is None else queue.leases
        kept = []
        for block, i in found:
            seq = block.first_seq + i
            lease = leases.get(seq)
            if log.is_live(seq) and (lease is None or lease.state is not LEASED):
                kept.append((block, i))
        return kept

    def _among(self, block: Block, seqs: range) -> list[Letter]:
        match, chosen, first_seq = self._match, self._seqs, block.first_seq
        if chosen is not None:
            wanted: Iterable[int] = [seq for seq in chosen if seq in seqs]
        else:
            wanted = seqs
        indexes = (seq - first_seq for seq in wanted)
        named = [(block, i) for i in indexes if self._is_from(block.meta(i)) and (match is None or match(block.tag(i)))]
        return self.still(named)

    def _may_hold(self, block: Block) -> bool:
        """Whether the name of the queue is anywhere in the metas of a Block; a client may have written it escaped."""
        return block.finds_in_metas(self._from) or block.finds_in_metas(b"\\")

    def _is_from(self, meta: bytes | None) -> bool:
        if meta is None or (self._from not in meta and b"\\" not in meta):
            return False
        return _decode_meta(meta).get(FROM) == self._queue


def job_of(block: Block, i: int) -> RecordIn:
    """A dead letter as the job that it was."""
    tag, node, meta = block.tag(i), block.node(i), without_fields(block.meta(i), _FIELDS)
    return RecordIn(
        msgspec.Raw(block.data(i)),
        None if tag is None else tag.decode(),
        None if node is None else node.decode(),
        NO_RAW if meta is None else msgspec.Raw(meta),
    )
