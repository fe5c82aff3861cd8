"""Rows that are to become records: each checked, and rendered as the JSON that a write carries.

A row is checked here, on the executor that has it, because there its number is known: what the server would refuse is
refused before anything is published. A bad row fails the batch, or becomes a record of the `errorTopic` that says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from topics.errors import TopicsError
from topics.names import check_topic_name
from topics.spark.errors import SourceError
from topics.spark.options import WriteOptions

RECORD_BYTES_MAX: Final = 1 << 20
META_BYTES_MAX: Final = 16 << 10
META_KEYS_MAX: Final = 64
TAG_BYTES_MAX: Final = 256
NODE_BYTES_MAX: Final = 128
SHOWN_BYTES_MAX: Final = 64 << 10
_WRITABLE: Final = ("data", "tag", "node", "meta", "topic")

_encode: Final = msgspec.json.Encoder().encode
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


class Rendered(NamedTuple):
    """One record on its way: the topic and the JSON object of the record."""

    topic: str
    record: bytes


class BadRow(Exception):
    """The row cannot become a record."""


class Rows:
    """Renders the rows of one task."""

    def __init__(self, options: WriteOptions, names: list[str], partition: int) -> None:
        self._options = options
        self._partition = partition
        self._checked_topics: set[str] = set()
        self._row = 0
        check_columns(options, names)

    def render(self, batch: Any) -> Iterator[Rendered]:
        """The records of an Arrow batch, in order."""
        columns = {name: batch.column(name) for name in batch.schema.names if name in _WRITABLE}
        datas = _texts(columns["data"])
        values = {name: column.to_pylist(maps_as_pydicts="lossy") for name, column in columns.items() if name != "data"}
        absent = [None] * batch.num_rows
        others = [values.get(name, absent) for name in ("topic", "tag", "node", "meta")]
        for data, topic, tag, node, meta in zip(datas, *others, strict=True):
            self._row += 1
            where = self._options.topic if topic is None else topic
            try:
                yield Rendered(self._topic(where), _record(data, tag, node, meta))
            except BadRow as bad:
                yield self._refused(str(bad), where, data)

    def _topic(self, topic: str | None) -> str:
        if topic is None:
            raise BadRow('it names no topic, and the option "topic" is not set')
        if topic not in self._checked_topics:
            try:
                check_topic_name(topic)
            except TopicsError as error:
                raise BadRow(error.message) from None
            self._checked_topics.add(topic)
        return topic

    def _refused(self, reason: str, topic: str | None, data: bytes | None) -> Rendered:
        error_topic = self._options.error_topic
        if error_topic is None:
            raise SourceError(
                f"row {self._row} of partition {self._partition} cannot become a record of "
                f"{'any topic' if topic is None else _quoted(topic)}: {reason}. Nothing of this batch was published; "
                f'set the option "errorTopic" to have such rows there'
            )
        shown = None if data is None else data[:SHOWN_BYTES_MAX].decode("utf-8", "replace")
        told = {"reason": reason, "topic": topic, "partition": self._partition, "row": self._row, "data": shown}
        return Rendered(error_topic, b'{"data":%b}' % _encode(told))


def check_columns(options: WriteOptions, names: list[str]) -> None:
    """Refuse rows whose columns cannot make records."""
    if "data" not in names:
        raise SourceError(
            f'the rows to write have no column "data" but {names}; make one, such as to_json(struct(*)) AS data'
        )
    unknown = [name for name in names if name not in _WRITABLE]
    if unknown:
        raise SourceError(
            f'the rows to write have a column "{unknown[0]}", which a record has no place for; '
            f"records are written from {', '.join(_WRITABLE)}: put the rest into data or meta"
        )
    if options.topic is None and "topic" not in names:
        raise SourceError('name the topic to write to: set the option "topic", or give the rows a column "topic"')


def _texts(column: Any) -> list[bytes | None]:
    """The JSON text of each datum: as it is where the column holds text, rendered where it holds values."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return [None if text is None else bytes(text) for text in column.cast(pa.binary()).to_pylist()]
    return [None if value is None else _encode(value) for value in column.to_pylist(maps_as_pydicts="lossy")]


def _record(data: bytes | None, tag: str | None, node: str | None, meta: dict[str, Any] | None) -> bytes:
    if data is None:
        raise BadRow("data is null")
    try:
        _check_json(data)
        data.decode()
    except msgspec.DecodeError as error:
        raise BadRow(f"data is not JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise BadRow(f"data is not UTF-8: {error.reason} at byte {error.start}") from None
    parts = [b'{"data":', data]
    size = len(data)
    for name, text, bytes_max in (("tag", tag, TAG_BYTES_MAX), ("node", node, NODE_BYTES_MAX)):
        if text is not None:
            if len(text.encode()) > bytes_max:
                raise BadRow(f"{name} has {len(text.encode())} bytes; the limit is {bytes_max}")
            parts += (b',"%b":' % name.encode(), _encode(text))
    if meta is not None:
        encoded = _meta(meta)
        size += len(encoded)
        parts += (b',"meta":', encoded)
    if size > RECORD_BYTES_MAX:
        raise BadRow(f"data and meta have {size} bytes; the limit is {RECORD_BYTES_MAX}")
    parts.append(b"}")
    return b"".join(parts)


def _meta(meta: dict[str, Any]) -> bytes:
    if len(meta) > META_KEYS_MAX:
        raise BadRow(f"meta has {len(meta)} keys; the limit is {META_KEYS_MAX}")
    for key, value in meta.items():
        if not isinstance(value, str):
            raise BadRow(f'meta "{key}" is not text')
    encoded = _encode(meta)
    if len(encoded) > META_BYTES_MAX:
        raise BadRow(f"meta has {len(encoded)} bytes; the limit is {META_BYTES_MAX}")
    return encoded


def _quoted(topic: str) -> str:
    return f'topic "{topic}"'
