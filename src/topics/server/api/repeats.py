"""Repeats: whether an object of ours names a field twice, exactly and without decoding what is inside (HTTP-14).

The decoder keeps the last of two fields with the same name and says nothing. But it also gives the text of every value
as it is, so a repeat shows in the lengths: an object is as long as its distinct fields and their punctuation, white
space apart, or it holds something more. What more there may be is a repeated name, or one that is written with escapes;
only then the names are read one by one, and no body may have many such. Most arrays of records need not even that:
`records_may_repeat` knows from what was decoded that there is no room for another name.

`data` and `meta` are not looked into, so their size costs a pass of the decoder and their keys cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Raw

from topics.engine.requests import NO_RAW, RecordIn
from topics.errors import InvalidRequest

WALKED_NAMES_MAX: Final = 1000
"""How many names of one body may be read one by one."""
REPEAT_BYTES: Final = len(b'"data":0,')
"""The least that a repeated name of ours adds to a write."""
RECORD_BYTES: Final = len(b'{"data":},')
"""The least that a record takes besides its data; the comma after it counts as part of it."""
_TAG_BYTES: Final = len(b',"tag":""')
_NODE_BYTES: Final = len(b',"node":""')
_META_BYTES: Final = len(b',"meta":')
_DELAY_BYTES: Final = len(b',"delay_ms":')
_DELIVER_BYTES: Final = len(b',"deliver_at":')
_NAME_CHARS_MAX: Final = 64
_TOGETHER_MAX_BYTES: Final = 256 * 1024
"""In more text than this, fields are not made into one dict."""

SPACES: Final = b" \t\n\r"

_object: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_objects: Final = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_texts: Final = msgspec.json.Decoder(list[Raw]).decode
_value: Final = msgspec.json.Decoder(Raw).decode
_name: Final = msgspec.json.Decoder(str).decode
_NAME: Final = re.compile(rb'[ \t\n\r]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\n\r]*+:[ \t\n\r]*+', re.DOTALL)
_NEXT: Final = re.compile(r"JSON is malformed: trailing characters \(byte ([0-9]+)\)")


_PLACE: Final = re.compile(r"\(byte ([0-9]+)\)$")


def weight(text: bytes) -> int:
    """How many bytes a text has that are not white space."""
    return len(text.translate(None, SPACES))


def spaces(text: bytes) -> int:
    """How much white space a text has."""
    return len(text) - weight(text)


def value_end(text: bytes, at: int) -> int | None:
    """Where in `text` something may follow the value that begins at `at`; None where its end is not there.

    Raises msgspec.DecodeError with a position relative to `at`, and RecursionError.
    """
    try:
        _value(memoryview(text)[at:])
    except msgspec.DecodeError as error:
        follows = _NEXT.fullmatch(str(error))
        if follows is not None:
            return at + int(follows[1]) - 1
        place = _PLACE.search(str(error))
        # A number that is cut is called invalid at the end of the text.
        if str(error) == TRUNCATED or (place is not None and at + int(place[1]) >= len(text) - 1):
            return None
        raise
    # A number may go on in what is still to come; whatever has a closing sign may not.
    return len(text) if text[at:].rstrip(SPACES).endswith((b"}", b"]", b'"')) else None


TRUNCATED: Final = "Input data was truncated"


class Repeats:
    """Looks for repeats in the objects of one body; each method raises InvalidRequest for the first one."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = WALKED_NAMES_MAX

    def of_body(self, body: bytes) -> None:
        """Look into a body and what it holds of ours: `records`, `config` and `topics`."""
        fields = self.of_object(body, "")
        if "records" in fields:
            self.of_records(bytes(fields["records"]), 0)
        if "config" in fields:
            self.of_object(bytes(fields["config"]), "config")
        if "topics" in fields:
            for name, asked in self.of_object(bytes(fields["topics"]), "topics").items():
                self.of_object(bytes(asked), f"topics.{name[:_NAME_CHARS_MAX]}")

    def of_object(self, text: bytes, path: str) -> dict[str, Raw]:
        """Look into one object; returns its fields, none for what is no object."""
        text = text.strip(SPACES)
        if not text.startswith(b"{"):
            return {}
        fields = _object(text)
        if _spare_bytes(text, [fields]):
            self._walk(text, path)
        return fields

    def of_records(self, text: bytes, first: int) -> None:
        """Look into an array of records, the first of which is the record number `first` of its write."""
        text = text.strip(SPACES)
        if not text.startswith(b"["):
            return
        if len(text) <= _TOGETHER_MAX_BYTES:
            records = _objects(text)
            if records and _spare_bytes(text, records) != len(records) + 1:
                self._search(list(map(bytes, _texts(text))), records, first)
            return
        for i, one in enumerate(_texts(text), first):
            self.names_of(bytes(one), f"records[{i}]")

    def _search(self, texts: list[bytes], records: list[dict[str, Raw]], first: int) -> None:
        """Find the records that hold more than their fields: halve them until there is one."""
        if not _spare_bytes(b"".join(texts), records):
            return
        if len(texts) == 1:
            self._walk(texts[0], f"records[{first}]")
            return
        half = len(texts) // 2
        self._search(texts[:half], records[:half], first)
        self._search(texts[half:], records[half:], first + half)

    def names_of(self, text: bytes, path: str) -> Collection[str]:
        """The names of the fields of one object, however large it is."""
        if len(text) <= _TOGETHER_MAX_BYTES:
            return self.of_object(text, path)
        return self._walk(text, path)

    def _walk(self, text: bytes, path: str) -> set[str]:
        """Read the names of an object one by one."""
        seen: set[str] = set()
        at = 1
        while (named := _NAME.match(text, at)) is not None:
            self._left -= 1
            if self._left < 0:
                raise InvalidRequest(
                    f"{path or 'the body'}: more than {WALKED_NAMES_MAX} fields in objects that are very large or "
                    "have names with escapes: send fewer",
                    field=path,
                )
            name = _name(named[1])
            if name in seen:
                field = f"{path}.{name[:_NAME_CHARS_MAX]}".lstrip(".")
                raise InvalidRequest(f"{field} is given twice; send the one that is meant", field=field)
            seen.add(name)
            end = value_end(text, named.end())
            if end is None:
                break
            at = end + 1
        return seen


