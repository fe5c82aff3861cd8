"""Erase: records that were deleted on the server leave the lake too.

By a tag, everything goes that the server does not hold any more, also what retention had taken there long before: those
who ask to be forgotten are forgotten in the archive. What is still live on the server stays. Without a tag, everything
goes that clients have deleted on the server, as far as it knows: deletes below its evict floor are forgotten there.

Each step is one commit of the table of events that rewrites the files concerned and says which seqs it took, never
what they held. The typed tables and the errors follow it from there, as they follow all commits of the events (see
`typed`), so a crash in between is completed by the next run. Beside a running archive or a compaction nothing is lost:
the table refuses a commit that another one has overtaken, and the step is worked out again.

The files that were rewritten stay for readers of older versions until `vacuum` removes them.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topics.pipeline.errors import PipelineError
from topics.pipeline.lake.contents import held
from topics.pipeline.lake.delta import delta_table
from topics.pipeline.lake.files import PARTITION_BY, TABLE_SCHEMA, Written
from topics.pipeline.lake.typed import ERASED, PAUSE_S, TRIES, Erasure, Typed
from topics.spark import archived
from topics.spark.archived import plain
from topics.spark.client import PLANNING_RETRY_MS
from topics.spark.errors import SourceError
from topics.spark.options import GivenOptions, addresses
from topics.spark.place import Place
from topics.spark.servers import Servers

STEP_SEQS: Final = 5_000
"""As many seqs as one commit names one by one; longer runs are named by their ends."""
STEP_RUNS: Final = 100
FOLLOW_S: Final = 10.0
ORPHANS_AFTER_HOURS: Final = 168


class Found(NamedTuple):
    """Rows of the lake: seqs and times, in order."""

    seqs: Any
    times: Any


class Known(NamedTuple):
    """What the server knows of a topic; the epoch is None where there is no such topic."""

    epoch: int | None
    earliest_seq: int
    head_seq: int
    deleted: list[tuple[int, int]]

    def runs(self) -> Any:
        """What was deleted, as an array."""
        return np.array(self.deleted, dtype=np.int64).reshape(-1, 2)

    def holds(self, epoch: int, seqs: Any) -> Any:
        """Which of these seqs are live on the server."""
        if epoch != self.epoch:
            return np.zeros(len(seqs), bool)
        return (seqs >= self.earliest_seq) & (seqs <= self.head_seq) & ~_within(seqs, self.runs())


@dataclass
class Erased:
    """What was erased of one topic."""

    topic: str
    records: int = 0
    live: int = 0
    """Records with the tag that the server still holds, which stay."""
    versions: dict[str, int] = field(default_factory=dict)
    """For each table that records were taken from, the last version that still holds some of them."""


class Eraser:
    """Takes deleted records out of one lake."""

    def __init__(self, root: Place, server: dict[str, str], session: Callable[[], Any]) -> None:
        self._root = root
        self._server = server
        self._session = session
        """Makes a Spark session, for typed tables that have much to catch up."""
        self._scanned: dict[str, tuple[Known, set[str]]] = {}
        if not (root / "events").is_table():
            raise PipelineError(
                f"there is no Delta table of events in {root.shown}; records are erased from those only"
            )
        # A table of an older release gets its column `epoch`.
        delta_table(root / "events", TABLE_SCHEMA, PARTITION_BY)

    def topics(self) -> list[str]:
        """The topics that the lake holds."""
        return sorted({file.topic for file in held(self._root)})

    def followed(self) -> list[str]:
        """Those of them whose deletes can be followed: the server has the topic, and it is no queue."""
        with contextlib.closing(Servers(addresses(GivenOptions(self._server)), PLANNING_RETRY_MS)) as client:
            return [topic for topic in self.topics() if client.find(topic) and client.kind(topic) != "queue"]

    def follow(self, topic: str) -> Erased:
        """Erase what clients have deleted on the server."""
        return self._erase(topic, None)

    def forget(self, topic: str, tag: str) -> Erased:
        """Erase all records with a tag that are not on the server any more."""
        return self._erase(topic, tag)

    def _erase(self, topic: str, tag: str | None) -> Erased:
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError

        erased = Erased(topic)
        before = self._versions(topic)
        for attempt in range(TRIES):
            try:
                for step in self._steps(topic, tag, erased):
                    events = DeltaTable(str(self._root / "events"))
                    where = f"topic = '{topic}' AND (epoch = {step.epoch} OR epoch IS NULL) AND "
                    erased.records += step.delete(events, where, {ERASED: step.to_json()})
                break
            except CommitFailedError:
                if attempt == TRIES - 1:
                    raise
                time.sleep(PAUSE_S)
        if (self._root / "errors").is_table():
            Typed(self._root, 128 << 20).catch_up(self._session)
        for table in self._versions(topic):
            if (last := self._erased_last(table, topic, before.get(table, 0))) is not None:
                erased.versions[table] = last - 1
        return erased

    def _steps(self, topic: str, tag: str | None, erased: Erased) -> Iterator[Erasure]:
        """What to erase, in pieces of which each is one commit."""
        history = archived.find(self._root, topic)
        if history is None or history.at.epoch is None:
            raise PipelineError(f'the archive in {self._root.shown} holds nothing of topic "{topic}"')
        known = self._ask(topic, tag)
        files = [file for file in held(self._root) if file.topic == topic]
        erased.live = 0
        scans = self._scans(topic, files, known) if tag is None else [(files, None)]
        for chosen, runs in scans:
            for epoch, found in self._found(chosen, tag, runs, history.at.epoch).items():
                if tag is None and epoch != known.epoch:
                    continue
                stays = known.holds(epoch, found.seqs) if tag is not None else np.zeros(len(found.seqs), bool)
                erased.live += int(stays.sum())
                yield from steps(topic, epoch, Found(found.seqs[~stays], found.times[~stays]))
        self._scanned[topic] = (known, {str(file.path) for file in files})

    def _ask(self, topic: str, tag: str | None) -> Known:
        """What the server knows of a topic."""
        with contextlib.closing(Servers(addresses(GivenOptions(self._server)), PLANNING_RETRY_MS)) as client:
            plan = client.find(topic)
            if tag is None and plan is None:
                raise PipelineError(
                    f'topic "{topic}" does not exist at {self._server["url"]}, so nobody knows which of its records '
                    f"were deleted; name a tag to erase all records with it"
                )
            if tag is None and plan is not None and client.kind(topic) == "queue":
                raise PipelineError(f'topic "{topic}" is a queue, where every ack deletes; name a tag to erase by it')
            if plan is None:
                return Known(None, 1, 0, [])
            deleted = client.deleted(topic, plan.epoch, 0, plan.head_seq) or []
            return Known(plan.epoch, plan.earliest_seq, plan.head_seq, deleted)

    def _scans(self, topic: str, files: list[Written], known: Known) -> list[tuple[list[Written], Any]]:
        """Which files to search for which deleted runs: what the last search has covered is not searched again."""
        before, searched = self._scanned.get(topic, (None, set()))
        runs = known.runs()
        if before is None or before.epoch != known.epoch:
            return [(files, runs)]
        news = set(known.deleted) - set(before.deleted)
        fresh = np.array(sorted(news), dtype=np.int64).reshape(-1, 2)
        new_files = [file for file in files if file.path not in searched]
        return [([file for file in files if file.path in searched], fresh), (new_files, runs)]

    def _found(self, files: list[Written], tag: str | None, runs: Any, epoch: int) -> dict[int, Found]:
        """The rows with a tag, or within runs of seqs, by their epochs; a row without one is of the given epoch."""
        events = (self._root / "events").files()
        kept: list[Any] = []
        for file in files:
            if runs is not None and not _overlap(runs, file.seq_min, file.seq_max):
                continue
            with events.open_input_file(str(file.path)) as opened:
                content = pq.ParquetFile(opened)
                wanted = ("seq", "ts", "epoch") if tag is None else ("seq", "ts", "epoch", "tag")
                names = [name for name in wanted if name in content.schema_arrow.names]
                for batch in map(plain, content.iter_batches(columns=names)):
                    if tag is not None:
                        rows = batch.filter(pc.equal(batch["tag"], tag))
                    else:
                        rows = batch.filter(pa.array(_within(_seqs(batch), runs)))
                    ages = rows["epoch"].fill_null(epoch) if "epoch" in names else pa.repeat(epoch, rows.num_rows)
                    kept.append(np.array([_seqs(rows), rows["ts"].cast(pa.int64()), ages], dtype=np.int64))
        columns = np.concatenate(kept, axis=1) if kept else np.zeros((3, 0), np.int64)
        columns = columns[:, np.argsort(columns[0], kind="stable")]
        return {
            int(one): Found(columns[0][columns[2] == one], columns[1][columns[2] == one])
            for one in np.unique(columns[2])
        }

    def _versions(self, topic: str) -> dict[str, int]:
        from deltalake import DeltaTable

        names = ("events", "errors", Typed.place(topic))
        return {name: DeltaTable(str(self._root / name)).version() for name in names if (self._root / name).is_table()}

    def _erased_last(self, table: str, topic: str, since: int) -> int | None:
        """The last version after `since` that took records of a topic out of a table, by whomever; None if none did.

        A table also gets versions that only add: from an archive meanwhile, or while typed tables catch up.
        """
        from deltalake import DeltaTable

        opened = DeltaTable(str(self._root / table))
        for entry in opened.history(opened.version() - since) if opened.version() > since else ():
            of_topic = ERASED not in entry or json.loads(entry[ERASED])[0] == topic
            if of_topic and int(entry.get("operationMetrics", {}).get("num_deleted_rows", 0)) > 0:
                return int(entry["version"])
        return None

    def vacuum(self) -> Iterator[tuple[str, int]]:
        """Remove the files that only older versions need; the tables, and how many files of each went.

        Files that no version names may belong to a batch that is being written: they go when they are a week old.
        """
        from deltalake import DeltaTable

        for name in self._root.tables():
            address = str(self._root / name)
            gone = DeltaTable(address).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
            gone += DeltaTable(address).vacuum(retention_hours=ORPHANS_AFTER_HOURS, dry_run=False, full=True)
            yield name, len(gone)


def steps(topic: str, epoch: int, found: Found) -> Iterator[Erasure]:
    """Rows as pieces of a bounded number of seqs and of long runs."""
    if not len(found.seqs):
        return
    cuts = np.flatnonzero(np.diff(found.seqs) != 1) + 1
    runs: list[tuple[int, int]] = []
    first = seqs = 0
    for start, stop in zip((0, *cuts.tolist()), (*cuts.tolist(), len(found.seqs)), strict=True):
        runs.append((int(found.seqs[start]), int(found.seqs[stop - 1])))
        seqs += stop - start
        if seqs >= STEP_SEQS or len(runs) >= STEP_RUNS or stop == len(found.seqs):
            times = found.times[first:stop]
            yield Erasure(topic, epoch, runs, int(times.min()), int(times.max()))
            runs, first, seqs = [], stop, 0


def _seqs(batch: Any) -> Any:
    return batch["seq"].to_numpy(zero_copy_only=False)


def _overlap(runs: Any, low: int, high: int) -> bool:
    """Whether one of the runs, which are in order, has a seq from `low` to `high`."""
    at = int(np.searchsorted(runs[:, 1], low))
    return at < len(runs) and bool(runs[at, 0] <= high)


def _within(seqs: Any, runs: Any) -> Any:
    """Which of these seqs are in one of the runs, which are in order."""
    if not len(runs):
        return np.zeros(len(seqs), bool)
    at = np.searchsorted(runs[:, 0], seqs, side="right") - 1
    return (at >= 0) & (seqs <= runs[np.maximum(at, 0), 1])


class DeleteFollower:
    """Erases what is deleted on the server while an archive runs, every few seconds, and once more at its end.

    `turn` keeps it apart from the commits of the archive's own batches. A server that is away is asked again the next
    time.
    """

    def __init__(self, eraser: Callable[[], Eraser], turn: threading.Lock, every_s: float = FOLLOW_S) -> None:
        self._eraser = eraser
        self._made: Eraser | None = None
        self._turn = turn
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="follow-deletes", daemon=True)
        self.records = 0

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Follow once more, to the end."""
        self._ended.set()
        self._thread.join()
        self.pass_once()

    def _loop(self) -> None:
        while not self._ended.wait(self._every_s):
            with contextlib.suppress(*failures()):
                self.pass_once()

    def pass_once(self) -> None:
        """Erase what was deleted by now, of all topics of the lake that the server has."""
        with self._turn:
            self._made = eraser = self._made or self._eraser()
            self.records += sum(eraser.follow(topic).records for topic in eraser.followed())


def failures() -> tuple[type[Exception], ...]:
    """What an erasure may fail with, in words for a user."""
    from deltalake.exceptions import DeltaError

    return PipelineError, SourceError, DeltaError
