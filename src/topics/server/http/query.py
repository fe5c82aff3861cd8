"""Query strings: decoded once, typed on demand, with a 400 that names the parameter (HTTP-12)."""

from __future__ import annotations

import base64
import binascii
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, UnsetType

from topics.errors import InvalidRequest

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1000
_TRUE: Final = frozenset({"true", "1"})
_FALSE: Final = frozenset({"false", "0"})


_values: Final[dict[str, dict[str, str]]] = {}
"""What short query strings mean, as far as they came lately: most requests of a server have one of a few."""
KNOWN_MAX: Final = 256
KNOWN_CHARS_MAX: Final = 64


class Query:
    """The parameters of one request; of one that is repeated, the first counts."""

    __slots__ = ("_values",)

    def __init__(self, text: str) -> None:
        known = _values.get(text)
        self._values = _read(text) if known is None else known

    def text(self, name: str, default: str = "") -> str:
        """A parameter as text."""
        return self._values.get(name, default)

    def has(self, name: str) -> bool:
        """Whether the parameter was given."""
        return name in self._values

    def flag(self, name: str, default: bool) -> bool:
        """A parameter that is true or false."""
        value = self._values.get(name)
        if value is None:
            return default
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise InvalidRequest(f"{name} must be true or false", field=name, got=value[:64])

    def number(self, name: str, default: int, least: int = 0) -> int:
        """A parameter that is a whole number of at least `least`."""
        value = self._values.get(name)
        if value is None:
            return default
        # Twenty digits are above every bound there is, and a number that is clamped may have any length.
        number = int(value.lstrip("0")[:20] or "0") if value.isascii() and value.isdigit() else -1
        if number < least:
            raise InvalidRequest(f"{name} must be a whole number of at least {least}", field=name, got=value[:64])
        return number

    def page_size(self) -> int:
        """`page_size`, clamped to its maximum."""
        return min(self.number("page_size", PAGE_SIZE_DEFAULT, least=1), PAGE_SIZE_MAX)

    def cursor(self) -> str:
        """The name that the opaque `cursor` of a list means, or the empty string."""
        value = self._values.get("cursor")
        if value is None:
            return ""
        try:
            # A `+` that was passed back as it came means a space in a query, and base64 has none.
            encoded = value.replace(" ", "+")
            decoded = msgspec.json.decode(base64.b64decode(encoded, validate=True), type=_Cursor)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            raise InvalidRequest("cursor is not one that this server gave out", field="cursor") from None
        return decoded.after


def _read(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise InvalidRequest("the query string is malformed", query=text[:200]) from None
    for name, value in pairs:
        values.setdefault(name, value)
    if len(text) <= KNOWN_CHARS_MAX and "token" not in values:
        if len(_values) >= KNOWN_MAX:
            _values.clear()
        _values[text] = values
    return values


class _Cursor(msgspec.Struct):
    after: str


def page_cursor(after: str | None) -> str | UnsetType:
    """The opaque cursor of the page after `after`, where there is one."""
    if after is None:
        return UNSET
    return base64.b64encode(msgspec.json.encode(_Cursor(after))).decode()
