"""The data source "topics": batch and streaming, read and write, each made only when Spark asks for it.

Spark imports this module on every worker, so each method imports what it needs itself.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql.datasource import DataSource

from topics.spark.errors import BadOption, SourceError
from topics.spark.options import ReadOptions, WriteOptions

_TYPES: Final = {
    "topic": "string",
    "seq": "bigint",
    "ts": "timestamp",
    "node": "string",
    "tag": "string",
    "meta": "map<string,string>",
    "data": "string",
    "tombstone": "struct<gap_from:bigint,gap_to:bigint,reason:string,missed_estimate:bigint>",
}


class TopicsSource(DataSource):
    """Topics as tables and streams: `spark.read.format("topics")`, and the like."""

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return "topics"

    def schema(self) -> str:
        """The columns, as the options choose them."""
        # Whether this becomes a batch or a stream is not known yet; an end is refused where the stream is made.
        columns = ReadOptions(self.options, streaming=False).columns
        return ", ".join(f"{name} {_TYPES[name]}" for name in columns)

    def reader(self, schema: Any) -> Any:
        """A batch read."""
        from topics.spark.reader import TopicsReader

        return TopicsReader(ReadOptions(self.options, streaming=False), _checked(schema))

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 - Spark's name
        """A streaming read."""
        from topics.spark.reader import RefusedStreamReader, TopicsStreamReader

        try:
            return TopicsStreamReader(ReadOptions(self.options, streaming=True), _checked(schema))
        except SourceError as refusal:
            return RefusedStreamReader(refusal)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """A batch write."""
        from topics.spark.writer import TopicsWriter

        if overwrite:
            raise SourceError('mode "overwrite" is not possible: a topic is a log; use mode "append"')
        return TopicsWriter(WriteOptions(self.options), schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """A streaming write; in update and complete mode every row of a batch is a record too."""
        from topics.spark.writer import TopicsStreamWriter

        return TopicsStreamWriter(WriteOptions(self.options), schema)


def _checked(schema: Any) -> Any:
    """The schema from the user or from `schema`: known columns, each with its own type."""
    for field in schema.fields:
        expected = _TYPES.get(field.name)
        if expected is None:
            raise BadOption("schema", field.name, f"there is no such column; there are {', '.join(_TYPES)}")
        if field.dataType.simpleString() != expected:
            raise BadOption("schema", f"{field.name} {field.dataType.simpleString()}", f"its type is {expected}")
    return schema
