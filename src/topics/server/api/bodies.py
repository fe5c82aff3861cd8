"""Request bodies: from bytes to the engine's structs, or a 400 that says what is wrong and where (HTTP-12 to HTTP-15).

What the decoder does not check is checked here once per body: that it is UTF-8 (the decoder does not look into `Raw`
slices), that a number is at most a u64, and that no object of ours names a field twice, since the first one would be
dropped silently (repeats.py). Inside `data` any JSON is accepted, duplicate keys included.

What a body can cost is bounded before it is decoded: by `max_command_bytes`, and by how many values it may hold
(`COMMAND_VALUES_MAX`). A write may be larger, but nothing of it is built besides its records, and a large one is
decoded in slices (slicing.py).

A field of a write that is unknown is ignored and named in the answer (HTTP-15): writes are decoded strictly, and only
one that does not pass is decoded again, leniently; such a write is a plain `requests.Write`.

A command on a WebSocket is decoded elsewhere and checked the same way by `check`.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

from topics.engine import requests
from topics.engine.config import NO_PATCH, ConfigPatch
from topics.engine.requests import NO_RAW
from topics.errors import InvalidRequest
from topics.names import check_topic_name
from topics.server.api.repeats import (
    REPEAT_BYTES,
    TRUNCATED,
    Repeats,
    field_names,
    names_in_records,
    spaces,
)

T = TypeVar("T")
W = TypeVar("W", bound=requests.Write)

_PATH: Final = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(.+?)`")


U64_MAX: Final = 2**64 - 1
_SHOWN_CHARS_MAX: Final = 300
UNKNOWN_SHOWN_MAX: Final = 20
RECURRING_BODIES_MAX: Final = 1024
RECURRING_BYTES_MAX: Final = 256
COMMAND_VALUES_MAX: Final = 20_000
"""How many values a body without records may hold: each of them becomes an object, and the collector walks them all."""
_UNCOUNTED_BYTES: Final = 16 * 1024


def _is_u64(annotation: Any) -> bool:
    """Whether a field takes whole numbers from 0 on without a smaller upper bound."""
    return annotation == requests.U64 or any(map(_is_u64, typing.get_args(annotation)))


def _choices(annotation: Any) -> list[str]:
    """The texts that a field may hold, where it may hold only some."""
    if typing.get_origin(annotation) is typing.Literal:
        return [str(each) for each in typing.get_args(annotation)]
    return [each for part in typing.get_args(annotation) for each in _choices(part)]


_allowed: Final[dict[str, str]] = {}
"""The texts that a field takes where it takes one of a few, by the field's name."""


def check_values(body: bytes) -> None:
    """Raise InvalidRequest where a body without records holds more values than are worth decoding."""
    if len(body) > _UNCOUNTED_BYTES:
        values = 1 + body.count(b",") + body.count(b"[") + body.count(b"{")
        if values > COMMAND_VALUES_MAX:
            raise InvalidRequest(
                f"the body holds about {values} values; the limit is {COMMAND_VALUES_MAX}: split the request",
                limit="command_values_max",
                max=COMMAND_VALUES_MAX,
            )


