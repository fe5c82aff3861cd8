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
from topics.spark.stage import write_once

OFFSETS: Final = "topics.offsets"
LOSSES: Final = "topics.losses"
BATCH: Final = "topics.batch"
HISTORY_MAX: Final = 200
# The key of the files in the list of a Parquet batch.
_LISTED: Final = "told"
LOSS_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("gap_from", pa.int64()),
        ("gap_to", pa.int64()),
        ("reason", pa.string()),
        ("missed_estimate", pa.int64()),
        ("batch", pa.int64()),
        ("seen_ts", pa.timestamp("us", "UTC")),
    ]
)

Offsets = dict[str, Any]


class DeltaLake:
    """Events and losses as two Delta tables under one root."""

    prefix = ""
    """Where executors write, relative to `root`: visible at once, or staged."""
    hive = False
    """Whether readers take the topic and date from the path."""

    def __init__(self, root: Path) -> None:
        self.root = root / "events"
        self._events = delta_table(self.root, TABLE_SCHEMA, PARTITION_BY)
        self._losses = delta_table(root / "losses", LOSS_SCHEMA, ())

    def has(self, app_id: str, batch_id: int) -> bool:
        """Whether the batch is already there."""
        self._events.update_incremental()
        return has_version(self._events, app_id, batch_id)

    def commit(self, app_id: str, batch_id: int, written: list[Written], offsets: Offsets) -> None:
        """Add the files of a batch in one commit, with its offsets and its gaps."""
        now_ms = time.time_ns() // 1_000_000
        losses = [[gap.topic, gap.seq_min, gap.seq_max, gap.reason, gap.records] for gap in written if gap.path is None]
        metadata = {BATCH: f"{app_id}:{batch_id}", OFFSETS: json.dumps(offsets), LOSSES: json.dumps(losses)}
        files = [file for file in written if file.path is not None]
        add_files(self._events, files, PARTITION_BY, now_ms, (app_id, batch_id), metadata)
        self._lose(app_id, batch_id, losses, now_ms)

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
        columns = zip(*((*loss, batch_id, seen_ms * 1000) for loss in losses), strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, LOSS_SCHEMA, strict=True)]
        write_deltalake(
            self._losses,
            pa.Table.from_arrays(arrays, schema=LOSS_SCHEMA),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(app_id, batch_id)]),
        )

    def offsets(self) -> Offsets | None:
        """The offsets of the newest batch."""
        for entry in self._events.history(HISTORY_MAX):
            if OFFSETS in entry:
                found: Offsets = json.loads(entry[OFFSETS])
                return found
        return None


def held(root: Path) -> list[Written]:
    """The files that an archive holds now, with paths relative to its events; none where there is no archive."""
    from deltalake import DeltaTable

    events = root / "events"
    if not DeltaTable.is_deltatable(str(events)):
        lists = sorted((root / "_batches").glob("*.json"))
        written = [Written(*one) for path in lists for one in json.loads(path.read_text())[_LISTED]]
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
    # In the log a path is escaped.
    return [Written(unquote(path), topic, str(date), *rest) for path, topic, date, *rest in zip(*columns, strict=True)]


def delta_table(directory: Path, schema: pa.Schema, partition_by: Sequence[str]) -> Any:
    """The Delta table in a directory, created if there is none."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(directory)):
        directory.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(str(directory), schema=schema, partition_by=list(partition_by), mode="ignore")
    return DeltaTable(str(directory))


def has_version(table: Any, app_id: str, version: int) -> bool:
    """Whether a table has this version of an app transaction, or a later one."""
    found = table.transaction_version(app_id)
    return found is not None and found >= version


def add_files(
    table: Any,
    files: list[Written],
    partition_by: Sequence[str],
    now_ms: int,
    transaction: tuple[str, int],
    metadata: dict[str, str] | None = None,
) -> None:
    """Add files to a Delta table in one commit, which carries the app transaction."""
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
        commit_properties=CommitProperties(custom_metadata=metadata, app_transactions=[Transaction(*transaction)]),
    )


def _stats(file: Written) -> str:
    low, high = ({"seq": seq, "ts": _iso(ts)} for seq, ts in ((file.seq_min, file.ts_min), (file.seq_max, file.ts_max)))
    return json.dumps(
        {"numRecords": file.records, "minValues": low, "maxValues": high, "nullCount": {"seq": 0, "ts": 0}}
    )


def _iso(ts_us: int) -> str:
    seconds, us = divmod(ts_us, 1_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{us // 1000:03d}Z"


class ParquetLake:
    """Plain Parquet files by topic and date, and losses as lines of JSON."""

    prefix = "_staging/"
    hive = True

    def __init__(self, root: Path) -> None:
        self.root = root / "events"
        self._losses = root / "losses"
        self._batches = root / "_batches"
        for directory in (self.root, self._losses, self._batches):
            directory.mkdir(parents=True, exist_ok=True)

    def _list_of(self, app_id: str, batch_id: int) -> Path:
        return self._batches / f"{app_id}-{batch_id:08d}.json"

    def has(self, app_id: str, batch_id: int) -> bool:
        """Whether the batch is already decided."""
        return self._list_of(app_id, batch_id).exists()

    def commit(self, app_id: str, batch_id: int, written: list[Written], offsets: Offsets) -> None:
        """Decide the files of a batch, then move them into place."""
        batch = {"offsets": offsets, "ts": time.time_ns() // 1_000_000, _LISTED: [list(one) for one in written]}
        write_once(self._list_of(app_id, batch_id), json.dumps(batch))
        self.finish(app_id, batch_id)

    def finish(self, app_id: str, batch_id: int) -> None:
        """Move the files of a decided batch into place, unless they are there already."""
        decided = json.loads(self._list_of(app_id, batch_id).read_text())
        written = [Written(*one) for one in decided[_LISTED]]
        for file in written:
            if file.path is None:
                continue
            source, target = self.root / file.path, self.root / file.path.removeprefix(self.prefix)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.exists():
                source.replace(target)
        gaps = [(one.topic, one.seq_min, one.seq_max, one.reason, one.records) for one in written if one.path is None]
        if gaps:
            lines = [dict(zip(LOSS_SCHEMA.names, (*gap, batch_id, decided["ts"]), strict=True)) for gap in gaps]
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


Lake = DeltaLake | ParquetLake
