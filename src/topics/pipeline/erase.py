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
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from topics.pipeline.lake import held
from topics.pipeline.run import PipelineError
from topics.pipeline.typed import ERASED, Erasure, Typed
from topics.spark import archived
from topics.spark.client import PLANNING_RETRY_MS, Client
from topics.spark.errors import SourceError
from topics.spark.options import Address, GivenOptions
from topics.spark.place import Place

STEP_SEQS: Final = 5_000
"""As many seqs as one commit names one by one; longer runs are named by their ends."""
STEP_RUNS: Final = 100
TRIES: Final = 20
PAUSE_S: Final = 0.2
FOLLOW_S: Final = 10.0
ORPHANS_AFTER_HOURS: Final = 168


class Found(NamedTuple):
    """Rows of the lake: seqs and times, in order."""

    seqs: Any
    times: Any


@dataclass
class Erased:
    """What was erased of one topic."""

    topic: str
    records: int = 0
    live: int = 0
    """Records with the tag that the server still holds, which stay."""
    versions: dict[str, int] = field(default_factory=dict)
    """For each table that changed, the last version that still holds the records."""


class Eraser:
    """Takes deleted records out of one lake."""

    def __init__(self, root: Place, server: dict[str, str], session: Callable[[], Any]) -> None:
        self._root = root
        self._server = server
        self._session = session
        """Makes a Spark session, for typed tables that have much to catch up."""
        if not (root / "events").is_table():
            raise PipelineError(
                f"there is no Delta table of events in {root.shown}; records are erased from those only"
            )

    def topics(self) -> list[str]:
        """The topics that the lake holds."""
        return sorted({file.topic for file in held(self._root)})

    def followed(self) -> list[str]:
        """Those of them whose deletes can be followed: the server has the topic, and it is no queue."""
        with contextlib.closing(Client(Address(GivenOptions(self._server)), PLANNING_RETRY_MS)) as client:
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
        after = self._versions(topic)
        erased.versions = {table: version for table, version in before.items() if after[table] > version}
        return erased

    def _steps(self, topic: str, tag: str | None, erased: Erased) -> Iterator[Erasure]:
        """What to erase, in pieces of which each is one commit."""
        for epoch, live in self._live(topic, tag).items():
            found = self._found(topic, epoch, tag)
            stays = live(found.seqs)
            if tag is not None:
                erased.live = int(stays.sum())
            yield from steps(topic, epoch, Found(found.seqs[~stays], found.times[~stays]))

    def _live(self, topic: str, tag: str | None) -> dict[int, Callable[[Any], Any]]:
        """For each epoch to look at, which of its seqs stay in the lake."""
        history = archived.find(self._root, topic)
        if history is None or history.at.epoch is None:
            raise PipelineError(f'the archive in {self._root.shown} holds nothing of topic "{topic}"')
        epochs = sorted({file.epoch or history.at.epoch for file in held(self._root) if file.topic == topic})
        with contextlib.closing(Client(Address(GivenOptions(self._server)), PLANNING_RETRY_MS)) as client:
            plan = client.find(topic)
            if tag is None and plan is None:
                raise PipelineError(
                    f'topic "{topic}" does not exist at {self._server["url"]}, so nobody knows which of its records '
                    f"were deleted; name a tag to erase all records with it"
                )
            if tag is None and plan is not None and client.kind(topic) == "queue":
                raise PipelineError(f'topic "{topic}" is a queue, where every ack deletes; name a tag to erase by it')
            deleted = [] if plan is None else client.deleted(topic, plan.epoch, 0, plan.head_seq) or []
        runs = np.array(deleted, dtype=np.int64).reshape(-1, 2)
        if plan is None:
            return {epoch: lambda seqs: np.zeros(len(seqs), bool) for epoch in epochs}
        if tag is None:
            return {plan.epoch: lambda seqs: ~_within(seqs, runs)} if plan.epoch in epochs else {}
        first, head = plan.earliest_seq, plan.head_seq
        of = {epoch: (lambda seqs: np.zeros(len(seqs), bool)) for epoch in epochs}
        if plan.epoch in of:
            of[plan.epoch] = lambda seqs: (seqs >= first) & (seqs <= head) & ~_within(seqs, runs)
        return of

    def _found(self, topic: str, epoch: int, tag: str | None) -> Found:
        """The seqs and times of the rows of a topic that may have to go."""
        from deltalake import DeltaTable

        events = DeltaTable(str(self._root / "events")).to_pyarrow_dataset()
        wanted = (ds.field("topic") == topic) & ((ds.field("epoch") == epoch) | ds.field("epoch").is_null())
        if tag is not None:
            wanted &= ds.field("tag") == tag
        rows = events.to_table(columns=["seq", "ts"], filter=wanted).sort_by("seq")
        return Found(rows["seq"].to_numpy(), rows["ts"].cast(pa.int64()).to_numpy())

    def _versions(self, topic: str) -> dict[str, int]:
        from deltalake import DeltaTable

        names = ("events", "errors", Typed.place(topic))
        return {name: DeltaTable(str(self._root / name)).version() for name in names if (self._root / name).is_table()}

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


def _within(seqs: Any, runs: Any) -> Any:
    """Which of these seqs lie in one of the runs, which are in order."""
    if not len(runs):
        return np.zeros(len(seqs), bool)
    at = np.searchsorted(runs[:, 0], seqs, side="right") - 1
    return (at >= 0) & (seqs <= runs[np.maximum(at, 0), 1])


class Follower:
    """Erases what is deleted on the server while an archive runs, every few seconds, and once more at its end.

    `turn` keeps it apart from the commits of the archive's own batches. A server that is away is asked again the next
    time.
    """

    def __init__(self, eraser: Callable[[], Eraser], turn: threading.Lock, every_s: float = FOLLOW_S) -> None:
        self._eraser = eraser
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
            eraser = self._eraser()
            self.records += sum(eraser.follow(topic).records for topic in eraser.followed())


def failures() -> tuple[type[Exception], ...]:
    """What an erasure may fail with, in words for a user."""
    from deltalake.exceptions import DeltaError

    return PipelineError, SourceError, DeltaError
