"""Heads of a connection that come again, perhaps with another target or length.

A keep-alive client sends the same fields over and over: what changes from request to request is the target and the
digits of Content-Length. Such a head need not be parsed again: its fields are the same bytes, so they mean the same,
and only the two values are read. The target is read here only if it is made of characters that need no closer look;
anything else, and any other method or version, goes through the parser.

A head with the same target keeps its route (another length does not change it, see `App.resolve`); one with another
target has no route yet and has to be admitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from topics.errors import TopicsError
from topics.server.http.head import Head

LENGTH_DIGITS_MAX: Final = 12
LINE_MAX_BYTES: Final = 1024
KNOWN_HEADS_MAX: Final = 64
CROWD_STEP: Final = 8
"""One of so many heads is kept where there are too many for all."""

_LENGTH_FIELD: Final = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]*)[ \t]*\r\n", re.IGNORECASE)
_PLAIN_TARGET: Final = re.compile(rb"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*")
_VERSION: Final = b" HTTP/1.1"


class Repeat:
    """A parsed head that may come again. Only for cacheable heads: HTTP/1.1, known length, no interim steps."""

    __slots__ = ("_after", "_before", "head", "line", "method", "raw")

    def __init__(self, raw: bytes, head: Head) -> None:
        self.head = head
        self.raw = raw
        line_end = raw.index(b"\r\n")
        self.line = raw[:line_end]
        self.method = head.method.encode() + b" "
        field = _LENGTH_FIELD.search(raw)
        # Without a length that can vary, everything after the request line has to be the same.
        self._before = raw[line_end:] if field is None else raw[line_end : field.start(1)]
        self._after = b"" if field is None else raw[field.end(1) :]

    def moved(self, raw: bytes, line: bytes, head: Head) -> Repeat:
        """The same for a head that `read` has found with another target, and so with this request line."""
        repeat = Repeat.__new__(Repeat)
        repeat.head = head
        repeat.raw = raw
        repeat.line = line
        repeat.method = self.method
        repeat._before = self._before
        repeat._after = self._after
        return repeat

    def read(self, data: bytes, position: int, body_max_bytes: int) -> Head | None:
        """The head at `position` if it is like this one and complete, else None."""
        if not data.startswith(self.method, position):
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
            limit = self.head.body_limit
            if limit is not None and (length or 0) > limit.max_bytes:
                return None
            return self.head.alike(length, end - position)
        line = data[position:line_end]
        target = line[len(self.method) : -len(_VERSION)]
        if not line.endswith(_VERSION) or _PLAIN_TARGET.fullmatch(target) is None:
            return None
        return self.head.alike(length, end - position, target)


class KnownHeads(dict[bytes, Head]):
    """The heads that came on one connection, by their bytes; a bounded number of them is kept."""

    __slots__ = ("_admit", "_body_max_bytes", "_crowd", "_head_max_bytes", "_repeats")

    def __init__(self, admit: Callable[[Head], None], body_max_bytes: int, head_max_bytes: int) -> None:
        """`admit` sees each head with a new target and raises TopicsError to refuse it."""
        super().__init__()
        self._admit = admit
        self._body_max_bytes = body_max_bytes
        self._head_max_bytes = head_max_bytes
        # By request line, and the last one of each method by that.
        self._repeats: dict[bytes, Repeat] = {}
        # How many targets came for the first time since there were more than are kept.
        self._crowd = 0

    def learn(self, repeat: Repeat) -> None:
        """Know this head, and those that differ from it only in their target or their length."""
        if repeat.raw not in self:
            self._keep(repeat.raw, repeat.head)
            if len(self._repeats) >= KNOWN_HEADS_MAX:
                self._repeats.clear()
            self._repeats[repeat.line] = self._repeats[repeat.method] = repeat

    def recall(self, head_bytes: bytes, read_bytes: int) -> Head | None:
        """The head in these bytes if it came before with another target or length; it is known from now on.

        None also where it is refused: the parser and `App.resolve` report what is wrong with it. And where the target
        is new and the read, of so many bytes, is not just this message: that is theirs too.
        """
        line = head_bytes[: head_bytes.find(b"\r\n")]
        repeat = self._repeats.get(line) or self._repeats.get(line[: line.find(b" ") + 1])
        if repeat is None:
            return None
        try:
            head = repeat.read(head_bytes, 0, self._body_max_bytes)
            if head is None or head.raw_bytes > self._head_max_bytes:
                return None
            if head.target is repeat.head.target:
                self._keep(head_bytes, head)
                return head
            if head.message_bytes != read_bytes:
                return None
            self._admit(head)
        except TopicsError as error:
            error.__traceback__ = None
            return None
        limit = head.body_limit
        if limit is not None and (head.content_length or 0) > limit.max_bytes:
            return None
        # Where there are more targets than are kept, most are forgotten before they come again: to keep each of them
        # would cost more than it saves.
        if self._crowd:
            self._crowd += 1
        if not self._crowd % CROWD_STEP:
            self.learn(repeat.moved(head_bytes, line, head))
        return head

    def forget(self) -> None:
        """Know no head any more."""
        self.clear()
        self._repeats.clear()
        self._crowd = 0

    def _keep(self, head_bytes: bytes, head: Head) -> None:
        if len(self) >= KNOWN_HEADS_MAX:
            self.clear()
            self._crowd = self._crowd or 1
        self[head_bytes] = head
