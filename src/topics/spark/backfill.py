"""Backfill: a stream over a topic that begins with what its lake holds, and goes on live.

Offsets are those of every stream over topics, epoch and seq, so a batch is the same seqs wherever they are read: what
the lake held when the batch was planned comes from its files, and the rest from the server. A batch that is planned
again after a crash may find more of its seqs in the lake, or fewer files with the same rows, and reads the same
records: they never change, and each seq has one place.

The lake is looked at while the stream is below the seq that is archived, and again if the stream falls so far behind
that the server has evicted what comes next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from topics.spark import archived, offsets, scan, version
from topics.spark.archived import Archived, LakeFile, plain
from topics.spark.errors import SourceError, plainly
from topics.spark.offsets import Cursor
from topics.spark.place import Place
from topics.spark.reader import arrow_schema
from topics.spark.source import TopicsSource
from topics.spark.spark41 import StreamReader41
from topics.spark.stream import RefusedStreamReader, TopicsStreamReader

if TYPE_CHECKING:
    from topics.spark.options import ReadOptions

FORMAT = "topics-table"


@dataclass
class LakeRange:
    """The records (from_seq, to_seq] of one file: what one task reads."""

    topic: str
    epoch: int
    from_seq: int
    to_seq: int
    file: LakeFile
    deleted: list[tuple[int, int]]


class LakePartition(InputPartition):
    """One task over a file of the lake."""

    def __init__(self, piece: LakeRange) -> None:
        super().__init__(piece)
        self.piece = piece


class TableSource(TopicsSource):
    """The source behind `table(..., streaming=True)`."""

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return FORMAT

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 - Spark's name
        """A streaming read."""
        from topics.spark.options import ReadOptions

        kind = BackfillReader41 if version.running() == (4, 1) else BackfillReader
        try:
            reader = kind(ReadOptions(self.options, streaming=True), schema)
        except SourceError as refusal:
            return RefusedStreamReader(refusal)
        reader.lake = self.options["lake"]
        return reader


class BackfillReader(TopicsStreamReader):
    """A stream over one topic and its lake."""

    lake = ""
    """Where the lake is, as a Place takes it."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        super().__init__(options, schema)
        self._topic = options.topics.names[0]
        self._archived: Archived | None = None

    @plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Before the first record that lake or server hold."""
        plan = self._connected().plan(self._topic)
        history = self._look()
        first = plan.earliest_seq
        if history is not None and history.at.epoch == plan.epoch and history.files:
            first = min(first, history.files[0].seq_min)
        return self._render({self._topic: Cursor(plan.epoch, first - 1)})

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        """The files of the lake that hold records of the batch, one task each, and the ranges of the server."""
        since, to = (offsets.parse(place).get(self._topic) for place in (start, end))
        if since is None or to is None or since.epoch != to.epoch or since.seq >= to.seq:
            return list(super().partitions(start, end))
        pieces, since = self._pieces(since, to)
        found: list[Any] = [LakePartition(piece) for piece in pieces]
        if since.seq < to.seq:
            found += super().partitions(self._render({self._topic: since}), end)
        return found

    def _pieces(self, since: Cursor, to: Cursor) -> tuple[list[LakeRange], Cursor]:
        """What of (since, to] is read from the lake, and where the server goes on."""
        history = self._history(since)
        if history is None or history.at.epoch != to.epoch or history.at.seq <= since.seq or to.epoch is None:
            return [], since
        if history.repeated:
            raise SourceError(
                f'the lake holds seqs of topic "{self._topic}" twice, because a crash of the server handed them out '
                f"again; a stream cannot tell which of two batches has the right one: read it as a table"
            )
        upto = min(history.at.seq, to.seq)
        for gap in history.gaps:
            if gap.gap_from <= upto and gap.gap_to > since.seq:
                scan.lost(self._topic, gap, self._options.fail_on_data_loss)
        deleted = self._connected().deleted(self._topic, to.epoch, since.seq, upto)
        if deleted is None:
            return [], since
        pieces = []
        for file in history.files:
            low, high = max(since.seq, file.seq_min - 1), min(upto, file.seq_max)
            if low < high:
                gone = [run for run in deleted if run[0] <= high and run[1] > low]
                pieces.append(LakeRange(self._topic, to.epoch, low, high, file, gone))
        return pieces, Cursor(to.epoch, upto)

    def _history(self, since: Cursor) -> Archived | None:
        known = self._archived
        if known is None or known.at.seq <= since.seq:
            plan = self._connected().find(self._topic)
            # The server has what comes next, and is the faster way to it.
            if known is not None and plan is not None and plan.earliest_seq <= since.seq + 1:
                return None
        return self._look()

    def _look(self) -> Archived | None:
        self._archived = archived.find(Place(self.lake), self._topic)
        return self._archived

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one range."""
        if not isinstance(partition, LakePartition):
            return super().read(partition)
        return rows(partition.piece, arrow_schema(self._schema))


class BackfillReader41(StreamReader41, BackfillReader):
    """The same on Spark 4.1."""


def rows(piece: LakeRange, schema: Any) -> Iterator[Any]:
    """The records of a range of a file, as Arrow record batches of this schema."""
    directory, _, name = piece.file.path.replace("s3a:", "s3:", 1).rpartition("/")
    wanted = [field.name for field in schema if field.name != "topic"]
    with Place(directory).files().open_input_file(name) as opened:
        content = pq.ParquetFile(opened)
        columns = {*wanted, "seq", *(("epoch",) if piece.file.mixed else ())}
        for batch in map(plain, content.iter_batches(columns=sorted(columns))):
            seqs = batch["seq"]
            mask = pc.and_(pc.greater(seqs, piece.from_seq), pc.less_equal(seqs, piece.to_seq))
            if piece.file.mixed:
                mask = pc.and_(mask, pc.equal(batch["epoch"], piece.epoch))
            for first, last in piece.deleted:
                mask = pc.and_not(mask, pc.and_(pc.greater_equal(seqs, first), pc.less_equal(seqs, last)))
            kept = batch.filter(mask)
            if kept.num_rows:
                topics = pa.repeat(piece.topic, kept.num_rows)
                arrays = [topics if field.name == "topic" else kept[field.name] for field in schema]
                yield pa.RecordBatch.from_arrays(
                    [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
                )