class Body(Generic[T]):
    """Decodes the bodies of one endpoint."""

    __slots__ = ("_decode", "_default", "_fields", "_find_keys", "_numbers")

    def __init__(self, shape: type[T], default: T | None = None) -> None:
        self._decode = msgspec.json.Decoder(shape).decode
        self._default = default
        fields = msgspec.structs.fields(shape)  # type: ignore[arg-type]
        names = [field.encode_name for field in fields]
        tag_field: str | None = shape.__struct_config__.tag_field  # type: ignore[attr-defined]
        if tag_field is not None:
            names.append(tag_field)
        self._fields = frozenset(names)
        self._find_keys = re.compile(b'"(?:%b)"' % "|".join(names).encode()).findall
        for field in fields:
            if choices := _choices(field.type):
                _allowed[field.name] = ", ".join(choices)
        # The decoder has no bound above 2^63 - 1, so a u64 is bounded here.
        self._numbers = tuple(field.name for field in fields if _is_u64(field.type))

    def __call__(self, body: bytes) -> T:
        """The decoded body; an empty one is the default where there is one."""
        if not body:
            if self._default is None:
                raise InvalidRequest("the body is empty: send a JSON object")
            return self._default
        try:
            if not body.isascii():
                body.decode()
            decoded = self._read(body)
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the body is not UTF-8 (byte {error.start})", offset=error.start) from None
        except RecursionError:
            raise InvalidRequest(f"the body {TOO_DEEP}") from None
        except msgspec.ValidationError as error:
            raise described(str(error)) from None
        except msgspec.DecodeError as error:
            raise malformed(body, str(error)) from None
        self.check(body, decoded)
        return decoded

    def _read(self, body: bytes) -> T:
        if len(body) > _UNCOUNTED_BYTES:
            check_values(body)
        return self._decode(body)

    def unknown(self, body: bytes) -> list[str]:
        """The first few keys of a decoded body that are no field of ours: usually typos."""
        return self.unknown_among(field_names(body))

    def unknown_among(self, names: Iterable[str], within: str = "") -> list[str]:
        """The first few of these keys that are no field of ours."""
        unknown = [name for name in names if name not in self._fields]
        return [within + name[:_SHOWN_CHARS_MAX] for name in unknown[:UNKNOWN_SHOWN_MAX]]

    def check(self, body: bytes, decoded: T) -> None:
        """Raise InvalidRequest where a number decoded from `body` is no u64, or a field was given twice."""
        if self._may_repeat(body, decoded):
            Repeats().of_body(body)
        self.check_range(decoded)

    def check_range(self, decoded: T, within: str = "") -> None:
        """Raise InvalidRequest where a number is no u64."""
        for name in self._numbers:
            value = getattr(decoded, name)
            if value is not None and value is not msgspec.UNSET and value > U64_MAX:
                text = f"{within}{name}: {str(value)[:40]} is out of range; the largest is {U64_MAX}"
                raise InvalidRequest(text, field=within + name)

    def _may_repeat(self, body: bytes, decoded: T) -> bool:
        """Whether a key of ours occurs more than once: then the body is worth a closer look."""
        found = self._find_keys(body)
        return len(found) != len(set(found))


class RecurringBody(Body[T]):
    """Decodes bodies that repeat byte for byte, each of them once. What it returns must not be changed."""

    __slots__ = ("_decoded",)

    def __init__(self, shape: type[T]) -> None:
        super().__init__(shape)
        assert shape.__struct_config__.frozen  # type: ignore[attr-defined]
        self._decoded: dict[bytes, T] = {}

    def __call__(self, body: bytes) -> T:
        """The decoded body."""
        known = self._decoded.get(body)
        if known is not None:
            return known
        decoded = super().__call__(body)
        if len(body) <= RECURRING_BYTES_MAX:
            if len(self._decoded) >= RECURRING_BODIES_MAX:
                self._decoded.clear()
            self._decoded[body] = decoded
        return decoded


class ConfigBody(Body[ConfigPatch]):
    """Decodes configs, also those that come with a write: what they name is checked whether or not it is used."""

    __slots__ = ()

    def check_range(self, decoded: ConfigPatch, within: str = "") -> None:
        """Raise InvalidRequest where a number is no u64, or `dead_letter` no name of a topic."""
        super().check_range(decoded, within)
        if isinstance(decoded.dead_letter, str):
            try:
                check_topic_name(decoded.dead_letter)
            except InvalidRequest as error:
                field = f"{within}dead_letter"
                raise InvalidRequest(f"{field}: {error.message}", field=field, **error.detail) from None


