"""The data source "topics": batch and streaming, read and write, each made only when Spark asks for it.

Spark imports this module on every worker, so each method imports what it needs itself.

A table of Spark's catalog (`CREATE TABLE ... USING topics OPTIONS (...)`) hands its options to no reader, only its
schema. So the options of such a table are kept in its schema, as metadata of the first column. The key is not among
them, because a catalog shows what it keeps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from pyspark.sql.datasource import DataSource

from topics.spark import version, worker
from topics.spark.errors import BadOption, SourceError, plainly
from topics.spark.options import READ_OPTIONS, ReadOptions, WriteOptions

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


METADATA: Final = "topics.options"
ALWAYS: Final = ("topic", "seq", "ts", "data")
"""Columns that every record has. Spark looks for no null where it knows that there is none."""


class TopicsSource(DataSource):
    """Topics as tables and streams: `spark.read.format("topics")`, and the like."""

    @plainly
    def __init__(self, options: MutableMapping[str, str]) -> None:
        version.check()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return "topics"

    @plainly
    def schema(self) -> Any:
        """The columns, as the options choose them."""
        # Whether this becomes a batch or a stream is not known yet; an end is refused where the stream is made.
        columns = ReadOptions(self.options, streaming=False).columns
        worker.freeze_loaded()
        if _is_table(self.options):
            return _with_options(columns, self.options)
        return ", ".join(f"{name} {_TYPES[name]}{'' if nullable(name, columns) else ' NOT NULL'}" for name in columns)

    @plainly
    def reader(self, schema: Any) -> Any:
        """A batch read."""
        from topics.spark.reader import TopicsReader

        return TopicsReader(ReadOptions(_given(schema, self.options), streaming=False), _checked(schema))

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 - Spark's name
        """A streaming read."""
        from topics.spark.spark41 import StreamReader41
        from topics.spark.stream import RefusedStreamReader, TopicsStreamReader

        kind = StreamReader41 if version.running() == (4, 1) else TopicsStreamReader
        try:
            return kind(ReadOptions(_given(schema, self.options), streaming=True), _checked(schema))
        except SourceError as refusal:
            return RefusedStreamReader(refusal)

    @plainly
    def writer(self, schema: Any, overwrite: bool) -> Any:
        """A batch write."""
        from topics.spark.writer import TopicsWriter

        if overwrite:
            raise SourceError('mode "overwrite" is not possible: a topic is a log; use mode "append"')
        return TopicsWriter(WriteOptions(self.options), schema)

    @plainly
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """A streaming write; in complete mode every row of a batch is a record too."""
        from topics.spark.writer import TopicsStreamWriter

        return TopicsStreamWriter(WriteOptions(self.options), schema)


def _is_table(options: Mapping[str, str]) -> bool:
    """Whether the columns are asked for by CREATE TABLE, which names the table's provider and owner too."""
    return "provider" in options and "owner" in options


def _with_options(columns: tuple[str, ...], options: Mapping[str, str]) -> Any:
    """The schema of a table, with its options as metadata of the first column."""
    if options.get("token"):
        raise SourceError(
            'the option "token" cannot be an option of a table, because the catalog would show the key: '
            "set TOPICS_TOKEN, or give it with each query, SELECT ... FROM ... WITH (token = '...')"
        )
    ours = {name: options[name] for name in READ_OPTIONS if name in options}
    schema = schema_of(columns)
    schema.fields[0].metadata = {METADATA: json.dumps(ours)}
    return schema


def schema_of(columns: tuple[str, ...]) -> Any:
    """These columns as a type of Spark, made without a session, which a worker does not have."""
    from pyspark.sql import types

    text, number = types.StringType(), types.LongType()
    gap = [types.StructField(name, number) for name in ("gap_from", "gap_to")]
    gap += [types.StructField("reason", text), types.StructField("missed_estimate", number)]
    known: dict[str, Any] = {"seq": number, "ts": types.TimestampType(), "meta": types.MapType(text, text)}
    known["tombstone"] = types.StructType(gap)
    return types.StructType(
        [types.StructField(name, known.get(name, text), nullable(name, columns)) for name in columns]
    )


def nullable(name: str, columns: tuple[str, ...]) -> bool:
    """Whether a column may be null among these: a gap, where it is a row, has none of the others but the topic."""
    return name not in ALWAYS or ("tombstone" in columns and name != "topic")


def _given(schema: Any, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a query: those of its table, and over them its own."""
    found: dict[str, str] = {}
    for field in schema.fields:
        found |= json.loads(field.metadata.get(METADATA, "{}"))
    own = {name.lower(): value for name, value in options.items()}
    return {name: value for name, value in found.items() if name.lower() not in own} | own


def _checked(schema: Any) -> Any:
    """The schema from the user or from `schema`: known columns, each with its own type."""
    for field in schema.fields:
        expected = _TYPES.get(field.name)
        if expected is None:
            raise BadOption("schema", field.name, f"there is no such column; there are {', '.join(_TYPES)}")
        if field.dataType.simpleString() != expected:
            raise BadOption("schema", f"{field.name} {field.dataType.simpleString()}", f"its type is {expected}")
    return schema
