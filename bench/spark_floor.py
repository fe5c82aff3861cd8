"""The floor of a source in Python: one that has its batches ready and only hands them over.

What Spark takes for it is what Spark takes for any source in Python: planning, a task's way to its worker, Arrow
batches over a socket, and rows made of them in the JVM. So the time of a scan over topics, less this, is what the
source itself could still save.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition


class Floor(DataSource):
    """Reads a file of Arrow batches with the columns of a topic."""

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return "floor"

    def schema(self) -> Any:
        """All columns of a topic."""
        from topics.spark.options import COLUMNS
        from topics.spark.source import schema_of

        return schema_of(COLUMNS)

    def reader(self, schema: Any) -> FloorReader:
        """A batch read."""
        return FloorReader(self.options["file"], int(self.options["tasks"]))


class FloorReader(DataSourceReader):
    """Hands over what is in the file, which is in memory."""

    def __init__(self, file: str, tasks: int) -> None:
        self._file = file
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """As many as the scan of the topic has."""
        return [InputPartition(task) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The batches of one task, mapped and not copied."""
        import pyarrow as pa

        from topics.spark import worker

        worker.freeze_loaded()
        found = pa.ipc.open_file(pa.memory_map(self._file))
        n, task = found.num_record_batches, partition.value
        for i in range(n * task // self._tasks, n * (task + 1) // self._tasks):
            yield found.get_batch(i)


def prepare(url: str, topic: str, file: Path) -> dict[str, str]:
    """Write the records of a topic into such a file, in the batches in which the source hands them over.

    Returns the options that read it in as many tasks.
    """
    import pyarrow as pa

    from topics.spark.options import COLUMNS, ReadOptions
    from topics.spark.reader import TopicsReader, arrow_schema
    from topics.spark.source import schema_of

    schema = schema_of(COLUMNS)
    reader = TopicsReader(ReadOptions({"url": url, "topic": topic}, streaming=False), schema)
    with pa.OSFile(str(file), "wb") as out, pa.ipc.new_file(out, arrow_schema(schema)) as batches:
        partitions = reader.partitions()
        for partition in partitions:
            for batch in reader.read(partition):
                batches.write_batch(batch)
    return {"file": str(file), "tasks": str(len(partitions))}
