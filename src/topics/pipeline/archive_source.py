"""The source of an archive: tasks that write what they read into lake files, and give Spark only what they wrote.

A record that went through Spark would become a row of the JVM and a column again on its way from one Python worker to
another: nine tenths of the time of an archive. Here the task that reads a range of seqs writes its file too. Nothing
else changes: the ranges, the offsets and the gaps are those of the source "topics", and no file is seen before the
driver commits it, so a task may run twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext

from topics.pipeline.lake import files
from topics.spark.options import COLUMNS, TOMBSTONE
from topics.spark.scan import Range
from topics.spark.source import TopicsSource, schema_of
from topics.spark.stream import TopicsStreamReader

FORMAT: Final = "topics-archive"


@dataclass(frozen=True)
class Target:
    """Where the files of an archive go, as options of its source."""

    root: str
    """The address of a Place; each task finds keys in its environment."""
    prefix: str
    hive: bool
    named: bool
    """Whether each row names its topic."""
    file_bytes: int

    def options(self) -> dict[str, str]:
        """As Spark takes them."""
        hive, named = (str(flag).lower() for flag in (self.hive, self.named))
        given = {"lakeRoot": self.root, "lakePrefix": self.prefix, "lakeHive": hive, "lakeNamed": named}
        return given | {"lakeFileBytes": str(self.file_bytes)}

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Target:
        """What `options` has made options of."""
        hive, named = (given[name] == "true" for name in ("lakeHive", "lakeNamed"))
        return cls(given["lakeRoot"], given.get("lakePrefix") or "", hive, named, int(given["lakeFileBytes"]))

    def write(self, piece: Range, batches: Iterator[Any]) -> Iterator[Any]:
        """Write the records of one range; what was written."""
        context = TaskContext.get()
        assert context is not None, "a range is read by a task"
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        epochs = {piece.topic: piece.epoch}
        write = files.writer(self.root, self.prefix, self.hive, batch_id, self.file_bytes, epochs, self.named)
        return write(batches)


class ArchiveSource(TopicsSource):
    """Files of an archive as the rows of a stream."""

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return FORMAT

    def schema(self) -> Any:
        """What a task reports of each file and gap."""
        return files.WRITTEN_SCHEMA

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 - Spark's name
        """The reader of the source "topics", whose tasks write."""
        target = Target.of(self.options)
        reader = super().streamReader(schema_of((*COLUMNS, TOMBSTONE)))
        if isinstance(reader, TopicsStreamReader):
            reader.through = target.write
        return reader