class WriteBody(Body[W]):
    """Decodes writes, the hot path: a repeat is looked for only where a body is longer than what was decoded needs."""

    __slots__ = ("_loose", "_others", "_shape", "_tag_bytes")

    def __init__(self, shape: type[W], loose: type[W]) -> None:
        """`shape` forbids unknown fields; `loose` is the same without that."""
        super().__init__(shape)
        self._shape = shape
        self._loose = msgspec.json.Decoder(loose).decode
        # The config is left out: how long it was is not known. What makes a retry safe is looked at by itself.
        apart = ("records", "config", "idempotency_key", "producer_id", "producer_seq")
        fields = [field for field in msgspec.structs.fields(shape) if field.name not in apart]
        self._others = [(field.name, field.default, len(f',"{field.name}":')) for field in fields]
        tag_field, tag = shape.__struct_config__.tag_field, shape.__struct_config__.tag
        self._tag_bytes = 0 if tag_field is None else len(f',"{tag_field}":"{tag}"')

    def _read(self, body: bytes) -> W:
        try:
            return self._decode(body)
        except msgspec.ValidationError:
            return self._loose(body)

    def envelope(self, body: bytes) -> tuple[W, list[str]]:
        """What surrounds the records of a large write, as a write without any, and its unknown fields."""
        check_values(body)
        write = self(body)
        return write, self.unknown(body) if type(write) is not self._shape else []

    def unknown(self, body: bytes) -> list[str]:
        """The first few keys that are no field of ours, in the body, in its records and in its config."""
        fields: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        found = self.unknown_among(fields)
        found += record.unknown_among(names_in_records(bytes(fields["records"])), "records[].")
        if "config" in fields:
            found += config.unknown_among(field_names(bytes(fields["config"])), "config.")
        return found[:UNKNOWN_SHOWN_MAX]

    def check(self, body: bytes, decoded: W) -> None:
        """Raise InvalidRequest where a number is no u64, also in the config, or a field was given twice."""
        if self._may_repeat(body, decoded):
            Repeats().of_body(body)
        if (decoded.producer_seq or 0) > U64_MAX or decoded.expected_head_seq is not None:
            self.check_range(decoded)
        if decoded.config is not None:
            config.check_range(decoded.config, "config.")

    def _may_repeat(self, body: bytes, decoded: W) -> bool:
        if type(decoded) is not self._shape:
            return True
        records = decoded.records
        # Most bodies hold nothing but what was decoded, which leaves no room for a repeated key.
        if len(records) == 1:
            (record,) = records
            room = len(body) - _ENVELOPE_BYTES - _RECORD_BYTES - len(record.data)
            if room < REPEAT_BYTES or room < REPEAT_BYTES + _label_bytes(record):
                return False
        else:
            room = len(body) - _ENVELOPE_BYTES - _RECORD_BYTES * len(records)
            room -= sum([len(record.data) for record in records])
            if room < REPEAT_BYTES:
                return False
        key, producer_id = decoded.idempotency_key, decoded.producer_id
        if key is not None:
            room -= _KEY_BYTES + len(key)
        if producer_id is not None:
            room -= _PRODUCER_BYTES + len(producer_id) + len(str(decoded.producer_seq))
        if room < REPEAT_BYTES:
            return False
        room -= self._field_bytes(decoded)
        return room >= REPEAT_BYTES and _has_room(room, body, records)

    def _field_bytes(self, decoded: W) -> int:
        """The least that the fields of a write take besides its records, as far as that is known."""
        size = self._tag_bytes
        for name, default, name_bytes in self._others:
            value = getattr(decoded, name)
            if value != default:
                size += name_bytes + (len(value) + 2 if isinstance(value, str) else len(str(value)))
        return size


def _label_bytes(record: requests.RecordIn) -> int:
    """The least that the labels of a record take."""
    size = 0
    if record.tag is not None:
        size += _TAG_BYTES + len(record.tag)
    if record.node is not None:
        size += _NODE_BYTES + len(record.node)
    if record.meta is not NO_RAW:
        size += _META_BYTES + len(record.meta)
    return size


def records_may_repeat(text: bytes, records: list[requests.RecordIn]) -> bool:
    """Whether an array of these records, all of them without unknown fields, has room for a repeated key."""
    room = len(text) - sum([len(record.data) for record in records]) - _RECORD_BYTES * len(records) - 1
    return room >= REPEAT_BYTES and _has_room(room, text, records)


def _has_room(room: int, text: bytes, records: list[requests.RecordIn]) -> bool:
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


