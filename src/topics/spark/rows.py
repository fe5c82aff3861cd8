"""Rows that are to become records: each checked, and rendered as the JSON that a write carries.

A row is checked here, on the executor that has it, because its number is known there: what the server would refuse is
refused before anything is published. A bad row fails the batch, or becomes a record of the `errorTopic` that gives the
reason.

A batch without a bad row is rendered by column: its texts are joined by Arrow, and one parse of all of them tells
whether each is JSON. Arrays are made from buffers, as in `columns`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

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
_BYTES_MAX: Final = {"tag": TAG_BYTES_MAX, "node": NODE_BYTES_MAX}
_WRITABLE: Final = ("data", "tag", "node", "meta", "topic")

# Decimals as numbers, as Spark's own to_json has them.
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
_split_json: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Rendered(NamedTuple):
    """Records on their way: the topic, the JSON object of each with a comma after it, and where each of these ends."""

    topic: str
    text: bytes | memoryview
    ends: Sequence[int]

    @classmethod
    def of(cls, topic: str, *records: bytes) -> Rendered:
        """Records that are there one by one."""
        return cls(
            topic, b"".join([b"%b," % record for record in records]), list(accumulate(len(r) + 1 for r in records))
        )


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
        if not batch.num_rows:
            return
        columns = {name: batch.column(name) for name in batch.schema.names if name in _WRITABLE}
        if "topic" not in columns and "meta" not in columns:
            assert self._options.topic is not None, "checked with the columns"
            try:
                text, ends = _at_once(columns)
            except (BadRow, msgspec.DecodeError, RecursionError, UnicodeDecodeError, pa.ArrowInvalid):
                pass
            else:
                self._row += batch.num_rows
                yield Rendered(self._options.topic, text, ends)
                return
        datas = _texts(columns["data"])
        values = {name: _values(column) for name, column in columns.items() if name != "data"}
        absent = [None] * batch.num_rows
        topics, tags, nodes, metas = (values.get(name, absent) for name in ("topic", "tag", "node", "meta"))
        for data, topic, tag, node, meta in zip(datas, topics, tags, nodes, metas, strict=True):
            self._row += 1
            where = self._options.topic if topic is None else topic
            try:
                yield Rendered.of(self._topic(where), _record(data, self._suffix(tag, node, meta)))
            except BadRow as bad:
                yield self._refused(str(bad), where, data)

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
        return Rendered.of(error_topic, b'{"data":%b}' % _encode(report))


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


def _at_once(columns: dict[str, Any]) -> tuple[memoryview, memoryview]:
    """The records of a batch without a bad row, and where each ends. Raises where one is bad, without saying which."""
    data = columns["data"]
    if data.null_count:
        raise BadRow("data is null")
    if _is_text(data.type):
        data.validate(full=True)
        texts = data.cast(pa.binary())
    else:
        texts = _binaries([_encode(value) for value in data.to_pylist(maps_as_pydicts="lossy")])
    lengths = pc.binary_length(texts)
    if pc.max(lengths).as_py() > RECORD_BYTES_MAX:
        raise BadRow("data is too large")
    # One parse for all. Each value must end where its text does: two halves of a value are no records.
    joined, _ = _content(pc.binary_join_element_wise(texts, _NOTHING, _COMMA))
    found = _split_json(b"".join((b"[", joined[:-1], b"]")))
    if array("i", map(len, found)).tobytes() != bytes(memoryview(lengths.buffers()[1])[: 4 * len(texts)]):
        raise BadRow("data is not JSON")
    members = [_members(name, columns[name]) for name in ("tag", "node") if name in columns]
    return _content(pc.binary_join_element_wise(_BEGIN, texts, *members, _END, _NOTHING))


def _members(name: str, column: Any) -> Any:
    """A column of tags or nodes as members of JSON objects; each distinct one is checked and rendered once."""
    encoded = column.dictionary_encode(null_encoding="encode")
    distinct = [_member(name, text) for text in encoded.dictionary.to_pylist()]
    return _binaries(distinct).take(encoded.indices)


def _content(texts: Any) -> tuple[memoryview, memoryview]:
    """The bytes of a column of texts, back to back, and where each ends."""
    _, offsets, content = texts.buffers()
    ends = memoryview(offsets).cast("i")[1 : len(texts) + 1]
    return memoryview(content)[: ends[-1]], ends


def _binaries(texts: list[bytes]) -> Any:
    ends = pa.py_buffer(array("i", accumulate(map(len, texts), initial=0)))
    return pa.Array.from_buffers(pa.binary(), len(texts), [None, ends, pa.py_buffer(b"".join(texts))])


_NOTHING, _COMMA, _BEGIN, _END = _binaries([b"", b",", b'{"data":', b"},"])


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _texts(column: Any) -> list[bytes | None]:
    """The JSON text of each datum: as it is where the column holds text, rendered where it holds values."""
    if _is_text(column.type):
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
    parts = [_member("tag", tag), _member("node", node)]
    size = 0
    if meta is not None:
        encoded = _meta(meta)
        size = len(encoded)
        parts += (b',"meta":', encoded)
    return Suffix(b"".join((*parts, b"}")), size)


def _member(name: str, text: str | None) -> bytes:
    """A tag or node as a member of a JSON object, with a comma before it; nothing where there is none."""
    if text is None:
        return b""
    if text == NOT_TEXT:
        raise BadRow(f"{name} is not UTF-8")
    if len(text.encode()) > _BYTES_MAX[name]:
        raise BadRow(f"{name} has {len(text.encode())} bytes; the limit is {_BYTES_MAX[name]}")
    return b',"%b":%b' % (name.encode(), _encode(text))


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
