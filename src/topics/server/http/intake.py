"""The bytes of one connection become requests. No sockets, no clock: `feed` bytes, ask for the `next` message.

The stream passes through these phases:

| phase | meaning | leaves to |
|---|---|---|
| IDLE | between messages | IN_HEAD, DEAF |
| IN_HEAD | a head has begun | IDLE, IN_BODY, SKIPPING, DEAF |
| IN_BODY | a body of known length, or a chunked one, is awaited | IDLE, DEAF |
| SKIPPING | the request was refused, its small body is read past | IDLE, DEAF |
| DEAF | a refusal left the end of the request in doubt or unread: nothing after it is read | - |

Rules:

1. What comes out depends on the bytes alone, never on how they were split into feeds. A refusal is decided by the first
   violation in the stream.
2. A keep-alive client repeats its head byte for byte. The last few heads are kept, and a message that begins with the
   same bytes skips the parser and `admit`. This is exact: the same bytes parse to the same Head. A head that differs
   from the last one only in its target or the digits of its Content-Length skips the parser too (`Repeat`), and
   `admit` only if the target is the same; the limit on bodies is kept here.
3. `admit` decides on a head before its body is read. A refused request whose body is small and of known length is read
   past, so that the connection lives on; any other refused body ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final, NamedTuple

from topics.errors import TopicsError
from topics.server.http.body import BodyLimit, Gathered, Rest, receive
from topics.server.http.chunked import ChunkedBody
from topics.server.http.head import Head, parse, scan
from topics.server.http.known_heads import Repeat
from topics.server.http.limits import ConnectionLimits

HEADS_KEPT_MAX: Final = 8
HEAD_KEPT_MAX_BYTES: Final = 2048
SKIP_MAX_BYTES: Final = 64 * 1024
PROGRESS_BYTES: Final = 16 * 1024
"""A slow body earns a fresh deadline each time it has brought this much."""
HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

IDLE, IN_HEAD, IN_BODY, SKIPPING, DEAF = range(5)

UNREADABLE: Final = Head("GET", b"/", {b"host": b"", b"connection": b"close"})
"""Stands in for a head that could not be parsed."""


def _admit_none(head: Head) -> None:
    """What admits for a connection that is gone."""


class Message(NamedTuple):
    """A request, or its refusal if `error` is set."""

    head: Head
    body: bytes
    started_ns: int
    error: TopicsError | None = None
    closes: bool = False
    """Whether the connection must end with the answer, whatever the client asked for."""
    rest: Rest | None = None
    """What follows `body`, where that is handed over in parts."""


class Intake:
    """The receiving half of a connection, see the module."""

    __slots__ = (
        "_admit", "_blank_skipped", "_body", "_body_limit", "_chunks", "_data", "_fresh", "_head_max", "_headers_max",
        "_heads", "_needed", "_open", "_position", "_progress", "_scanned", "_started_ns", "http2", "more",
        "owes_continue", "phase", "renewals", "repeat",
    )  # fmt: skip

    def __init__(self, admit: Callable[[Head], None], limits: ConnectionLimits, *, http2_known: bool) -> None:
        """`admit` sees each distinct head before its body and raises TopicsError to refuse it."""
        self._admit = admit
        self._body_limit = BodyLimit("max_body_bytes", limits.max_body_bytes)
        self._head_max = limits.max_header_bytes
        self._headers_max = limits.max_headers
        self._data = b""
        self._position = 0
        self._scanned = 0
        self._started_ns = 0
        self._fresh = http2_known
        self._blank_skipped = False
        self._heads: dict[bytes, Repeat] = {}
        self.repeat: Repeat | None = None
        """The last head that may come again."""
        self._open: Head = UNREADABLE
        self._body = Gathered()
        self._needed = 0
        self._chunks: ChunkedBody | None = None
        self._progress = 0
        self.phase = IDLE
        self.renewals = 0
        """Grows whenever the message under way deserves a fresh deadline."""
        self.owes_continue = False
        """Whether the client waits for `100 Continue` before it sends the body. The sender of it clears this."""
        self.more = False
        """Whether `next` has given up only for now, so that many tiny chunks do not take too long."""
        self.http2 = False
        """Whether the connection began with the HTTP/2 preface, which is still part of `rest`."""

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if self.phase == DEAF:
            return
        if self._position < len(self._data):
            self._data = self._data[self._position :] + data
        else:
            self._data = data
        self._position = 0

    def rest(self) -> bytes:
        """Take whatever was fed and is not parsed; nothing more will be."""
        rest = self._data[self._position :]
        self.stop()
        return rest

    def leave(self) -> None:
        """The connection is gone: nothing more is admitted, and nothing of it is kept in memory."""
        self.stop()
        self._admit = _admit_none

    def stop(self) -> None:
        """Parse nothing more and drop everything held."""
        self.phase = DEAF
        self._data = b""
        self._position = 0
        self._heads.clear()
        self.repeat = None
        self._body = Gathered()
        self._chunks = None
        self.owes_continue = False

    def forget_heads(self) -> Head | None:
        """Have every head admitted again; the one whose body is awaited was admitted already."""
        self._heads.clear()
        self.repeat = None
        return self._open if self.phase == IN_BODY else None

    @property
    def unread(self) -> bool:
        """Whether bytes wait to be parsed."""
        return self._position < len(self._data)

    @property
    def held_bytes(self) -> int:
        """What is held of a message that is not complete, and of what follows it."""
        chunks = 0 if self._chunks is None else self._chunks.held_bytes
        return len(self._data) - self._position + len(self._body) + chunks

    @property
    def clean(self) -> bool:
        """Whether the next byte is the first one of a message."""
        return self.phase == IDLE and self._position == len(self._data) and not self._blank_skipped

    def refuse(self, error: TopicsError) -> Message:
        """Give up on the message under way, and on everything after it."""
        head = self._open if self.phase == IN_BODY else UNREADABLE
        message = Message(head, b"", self._started_ns or perf_counter_ns(), error, closes=True)
        self.stop()
        return message

    def next(self) -> Message | None:
        """The next request or refusal that the bytes fed so far hold, or None if there is none yet."""
        self.more = False
        try:
            while self._position < len(self._data):
                before = self._position
                if self.phase <= IN_HEAD:
                    message = self._read_head()
                elif self.phase == IN_BODY:
                    message = self._read_body()
                else:
                    message = None
                    self._skip()
                if message is not None:
                    return message
                if self._position == before:
                    break
                if self._chunks is not None and self._position < len(self._data):
                    self.more = True
                    break
        except TopicsError as error:
            return self.refuse(error)
        return None

    def _read_head(self) -> Message | None:
        data, position = self._data, self._position
        repeat = self.repeat
        if repeat is not None:
            if data.startswith(repeat.raw, position):
                return self._begin_known(repeat.head)
            head = repeat.read(data, position, self._body_limit.max_bytes)
            if head is not None and head.raw_bytes <= self._head_max:
                if head.target is repeat.head.target:
                    return self._begin_known(head)
                return self._read_moved(repeat, head)
        if not self._blank_skipped and data.startswith(b"\r\n", position):
            # RFC 9112 §2.2: one empty line before a request line is ignored.
            self._blank_skipped = True
            self.phase = IDLE
            self._position = position + 2
            return None
        if self._fresh:
            opening = data[position : position + len(HTTP2_PREFACE)]
            if HTTP2_PREFACE.startswith(opening):
                self.http2 = len(opening) == len(HTTP2_PREFACE)
                self._begin_head()
                return None
        self._begin_head()
        end = data.find(b"\r\n\r\n", position, position + HEAD_KEPT_MAX_BYTES)
        if end >= 0:
            raw = data[position : end + 4]
            known = self._heads.get(raw)
            if known is not None:
                self.repeat = known
                return self._begin_known(known.head)
        window = data[position : position + self._head_max + 4]
        length = scan(window, self._scanned, self._head_max)
        if not length:
            self._scanned = len(window)
            return None
        self._fresh = False
        raw = window[:length]
        head = parse(raw, self._headers_max)
        self._position = position + length
        refusal = self._decide(head)
        if refusal is not None:
            return refusal
        if head.cacheable and len(raw) <= HEAD_KEPT_MAX_BYTES:
            self._keep(Repeat(raw, head))
        return self._begin_body(head)

    def _begin_known(self, head: Head) -> Message | None:
        """A head that was admitted before comes again."""
        if self.phase == IDLE:
            self._started_ns = perf_counter_ns()
        self._position += head.raw_bytes
        return self._begin_body(head)

    def _read_moved(self, repeat: Repeat, head: Head) -> Message | None:
        """The fields of the last head come again with another target."""
        raw = self._data[self._position : self._position + head.raw_bytes]
        known = self._heads.get(raw)
        if known is not None:
            self.repeat = known
            return self._begin_known(known.head)
        self._begin_head()
        self._position += head.raw_bytes
        refusal = self._decide(head)
        if refusal is not None:
            return refusal
        self._keep(repeat.moved(raw, raw[: raw.index(b"\r\n")], head))
        return self._begin_body(head)

    def _keep(self, repeat: Repeat) -> None:
        if len(self._heads) >= HEADS_KEPT_MAX:
            self._heads.clear()
        self._heads[repeat.raw] = self.repeat = repeat

    def _begin_head(self) -> None:
        if self.phase == IDLE:
            self.phase = IN_HEAD
            self.renewals += 1
            self._started_ns = perf_counter_ns()
            self._scanned = 0

    def _decide(self, head: Head) -> Message | None:
        """None if the head is admitted, else its refusal."""
        try:
            self._admit(head)
            length = head.content_length or 0
            limit = head.body_limit or self._body_limit
            if length > limit.max_bytes:
                raise limit.exceeded(length)
            head.require_supported()
        except TopicsError as error:
            # Where it was raised does not matter any more, and the frames there would keep each other in memory.
            error.__traceback__ = None
            started_ns = self._started_ns
            self._end_message()
            length = head.content_length or 0
            if head.chunked or head.expects_continue or length > SKIP_MAX_BYTES:
                self.stop()
                return Message(head, b"", started_ns, error, closes=True)
            if length:
                self.phase = SKIPPING
                self.renewals += 1
                self._needed = length
            return Message(head, b"", started_ns, error)
        return None

    def _begin_body(self, head: Head) -> Message | None:
        length = head.content_length or 0
        if not length and not head.chunked:
            return self._finish(head, b"")
        stop = self._position + length
        if length and stop <= len(self._data) and not head.expects_continue:
            body = self._data[self._position : stop]
            self._position = stop
            return self._finish(head, body)
        self.phase = IN_BODY
        self.renewals += 1
        self._progress = 0
        self._open = head
        self._needed = length
        self._chunks = ChunkedBody(head.body_limit or self._body_limit, self._head_max) if head.chunked else None
        self.owes_continue = head.expects_continue
        return None

    def _read_body(self) -> Message | None:
        before = self._position
        if self._chunks is not None:
            self._position = self._chunks.feed(self._data, before)
            body = self._chunks.body if self._chunks.complete else None
        else:
            part = self._data[before : before + self._needed]
            self._position += len(part)
            self._body.add(part)
            self._needed -= len(part)
            body = None if self._needed else self._body
        if body is not None:
            self._body = Gathered()
            self._chunks = None
            self.owes_continue = False
            return self._finish(self._open, body)
        self._progress += self._position - before
        if self._progress >= PROGRESS_BYTES:
            self._progress = 0
            self.renewals += 1
        return None

    def _skip(self) -> None:
        step = min(self._needed, len(self._data) - self._position)
        self._position += step
        self._needed -= step
        if not self._needed:
            self._end_message()

    def _finish(self, head: Head, body: bytes | Gathered) -> Message:
        started_ns = self._started_ns
        self._end_message()
        if not head.keep_alive:
            self.stop()
        try:
            whole, rest = receive(body, head.body_limit or self._body_limit, gzip=head.gzip_body)
        except TopicsError as error:
            return Message(head, b"", started_ns, error)
        return Message(head, whole, started_ns, rest=rest)

    def _end_message(self) -> None:
        self.phase = IDLE
        self._blank_skipped = False
        self._started_ns = 0
        self._open = UNREADABLE
