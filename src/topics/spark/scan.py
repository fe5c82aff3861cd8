"""Scan: which ranges of seqs a read covers, how they are split into tasks, and what one task does.

Planning asks the server for the epoch, the floors and the gaps, so that a gap that is already there stops the query
before it starts, or becomes exactly one row. A gap that opens while the query runs is found by the task that reads
there. Deleted records are not a gap and leave no trace.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from topics.spark import columns, segments
from topics.spark.client import TOPIC_NOT_FOUND, Answer, Client, Gap, Plan, SealedFile
from topics.spark.errors import DataLoss, ServerRefused
from topics.spark.options import ReadOptions
from topics.spark.servers import Servers
from topics.storage.splice import Spans

PARTITION_BYTES_MAX: Final = 256 << 20
"""Of a topic, which is two to four times its size in Parquet: Spark cuts files there at 128 MiB. A task costs Spark
about 60 ms of CPU beside what it reads, so there are no more of them than keep every core busy."""
PARTITION_BYTES_MIN: Final = 4 << 20
"""A task that reads less than this takes about as long to start as to read."""
PARTITIONS_MAX: Final = 10_000

log = logging.getLogger("topics.spark")


@dataclass
class Range:
    """The records (from_seq, to_seq] of one topic instance: what one task reads."""

    topic: str
    epoch: int
    from_seq: int
    to_seq: int
    gap: Gap | None = None
    """Set where the range is a gap known when the read was planned."""
    earliest_seq: int = 1
    segments: tuple[SealedFile, ...] = ()
    """Sealed segments in this range, where they may be read directly."""
    server: int = 0
    """Which of several servers has the topic."""

    @property
    def size(self) -> int:
        """How many seqs there are."""
        return self.to_seq - self.from_seq


def ranges(client: Servers, plan: Plan, from_seq: int, to_seq: int, options: ReadOptions) -> list[Range]:
    """The readable ranges and the gaps of (from_seq, to_seq], in order. Raises DataLoss where a gap must stop it."""
    found: list[Range] = []
    if from_seq >= to_seq:
        return found
    cursor = from_seq
    direct = {} if options.data_dir is None and options.cold_dir is None else {"segments": 1}
    planned = client.plan(plan.topic, from_seq=from_seq, to_seq=to_seq, **direct)
    if planned.epoch != plan.epoch:
        planned.segments = []
    for gap in planned.gaps:
        lost(plan.topic, gap, options.fail_on_data_loss)
        if gap.gap_from - 1 > cursor:
            found.append(Range(plan.topic, plan.epoch, cursor, gap.gap_from - 1))
        found.append(Range(plan.topic, plan.epoch, gap.gap_from - 1, gap.gap_to, gap))
        cursor = gap.gap_to
    if cursor < to_seq:
        found.append(Range(plan.topic, plan.epoch, cursor, to_seq))
    for piece in found:
        piece.earliest_seq = planned.earliest_seq
        piece.segments = tuple(planned.segments)
        piece.server = planned.server
    return found


def split(found: list[Range], plans: dict[str, Plan], partitions_min: int) -> list[Range]:
    """The ranges cut so that every core has work, there are at least `partitions_min`, and none is too large.

    How many cores a cluster has is not known here: those of this machine have to do.
    """
    total = sum(piece.size for piece in found if piece.gap is None)
    record_bytes = {topic: plan.bytes / plan.count if plan.count else 1.0 for topic, plan in plans.items()}
    total_bytes = sum(piece.size * record_bytes[piece.topic] for piece in found if piece.gap is None)
    partition_bytes = total_bytes / partitions(total_bytes, len(os.sched_getaffinity(0)))
    parts: list[Range] = []
    for piece in found:
        if piece.gap is not None:
            parts.append(piece)
            continue
        # Rounded, because a number of tasks that is one too high leaves cores idle in the last turn.
        by_bytes = round(piece.size * record_bytes[piece.topic] / partition_bytes) if partition_bytes else 1
        by_count = -(-partitions_min * piece.size // total)
        n = max(1, min(max(by_bytes, by_count), piece.size, PARTITIONS_MAX))
        edges = [piece.from_seq + piece.size * i // n for i in range(n + 1)]
        for a, b in pairwise(edges):
            inside = tuple(file for file in piece.segments if file.first_seq <= b and file.last_seq > a)
            parts.append(replace(piece, from_seq=a, to_seq=b, segments=inside))
    return parts


def partitions(size: float, cores: int) -> int:
    """How many tasks read so many bytes: as many turns for every core, where there is enough for all of them."""
    if size < cores * PARTITION_BYTES_MIN:
        return max(1, int(size // PARTITION_BYTES_MIN))
    return cores * math.ceil(size / PARTITION_BYTES_MAX / cores)


def lost(topic: str, gap: Gap, fail_on_data_loss: bool) -> None:
    """Stop the query for a gap, or log it."""
    if fail_on_data_loss:
        raise DataLoss(topic, *gap)
    log.warning("topic %s: records %d to %d are gone (%s)", topic, *gap)


class RangeReader:
    """Reads one Range as Arrow record batches."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema

    def read(self, piece: Range) -> Iterator[Any]:
        """The batches of a range; gaps are rows where the schema has a place for them."""
        if piece.gap is not None:
            yield from self._gap(piece, piece.gap)
            return
        client = Client(self._options.addresses[piece.server])
        gaps: list[Gap] = []
        try:
            yield from columns.batches(
                piece.topic, self._pieces(client, piece, gaps), self._schema, self._options.prune
            )
        finally:
            client.close()
        for gap in gaps:
            yield from self._gap(piece, gap)

    def _pieces(self, client: Client, piece: Range, gaps: list[Gap]) -> Iterator[tuple[Spans, int, int]]:
        """The Blocks of a range: from the sealed files that can be read here, and from the server all others."""
        cursor = piece.from_seq
        for sealed in piece.segments:
            found = segments.blocks(sealed, piece.epoch, self._options, cursor + 1, piece.to_seq)
            if found is None:
                continue
            if sealed.first_seq > cursor + 1:
                yield from self._found(client, replace(piece, from_seq=cursor, to_seq=sealed.first_seq - 1), gaps)
            lo = max(cursor + 1, piece.earliest_seq)
            cursor = min(sealed.last_seq, piece.to_seq)
            for block in found:
                yield block, lo, cursor
        if cursor < piece.to_seq:
            yield from self._found(client, replace(piece, from_seq=cursor), gaps)

    def _found(self, client: Client, piece: Range, gaps: list[Gap]) -> Iterator[tuple[Spans, int, int]]:
        """The Blocks of a range, each with the seqs that are wanted of it; `gaps` takes what was lost meanwhile."""
        cursor = piece.from_seq
        ended = "head_went_back"

        def miss(gap: Gap) -> None:
            lost(piece.topic, gap, self._options.fail_on_data_loss)
            gaps.append(gap)

        for answer in _answers(client, piece):
            if answer is None:
                ended = "topic_deleted"
                break
            if answer.epoch != piece.epoch:
                ended = "recreated"
                break
            if answer.head_seq < cursor:
                break
            if answer.tombstone is not None:
                gap_to = min(answer.tombstone.gap_to, piece.to_seq)
                miss(Gap(cursor + 1, gap_to, answer.tombstone.reason))
                cursor = gap_to
            for block in columns.walk(answer.body):
                yield block, cursor + 1, piece.to_seq
            cursor = max(cursor, answer.next_from_seq)
        if cursor < piece.to_seq:
            miss(Gap(cursor + 1, piece.to_seq, ended))

    def _gap(self, piece: Range, gap: Gap) -> Iterator[Any]:
        if "tombstone" in self._schema.names:
            yield columns.gap_batch(piece.topic, gap, self._schema)


def _answers(client: Client, piece: Range) -> Iterator[Answer | None]:
    """The server's answers along a range, the next one fetched while one is used; None where the topic is gone."""

    def fetch(cursor: int) -> Answer | None:
        try:
            return client.blocks(piece.topic, cursor, piece.to_seq)
        except ServerRefused as refused:
            if refused.code != TOPIC_NOT_FOUND:
                raise
            return None

    with ThreadPoolExecutor(1) as pool:
        cursor = piece.from_seq
        coming: Future[Answer | None] | None = pool.submit(fetch, cursor)
        while coming is not None:
            answer = coming.result()
            coming = None
            if answer is not None and answer.epoch == piece.epoch and cursor < answer.next_from_seq < piece.to_seq:
                cursor = answer.next_from_seq
                coming = pool.submit(fetch, cursor)
            yield answer
