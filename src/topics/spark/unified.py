"""One table over history and tail: a topic as its archive and its server hold it, every record once.

What is archived is read from the files of the lake, by Spark's own reader; what came after it is read from the server.
The two meet at the seq up to which the lake is complete, in one version of the lake. What clients have deleted on the
server since it was archived is left out; what retention has taken there is not, because that is what a lake is for.

The ranges are fixed by the call, so every action over the DataFrame reads the same; call `table` again for newer
records.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from topics.spark import archived
from topics.spark.archived import Archived, LakeFile
from topics.spark.client import PLANNING_RETRY_MS, Plan
from topics.spark.errors import BadOption, DataLoss, SourceError
from topics.spark.options import COLUMNS, ReadOptions
from topics.spark.place import BadPlace, Place
from topics.spark.servers import Servers

Run = tuple[int, int]
RUNS_IN_FILTER_MAX: Final = 20
"""As many deleted ranges as a condition of the scan may name; more of them are a join."""
BROADCAST_SEQS_MAX: Final = 2_000_000
LISTED_HERE_MAX: Final = 2_000
DEFAULT_URL: Final = "http://127.0.0.1:4000"
_OF_A_PART: Final = (
    "startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp", "includetombstones", "tags", "nodes",
)  # fmt: skip
"""Options, in lower case, that would apply to what comes from the server and not to the lake."""
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_RAW: Final = "seq bigint, ts timestamp, node string, tag string, meta map<string,string>, data string, epoch bigint"


def table(spark: Any, topic: str, lake: str | Path, **options: Any) -> Any:
    """The records of a topic, from the lake in `lake` and from the server of the option `url`, as one DataFrame.

    `options` are those of the source: `url` (or the variable TOPICS_URL), `token`, `dataDir`, `failOnDataLoss` and the
    like.
    """
    given, root = _given(lake, options)
    read = ReadOptions({"topic": topic, **given}, streaming=False)
    with contextlib.closing(Servers(read.addresses, PLANNING_RETRY_MS)) as client:
        plan = client.plan(topic)
        history = archived.find(root, topic)
        deleted: list[Run] | None = []
        if history is not None and history.at.epoch == plan.epoch:
            deleted = client.deleted(topic, plan.epoch, 0, history.at.seq)
            # The lake may hold what came after this plan.
            plan = client.plan(topic)
        _check(plan, history, deleted, read.fail_on_data_loss)
    place = {"epoch": plan.epoch, "seq": plan.head_seq}
    given |= {"topic": topic, "columns": ",".join(COLUMNS), "endingOffsets": json.dumps({topic: place})}
    if history is None or history.at.epoch != plan.epoch:
        return _chosen(spark.read.format("topics").options(**given).load(), read)
    given["startingOffsets"] = json.dumps({topic: {**place, "seq": history.at.seq}})
    tail = spark.read.format("topics").options(**given).load()
    return _chosen(_history(spark, topic, history, deleted or []).unionAll(tail), read)


def stream(spark: Any, topic: str, lake: str | Path, **options: Any) -> Any:
    """The records of a topic as a stream: first those of the lake, then those of the server as they come."""
    from topics.spark.backfill import FORMAT, TableSource

    given, root = _given(lake, options)
    ReadOptions({"topic": topic, **given}, streaming=True)
    if archived.find(root, topic) is None:
        raise SourceError(f'the archive in "{root.shown}" holds nothing of topic "{topic}"')
    spark.dataSource.register(TableSource)
    return spark.readStream.format(FORMAT).options(**given, topic=topic, lake=str(root)).load()


def _given(lake: str | Path, options: dict[str, Any]) -> tuple[dict[str, str], Place]:
    given = {"url": os.environ.get("TOPICS_URL", DEFAULT_URL)} | {name: _text(value) for name, value in options.items()}
    for name in given:
        if name.lower() in _OF_A_PART:
            raise SourceError(f'option "{name}": a table is the whole topic; use a condition on its columns')
    try:
        return given, Place(lake)
    except BadPlace as error:
        raise BadOption("lake", lake, str(error)) from None


def _check(plan: Plan, history: Archived | None, deleted: list[Run] | None, fail_on_data_loss: bool) -> None:
    """Refuse what would not be the topic: another one of this name, one that went back, one with records missing."""
    if history is None or history.at.epoch == plan.epoch:
        if deleted is None:
            raise SourceError(f'topic "{plan.topic}" was deleted and created again just now; try again')
        if history is not None and history.at.seq > plan.head_seq:
            raise SourceError(
                f'the lake holds topic "{plan.topic}" to seq {history.at.seq}, and its head is {plan.head_seq}: a '
                f"crash took records that were not durable; run the archive first, which takes note of it"
            )
        for gap in history.gaps if history is not None and fail_on_data_loss else ():
            raise DataLoss(plan.topic, *gap)
    elif history.at.epoch is not None and history.at.epoch > plan.epoch:
        raise SourceError(
            f'the lake holds a later topic "{plan.topic}" (epoch {history.at.epoch}) than the server '
            f"(epoch {plan.epoch}): it is the archive of another server"
        )


def _history(spark: Any, topic: str, history: Archived, deleted: list[Run]) -> Any:
    """The records of the lake that the topic still counts as its own."""
    clean: list[LakeFile] = []
    touched: list[LakeFile] = []
    for file in history.files:
        hit = any(first <= file.seq_max and last >= file.seq_min for first, last in deleted)
        (touched if hit or file.mixed or history.repeated or file.seq_max > history.at.seq else clean).append(file)
    rows = _rows(spark, clean)
    if touched:
        rows = rows.unionAll(_sifted(spark, _rows(spark, touched), history, _within(deleted, touched)))
    return rows.selectExpr(f"'{topic}' AS topic", *COLUMNS[1:])


def _rows(spark: Any, files: list[LakeFile]) -> Any:
    if not files:
        return spark.createDataFrame([], _RAW)
    # Spark would look up more than 32 paths by a job of its own, which takes as long as reading some of them.
    before = spark.conf.get(_LISTING)
    spark.conf.set(_LISTING, str(LISTED_HERE_MAX))
    try:
        return spark.read.schema(_RAW).parquet(*(file.path for file in files))
    finally:
        spark.conf.set(_LISTING, before)


def _sifted(spark: Any, rows: Any, history: Archived, deleted: list[Run]) -> Any:
    """Rows without those that were deleted, are of an earlier topic, or came again under the same seq."""
    epoch, seq = history.at
    rows = rows.filter(f"seq <= {seq}")
    if any(file.mixed for file in history.files):
        rows = rows.filter(f"epoch = {epoch}")
    if history.repeated:
        newest = rows.selectExpr("*", "row_number() OVER (PARTITION BY seq ORDER BY ts DESC) AS turn")
        rows = newest.filter("turn = 1").drop("turn")
    if len(deleted) <= RUNS_IN_FILTER_MAX:
        for first, last in deleted:
            rows = rows.filter(f"NOT seq BETWEEN {first} AND {last}")
        return rows
    gone = spark.createDataFrame(deleted, "first bigint, last bigint").selectExpr(
        "explode(sequence(first, last)) AS seq"
    )
    few = sum(last - first + 1 for first, last in deleted) <= BROADCAST_SEQS_MAX
    return rows.join(gone.hint("broadcast") if few else gone, "seq", "left_anti").select(*rows.columns)


def _within(deleted: list[Run], files: Iterable[LakeFile]) -> list[Run]:
    low, high = min(file.seq_min for file in files), max(file.seq_max for file in files)
    return [(max(first, low), min(last, high)) for first, last in deleted if first <= high and last >= low]


def _chosen(rows: Any, read: ReadOptions) -> Any:
    return rows.select(*read.columns)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
