"""Archive: topics into a lake table, with every record once and every gap reported.

The source is read from the beginning and with tombstones, so that what was evicted before it could be archived is in
the table of losses. Each batch of the stream is one commit; see `lake` for what that means.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from topics.pipeline import files
from topics.pipeline.lake import DeltaLake, Lake, Offsets, ParquetLake
from topics.pipeline.run import PipelineError, Progress, start, stream
from topics.pipeline.source import FORMAT, ArchiveSource, Target
from topics.pipeline.typed import Typed

FILE_BYTES: Final = 128 << 20
CHECKPOINT: Final = "_checkpoint"


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
    root: Path
    format: str = "delta"
    checkpoint: Path | None = None
    file_bytes: int = FILE_BYTES
    offsets_max: int | None = None
    partitions_min: int | None = None
    typed: bool = False
    progress: Committed = field(default_factory=Committed)

    def start(self, spark: Any, once: bool, interval: str, pause_file: Path) -> Any:
        """The running query."""
        try:
            lake: Lake = DeltaLake(self.root) if self.format == "delta" else ParquetLake(self.root)
        except OSError as error:
            raise PipelineError(f"tables cannot be created in {self.root}: {error.strerror}") from None
        checkpoint = self.checkpoint or self.root / CHECKPOINT
        options = {
            **self.source,
            "failOnDataLoss": "false",
            "includeTombstones": "true",
            "startingOffsets": _start_of(lake, checkpoint),
        }
        if self.partitions_min is not None:
            options["minPartitions"] = str(self.partitions_min)

        typed = Typed(self.root, self.file_bytes) if self.typed else None
        if typed is not None:
            self.progress.errors += typed.catch_up(spark)

        def commit(frame: Any, batch_id: int) -> None:
            self._commit(lake, checkpoint, frame, batch_id)
            if typed is not None:
                self.progress.errors += typed.catch_up(frame.sparkSession)

        target = Target(str(lake.root), lake.prefix, lake.hive, self.file_bytes)
        spark.dataSource.register(ArchiveSource)
        options |= target.options()
        query = stream(spark, options, self.offsets_max, pause_file, FORMAT).writeStream.foreachBatch(commit)
        return start(query, "archive", checkpoint, once, interval)

    def _commit(self, lake: Lake, checkpoint: Path, frame: Any, batch_id: int) -> None:
        app_id = f"topics-archive-{query_id(checkpoint)}"
        if lake.has(app_id, batch_id):
            lake.finish(app_id, batch_id)
            return
        written = [files.Written(*row) for row in frame.collect()]
        lake.commit(app_id, batch_id, written, batch_offsets(checkpoint, batch_id))
        self.progress.commit(written)


def _start_of(lake: Lake, checkpoint: Path) -> str:
    """Where a pipeline without a checkpoint begins: after what the table already holds."""
    known = None if (checkpoint / "offsets").exists() else lake.offsets()
    return "beginning" if known is None else json.dumps(known)


def query_id(checkpoint: Path) -> str:
    """The id of the query that this checkpoint belongs to; it stays the same over restarts."""
    found: str = json.loads((checkpoint / "metadata").read_text())["id"]
    return found


def batch_offsets(checkpoint: Path, batch_id: int) -> Offsets:
    """The offsets at the end of a batch, which Spark writes down before the batch runs."""
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    found: Offsets = json.loads(lines[-1])
    return found
