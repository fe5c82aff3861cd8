"""Rows that are to become records: each checked, and rendered as the JSON that a write carries.

A row is checked here, on the executor that has it, because its number is known there: what the server would refuse is
refused before anything is published. A bad row fails the batch, or becomes a record of the `errorTopic` that gives the
reason.
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
SUFFIXES_MAX: Final = 10_000
NOT_TEXT: Final = "\udcff"
"""Replaces a value that is not text: half a surrogate pair, which no text in UTF-8 can be."""
_WRITABLE: Final = ("data", "tag", "node", "meta", "topic")

# Decimals as numbers, as Spark's own to_json has them.
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


class Rendered(NamedTuple):
    """Records on their way: the topic and the JSON object of each."""

    topic: str
    records: list[bytes]


class Suffix(NamedTuple):
    """The JSON of a record after its data, and the bytes of its meta, which count towards the limit."""

    text: bytes
    meta_bytes: int


class BadRow(Exception):
    """The row cannot become a record."""


class Rows:
    """Renders the rows of one task."""

    def __init__(self, options: WriteOptions, partition: int) -> None:
        self._options = options
        self._partition = partition
        self._checked_topics: set[str] = set()
        self._suffixes: dict[tuple[str | None, str | None], Suffix] = {}
        self._row = 0

    def render(self, batch: Any) -> Iterator[Rendered]:
        """The records of an Arrow batch, in order."""
        columns = {name: batch.column(name) for name in batch.schema.names if name in _WRITABLE}
        datas = _texts(columns["data"])
        values = {name: _values(column) for name, column in columns.items() if name != "data"}
        absent = [None] * batch.num_rows
        topics, tags, nodes, metas = (values.get(name, absent) for name in ("topic", "tag", "node", "meta"))
        if topics is absent and metas is absent:
            assert self._options.topic is not None, "checked with the columns"
            records = self._all_at_once(columns["data"], datas, tags, nodes)
            if records is not None:
                self._row += len(records)
                yield Rendered(self._options.topic, records)
                return
        for data, topic, tag, node, meta in zip(datas, topics, tags, nodes, metas, strict=True):
            self._row += 1
            where = self._options.topic if topic is None else topic
            try:
                yield Rendered(self._topic(where), [_record(data, self._suffix(tag, node, meta))])
            except BadRow as bad:
                yield self._refused(str(bad), where, data)

    def _all_at_once(
        self, column: Any, datas: list[Any], tags: list[str | None], nodes: list[str | None]
    ) -> list[bytes] | None:
        """The records of a batch without a bad row, at half the cost of row by row; None for any other."""
        try:
            column.validate(full=True)
            for data in datas:
                _check_json(data)
            suffixes = {key: self._suffix(*key, None).text for key in set(zip(tags, nodes, strict=True))}
        except (BadRow, msgspec.DecodeError, RecursionError, TypeError, pa.ArrowInvalid):
            return None
        if max(map(len, datas), default=0) > RECORD_BYTES_MAX:
            return None
        return [
            b'{"data":%b%b' % (data, suffixes[key])
            for data, key in zip(datas, zip(tags, nodes, strict=True), strict=True)
        ]

    def _suffix(self, tag: str | None, node: str | None, meta: dict[str, Any] | None) -> Suffix:
        """What follows the data. Tags and nodes repeat, so suffixes without meta are kept."""
        found = self._suffixes.get((tag, node)) if meta is None else None
        if found is not None:
            return found
        made = _suffix(tag, node, meta)
        if meta is None and len(self._suffixes) < SUFFIXES_MAX:
            self._suffixes[tag, node] = made
        return made

    def _topic(self, topic: str | None) -> str:
        if topic is None:
            raise BadRow('it names no topic, and the option "topic" is not set')
        if topic == NOT_TEXT:
            raise BadRow("topic is not UTF-8")
        if topic not in self._checked_topics:
            try:
                check_topic_name(topic)
            except TopicsError as error:
                raise BadRow(error.message) from None
            self._checked_topics.add(topic)
        return topic

    def _refused(self, reason: str, topic: str | None, data: bytes | None) -> Rendered:
        error_topic = self._options.error_topic
        topic = None if topic == NOT_TEXT else topic
        if error_topic is None:
            named = "any topic" if topic is None else f'topic "{topic}"'
            raise SourceError(
                f"row {self._row} of partition {self._partition} cannot become a record of {named}: {reason}. "
                f"Nothing of this batch was published; "
                f'set the option "errorTopic" to write such rows there'
            )
        shown = None if data is None else data[:SHOWN_BYTES_MAX].decode("utf-8", "replace")
        report = {"reason": reason, "topic": topic, "partition": self._partition, "row": self._row, "data": shown}
        return Rendered(error_topic, [b'{"data":%b}' % _encode(report)])


def check_columns(options: WriteOptions, schema: Any) -> None:
    """Refuse rows with columns that cannot become records."""
    names = schema.names
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
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name == "data":
            if "variant" in kind:
                raise SourceError(f'the column "data" to write is a {kind}, which is not text: take to_json of it')
            continue
        wanted = ("map<", "struct<") if field.name == "meta" else ("string", "char", "varchar")
        if not kind.startswith((*wanted, "void")):
            means = "map<string,string>" if field.name == "meta" else "string"
            raise SourceError(f'the column "{field.name}" to write is a {kind}; it must be a {means}')


def _texts(column: Any) -> list[bytes | None]:
    """The JSON text of each datum: as it is where the column holds text, rendered where it holds values."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        texts: list[bytes | None] = column.cast(pa.binary()).to_pylist()
        return texts
    return [None if value is None else _encode(value) for value in column.to_pylist(maps_as_pydicts="lossy")]


