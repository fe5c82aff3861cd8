"""Request bodies: from bytes to the engine's structs, or a 400 that says what is wrong and where (HTTP-12 to HTTP-15).

What the decoder does not check is checked here once per body: that it is UTF-8 (the decoder does not look into `Raw`
slices), that a number is at most a u64, and that no object of ours names a field twice, since the first one would be
dropped silently. Inside `data` any JSON is accepted, duplicate keys included.

A command on a WebSocket is decoded elsewhere and checked the same way by `check`.
"""

from __future__ import annotations

import json
import re
import typing
from typing import Any, Final, Generic, TypeVar

import msgspec

from topics.engine import requests
from topics.engine.config import NO_PATCH, ConfigPatch
from topics.engine.requests import NO_RAW
from topics.errors import InvalidRequest

T = TypeVar("T")
W = TypeVar("W", bound=requests.Write)

_PATH: Final = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(.+?)`")


U64_MAX: Final = 2**64 - 1
_SHOWN_CHARS_MAX: Final = 300
_UNKNOWN_SHOWN_MAX: Final = 20
RECURRING_BODIES_MAX: Final = 1024
RECURRING_BYTES_MAX: Final = 256


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
            decoded = self._decode(body)
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the body is not UTF-8 (byte {error.start})", offset=error.start) from None
        except RecursionError:
            raise InvalidRequest(f"the body {TOO_DEEP}") from None
        except msgspec.ValidationError as error:
            raise described(str(error)) from None
        except msgspec.DecodeError as error:
            raise malformed(body, str(error)) from None
        if self._may_repeat(body, decoded):
            _refuse_repeats(body)
        if self._numbers:
            self.check_range(decoded)
        return decoded

    def unknown(self, body: bytes) -> list[str]:
        """The first few keys of a decoded body that are no field of ours: usually typos."""
        found: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw]) if body else {}
        return [key[:_SHOWN_CHARS_MAX] for key in found if key not in self._fields][:_UNKNOWN_SHOWN_MAX]

    def check(self, body: bytes, decoded: T) -> None:
        """Raise InvalidRequest where a number decoded from `body` is no u64, or a field was given twice."""
        if self._may_repeat(body, decoded):
            _refuse_repeats(body)
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


class WriteBody(Body[W]):
    """Decodes writes, the hot path: only the keys that were set are counted."""

    __slots__ = ("_rare_keys",)

    def __init__(self, shape: type[W]) -> None:
        super().__init__(shape)
        names = [name for name in shape.__struct_fields__ if name not in ("records", "node")]
        self._rare_keys = [(name, b'"%b"' % name.encode()) for name in names]
        if shape.__struct_config__.tag_field is not None:
            # Paired with an attribute that every write of this shape has.
            self._rare_keys.append(("records", b'"%b"' % shape.__struct_config__.tag_field.encode()))

    def check_range(self, decoded: W, within: str = "") -> None:
        """Raise InvalidRequest where a number is no u64, also in the config."""
        if decoded.producer_seq is not None or decoded.expected_head_seq is not None:
            super().check_range(decoded, within)
        if decoded.config is not None:
            config.check_range(decoded.config, "config.")

    def command_bytes(self, decoded: W) -> int:
        """How many bytes a command has around its records beyond the minimum of any write."""
        return 0

    def _may_repeat(self, body: bytes, decoded: W) -> bool:
        records = decoded.records
        # Most bodies hold nothing but what was decoded, which leaves no room for a repeated key.
        n = len(records)
        data_bytes = len(records[0].data) if n == 1 else sum([len(record.data) for record in records])
        room = len(body) - data_bytes - _ENVELOPE_BYTES - _RECORD_BYTES * n
        if room < REPEAT_BYTES:
            return False
        room -= self.command_bytes(decoded)
        if room < REPEAT_BYTES:
            return False
        tags = nodes = metas = delays = times = 0
        for record in records:
            if record.tag is not None:
                tags += 1
                room -= len(record.tag) + _TAG_BYTES
            if record.node is not None:
                nodes += 1
                room -= len(record.node) + _NODE_BYTES
            if record.meta is not NO_RAW:
                metas += 1
                room -= len(record.meta) + _META_BYTES
            if record.delay_ms is not None:
                delays += 1
            if record.deliver_at is not None:
                times += 1
        small = len(body) < _SMALL_BYTES
        if room < REPEAT_BYTES or (small and room - _spaces_around(body, records) < REPEAT_BYTES):
            return False
        nodes += decoded.node is not None
        # A search through a large body is not cheap, so there only for what was set.
        return (
            body.count(b'"records"') != 1
            or body.count(b'"data"') != n
            or any(
                (count or small) and body.count(key) != count
                for key, count in (
                    (b'"tag"', tags),
                    (b'"node"', nodes),
                    (b'"meta"', metas),
                    (b'"delay_ms"', delays),
                    (b'"deliver_at"', times),
                )
            )
            or any((small or getattr(decoded, name)) and body.count(key) > 1 for name, key in self._rare_keys)
            or (decoded.config is not None and config._may_repeat(body, decoded.config))
        )


def _spaces_around(body: bytes, records: list[requests.RecordIn]) -> int:
    """How many spaces a body has that are in no value."""
    spaces = body.count(b" ")
    for record in records:
        spaces -= bytes(record.data).count(b" ") + bytes(record.meta).count(b" ")
        for label in (record.tag, record.node):
            if label is not None:
                spaces -= label.count(" ")
    return spaces


# The least that the parts of a write take besides their values; the comma after a record counts as part of it.
_ENVELOPE_BYTES: Final = len(b'{"records":[]}') - 1
_RECORD_BYTES: Final = len(b'{"data":},')
_TAG_BYTES: Final = len(b',"tag":""')
_NODE_BYTES: Final = len(b',"node":""')
_META_BYTES: Final = len(b',"meta":')
REPEAT_BYTES: Final = len(b'"data":0,')
"""The least that a repeated key adds to a write."""
_SMALL_BYTES: Final = 4096


def _refuse_repeats(body: bytes) -> None:
    """Raise InvalidRequest where an object of ours names a key twice; `data` and `meta` are not searched."""
    try:
        # Numbers stay text: one of a million digits would be refused here, and it is only data.
        tree = json.loads(body, object_pairs_hook=_Object, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return
    _walk(tree, "")


class _Object:
    """A JSON object that remembers a key it was given twice."""

    __slots__ = ("fields", "repeated")

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.fields = dict(pairs)
        self.repeated: str | None = None
        if len(self.fields) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    self.repeated = key
                    break
                seen.add(key)


def _walk(node: Any, path: str, *, named: bool = False) -> None:
    """Look into an object of ours, or into a map of such objects by name (`named`)."""
    if isinstance(node, list):
        for i, item in enumerate(node):
            _walk(item, f"{path}[{i}]")
    elif isinstance(node, _Object):
        if node.repeated is not None:
            field = f"{path}.{node.repeated[:64]}".lstrip(".")
            raise InvalidRequest(f"{field} is given twice; send the one that is meant", field=field)
        for key in node.fields if named else _NESTED:
            _walk(node.fields.get(key), f"{path}.{key[:64]}".lstrip("."), named=key == "topics" and not named)


_NESTED: Final = ("records", "config", "topics")


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


def malformed(body: bytes, problem: str, whole: str = "the body") -> InvalidRequest:
    """The decoder's message about a body that is no JSON, or contains a string that is not valid Unicode."""
    for escape in _ESCAPE.finditer(body):
        # JavaScript writes such a half where a string was cut in the middle of an emoji; many readers reject it.
        if escape[1] is not None:
            half = escape[0].decode()
            return InvalidRequest(
                f"{whole} holds {half} (byte {escape.start()}), one half of a character: send both halves or neither",
                offset=escape.start(),
            )
    if problem == _TRUNCATED:
        problem = f"it ends too early (byte {len(body)})" if body.strip() else "it holds nothing but white space"
    return InvalidRequest(f"{whole} is not valid JSON: {_lower(problem.removeprefix(_MALFORMED))}")


_TRUNCATED: Final = "Input data was truncated"
_MALFORMED: Final = "JSON is malformed: "
# A whole surrogate pair, or else a half of one, or else any other escape.
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
TOO_DEEP: Final = "is nested too deeply: send what is so deep as a string"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


write: Final = WriteBody(requests.Write)
diff: Final = Body(requests.Diff, requests.Diff())
delete: Final = Body(requests.Delete, requests.Delete())
config: Final = Body(ConfigPatch, NO_PATCH)
