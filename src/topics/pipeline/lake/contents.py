"""Contents: whether there is an archive in a place, and which files it holds now."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pyarrow as pa

from topics.pipeline.lake.files import Written
from topics.pipeline.lake.parquet import ParquetLake
from topics.spark.archived import LISTED
from topics.spark.place import Place


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
