"""Replay: records of a lake table back into a topic, in their order, each once.

The topic assigns new seqs and times; the old ones are kept in `meta` as `replayed_topic`, `replayed_seq` and
`replayed_ts`. A replay has a name: run again under the same name and state directory it goes on where it stopped, and
finishes what was selected the first time.

The selection is cut into slices, ranges of seqs of one topic, and the list of them is written down before anything
else. The slices are written one after the other, each as the next version of one exactly-once write, which forgets what
the one before had staged. So however large the selection is, only one slice of it is in memory and on disk, and after a
crash the replay goes on with the slice it was at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from topics.pipeline.errors import PipelineError, reason
from topics.pipeline.lake.contents import held
from topics.pipeline.lake.files import Written
from topics.pipeline.lake.typed import RAW_COLUMNS
from topics.spark.depot import depot_of, write_once
from topics.spark.place import Place
from topics.spark.stage import Stage

SLICE_RECORDS: Final = 100_000
SLICE_BYTES: Final = 16 << 20
"""Of the Parquet files, which are several times smaller than the JSON that is staged."""
PACED_SLICE_S: Final = 10
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class Slice(NamedTuple):
    """A range of seqs of one topic, both ends included, and about how many records it has."""

    topic: str
    seq_from: int
    seq_to: int
    records: int


class Done(NamedTuple):
    """What a replay reports after each slice."""

    slice: int
    slices: int
    records: int
    left: int
    """About how many records are still to be looked at."""


@dataclass
class Replay:
    """One replay."""

    server: dict[str, str]
    """Options of the sink: url and token."""
    root: Place
    target: str
    name: str
    state: Path
    topics: list[str] = field(default_factory=list)
    seq_from: int | None = None
    seq_to: int | None = None
    ts_from: str | None = None
    ts_to: str | None = None
    where: str | None = None
    records_per_second: int | None = None
    slice_records: int = SLICE_RECORDS
    staging: str | None = None
    """Where records are staged, if executors cannot write to `state`."""

    def run(self, spark: Any) -> Iterator[Done]:
        """Write the chosen records, a slice at each step; at the end all of them are records of the target."""
        files = held(self.root)
        plan = self._plan(spark, files)
        left = sum(one.records for one in plan)
        for number, one in enumerate(plan):
            left -= one.records
            if number < self._done():
                continue
            self._write(spark, files, one, number)
            self._note(number + 1)
            yield Done(number + 1, len(plan), self._written(number), left)

    def _frame(self, spark: Any, files: list[Written], one: Slice) -> Any:
        """The rows of a slice, in order."""
        paths = [
            f"{self.root.for_spark}/events/{file.path}"
            for file in files
            if file.topic == one.topic and file.seq_min <= one.seq_to and file.seq_max >= one.seq_from
        ]
        rows = spark.read.schema(RAW_COLUMNS).parquet(*paths).selectExpr(f"'{one.topic}' AS topic", "*")
        for condition in (f"seq BETWEEN {one.seq_from} AND {one.seq_to}", *self._conditions):
            try:
                rows = rows.filter(condition)
            except Exception as failure:
                raise PipelineError(f"the filter {condition} cannot be used: {reason(failure)}") from None
        kept = (
            "map_concat(coalesce(meta, map()), map('replayed_topic', topic, 'replayed_seq', string(seq), "
            "'replayed_ts', string(unix_millis(ts)))) AS meta"
        )
        # One task: a slice is small, and its rows are published in one order.
        return rows.coalesce(1).sortWithinPartitions("seq", "ts").selectExpr("data", "tag", "node", kept)

    def _write(self, spark: Any, files: list[Written], one: Slice, number: int) -> None:
        options = {
            **self.server,
            "topic": self.target,
            "txnId": self._txn_id,
            "txnVersion": str(number),
            "stagingDir": self.staging or str(self.state),
        }
        if self.records_per_second is not None:
            options["recordsPerSecond"] = str(self.records_per_second)
        self._frame(spark, files, one).write.format("topics").mode("append").options(**options).save()

    @property
    def _txn_id(self) -> str:
        return f"replay-{self.name}"

    def _written(self, number: int) -> int:
        """How many records a slice had, from what was staged for it."""
        stage = Stage(depot_of("--staging", self.staging or self.state), f"spark-txn-{self._txn_id}", number)
        return sum(file.records for file in stage.decide(()))

    def _plan(self, spark: Any, files: list[Written]) -> list[Slice]:
        """The slices of this replay: those of its first run, if there was one."""
        path = self._path("plan")
        choice = [self.target, self.topics, self.seq_from, self.seq_to, *self._conditions]
        if not path.exists():
            paced = None if self.records_per_second is None else self.records_per_second * PACED_SLICE_S
            most = min(self.slice_records, paced or self.slice_records)
            found = list(slices(self._chosen(spark, files), self.seq_from, self.seq_to, most, SLICE_BYTES))
            for one in found[:1]:
                self._frame(spark, files, one)
            write_once(path, json.dumps({"choice": choice, "slices": found}))
        plan = json.loads(path.read_text())
        if plan["choice"] != choice:
            raise PipelineError(
                f'the replay "{self.name}" was begun with another target or selection, which it finishes first; '
                f"give this one a name of its own"
            )
        return [Slice(*one) for one in plan["slices"]]

    def _chosen(self, spark: Any, files: list[Written]) -> list[Written]:
        """The files that may hold records of the selection."""
        low, high = (_micros(spark, bound) for bound in (self.ts_from, self.ts_to))
        of_topics = [file for file in files if not self.topics or file.topic in self.topics]
        if not of_topics:
            raise PipelineError(
                f"the archive in {self.root.shown} holds no records of {', '.join(self.topics) or 'any topic'}"
            )
        return [
            file for file in of_topics if (low is None or file.ts_max >= low) and (high is None or file.ts_min < high)
        ]

    @property
    def _conditions(self) -> list[str]:
        bounds = ((self.ts_from, "ts >= timestamp'{}'"), (self.ts_to, "ts < timestamp'{}'"))
        found = [condition.format(_plain(bound)) for bound, condition in bounds if bound is not None]
        return [*found, self.where] if self.where is not None else found

    def _done(self) -> int:
        path = self._path("done")
        return int(path.read_text()) if path.exists() else 0

    def _note(self, count: int) -> None:
        # This only saves work: a slice that is written again changes nothing.
        temporary = self._path("done-next")
        temporary.write_text(str(count))
        temporary.replace(self._path("done"))

    def _path(self, what: str) -> Path:
        return self.state / f"replay-{_UNSAFE.sub('_', self.name)}.{what}"


def slices(
    files: list[Written], seq_from: int | None, seq_to: int | None, records_max: int, bytes_max: int
) -> Iterator[Slice]:
    """Ranges that cover these files, topic by topic and in the order of seqs, each of about the given size at most."""
    for topic in sorted({file.topic for file in files}):
        first = 0
        records = weight = 0.0
        last = max(file.seq_max for file in files if file.topic == topic)
        for file in sorted((file for file in files if file.topic == topic), key=lambda file: file.seq_min):
            share = max(file.records / records_max, file.size / bytes_max)
            pieces = max(1, -int(-share // 1))
            for piece in range(pieces):
                cut = file.seq_min + (file.seq_max - file.seq_min + 1) * piece // pieces - 1
                if weight + share / pieces > 1 and cut >= first:
                    yield from _within(Slice(topic, first, cut, round(records)), seq_from, seq_to)
                    first, records, weight = cut + 1, 0.0, 0.0
                records += file.records / pieces
                weight += share / pieces
        yield from _within(Slice(topic, first, last, round(records)), seq_from, seq_to)


def _within(one: Slice, seq_from: int | None, seq_to: int | None) -> Iterator[Slice]:
    low = one.seq_from if seq_from is None else max(one.seq_from, seq_from)
    high = one.seq_to if seq_to is None else min(one.seq_to, seq_to)
    if low <= high:
        yield one._replace(seq_from=low, seq_to=high)


def _micros(spark: Any, bound: str | None) -> int | None:
    """A time as a user writes it, in microseconds since 1970."""
    if bound is None:
        return None
    try:
        found: int = spark.sql(f"SELECT unix_micros(timestamp'{_plain(bound)}')").first()[0]
    except Exception:
        raise PipelineError(f'"{bound}" is not a time; write 2024-01-31 or 2024-01-31 12:00:00 UTC') from None
    return found


def _plain(bound: str) -> str:
    return bound.replace("'", "").replace("\\", "")
