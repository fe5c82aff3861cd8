"""Request bodies: from bytes to the engine's structs, or a 400 that says what is wrong and where (HTTP-12 to HTTP-15).

What the decoder does not check is checked here once per body: that it is UTF-8 (the decoder does not look into `Raw`
slices), that a number is at most a u64, and that no object of ours names a field twice, since the first one would be
dropped silently (repeats.py). Inside `data` any JSON is accepted, duplicate keys included.

What a body can cost is bounded before it is decoded: by `max_command_bytes`, and by how many values it may hold
(`COMMAND_VALUES_MAX`).

A write has a body of its own kind (records.py). A command on a WebSocket is decoded elsewhere and checked the same way
by `check`.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

from topics.engine import requests
from topics.engine.config import NO_PATCH, ConfigPatch
from topics.errors import InvalidRequest
from topics.names import check_topic_name
from topics.server.api.repeats import TRUNCATED, Repeats, field_names

T = TypeVar("T")

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
        # One pass: to count the three of them one after the other takes four times as long.
        values = 1 + len(body) - len(body.translate(None, b",[{"))
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
        if not body and self._default is not None:
            return self._default
        try:
            if not body.isascii():
                body.decode()
            if len(body) > _UNCOUNTED_BYTES:
                check_values(body)
            decoded = self._decode(body)
        except UNDECODED as error:
            raise refusal(body, error) from None
        self.check(body, decoded)
        return decoded

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


UNDECODED: Final = (UnicodeDecodeError, RecursionError, msgspec.DecodeError)
"""What decoding raises."""


def refusal(body: bytes, error: Exception) -> InvalidRequest:
    """What is wrong with a body that could not be decoded."""
    if not body:
        return InvalidRequest("the body is empty: send a JSON object")
    if isinstance(error, UnicodeDecodeError):
        return InvalidRequest(f"the body is not UTF-8 (byte {error.start})", offset=error.start)
    if isinstance(error, RecursionError):
        return InvalidRequest(f"the body {TOO_DEEP}")
    if isinstance(error, msgspec.ValidationError):
        return described(str(error))
    return malformed(body, str(error))


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


record: Final = Body(requests.RecordIn)
diff: Final = Body(requests.Diff, requests.Diff())
delete: Final = Body(requests.Delete, requests.Delete())
config: Final = ConfigBody(ConfigPatch, NO_PATCH)
