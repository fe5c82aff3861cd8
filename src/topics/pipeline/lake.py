"""Lake tables: how the files of a batch become visible, all at once and once.

Delta: one commit per batch carries the files, the app transaction (query, batch) and the offsets, so that data and
offsets cannot disagree. Committing the same app transaction twice would succeed, so the version is compared first.
There is no atomicity across tables: the commit of a batch's events also carries its gaps, and the table of losses is
brought up to date from there, so that a crash between the two commits loses no gap and invents none.

Parquet: executors write into a directory that readers skip; the driver writes the list of the batch's files first (the
first list wins) and then moves them into place, which can be repeated as often as needed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from topics.pipeline.files import PARTITION_BY, TABLE_SCHEMA, Written
from topics.pipeline.run import PipelineError
from topics.spark.archived import LISTED, OFFSETS
from topics.spark.depot import write_once
from topics.spark.place import Place

LOSSES: Final = "topics.losses"
BATCH: Final = "topics.batch"
HISTORY_MAX: Final = 200
COMMIT_TRIES: Final = 20
SHARED_ID: Final = "topics-archive"
# Only these get statistics, so that the log of a table never repeats the text of a record, and erasing it from the
# files is enough.
_STATS: Final = "delta.dataSkippingStatsColumns"
_WITH_STATS: Final = ("seq", "ts", "epoch")
LOSS_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("gap_from", pa.int64()),
        ("gap_to", pa.int64()),
        ("reason", pa.string()),
        ("missed_estimate", pa.int64()),
        ("batch", pa.int64()),
        ("seen_ts", pa.timestamp("us", "UTC")),
        ("epoch", pa.int64()),
    ]
)

Offsets = dict[str, Any]


class DeltaLake:
    """Events and losses as two Delta tables under one root."""

    prefix = ""
    """Where executors write, relative to `root`: visible at once, or staged."""
    hive = False
    """Whether readers take the topic and date from the path."""
    named = False
    """Whether the rows of a file name its topic."""

    def __init__(self, root: Place) -> None:
        self.root = root / "events"
        self._events = delta_table(self.root, TABLE_SCHEMA, PARTITION_BY)
        self._losses = delta_table(root / "losses", LOSS_SCHEMA, ())

    def has(self, app_id: str, batch_id: int) -> bool:
        """Whether the batch is already there."""
        self._events.update_incremental()
        return has_version(self._events, app_id, batch_id)

    def commit(
        self, app_id: str, batch_id: int, written: list[Written], offsets: Offsets, begun: Offsets | None = None
    ) -> None:
        """Add the files of a batch in one commit, with its offsets and its gaps.

        `begun` is where the batch began. If the table has come to another place meanwhile, by another archive of the
        same topics, it stays as it is and this one fails: the first writer wins. All archives of a table share one app
        transaction, so that of two commits at the same time one is refused, and looks again.
        """
        from deltalake.exceptions import CommitFailedError

        now_ms = time.time_ns() // 1_000_000
        losses = [loss_of(gap) for gap in written if gap.path is None]
        metadata = {BATCH: f"{app_id}:{batch_id}", OFFSETS: json.dumps(offsets), LOSSES: json.dumps(losses)}
        files = [file for file in written if file.path is not None]
        for attempt in range(COMMIT_TRIES):
            self._events.update_incremental()
            self._check(offsets, begun)
            turn = (self._events.transaction_version(SHARED_ID) or 0) + 1
            try:
                add_files(self._events, files, PARTITION_BY, now_ms, {app_id: batch_id, SHARED_ID: turn}, metadata)
                break
            except CommitFailedError:
                if attempt == COMMIT_TRIES - 1:
                    raise
        self._lose(app_id, batch_id, losses, now_ms)

    def _check(self, offsets: Offsets, begun: Offsets | None) -> None:
        check_begun(self.root, self.offsets(), offsets, begun)

    def finish(self, app_id: str, batch_id: int) -> None:
        """Bring the table of losses up to the events."""
        self._losses.update_incremental()
        if has_version(self._losses, app_id, batch_id):
            return
        self._events.update_incremental()
        for entry in self._events.history(HISTORY_MAX):
            if entry.get(BATCH) == f"{app_id}:{batch_id}":
                self._lose(app_id, batch_id, json.loads(entry[LOSSES]), int(entry["timestamp"]))

    def _lose(self, app_id: str, batch_id: int, losses: list[list[Any]], seen_ms: int) -> None:
        from deltalake import write_deltalake
        from deltalake.transaction import CommitProperties, Transaction

        if not losses:
            return
        write_deltalake(
            self._losses,
            loss_rows(losses, batch_id, seen_ms),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(app_id, batch_id)]),
        )

    def offsets(self) -> Offsets | None:
        """How far each topic is archived."""
        # Compactions and erasures carry no offsets: where there were many of them, the search goes on.
        for limit in (HISTORY_MAX, None):
            batches = [json.loads(entry[OFFSETS]) for entry in self._events.history(limit) if OFFSETS in entry]
            if batches:
                return {topic: at for batch in reversed(batches) for topic, at in batch.items()}
        return None


def check_begun(root: Place, known: Offsets | None, offsets: Offsets, begun: Offsets | None) -> None:
    """Refuse a batch that began elsewhere than where the table is now, by another archive of the same topics."""
    if known is None or begun is None:
        return
    for topic in sorted(set(offsets) & {*known, *begun}):
        if known.get(topic) != begun.get(topic):
            raise PipelineError(
                f'another archive has brought topic "{topic}" in {root} to {_shown(known.get(topic))}, and '
                f"this one went on from {_shown(begun.get(topic))}; run one archive of a topic at a time, and this "
                f"one without its checkpoint if it has to go on from there"
            )


def exists(root: Place) -> bool:
    """Whether there is an archive."""
    return (root / "events").is_table() or (root.path is not None and (root.path / "events").is_dir())


def held(root: Place) -> list[Written]:
    """The files that an archive holds now, with paths relative to its events; none where there is no archive."""
    from deltalake import DeltaTable

    events = root / "events"
    if not events.is_table():
        lists = [] if root.path is None else sorted((root.path / "_batches").glob("*.json"))
        written = [Written(*one) for path in lists for one in json.loads(path.read_text())[LISTED]]
        return [
            file._replace(path=file.path.removeprefix(ParquetLake.prefix)) for file in written if file.path is not None
        ]
    actions = pa.table(DeltaTable(str(events)).get_add_actions(flatten=True))
    if not actions.num_rows:
        return []
    names = ("path", "partition.topic", "partition.date", "size_bytes", "num_records", "min.seq", "max.seq")
    columns = [actions[name].to_pylist() for name in names]
    columns += [actions[name].cast(pa.int64()).to_pylist() for name in ("min.ts", "max.ts")]
    columns.append([None] * actions.num_rows)
    columns.append(actions["min.epoch"].to_pylist() if "min.epoch" in actions.column_names else columns[-1])
    # In the log a path is escaped.
    return [Written(unquote(path), topic, str(date), *rest) for path, topic, date, *rest in zip(*columns, strict=True)]


def delta_table(directory: Place, schema: pa.Schema, partition_by: Sequence[str]) -> Any:
    """The Delta table in a directory, created if there is none, with the columns that an older release did not have."""
    from deltalake import DeltaTable, Schema

    if not directory.is_table():
        directory.mkdir()
        columns = _with_stats(schema.names)
        properties = {_STATS: columns} if columns else None
        DeltaTable.create(
            str(directory), schema=schema, partition_by=list(partition_by), mode="ignore", configuration=properties
        )
    table = DeltaTable(str(directory))
    known = pa.schema(table.schema().to_arrow()).names
    missing = [each for each in schema if each.name not in known]
    if missing:
        table.alter.add_columns(list(Schema.from_arrow(pa.schema(missing)).fields))
    return guarded(table)


def guarded(table: Any) -> Any:
    """A table whose log gets no text of records from now on, also if an older release made it."""
    names = pa.schema(table.schema().to_arrow()).names
    columns = _with_stats(names)
    if columns and _STATS not in table.metadata().configuration:
        table.alter.set_table_properties({_STATS: columns})
    return table


def _with_stats(names: Sequence[str]) -> str:
    """Which of its columns a table has statistics of. In a typed table, the one without topics, `epoch` is data."""
    return ",".join(name for name in _WITH_STATS if name in names and (name != "epoch" or "topic" in names))


def has_version(table: Any, app_id: str, version: int) -> bool:
    """Whether a table has this version of an app transaction, or a later one."""
    found = table.transaction_version(app_id)
    return found is not None and found >= version


def add_files(
    table: Any,
    files: list[Written],
    partition_by: Sequence[str],
    now_ms: int,
    transactions: dict[str, int],
    metadata: dict[str, str] | None = None,
) -> None:
    """Add files to a Delta table in one commit, which carries the app transactions."""
    from deltalake.transaction import AddAction, CommitProperties, Transaction

    actions = [
        AddAction(
            path=str(file.path),
            size=file.size,
            partition_values={name: getattr(file, name) for name in partition_by},
            modification_time=now_ms,
            data_change=True,
            stats=_stats(file),
        )
        for file in files
    ]
    table.create_write_transaction(
        actions,
        mode="append",
        schema=pa.schema(table.schema().to_arrow()),
        partition_by=list(partition_by),
        commit_properties=CommitProperties(
            custom_metadata=metadata, app_transactions=[Transaction(*each) for each in transactions.items()]
        ),
    )


def _shown(at: Any) -> str:
    return "no place" if at is None else f"seq {at['seq']} (epoch {at['epoch']})"


def loss_of(gap: Written) -> list[Any]:
    """A gap as a commit carries it."""
    return [gap.topic, gap.seq_min, gap.seq_max, gap.reason, gap.records, gap.epoch]


def loss_rows(losses: list[list[Any]], batch_id: int, seen_ms: int) -> Any:
    """The rows of the table of losses for what one commit carries, of which there must be some."""
    # A commit of an older release does not name the epoch.
    rows = ((*loss[:5], batch_id, seen_ms * 1000, *(loss[5:] or [None])) for loss in losses)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, LOSS_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=LOSS_SCHEMA)


def _stats(file: Written) -> str:
    known = {} if file.epoch is None else {"epoch": file.epoch}
    bounds = (file.seq_min, file.ts_min), (file.seq_max, file.ts_max)
    low, high = ({"seq": seq, "ts": iso(ts), **known} for seq, ts in bounds)
    return json.dumps(
        {"numRecords": file.records, "minValues": low, "maxValues": high, "nullCount": {"seq": 0, "ts": 0}}
    )


def iso(ts_us: int) -> str:
    """A time in microseconds as text, to the millisecond, as servers give it."""
    seconds, us = divmod(ts_us, 1_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{us // 1000:03d}Z"


class ParquetLake:
    """Plain Parquet files by topic and date, and losses as lines of JSON."""

    prefix = "_staging/"
    hive = True
    named = False

    def __init__(self, root: Place) -> None:
        # What is decided is moved into place, which only a file system can do.
        assert root.path is not None
        self.root = root.path / "events"
        self._losses = root.path / "losses"
        self._batches = root.path / "_batches"
        for directory in (self.root, self._losses, self._batches):
            directory.mkdir(parents=True, exist_ok=True)

    def _list_of(self, app_id: str, batch_id: int) -> Path:
        return self._batches / f"{app_id}-{batch_id:08d}.json"

    def has(self, app_id: str, batch_id: int) -> bool:
        """Whether the batch is already decided."""
        return self._list_of(app_id, batch_id).exists()

    def commit(
        self, app_id: str, batch_id: int, written: list[Written], offsets: Offsets, begun: Offsets | None = None
    ) -> None:
        """Decide the files of a batch, then move them into place."""
        batch = {"offsets": offsets, "ts": time.time_ns() // 1_000_000, LISTED: [list(one) for one in written]}
        write_once(self._list_of(app_id, batch_id), json.dumps(batch))
        self.finish(app_id, batch_id)

    def finish(self, app_id: str, batch_id: int) -> None:
        """Move the files of a decided batch into place, unless they are there already."""
        decided = json.loads(self._list_of(app_id, batch_id).read_text())
        written = [Written(*one) for one in decided[LISTED]]
        for file in written:
            if file.path is None:
                continue
            source, target = self.root / file.path, self.root / file.path.removeprefix(self.prefix)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.exists():
                source.replace(target)
        gaps = [loss_of(one) for one in written if one.path is None]
        if gaps:
            rows = ((*gap[:5], batch_id, decided["ts"], gap[5]) for gap in gaps)
            lines = [dict(zip(LOSS_SCHEMA.names, row, strict=True)) for row in rows]
            temporary = self._losses / f".{uuid.uuid4().hex}"
            temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
            temporary.replace(self._losses / f"{app_id}-{batch_id:08d}.json")

    def offsets(self) -> Offsets | None:
        """The offsets of the newest batch."""
        lists = sorted(self._batches.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        if not lists:
            return None
        found: Offsets = json.loads(lists[-1].read_text())["offsets"]
        return found
