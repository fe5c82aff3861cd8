"""Lake files: what executors write, and what they report to the driver about it.

A task of the source holds rows of one topic in the order of their seqs, so its files need no shuffle: one for each
topic and date, cut at the target size. A file has a name of its own, and no reader sees it before the driver commits
it: the files of a task that was retried or killed are never named. Rows that are gaps are not written but reported,
because the driver keeps them in a table of their own.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topics.spark.place import Place

WRITTEN_SCHEMA: Final = (
    "path string, topic string, date string, size bigint, records bigint, "
    "seq_min bigint, seq_max bigint, ts_min bigint, ts_max bigint, reason string, epoch bigint"
)
_WRITTEN_ARROW: Final = pa.schema(
    [
        (name, pa.int64() if kind == "bigint" else pa.string())
        for name, kind in map(str.split, WRITTEN_SCHEMA.split(", "))
    ]
)
FILE_SCHEMA: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("node", pa.string()),
        ("tag", pa.string()),
        ("meta", pa.map_(pa.string(), pa.string())),
        ("data", pa.string()),
        ("epoch", pa.int64()),
    ]
)
"""The columns of a file of events. The epoch tells records from those of an earlier topic with the same name."""
NAMED_SCHEMA: Final = pa.schema([("topic", pa.string()), *FILE_SCHEMA])
"""The columns of a file that names its topic in each row, for tables that partition by columns of their files."""
TABLE_SCHEMA: Final = pa.schema([("topic", pa.string()), ("date", pa.date32()), *FILE_SCHEMA])
PARTITION_BY: Final = ("topic", "date")
ROW_GROUP_BYTES: Final = 32 << 20


class Written(NamedTuple):
    """One file of a batch, or, with a reason and no path, one gap."""

    path: str | None
    topic: str
    date: str | None
    size: int
    records: int
    seq_min: int
    seq_max: int
    ts_min: int
    ts_max: int
    reason: str | None
    epoch: int | None = None


class _File:
    """One Parquet file being written."""

    def __init__(self, root: Place, path: str, topic: str, date: str, schema: Any) -> None:
        self._stream: Any
        self._is_local = root.path is not None
        if root.path is not None:
            target = root.path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            self._stream = target.open("xb")
        else:
            # An object appears when its stream is closed, whole.
            self._stream = root.files().open_output_stream(path)
        # What hardly repeats is not worth a dictionary, which costs more than all the rest.
        repeats = [name for name in schema.names if name not in ("seq", "data")]
        self._writer = pq.ParquetWriter(self._stream, schema, compression="zstd", use_dictionary=repeats)
        self._path, self._topic, self._date = path, topic, date
        self._waiting: list[Any] = []
        self._waiting_bytes = 0
        self._records = 0
        self._seqs: list[int] = []
        self._times: list[int] = []

    def add(self, batch: Any) -> int:
        """Take rows; the bytes of the file so far."""
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()
        self._records += batch.num_rows
        seqs, times = pc.min_max(batch["seq"]), pc.min_max(batch["ts"].cast(pa.int64()))
        self._seqs = [*self._seqs[:1], seqs["min"].as_py(), seqs["max"].as_py()]
        self._times = [*self._times[:1], times["min"].as_py(), times["max"].as_py()]
        return int(self._stream.tell()) + self._waiting_bytes

    def _flush(self) -> None:
        if self._waiting:
            rows = sum(batch.num_rows for batch in self._waiting)
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=rows)
            self._waiting, self._waiting_bytes = [], 0

    def close(self) -> Written:
        """Finish the file, on disk."""
        self._flush()
        self._writer.close()
        if self._is_local:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        size = self._stream.tell()
        self._stream.close()
        seqs, times = (min(self._seqs), max(self._seqs)), (min(self._times), max(self._times))
        return Written(self._path, self._topic, self._date, size, self._records, *seqs, *times, None)


class Files:
    """The files that one task writes: one open in each directory, cut at the target size."""

    def __init__(self, root: str, schema: Any, number: int, file_bytes: int) -> None:
        self._root = Place(root)
        self._schema = schema
        self._number = number
        self._file_bytes = file_bytes
        self._open: dict[str, _File] = {}
        self._written: list[Written] = []

    def add(self, directory: str, topic: str, date: str, rows: Any) -> None:
        """Write rows, which have columns `seq` and `ts`, to a file in a directory below the root."""
        step = max(1, rows.num_rows * self._file_bytes // max(rows.nbytes, self._file_bytes))
        for at in range(0, rows.num_rows, step):
            file = self._open.get(directory)
            if file is None:
                path = f"{directory}part-{self._number:08d}-{uuid.uuid4().hex}.parquet"
                file = self._open[directory] = _File(self._root, path, topic, date, self._schema)
            if file.add(rows.slice(at, step)) >= self._file_bytes:
                self._written.append(self._open.pop(directory).close())

    def close(self) -> list[Written]:
        """Finish what is open; all files that were written."""
        self._written += [file.close() for file in self._open.values()]
        self._open = {}
        return self._written


def writer(
    root: str, prefix: str, hive: bool, batch_id: int, file_bytes: int, epochs: Mapping[str, int], named: bool = False
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that writes what a task reads: rows in, what was written out.

    A task reads records of one epoch of each topic, and `epochs` says which. With `named` each row names its topic.
    """
    schema = NAMED_SCHEMA if named else FILE_SCHEMA

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        gaps: list[Written] = []
        files = Files(root, schema, batch_id, file_bytes)
        for batch in batches:
            gaps += _gaps(batch)
            rows = batch.filter(pc.is_valid(batch["seq"])) if batch["seq"].null_count else batch
            for topic, date, part in _parts(rows, epochs, schema):
                files.add(f"{prefix}topic={directory_of(topic, hive)}/date={date}/", topic, date, part)
        yield report([one._replace(epoch=epochs.get(one.topic)) for one in (*gaps, *files.close())])

    return write


