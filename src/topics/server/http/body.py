"""The body of a request on its way to a handler: whole, or in parts where it is too large to be handled at once.

A `BodyLimit` says how large a body may be, before and after inflation, and whether its handler takes it in parts. Such
a handler gets up to `WHOLE_MAX_BYTES` as they are; of anything larger it gets a `Rest`, from which it takes one part
after the other, so that neither inflating nor decoding holds up the loop. What has to be whole is bounded by a limit
that is small enough to be inflated at once.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple, Protocol

from topics.errors import InvalidRequest, PayloadTooLarge

WHOLE_MAX_BYTES: Final = 256 * 1024
"""A body of up to this size is always handed over whole; no read from a socket is larger."""
MEMBERS_MAX: Final = 256
_INPUT_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 512 * 1024
_PART_BYTES: Final = 16 * 1024
"""What arrives in parts of at least this size is kept as it is, not copied into a larger piece."""


class BodyLimit(NamedTuple):
    """How large the body of a request may be, by the name of the limit, and whether it is taken in parts."""

    name: str
    max_bytes: int
    in_parts: bool = False

    def exceeded(self, size: int | None = None, *, inflated: bool = False) -> PayloadTooLarge:
        """The refusal of a larger body; `size` is its length where that is known."""
        what = "body" if size is None else f"body of {size} bytes"
        text = f"The {what} exceeds the limit of {self.max_bytes} bytes{' once inflated' if inflated else ''}."
        return PayloadTooLarge(text, limit=self.name, max=self.max_bytes)


class Rest(Protocol):
    """What is still to come of a body that is handed over in parts."""

    done: bool
    """Whether everything was taken."""

    def take(self, size: int) -> bytes:
        """The next part, of at most `size` bytes; raises what answers a body that turns out to be bad."""


class Gathered:
    """The bytes of a body as they arrive: few objects however small the reads, and no copy of all there is to grow.

    Each connection has one, mostly empty: a list, because an empty deque takes 700 bytes.
    """

    __slots__ = ("_parts", "_popped", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes | bytearray] = []
        self._popped = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, data: bytes) -> None:
        """What has arrived."""
        self._size += len(data)
        if len(data) >= _PART_BYTES:
            self._parts.append(data)
        elif data:
            last = self._parts[-1] if self._parts else b""
            if isinstance(last, bytearray) and len(last) < _PIECE_BYTES:
                last += data
            else:
                self._parts.append(bytearray(data))

    def whole(self) -> bytes:
        """All of it."""
        return bytes(self._parts[0]) if len(self._parts) == 1 else b"".join(self._parts)

    def pop(self) -> bytes | bytearray:
        """Take the first piece out; nothing once there is none."""
        if self._popped == len(self._parts):
            return b""
        piece = self._parts[self._popped]
        self._parts[self._popped] = b""
        self._popped += 1
        self._size -= len(piece)
        return piece


class Plain:
    """The rest of a body that is all there. What was taken of it takes no more memory."""

    __slots__ = ("_at", "_body", "_piece", "done")

    def __init__(self, body: Gathered) -> None:
        self._body = body
        self._piece = body.pop()
        self._at = 0
        self.done = not self._piece

    def take(self, size: int) -> bytes:
        """The next part; it may be shorter than what is left."""
        part = bytes(memoryview(self._piece)[self._at : self._at + size])
        self._at += len(part)
        if self._at >= len(self._piece):
            self._piece = self._body.pop()
            self._at = 0
            self.done = not self._piece
        return part


class Inflation:
    """The rest of a gzip body, refused as soon as it would exceed its limit.

    It may have several members, as what was compressed in pieces has. Each further one costs a copy of an input, so
    their number is bounded: a body of tiny members makes little work.
    """

    __slots__ = ("_inflated", "_limit", "_member", "_members", "_packed", "_unread", "done")

    def __init__(self, packed: Plain, limit: BodyLimit) -> None:
        self._packed = packed
        self._limit = limit
        self._member = zlib.decompressobj(31)
        self._members = 1
        # Taken from `_packed`, but not by zlib, because the part was full or the member ended: at most one input.
        self._unread = b""
        self._inflated = 0
        self.done = False

    def take(self, size: int) -> bytes:
        """The next part; raises InvalidRequest or PayloadTooLarge."""
        # One byte more than the limit is enough to know that it is exceeded.
        size = min(size, self._limit.max_bytes + 1 - self._inflated)
        parts: list[bytes] = []
        room = size
        while room > 0 and not self.done:
            member = self._member
            source = self._unread or self._packed.take(_INPUT_BYTES)
            try:
                part = member.decompress(source, room)
            except zlib.error:
                raise InvalidRequest("The body is not gzip.", header="content-encoding") from None
            self._unread = member.unconsumed_tail
            room -= len(part)
            parts.append(part)
            if member.eof:
                self._end_member()
            elif not source and not part:
                raise InvalidRequest("The gzip body is cut short.", header="content-encoding")
        self._inflated += size - room
        if self._inflated > self._limit.max_bytes:
            raise self._limit.exceeded(inflated=True)
        return b"".join(parts)

    def _end_member(self) -> None:
        self._unread = self._member.unused_data
        if not self._unread and self._packed.done:
            self.done = True
            return
        self._members += 1
        if self._members > MEMBERS_MAX:
            raise InvalidRequest(
                f"The gzip body has more than {MEMBERS_MAX} members.", header="content-encoding", max=MEMBERS_MAX
            )
        self._member = zlib.decompressobj(31)


def receive(body: bytes | Gathered, limit: BodyLimit, *, gzip: bool) -> tuple[bytes, Rest | None]:
    """A complete body as its handler gets it: whole, or its beginning and the rest."""
    if isinstance(body, bytes):
        if not body or not (gzip or len(body) > WHOLE_MAX_BYTES):
            return body, None
        arrived, body = body, Gathered()
        body.add(arrived)
    if gzip and body:
        inflation = Inflation(Plain(body), limit)
        first = inflation.take(WHOLE_MAX_BYTES if limit.in_parts else limit.max_bytes + 1)
        return first, None if inflation.done else inflation
    if limit.in_parts and len(body) > WHOLE_MAX_BYTES:
        return b"", Plain(body)
    return body.whole(), None
