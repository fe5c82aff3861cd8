"""Replay: records of a lake table back into a topic, in their order, each once.

Seq and ts are given anew by the topic; the old ones are kept in `meta` as `replayed_topic`, `replayed_seq` and
`replayed_ts`. A replay has a name: run again under the same name and state directory it goes on where it stopped, and
what it had chosen the first time is what it finishes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topics.pipeline.lake import held
from topics.pipeline.run import PipelineError, reason


@dataclass
class Replay:
    """One replay."""

    server: dict[str, str]
    """Options of the sink: url and token."""
    root: Path
    target: str
    name: str
    state: Path
    topics: list[str]
    seq_from: int | None = None
    seq_to: int | None = None
    ts_from: str | None = None
    ts_to: str | None = None
    where: str | None = None
    records_per_second: int | None = None

    def frame(self, spark: Any) -> Any:
        """The rows to replay, in order."""
        events = self.root / "events"
        rows = _delta(spark, self.root, self.topics) if (events / "_delta_log").is_dir() else _parquet(spark, events)
        if self.topics:
            rows = rows.filter(rows.topic.isin(self.topics))
        for condition in self._conditions():
            try:
                rows = rows.filter(condition)
            except Exception as failure:
                raise PipelineError(f"the filter {condition} cannot be used: {reason(failure)}") from None
        kept = (
            "map_concat(coalesce(meta, map()), map('replayed_topic', topic, 'replayed_seq', string(seq), "
            "'replayed_ts', string(unix_millis(ts)))) AS meta"
        )
        return rows.orderBy("topic", "seq").selectExpr("data", "tag", "node", kept)

    def _conditions(self) -> list[str]:
        found = []
        for bound, condition in (
            (self.seq_from, "seq >= {}"),
            (self.seq_to, "seq <= {}"),
            (self.ts_from, "ts >= timestamp'{}'"),
            (self.ts_to, "ts < timestamp'{}'"),
            (self.where, "{}"),
        ):
            if bound is not None:
                found.append(condition.format(str(bound).replace("'", "") if "'" in condition else bound))
        return found

    def run(self, spark: Any) -> None:
        """Write the rows; returns when all of them are records."""
        options = {**self.server, "topic": self.target, "txnId": f"replay-{self.name}", "stagingDir": str(self.state)}
        if self.records_per_second is not None:
            options["recordsPerSecond"] = str(self.records_per_second)
        self.frame(spark).write.format("topics").mode("append").options(**options).save()


def _delta(spark: Any, root: Path, topics: list[str]) -> Any:
    """A Delta table through its log: Spark reads the files that the newest version names."""
    paths: dict[str, list[str]] = {}
    for file in held(root):
        if not topics or file.topic in topics:
            paths.setdefault(file.topic, []).append(f"{root}/events/{file.path}")
    if not paths:
        raise PipelineError(f"the table at {root}/events holds no records of {topics or 'any topic'}")
    frames = [spark.read.parquet(*found).selectExpr(f"'{topic}' AS topic", "*") for topic, found in paths.items()]
    union = frames[0]
    for other in frames[1:]:
        union = union.unionByName(other)
    return union


def _parquet(spark: Any, events: Path) -> Any:
    if not events.is_dir():
        raise PipelineError(f"there is no lake table at {events.parent}")
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    return spark.read.parquet(str(events)).drop("date")
