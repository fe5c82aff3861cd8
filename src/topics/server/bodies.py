"""Request bodies: from bytes to the engine's structs, or a 400 that says what is wrong and where (API §0.3).

Checks that the decoder leaves open are made here once per body: that it is UTF-8 (`Raw` slices are not looked into),
and that no object of ours names a field twice, since the field that came first would be dropped in silence. Inside
`data` anything that is JSON goes, duplicate keys included.
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

_PATH: Final = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_FIELD: Final = re.compile(r"field `(.+?)`")


U64_MAX: Final = 2**64 - 1
_SHOWN_CHARS_MAX: Final = 300


def _is_u64(annotation: Any) -> bool:
    """Whether a field takes whole numbers from 0 on without a smaller upper bound."""
    if annotation == requests.U64:
        return True
    return any(_is_u64(part) for part in typing.get_args(annotation)) if typing.get_args(annotation) else False


class Body(Generic[T]):
    """Decodes the bodies of one endpoint."""

    __slots__ = ("_decode", "_default", "_find_keys", "_numbers")

    def __init__(self, shape: type[T], default: T | None = None) -> None:
        self._decode = msgspec.json.Decoder(shape).decode
        self._default = default
        fields: tuple[str, ...] = shape.__struct_fields__  # type: ignore[attr-defined]
        self._find_keys = re.compile(b'"(?:%b)"' % "|".join(fields).encode()).findall
        # The decoder has no bound above 2^63 - 1, so a u64 is bounded here.
        self._numbers = tuple(
            field.name
            for field in msgspec.structs.fields(shape)  # type: ignore[arg-type]
            if _is_u64(field.type)
        )

    def __call__(self, body: bytes) -> T:
        """The decoded body; an empty one is the default where there is one."""
        if not body and self._default is not None:
            return self._default
        try:
            if not body.isascii():
                body.decode()
            decoded = self._decode(body)
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the body is not UTF-8 (byte {error.start})", offset=error.start) from None
        except RecursionError:
            raise InvalidRequest("the body is nested too deeply") from None
        except msgspec.ValidationError as error:
            raise described(str(error)) from None
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"the body is not valid JSON: {_lower(str(error))}") from None
        if self._may_repeat(body, decoded):
            _refuse_repeats(body)
        self.check_range(decoded)
        return decoded

    def check_range(self, decoded: T, within: str = "") -> None:
        """Raise InvalidRequest where a number is no u64."""
        for name in self._numbers:
            value = getattr(decoded, name)
            if value is not None and value is not msgspec.UNSET and value > U64_MAX:
                field = within + name
                raise InvalidRequest(f"{field}: {value} is out of range; the largest is {U64_MAX}", field=field)

    def _may_repeat(self, body: bytes, decoded: T) -> bool:
        """Whether a key of ours occurs more often than the objects that may hold it: then it is worth a closer look."""
        found = self._find_keys(body)
        return len(found) != len(set(found))


class WriteBody(Body[requests.Write]):
    """Decodes writes, the hot path: only the keys that were set are counted."""

    __slots__ = ()

    def check_range(self, decoded: requests.Write, within: str = "") -> None:
        """Raise InvalidRequest where a number is no u64, also in the config."""
        if decoded.producer_seq is not None or decoded.expected_head_seq is not None:
            super().check_range(decoded, within)
        if decoded.config is not None:
            config.check_range(decoded.config, "config.")

    def _may_repeat(self, body: bytes, decoded: requests.Write) -> bool:
        records = decoded.records
        # Most bodies hold nothing but what was decoded, so that there is no room in them for a key that repeats.
        n = len(records)
        data_bytes = len(records[0].data) if n == 1 else sum([len(record.data) for record in records])
        room = len(body) - data_bytes - _ENVELOPE_BYTES - _RECORD_BYTES * n
        if room < REPEAT_BYTES:
            return False
        tags = nodes = metas = 0
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
        if room < REPEAT_BYTES:
            return False
        nodes += decoded.node is not None
        return (
            body.count(b'"records"') != 1
            or body.count(b'"data"') != n
            or any(
                count and body.count(key) != count
                for key, count in ((b'"tag"', tags), (b'"node"', nodes), (b'"meta"', metas))
            )
            or (len(body) < _SMALL_BYTES and any(body.count(key) > 1 for key in _RARE_KEYS))
        )


# The least that the parts of a write take beside their values; the comma that only the last record lacks is a record's.
_ENVELOPE_BYTES: Final = len(b'{"records":[]}') - 1
_RECORD_BYTES: Final = len(b'{"data":},')
_TAG_BYTES: Final = len(b',"tag":""')
_NODE_BYTES: Final = len(b',"node":""')
_META_BYTES: Final = len(b',"meta":')
REPEAT_BYTES: Final = len(b'"data":0,')
"""The least that a key which is given twice adds to a write."""
_SMALL_BYTES: Final = 4096
_RARE_KEYS: Final = (b'"idempotency_key"', b'"create"', b'"config"', b'"producer_', b'"expected_head_seq"')


def _refuse_repeats(body: bytes) -> None:
    """Raise InvalidRequest where an object of ours names a key twice; `data` and `meta` are not looked into."""
    try:
        tree = json.loads(body, object_pairs_hook=_Object)
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


def _walk(node: Any, path: str) -> None:
    if isinstance(node, list):
        for i, item in enumerate(node):
            _walk(item, f"{path}[{i}]")
    elif isinstance(node, _Object):
        if node.repeated is not None:
            field = f"{path}.{node.repeated[:64]}".lstrip(".")
            raise InvalidRequest(f"{field} is given twice; send the one that is meant", field=field)
        for key in ("records", "config"):
            _walk(node.fields.get(key), f"{path}.{key}".lstrip("."))


def described(text: str) -> InvalidRequest:
    """The decoder's complaint as an error that names the field."""
    matched = _PATH.match(text)
    assert matched is not None
    problem, path = matched[1], matched[2] or ""
    if len(problem) > _SHOWN_CHARS_MAX:
        problem = problem[:_SHOWN_CHARS_MAX] + "..."
    missing = _FIELD.search(problem)
    field = f"{path}.{missing[1]}".lstrip(".") if missing else path
    if not field:
        return InvalidRequest(f"the body: {_lower(problem)}")
    return InvalidRequest(f"{field}: {_lower(problem)}", field=field)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


write: Final = WriteBody(requests.Write)
diff: Final = Body(requests.Diff, requests.Diff())
delete: Final = Body(requests.Delete, requests.Delete())
config: Final = Body(ConfigPatch, NO_PATCH)