def report(written: list[Written]) -> Any:
    """What a task reports to the driver, as Arrow rows of WRITTEN_SCHEMA."""
    return pa.RecordBatch.from_pylist([entry._asdict() for entry in written], schema=_WRITTEN_ARROW)


def directory_of(topic: str, hive: bool = False) -> str:
    """The directory of a topic.

    A colon in a path is not portable. Where readers take the topic from the path it is escaped as Hive does. In a Delta
    table the log has the topic, and a path that needs no escaping is safer; no topic name contains a plus.
    """
    return quote(topic, safe="") if hive else topic.replace(":", "+")


def _gaps(batch: Any) -> list[Written]:
    if batch["tombstone"].null_count == batch.num_rows:
        return []
    lost = batch.filter(pc.is_valid(batch["tombstone"])).select(["topic", "tombstone"]).to_pylist()
    return [
        Written(
            None, row["topic"], None, 0, gap["missed_estimate"], gap["gap_from"], gap["gap_to"], 0, 0, gap["reason"]
        )
        for row in lost
        for gap in [row["tombstone"]]
    ]


def _parts(rows: Any, epochs: Mapping[str, int], schema: Any) -> Iterator[tuple[str, str, Any]]:
    """The rows of each topic and date."""
    if not rows.num_rows:
        return
    topics = rows["topic"]
    found = pc.unique(topics).to_pylist()
    for topic in found:
        own = rows if len(found) == 1 else rows.filter(pc.equal(topics, topic))
        own = own.append_column("epoch", pa.repeat(pa.scalar(epochs.get(topic), pa.int64()), own.num_rows))
        for date, part in by_date(columns_of(own, schema)):
            yield topic, date, part


def columns_of(rows: Any, schema: Any) -> Any:
    """The columns of rows that a schema names, with its types."""
    return pa.RecordBatch.from_arrays([rows[field.name].cast(field.type) for field in schema], schema=schema)


def by_date(rows: Any) -> Iterator[tuple[str, Any]]:
    """The rows of each date, by their `ts`."""
    days = pc.floor_temporal(rows["ts"], unit="day")
    found = pc.unique(days)
    for day, date in zip(found, pc.strftime(found, format="%Y-%m-%d").to_pylist(), strict=True):
        yield date, rows if len(found) == 1 else rows.filter(pc.equal(days, day))
