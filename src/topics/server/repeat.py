"""The last head of a connection, and the heads that say the same but for a target or a length.

A keep-alive client sends the same fields over and over: what changes from request to request is the target and the
digits of Content-Length. Such a head need not be parsed again: its fields are the same bytes, so they mean the same,
and only the two values are read. The target is taken from here only if it is made of characters that need no second
look; anything else, and any other method or version, goes through the parser.

A head with the same target keeps its route (another length does not change it, see `App.resolve`); one with another
target comes back without a route and has to be admitted.
"""

from __future__ import annotations

import re
from typing import Final

from topics.server.head import Head

LENGTH_DIGITS_MAX: Final = 12
LINE_MAX_BYTES: Final = 1024

_LENGTH_FIELD: Final = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]*)[ \t]*\r\n", re.IGNORECASE)
_PLAIN_TARGET: Final = re.compile(rb"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*")
_VERSION: Final = b" HTTP/1.1"


class Repeat:
    """A parsed head that may come again. Only for cacheable heads: HTTP/1.1, known length, no interim steps."""

    __slots__ = ("_after", "_before", "_method", "head", "line", "raw")

    head: Head
    raw: bytes
    line: bytes
    """The request line."""

    def __init__(self, raw: bytes, head: Head) -> None:
        self.head = head
        self.raw = raw
        line_end = raw.index(b"\r\n")
        self.line = raw[:line_end]
        self._method = head.method.encode() + b" "
        field = _LENGTH_FIELD.search(raw)
        # Without a length that can vary, everything behind the request line has to be the same.
        self._before = raw[line_end:] if field is None else raw[line_end : field.start(1)]
        self._after = b"" if field is None else raw[field.end(1) :]

    def moved(self, raw: bytes, head: Head) -> Repeat:
        """The same for a head that `read` has found with another target."""
        repeat = Repeat.__new__(Repeat)
        repeat.head = head
        repeat.raw = raw
        repeat.line = raw[: raw.index(b"\r\n")]
        repeat._method = self._method
        repeat._before = self._before
        repeat._after = self._after
        return repeat

    def read(self, data: bytes, position: int, body_max_bytes: int) -> Head | None:
        """The head at `position` if it is like this one and complete, else None."""
        if not data.startswith(self._method, position):
            return None
        line_end = data.find(b"\r\n", position, position + LINE_MAX_BYTES)
        if line_end < 0 or not data.startswith(self._before, line_end):
            return None
        length = self.head.content_length
        end = line_end + len(self._before)
        if self._after:
            start, end = end, data.find(b"\r", end, end + LENGTH_DIGITS_MAX + 1)
            digits = data[start:end] if end > 0 else b""
            if not digits.isdigit() or digits[0] == 0x30 or not data.startswith(self._after, end):
                return None
            length = int(digits)
            if length > body_max_bytes:
                return None
            end += len(self._after)
        if line_end - position == len(self.line) and data.startswith(self.line, position):
            return self.head.alike(length, end - position)
        line = data[position:line_end]
        target = line[len(self._method) : -len(_VERSION)]
        if not line.endswith(_VERSION) or _PLAIN_TARGET.fullmatch(target) is None:
            return None
        return self.head.alike(length, end - position, target)
