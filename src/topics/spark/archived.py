"""Archived: what a lake holds of one topic: up to which seq, in which files, and what was lost before it got there.

It is read at one version of the lake, so that the seq and the files belong together. The epoch tells the records of a
topic from those of one with the same name that was deleted: every file says which epochs it holds, and files that an
older release wrote are taken for the archived epoch if the log names no other one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from topics.spark.client import Gap
from topics.spark.errors import SourceError
from topics.spark.offsets import Cursor
from topics.spark.place import Place

OFFSETS: Final = "topics.offsets"
LISTED: Final = "told"
"""The key of the files in the list of a Parquet batch."""
WENT_BACK: Final = "head_went_back"
_OF_ANOTHER: Final = ("recreated", "topic_deleted", WENT_BACK)
"""Losses of records that the topic does not count any more."""


class LakeFile(NamedTuple):
    """A file of records of one topic; both seqs are included."""

    path: str
    records: int
    seq_min: int
    seq_max: int
    mixed: bool
    """Whether it also holds records of an earlier topic of this name."""


@dataclass
class Archived:
    """One topic in a lake."""

    at: Cursor
    """Its epoch, and the seq that it is archived to."""
    files: list[LakeFile] = field(default_factory=list)
    """In the order of their first seqs."""
    gaps: list[Gap] = field(default_factory=list)
    """What was lost between two records of the lake."""
    repeated: bool = False
    """Whether a seq may be there twice, because a crash of the server handed it out again; the later one counts."""


def find(lake: Place, topic: str) -> Archived | None:
    """What a lake holds of a topic, or None where it holds nothing of it."""
    if (lake / "events").is_table():
        found = _in_delta(lake, topic)
    elif lake.path is not None and (lake.path / "_batches").is_dir():
        found = _in_parquet(lake.path, topic)
    elif lake.is_iceberg():
        raise SourceError(f'the lake in "{lake}" has Iceberg tables, and a table over lake and server needs Delta ones')
    else:
        command = f"topics pipeline archive --topic {topic} --to {lake}"
        raise SourceError(f'there is no archive in "{lake}"; `{command}` makes one')
    if found is not None:
        found.files.sort(key=lambda file: file.seq_min)
        first = found.files[0].seq_min if found.files else found.at.seq + 1
        found.gaps = sorted(gap for gap in found.gaps if gap.gap_to > first)
        found.repeated = found.repeated and _overlap(found.files)
    return found


def plain(batch: Any) -> Any:
    """Rows with texts of the usual type: files that deltalake has rewritten declare one that Arrow cannot filter."""
    arrays = [column.cast(pa.string()) if pa.types.is_string_view(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _in_delta(lake: Place, topic: str) -> Archived | None:
    from deltalake import DeltaTable

    events = DeltaTable(str(lake / "events"))
    places = [place for place in _places(events, topic) if place is not None]
    if not places:
        return None
    found = Archived(places[0])
    actions = pa.table(events.get_add_actions(flatten=True))
    actions = actions.filter(pc.equal(actions["partition.topic"].cast(pa.string()), topic))
    single = {place.epoch for place in places} == {found.at.epoch}
    none = [None] * actions.num_rows
    known = ("min.epoch", "max.epoch", "null_count.epoch")
    epochs = [actions[name].to_pylist() if name in actions.column_names else none for name in known]
    names = ("path", "num_records", "min.seq", "max.seq")
    for path, records, low, high, oldest, newest, unknown in zip(
        *(actions[name].to_pylist() for name in names), *epochs, strict=True
    ):
        if (oldest is None or unknown) and not single:
            raise SourceError(
                f'topic "{topic}" was deleted and created again while it was archived, and {lake}/events/{path} does '
                f"not say of which of the two its records are, because an older release wrote it"
            )
        # In the log a path is escaped.
        if newest is None or newest >= (found.at.epoch or 0):
            file = LakeFile(f"{lake.for_spark}/events/{unquote(path)}", records, low, high, oldest != newest)
            found.files.append(file)
    _take_losses(found, _delta_losses(lake, topic))
    return found


def _places(events: Any, topic: str) -> list[Cursor | None]:
    """Where the topic stood at each commit of the archive, the newest first."""
    offsets = [json.loads(entry[OFFSETS]) for entry in events.history() if OFFSETS in entry]
    return [Cursor(at["epoch"], at["seq"]) if (at := each.get(topic)) else None for each in offsets]


def _delta_losses(lake: Place, topic: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    if not (lake / "losses").is_table():
        return []
    losses = pa.table(DeltaTable(str(lake / "losses")).to_pyarrow_table(filters=[("topic", "=", topic)]))
    rows: list[dict[str, Any]] = losses.to_pylist()
    return rows


def _take_losses(found: Archived, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row.get("epoch") in (None, found.at.epoch):
            found.repeated |= row["reason"] == WENT_BACK
            if row["reason"] not in _OF_ANOTHER:
                found.gaps.append(Gap(row["gap_from"], row["gap_to"], row["reason"]))


def _in_parquet(lake: Path, topic: str) -> Archived | None:
    batches = [json.loads(path.read_text()) for path in (lake / "_batches").glob("*.json")]
    batches = sorted((batch for batch in batches if topic in batch["offsets"]), key=lambda batch: int(batch["ts"]))
    if not batches:
        return None
    newest = batches[-1]["offsets"][topic]
    found = Archived(Cursor(newest["epoch"], newest["seq"]))
    for batch in batches:
        if batch["offsets"][topic]["epoch"] != newest["epoch"]:
            continue
        for path, of, _, _, records, low, high, _, _, reason, *_ in batch[LISTED]:
            if of == topic and path is not None:
                path = path.removeprefix("_staging/")
                found.files.append(LakeFile(f"{lake}/events/{path}", records, low, high, False))
            elif of == topic:
                _take_losses(found, [{"gap_from": low, "gap_to": high, "reason": reason}])
    return found


def _overlap(files: list[LakeFile]) -> bool:
    highest = accumulate((file.seq_max for file in files), max)
    return any(file.seq_min <= before for file, before in zip(files[1:], highest, strict=False))