def _values(column: Any) -> list[Any]:
    """The values of a column. Spark's strings may hold any bytes; those that are not text become NOT_TEXT."""
    try:
        found: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
        return found
    except UnicodeDecodeError:
        return [_value(one) for one in column]


def _value(one: Any) -> Any:
    try:
        return one.as_py(maps_as_pydicts="lossy")
    except UnicodeDecodeError:
        return NOT_TEXT


def _record(data: bytes | None, suffix: Suffix) -> bytes:
    if data is None:
        raise BadRow("data is null")
    try:
        _check_json(data)
        data.decode()
    except msgspec.DecodeError as error:
        raise BadRow(f"data is not JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise BadRow(f"data is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise BadRow("data is nested too deeply") from None
    if len(data) + suffix.meta_bytes > RECORD_BYTES_MAX:
        raise BadRow(f"data and meta have {len(data) + suffix.meta_bytes} bytes; the limit is {RECORD_BYTES_MAX}")
    return b'{"data":%b%b' % (data, suffix.text)


def _suffix(tag: str | None, node: str | None, meta: dict[str, Any] | None) -> Suffix:
    parts: list[bytes] = []
    size = 0
    for name, text, bytes_max in (("tag", tag, TAG_BYTES_MAX), ("node", node, NODE_BYTES_MAX)):
        if text == NOT_TEXT:
            raise BadRow(f"{name} is not UTF-8")
        if text is not None:
            if len(text.encode()) > bytes_max:
                raise BadRow(f"{name} has {len(text.encode())} bytes; the limit is {bytes_max}")
            parts += (b',"%b":' % name.encode(), _encode(text))
    if meta is not None:
        encoded = _meta(meta)
        size = len(encoded)
        parts += (b',"meta":', encoded)
    return Suffix(b"".join((*parts, b"}")), size)


def _meta(meta: Any) -> bytes:
    if meta == NOT_TEXT:
        raise BadRow("meta is not UTF-8")
    if len(meta) > META_KEYS_MAX:
        raise BadRow(f"meta has {len(meta)} keys; the limit is {META_KEYS_MAX}")
    for key, value in meta.items():
        if not isinstance(value, str):
            raise BadRow(f'meta "{key}" is not text')
    encoded = _encode(meta)
    if len(encoded) > META_BYTES_MAX:
        raise BadRow(f"meta has {len(encoded)} bytes; the limit is {META_BYTES_MAX}")
    return encoded
