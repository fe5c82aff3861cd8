"""Archive: topics into a lake table, with every record once and every gap reported.

The source is read from the beginning and with tombstones, so that what was evicted before it could be archived is in
the table of losses. Each batch of the stream is one commit; see `lake` for what that means.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from topics.pipeline.archive_source import FORMAT, ArchiveSource, Target
from topics.pipeline.checkpoint import batch_offsets, query_id
from topics.pipeline.errors import PipelineError
from topics.pipeline.lake import files
from topics.pipeline.lake.delta import DeltaLake
from topics.pipeline.lake.erase import DeleteFollower, Eraser
from topics.pipeline.lake.iceberg import NAMESPACE, IcebergLake
from topics.pipeline.lake.offsets import Offsets
from topics.pipeline.lake.parquet import ParquetLake
from topics.pipeline.lake.typed import Typed
from topics.pipeline.progress import Progress
from topics.pipeline.query import start, state_of, stream
from topics.spark.client import PLANNING_RETRY_MS
from topics.spark.offsets import BEGINNING
from topics.spark.options import ReadOptions
from topics.spark.place import Place
from topics.spark.reader import names_of
from topics.spark.servers import Servers

FILE_BYTES: Final = 128 << 20
Lake = DeltaLake | ParquetLake | IcebergLake


class Committed(Progress):
    """The progress of an archive: what it counts is what its tables hold."""

    def __init__(self) -> None:
        super().__init__("archive")
        self._committed = 0

    def commit(self, written: list[files.Written]) -> None:
        """Take in the files and gaps of a batch that is in the tables."""
        self._committed += sum(file.records for file in written if file.path is not None)
        self.files += sum(file.path is not None for file in written)
        self.losses += sum(file.path is None for file in written)

    def _count(self, reported: dict[str, Any]) -> None:
        seconds = reported["durationMs"]["triggerExecution"] / 1000
        before, self.records = self.records, self._committed
        self.rate = (self.records - before) / max(seconds, 0.001)


@dataclass
class Archive:
    """One archive pipeline."""

    source: dict[str, str]
    """Options of the source: url, token, and which topics."""
    root: Place
    format: str = "delta"
    checkpoint: Path | None = None
    file_bytes: int = FILE_BYTES
    offsets_max: int | None = None
    partitions_min: int | None = None
    typed: bool = False
    follow_deletes: bool = False
    catalog: str | None = None
    """Of Iceberg tables: an address or a name; by default a file in the lake."""
    namespace: str = NAMESPACE
    progress: Committed = field(default_factory=Committed)
    _follower: DeleteFollower | None = None
    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def start(self, spark: Any, once: bool, interval: str, pause_file: Path) -> Any:
        """The running query."""
        lake = self._lake()
        checkpoint = self._state()
        begun, starting = self._begun(lake, checkpoint)
        options = {
            **self.source,
            "failOnDataLoss": "false",
            "includeTombstones": "true",
            "startingOffsets": starting,
        }
        if self.partitions_min is not None:
            options["minPartitions"] = str(self.partitions_min)

        typed = Typed(self.root, self.file_bytes) if self.typed else None
        if typed is not None:
            self.progress.errors += typed.catch_up(lambda: spark)

        turn = threading.Lock()
        if self.follow_deletes:
            server = {key: value for key, value in self.source.items() if key in ("url", "token", "retryTimeoutMs")}
            self._follower = DeleteFollower(lambda: Eraser(self.root, server, lambda: spark), turn)
            self._follower.start()

        def commit(frame: Any, batch_id: int) -> None:
            with turn:
                self._commit(lake, checkpoint, frame, batch_id, begun)
                if typed is not None:
                    self.progress.errors += typed.catch_up(lambda: spark)

        target = Target(str(lake.root), lake.prefix, lake.hive, lake.named, self.file_bytes)
        spark.dataSource.register(ArchiveSource)
        options |= target.options()
        query = stream(spark, options, self.offsets_max, pause_file, FORMAT).writeStream.foreachBatch(commit)
        return start(query, "archive", checkpoint, once, interval)

    def _lake(self) -> Lake:
        try:
            if self.format == "iceberg":
                return IcebergLake(self.root, self.catalog, self.namespace)
            return DeltaLake(self.root) if self.format == "delta" else ParquetLake(self.root)
        except OSError as error:
            raise PipelineError(f"tables cannot be created in {self.root}: {error.strerror}") from None

    def _state(self) -> Path:
        """Where Spark keeps the state of the query: beside the tables where that is a file system.

        In an object store the tables themselves say where to go on, so a directory for this run is enough.
        """
        state = state_of(self.root, self.checkpoint)
        if state is not None:
            return state
        self._scratch = tempfile.TemporaryDirectory(prefix="topics-checkpoint-", ignore_cleanup_errors=True)
        return Path(self._scratch.name)

    def finish(self) -> int | None:
        """Follow the deletes of the server to the end; how many records were erased, or None where none is followed."""
        if self._follower is None:
            return None
        self._follower.stop()
        return self._follower.records

    def _begun(self, lake: Lake, checkpoint: Path) -> tuple[Offsets | None, str]:
        """Where a query without a checkpoint begins, after what the table already holds, and as an option.

        A topic that the table does not hold yet is read from its beginning.
        """
        if (checkpoint / "commits" / "0").exists():
            return None, BEGINNING
        known = lake.offsets()
        if known is None:
            return {}, BEGINNING
        options = ReadOptions(self.source, streaming=True)
        with contextlib.closing(Servers(options.addresses, PLANNING_RETRY_MS)) as client:
            names = names_of(client, options, must_exist=False)
        begun = {topic: known[topic] for topic in names if topic in known}
        return begun, json.dumps({topic: begun.get(topic, BEGINNING) for topic in names})

    def _commit(self, lake: Lake, checkpoint: Path, frame: Any, batch_id: int, begun: Offsets | None) -> None:
        app_id = f"topics-archive-{query_id(checkpoint)}"
        if lake.has(app_id, batch_id):
            lake.finish(app_id, batch_id)
            return
        offsets = batch_offsets(checkpoint, batch_id)
        written = [files.Written(*row) for row in frame.collect()]
        lake.commit(app_id, batch_id, written, offsets, batch_offsets(checkpoint, batch_id - 1) if batch_id else begun)
        self.progress.commit(written)
