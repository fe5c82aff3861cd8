"""Report: what an archive holds, how far it lags, and what was lost, gathered for one page.

Everything but the lag comes from the archive itself and needs no Spark: the log of the tables has the number of records
of each file and their first and last time, so only files that span more than one hour are opened, and only for their
times. The lag needs the server; if it cannot be reached, the report says so and shows the rest.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topics.pipeline.errors import PipelineError
from topics.pipeline.lake.contents import exists, held
from topics.pipeline.lake.delta import DeltaLake
from topics.pipeline.lake.files import Written
from topics.pipeline.lake.offsets import Offsets
from topics.pipeline.lake.parquet import ParquetLake
from topics.spark.place import Place

_HOUR_US: Final = 3_600_000_000


@dataclass
class Loss:
    """One gap of the ledger."""

    topic: str
    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    seen_ts: int
    """Seconds since 1970."""


@dataclass
class TopicReport:
    """What is known about one topic."""

    topic: str
    records: int = 0
    bytes: int = 0
    seq_max: int = 0
    hours: Counter[int] = field(default_factory=Counter)
    """Records by the hour in which they were written, as hours since 1970."""
    losses: list[Loss] = field(default_factory=list)
    lag: int | None = None
    """None where the server did not report it."""

    @property
    def lost(self) -> int:
        """About how many records of the topic are gone."""
        return sum(loss.missed_estimate for loss in self.losses)


@dataclass
class Report:
    """Everything the page shows."""

    root: Place
    made_ts: int
    topics: list[TopicReport]
    """The largest first."""
    server: str
    trouble: str | None = None
    """Why there is no lag."""


def gather(root: Place, server: dict[str, str], topics: list[str]) -> Report:
    """Read an archive, and ask the server for the heads of its topics."""
    if not exists(root):
        raise PipelineError(f"there is no archive in {root.shown}: it has no table of events")
    found: dict[str, TopicReport] = {}
    for file in held(root):
        if topics and file.topic not in topics:
            continue
        of = found.setdefault(file.topic, TopicReport(file.topic))
        of.records += file.records
        of.bytes += file.size
        of.seq_max = max(of.seq_max, file.seq_max)
        of.hours.update(_hours(root, file))
    for loss in _losses(root):
        if not topics or loss.topic in topics:
            found.setdefault(loss.topic, TopicReport(loss.topic)).losses.append(loss)
    missing = sorted(set(topics) - set(found))
    if missing:
        raise PipelineError(f'the archive in {root.shown} holds nothing of topic "{missing[0]}"')
    report = Report(
        root, int(time.time()), sorted(found.values(), key=lambda of: (-of.records, of.topic)), server["url"]
    )
    report.trouble = _ask(report.topics, server, _offsets(root))
    return report


def _hours(root: Place, file: Written) -> Counter[int]:
    first, last = file.ts_min // _HOUR_US, file.ts_max // _HOUR_US
    if first == last:
        return Counter({first: file.records})
    hours: Counter[int] = Counter()
    with (root / "events").files().open_input_file(str(file.path)) as opened:
        for batch in pq.ParquetFile(opened).iter_batches(columns=["ts"]):
            counted = pc.value_counts(pc.divide(batch["ts"].cast(pa.int64()), _HOUR_US))
            hours.update({entry["values"]: entry["counts"] for entry in counted.to_pylist()})
    return hours


def _losses(root: Place) -> list[Loss]:
    from deltalake import DeltaTable

    if (root / "losses").is_table():
        rows = DeltaTable(str(root / "losses")).to_pyarrow_table().to_pylist()
        for row in rows:
            row["seen_ts"] = int(row["seen_ts"].timestamp())
    else:
        paths = [] if root.path is None else (root.path / "losses").glob("*.json")
        lines = [line for path in paths for line in path.read_text().splitlines()]
        rows = [json.loads(line) for line in lines]
        for row in rows:
            row["seen_ts"] //= 1000
    losses = [Loss(**{name: row[name] for name in Loss.__dataclass_fields__}) for row in rows]
    return sorted(losses, key=lambda loss: (-loss.seen_ts, loss.topic, loss.gap_from))


def _offsets(root: Place) -> Offsets:
    return (DeltaLake(root) if (root / "events").is_table() else ParquetLake(root)).offsets() or {}


def _ask(topics: list[TopicReport], server: dict[str, str], offsets: Offsets) -> str | None:
    """Fill in the lag of each topic; what went wrong, if anything."""
    from topics.spark.client import PLANNING_RETRY_MS
    from topics.spark.errors import SourceError
    from topics.spark.options import GivenOptions, addresses
    from topics.spark.servers import Servers

    try:
        with contextlib.closing(Servers(addresses(GivenOptions(server)), PLANNING_RETRY_MS)) as client:
            for of in topics:
                plan, at = client.find(of.topic), offsets.get(of.topic)
                done = int(at["seq"]) if plan and at and at["epoch"] == plan.epoch else 0
                # A topic that is gone cannot get ahead.
                of.lag = 0 if plan is None else max(0, plan.head_seq - done)
    except SourceError as error:
        return str(error)
    return None
