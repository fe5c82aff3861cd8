"""Iceberg tables: how the files of a batch become visible there, all at once and once.

One snapshot per batch adds the files and says, in its summary, how far each topic is archived, which batches the table
holds and which gaps were found. So data and offsets cannot disagree, and an archive goes on from its table without a
checkpoint. A rollback of the table takes the offsets back with the records. They are kept as properties of the table
too, in the same commit, for the case that another tool rewrites the table and every snapshot of an archive expires.

A commit is one conditional change in the catalog: of two writers that have seen the same snapshot, one fails, looks
again, and goes on only if the other one has archived other topics. The library would put a failed append on top of
whatever came in between, without looking; therefore each of its commits is tried once, and tried again here.

The table of losses is brought up to date from the snapshots of the events, as in a Delta lake.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from topics.pipeline.errors import PipelineError
from topics.pipeline.lake.delta import BATCH, COMMIT_TRIES
from topics.pipeline.lake.files import NAMED_SCHEMA, Written
from topics.pipeline.lake.losses import LOSS_SCHEMA, LOSSES, loss_of, loss_rows
from topics.pipeline.lake.offsets import Offsets, check_begun
from topics.spark.archived import OFFSETS
from topics.spark.place import Place

BATCHES: Final = "topics.batches"
"""The last batch of each query that wrote into the table, as JSON."""
QUERIES_MAX: Final = 100
"""So many queries are remembered; one that was forgotten differs from a new one in where it goes on."""
CATALOG: Final = "topics"
CATALOG_FILE: Final = "catalog.db"
NAMESPACE: Final = "topics"
SCHEMES: Final = ("s3", "s3a")
# The text of a record is in no statistics. The topic and the time have to be: the table is partitioned by them.
_PROPERTIES: Final = {
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "full" for name in ("topic", "seq", "ts", "epoch")},
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class IcebergLake:
    """Events and losses as two Iceberg tables under one root."""

    prefix = "data/"
    hive = False
    named = True

    def __init__(self, root: Place, catalog: str | None = None, namespace: str = NAMESPACE) -> None:
        root.mkdir()
        self.root = root / "events"
        opened = open_catalog(root, catalog)
        opened.create_namespace_if_not_exists(namespace)
        self._events = _Table(opened, f"{namespace}.events", self.root, NAMED_SCHEMA, by_topic=True)
        self._losses = _Table(opened, f"{namespace}.losses", root / "losses", LOSS_SCHEMA)

    def has(self, app_id: str, batch_id: int) -> bool:
        """Whether the batch is already there."""
        return self._events.has(app_id, batch_id)

    def commit(
        self, app_id: str, batch_id: int, written: list[Written], offsets: Offsets, begun: Offsets | None = None
    ) -> None:
        """Add the files of a batch in one snapshot, with its offsets and its gaps; the first writer wins."""
        losses = [loss_of(gap) for gap in written if gap.path is None]
        paths = [f"{self.root}/{file.path}" for file in written if file.path is not None]

        def offsets_after(before: dict[str, str]) -> dict[str, str]:
            known = _offsets(before)
            check_begun(self.root, known, offsets, begun)
            return {OFFSETS: json.dumps({**(known or {}), **offsets}), LOSSES: json.dumps(losses)}

        def add(change: Any, summary: dict[str, str]) -> None:
            change.add_files(paths, snapshot_properties=summary, check_duplicate_files=False)

        self._events.commit(app_id, batch_id, offsets_after, add)
        self._lose(app_id, batch_id, losses, time.time_ns() // 1_000_000)

    def finish(self, app_id: str, batch_id: int) -> None:
        """Bring the table of losses up to the events."""
        if self._losses.has(app_id, batch_id):
            return
        for summary, seen_ms in self._events.history():
            if summary.get(BATCH) == f"{app_id}:{batch_id}":
                self._lose(app_id, batch_id, json.loads(summary[LOSSES]), seen_ms)
                return

    def _lose(self, app_id: str, batch_id: int, losses: list[list[Any]], seen_ms: int) -> None:
        if not losses:
            return

        def add(change: Any, summary: dict[str, str]) -> None:
            change.append(loss_rows(losses, batch_id, seen_ms), snapshot_properties=summary)

        self._losses.commit(app_id, batch_id, lambda _: {}, add)

    def offsets(self) -> Offsets | None:
        """How far each topic is archived."""
        return _offsets(self._events.last_summary())


class _Table:
    """One table, whose snapshots say which batches it holds."""

    def __init__(self, catalog: Any, name: str, place: Place, schema: Any, by_topic: bool = False) -> None:
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError

        try:
            self._table = catalog.load_table(name)
        except NoSuchTableError:
            try:
                self._table = _create(catalog, name, place, schema, by_topic)
            except (CommitFailedException, TableAlreadyExistsError):
                self._table = catalog.load_table(name)
        if self._table.location().rstrip("/") != str(place):
            raise PipelineError(
                f"the catalog has a table {name} in {self._table.location()}, and this archive is to keep it in "
                f"{place}; name another --namespace, or another --catalog"
            )

    def history(self) -> Iterator[tuple[dict[str, str], int]]:
        """The summaries of the snapshots of archives up to the current one, the newest first, and when."""
        from pyiceberg.table.snapshots import ancestors_of

        self._table.refresh()
        for snapshot in ancestors_of(self._table.current_snapshot(), self._table.metadata):
            summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
            if BATCHES in summary:
                yield dict(summary), snapshot.timestamp_ms

    def last_summary(self) -> dict[str, str]:
        """That of the last archive, from its snapshot or, where that has expired, from the properties of the table."""
        newest = next(self.history(), None)
        return dict(self._table.properties) if newest is None else newest[0]

    def has(self, app_id: str, batch_id: int) -> bool:
        """Whether a batch of a query, or a later one, is in the table."""
        return int(_batches(self.last_summary()).get(app_id, -1)) >= batch_id

    def commit(
        self,
        app_id: str,
        batch_id: int,
        properties: Callable[[dict[str, str]], dict[str, str]],
        add: Callable[[Any, dict[str, str]], None],
    ) -> None:
        """One snapshot for one batch; `properties` gets the summary before it, again if another commit came first."""
        from pyiceberg.exceptions import CommitFailedException

        for attempt in range(COMMIT_TRIES):
            before = self.last_summary()
            known = {query: batch for query, batch in _batches(before).items() if query != app_id}
            batches = dict([*known.items(), (app_id, batch_id)][-QUERIES_MAX:])
            summary = {**properties(before), BATCH: f"{app_id}:{batch_id}", BATCHES: json.dumps(batches)}
            change = _tried_once(self._table).transaction()
            add(change, summary)
            change.set_properties({name: summary[name] for name in (OFFSETS, BATCHES) if name in summary})
            try:
                change.commit_transaction()
                return
            except CommitFailedException:
                if attempt == COMMIT_TRIES - 1:
                    raise


def _tried_once(table: Any) -> Any:
    """The table as this process sees it, such that the library does not repeat a commit by itself."""
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


def _create(catalog: Any, name: str, place: Place, schema: Any, by_topic: bool) -> Any:
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

    # Ids are given when the table is made, so the partitions are named afterwards, in the same commit.
    with catalog.create_table_transaction(
        name, schema, location=str(place), partition_spec=UNPARTITIONED_PARTITION_SPEC, properties=_PROPERTIES
    ) as change:
        if by_topic:
            with change.update_spec() as spec:
                spec.add_identity("topic")
                spec.add_field("ts", "day", "ts_day")
    return catalog.load_table(name)


def open_catalog(root: Place, given: str | None) -> Any:
    """The catalog: a SQLite file in a lake that is a directory, one at an address, or one that is configured by name.

    Keys of an object store come from the environment, and endpoint and region too.
    """
    from pyiceberg.catalog import load_catalog

    store = {
        "s3.endpoint": os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"),
        "s3.region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
    }
    known = {name: value for name, value in store.items() if value}
    if given is None:
        assert root.path is not None, "a lake in an object store names its catalog"
        given = f"sqlite:///{root.path / CATALOG_FILE}"
    try:
        return load_catalog(CATALOG, uri=given, **known) if "://" in given else load_catalog(given, **known)
    except ValueError as error:
        raise PipelineError(f"the catalog cannot be opened: {error}") from None


def refusal(root: Place, catalog: str | None) -> str | None:
    """Why a lake cannot have Iceberg tables, or None where it can."""
    scheme = str(root).partition("://")[0] if root.path is None else ""
    if root.path is None and scheme not in SCHEMES:
        return "--format iceberg keeps its tables in a directory or in s3://"
    if root.path is None and catalog is None:
        return (
            "--format iceberg in an object store needs --catalog: the address of one that all archives of this lake "
            "reach, such as postgresql+psycopg2://... or https://..., or the name of one in .pyiceberg.yaml"
        )
    if catalog is not None and catalog.startswith("sqlite:///") and not Path(catalog[10:]).parent.is_dir():
        return f"--catalog: the directory of {catalog[10:]} does not exist"
    return None


def _offsets(summary: dict[str, str]) -> Offsets | None:
    found: Offsets | None = json.loads(summary.get(OFFSETS, "null"))
    return found


def _batches(summary: dict[str, str]) -> dict[str, int]:
    found: dict[str, int] = json.loads(summary.get(BATCHES, "{}"))
    return found