def _spare_bytes(text: bytes, objects: list[dict[str, Raw]]) -> int:
    """How many bytes a text has, white space apart, beyond these objects and the commas within them."""
    values = b"".join([value for fields in objects for value in fields.values()])
    names = "".join([name for fields in objects for name in fields]).encode()
    # A field has two quotes, a colon and, but for the last one, a comma; an object has its braces.
    count = sum(map(len, objects))
    braces = sum([1 if fields else 2 for fields in objects])
    return weight(text) - weight(values) - weight(names) - 4 * count - braces


def first_fields(text: bytes) -> dict[str, bytes]:
    """The fields at the beginning of an object whose text may be cut, up to the first that is not whole."""
    fields: dict[str, bytes] = {}
    at = len(text) - len(text.lstrip(SPACES)) + 1
    try:
        while (named := _NAME.match(text, at)) is not None and len(fields) < WALKED_NAMES_MAX:
            end = value_end(text, named.end())
            if end is None:
                break
            fields[_name(named[1])] = text[named.end() : end]
            at = end + 1
    except (msgspec.DecodeError, RecursionError):
        pass
    return fields


def field_names(text: bytes) -> list[str]:
    """The distinct names of an object's fields; none for what is no object."""
    text = text.strip(SPACES)
    return list(_object(text)) if text.startswith(b"{") else []


def names_in_records(text: bytes) -> list[str]:
    """The distinct names of the fields of an array of records."""
    if len(text) <= _TOGETHER_MAX_BYTES:
        return list(dict.fromkeys([name for fields in _objects(text) for name in fields]))
    look = Repeats()
    return list(dict.fromkeys([name for one in _texts(text) for name in look.names_of(bytes(one), "records[]")]))


def label_bytes(record: RecordIn) -> int:
    """The least that the labels of a record take."""
    size = 0
    if record.tag is not None:
        size += _TAG_BYTES + len(record.tag)
    if record.node is not None:
        size += _NODE_BYTES + len(record.node)
    if record.meta is not NO_RAW:
        size += _META_BYTES + len(record.meta)
    return size


def records_may_repeat(text: bytes, records: list[RecordIn]) -> bool:
    """Whether an array of these records, all of them without unknown fields, has room for a repeated key."""
    room = len(text) - sum([len(record.data) for record in records]) - RECORD_BYTES * len(records) - 1
    return room >= REPEAT_BYTES and has_room(room, text, records)


def has_room(room: int, text: bytes, records: list[RecordIn]) -> bool:
    """Whether so much room is left for a repeated key beside the labels of the records and white space."""
    tags = [record.tag for record in records if record.tag is not None]
    labels = "".join(tags)
    room -= len(labels) + _TAG_BYTES * len(tags)
    if room < REPEAT_BYTES:
        return False
    nodes = [record.node for record in records if record.node is not None]
    metas = [record.meta for record in records if record.meta is not NO_RAW]
    labels += "".join(nodes)
    room -= sum(map(len, nodes)) + _NODE_BYTES * len(nodes)
    if metas:
        room -= sum(map(len, metas)) + _META_BYTES * len(metas)
    if room < REPEAT_BYTES:
        return False
    values = b"".join([record.data for record in records] + metas)
    room -= spaces(text) - spaces(values) - labels.count(" ")
    if room < REPEAT_BYTES:
        return False
    for record in records:
        if record.delay_ms is not None:
            room -= len(str(record.delay_ms)) + _DELAY_BYTES
        if record.deliver_at is not None:
            room -= len(str(record.deliver_at)) + _DELIVER_BYTES
    return room >= REPEAT_BYTES
