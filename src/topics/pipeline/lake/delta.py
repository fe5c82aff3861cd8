"""Delta tables of a lake: how the files of a batch become visible, all at once and once.

One commit per batch carries the files, the app transaction (query, batch) and the offsets, so that data and offsets
cannot disagree. Committing the same app transaction twice would succeed, so the version is compared first. There is no
atomicity across tables: the commit of a batch's events also carries its gaps, and the table of losses is brought up to
date from there, so that a crash between the two commits loses no gap and invents none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from topics.pipeline.lake.files import PARTITION_BY, TABLE_SCHEMA, Written
from topics.pipeline.lake.losses import LOSS_SCHEMA, LOSSES, loss_of, loss_rows
from topics.pipeline.lake.offsets import Offsets, check_begun
from topics.spark.archived import OFFSETS
from topics.spark.place import Place

BATCH: Final = "topics.batch"
HISTORY_MAX: Final = 200
COMMIT_TRIES: Final = 20
SHARED_ID: Final = "topics-archive"
# Only these get statistics, so that the log of a table never repeats the text of a record, and erasing it from the
# files is enough.
_STATS: Final = "delta.dataSkippingStatsColumns"
_WITH_STATS: Final = ("seq", "ts", "epoch")


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
