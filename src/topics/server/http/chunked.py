"""The chunked transfer coding of a request body (RFC 9112 §7.1), decoded strictly.

Chunk sizes are hexadecimal digits alone: signs, prefixes, white space, bare line feeds and sizes beyond the body
limit are refused, since every laxness here is a place where a proxy and this server can disagree about where a request
ends. Well-formed chunk extensions are ignored within `LINE_MAX_BYTES`; trailers are read past, bounded by the limit
on heads, and never merged into the headers. What a body decodes to does not depend on how it was split into reads.
"""

from __future__ import annotations

import re
from typing import Final

from topics.errors import HeadTooLarge, InvalidRequest
from topics.server.http.body import BodyLimit, Gathered

LINE_MAX_BYTES: Final = 256
"""The longest chunk-size line, extensions included."""
FEED_STEPS_MAX: Final = 512
"""How many parts of chunks are decoded in one go: less than a millisecond's worth."""

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_SIZE: Final = re.compile(rb'([0-9A-Fa-f]{1,15})(?:;%b(?:=(?:%b|"[\t !#-\[\]-~]*"))?)*' % (_TOKEN, _TOKEN))
_TRAILER: Final = re.compile(_TOKEN + rb":[\t -~\x80-\xff]*")


class ChunkedBody:
    """A body that arrives in chunks. Feed it; `body` is the decoded one once it is `complete`."""

    __slots__ = ("_limit", "_line", "_needed", "_step", "_trailer_bytes", "_trailer_max", "body", "complete")

    complete: bool

    def __init__(self, limit: BodyLimit, trailer_max_bytes: int) -> None:
        self._limit = limit
        self._trailer_max = trailer_max_bytes
        self._trailer_bytes = 0
        self.body = Gathered()
        self._line = b""
        self._needed = 0
        self._step = self._size
        self.complete = False

    def feed(self, data: bytes, position: int) -> int:
        """Decode `data` from `position`; returns where it stopped.

        That is at the end of `data`, or of the body if complete, or after so many chunks that others have their turn.

        Raises InvalidRequest for broken framing, PayloadTooLarge as soon as a chunk's size passes the limit, and
        HeadTooLarge for too long a size line or too many trailers.
        """
        size = len(data)
        steps = FEED_STEPS_MAX
        while position < size and steps and not self.complete:
            position = self._step(data, position)
            steps -= 1
        return position

    @property
    def held_bytes(self) -> int:
        """How much of the body is here."""
        return len(self.body)

    def _read_line(self, data: bytes, position: int, limit_bytes: int) -> int:
        """Gather a line into `_line`; returns the position after it, or -1 if `data` ended first."""
        end = data.find(b"\n", position)
        stop = len(data) if end < 0 else end + 1
        if len(self._line) + stop - position > limit_bytes + 2:
            raise HeadTooLarge("A line or the trailers of the chunked body are too long.", max=limit_bytes)
        self._line += data[position:stop]
        if end < 0:
            return -1
        if not self._line.endswith(b"\r\n"):
            raise InvalidRequest("A line of the chunked body does not end in CRLF.")
        return stop

    def _size(self, data: bytes, position: int) -> int:
        position = self._read_line(data, position, LINE_MAX_BYTES)
        if position < 0:
            return len(data)
        match = _SIZE.fullmatch(self._line, 0, len(self._line) - 2)
        if match is None:
            raise InvalidRequest("A chunk size must be a hexadecimal number.")
        self._line = b""
        self._needed = int(match.group(1), 16)
        if len(self.body) + self._needed > self._limit.max_bytes:
            raise self._limit.exceeded()
        self._step = self._data if self._needed else self._trailer
        return position

    def _data(self, data: bytes, position: int) -> int:
        part = data[position : position + self._needed]
        self.body.add(part)
        self._needed -= len(part)
        if not self._needed:
            self._step = self._data_end
        return position + len(part)

    def _data_end(self, data: bytes, position: int) -> int:
        added = data[position : position + 2 - len(self._line)]
        self._line += added
        if not b"\r\n".startswith(self._line):
            raise InvalidRequest("A chunk is longer than its size.")
        if len(self._line) == 2:
            self._line = b""
            self._step = self._size
        return position + len(added)

    def _trailer(self, data: bytes, position: int) -> int:
        position = self._read_line(data, position, self._trailer_max - self._trailer_bytes)
        if position < 0:
            return len(data)
        if self._line == b"\r\n":
            self.complete = True
        elif _TRAILER.fullmatch(self._line, 0, len(self._line) - 2) is None:
            raise InvalidRequest("A trailer of the chunked body is malformed.")
        self._trailer_bytes += len(self._line)
        self._line = b""
        return position