# The least that the parts of a write take besides their values; the comma after a record counts as part of it.
_ENVELOPE_BYTES: Final = len(b'{"records":[]}') - 1
_RECORD_BYTES: Final = len(b'{"data":},')
_KEY_BYTES: Final = len(b',"idempotency_key":""')
_PRODUCER_BYTES: Final = len(b',"producer_id":"","producer_seq":')
_TAG_BYTES: Final = len(b',"tag":""')
_NODE_BYTES: Final = len(b',"node":""')
_META_BYTES: Final = len(b',"meta":')
_DELAY_BYTES: Final = len(b',"delay_ms":')
_DELIVER_BYTES: Final = len(b',"deliver_at":')


def described(text: str, whole: str = "the body") -> InvalidRequest:
    """The decoder's message as an error that names the field, or else `whole`."""
    matched = _PATH.match(text)
    assert matched is not None
    problem, path = matched[1], matched[2] or ""
    if len(problem) > _SHOWN_CHARS_MAX:
        problem = problem[:_SHOWN_CHARS_MAX] + "..."
    missing = _MISSING.match(problem)
    field = f"{path}.{missing[1]}".lstrip(".") if missing else path
    allowed = _allowed.get(field.rpartition(".")[2])
    if allowed is not None and problem.startswith("Invalid enum value "):
        problem = f"{problem.removeprefix('Invalid enum value ')} is not one of {allowed}"
    if missing:
        return InvalidRequest(f"{field} is missing", field=field)
    if not field:
        return InvalidRequest(f"{whole}: {_lower(problem)}")
    return InvalidRequest(f"{field}: {_lower(problem)}", field=field)


def malformed(body: bytes, problem: str, whole: str = "the body", at: int = 0) -> InvalidRequest:
    """The decoder's message about a body that is no JSON, or contains a string that is not valid Unicode.

    `body` may be a part that begins `at` bytes into the whole.
    """
    half = _half_near(body, problem)
    if half is not None:
        # JavaScript writes such a half where a string was cut in the middle of an emoji; many readers reject it.
        offset = at + half.start()
        return InvalidRequest(
            f"{whole} holds {half[0].decode()} (byte {offset}), one half of a character: send both halves or neither",
            offset=offset,
        )
    if problem == TRUNCATED:
        size = at + len(body)
        problem = f"it ends too early (byte {size})" if at or body.strip() else "it holds nothing but white space"
    elif at:
        problem = _BYTE.sub(lambda found: f"(byte {at + int(found[1])})", problem)
    return InvalidRequest(f"{whole} is not valid JSON: {_lower(problem.removeprefix(_MALFORMED))}")


def _half_near(body: bytes, problem: str) -> re.Match[bytes] | None:
    """The half of a surrogate pair that the decoder stopped at: it names a place near it, or ran into the end."""
    found = _BYTE.search(problem)
    if problem != TRUNCATED and found is None:
        return None
    end = len(body) if found is None else int(found[1])
    start, stop = max(0, end - _NEAR_BYTES), end + _ESCAPE_BYTES
    if start:
        # Backslashes at the beginning may be the second half of an escape.
        near = body[start:stop]
        start += len(near) - len(near.lstrip(b"\\"))
    for escape in _ESCAPE.finditer(body, start, stop):
        if escape[1] is not None:
            return escape
    return None


_NEAR_BYTES: Final = 256
_ESCAPE_BYTES: Final = 12
_BYTE: Final = re.compile(r"\(byte ([0-9]+)\)")
_MALFORMED: Final = "JSON is malformed: "
# A whole surrogate pair, or else a half of one, or else any other escape.
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
TOO_DEEP: Final = "is nested too deeply: send what is so deep as a string"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


class StrictRecord(requests.RecordIn, gc=False, forbid_unknown_fields=True):
    """A record without unknown fields."""


class StrictPatch(ConfigPatch, frozen=True, forbid_unknown_fields=True):
    """A config without unknown fields."""


class StrictWrite(requests.Write, forbid_unknown_fields=True):
    """A write without unknown fields."""

    records: list[StrictRecord]  # type: ignore[assignment]
    config: StrictPatch | None = None


write: Final = WriteBody(StrictWrite, requests.Write)
record: Final = Body(requests.RecordIn)
diff: Final = Body(requests.Diff, requests.Diff())
delete: Final = Body(requests.Delete, requests.Delete())
config: Final = ConfigBody(ConfigPatch, NO_PATCH)
