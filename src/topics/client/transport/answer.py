"""AnswerParser: bytes of a connection in, answers out; it knows no socket.

`httptools` (llhttp, which the server uses too) finds the parts; what it leaves to its user is decided here: an interim
answer (1xx) is skipped, a body without a length ends with its connection, and every part has a bound. Whatever comes
after an answer that nobody asked for makes the connection unusable, so that no answer is ever taken for another's.
"""

from __future__ import annotations

import re
from typing import Final

import httptools

HEAD_BYTES_MAX: Final = 64 << 10
BODY_BYTES_MAX: Final = 256 << 20
"""Far above the largest answer that a server gives: a read is at most 8 MiB and one record."""
_NO_BODY: Final = frozenset((204, 304))
_PLAIN: Final = re.compile(
    rb"HTTP/1\.1 (200|201|404) [A-Za-z ]+\r\nDate: [A-Za-z0-9:, ]+\r\n"
    rb"Content-Type: application/json\r\nContent-Length: ([1-9][0-9]{0,7})\r\n\r\n"
)


class Malformed(ValueError):
    """What arrived is not an answer in HTTP/1.1, or is larger than any answer may be."""


class Answer:
    """A whole answer. Header names are in lower case."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class AnswerParser:
    """Reads the answers of one connection, one at a time: `expect`, then `feed` until `complete`.

    With `take_body` the body of an answer may be taken as it comes.
    """

    __slots__ = (
        "_bytes", "_chunks", "_head_bytes", "_headers", "_parser", "_status", "_until_eof",
        "complete", "head_complete", "keep_alive", "surplus",
    )  # fmt: skip

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.surplus = False
        self.expect()
        self.complete = True

    def expect(self) -> None:
        """Begin with the next answer."""
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._bytes = self._head_bytes = 0
        self._until_eof = False
        self.head_complete = self.complete = self.keep_alive = False

    @property
    def status(self) -> int:
        """The status, once the head is complete."""
        return self._status

    @property
    def started(self) -> bool:
        """Whether anything of the answer has arrived."""
        return bool(self._head_bytes or self._headers or self.head_complete)

    def feed(self, data: bytes | memoryview) -> None:
        """Take what has arrived; raises Malformed."""
        if self.complete:
            self.surplus = True
            return
        if not self.head_complete:
            if not self._head_bytes and self._is_plain(data):
                return
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise Malformed("the server changed the protocol without being asked") from None
        except httptools.HttpParserError as error:
            cause = error.__context__
            raise cause if isinstance(cause, Malformed) else Malformed(_text(error, data)) from None
        if not self.head_complete and self._head_bytes > HEAD_BYTES_MAX:
            raise Malformed(f"the head of the answer is larger than {HEAD_BYTES_MAX:,} bytes")

    def _is_plain(self, data: bytes | memoryview) -> bool:
        """Take an answer that is whole and of the form that nearly all have, in half the time."""
        found = _PLAIN.match(data)
        if found is None or len(data) - found.end() != int(found[2]):
            return False
        self._status = int(found[1])
        self._headers = {b"content-type": b"application/json"}
        self._chunks = [bytes(data[found.end() :])]
        self.head_complete = self.complete = self.keep_alive = True
        return True

    def eof(self) -> None:
        """The connection has ended; raises EOFError where the answer is not complete."""
        if self._until_eof and not self.complete:
            self.complete = True
            return
        if not self.complete:
            raise EOFError("the connection ended within the answer" if self.started else "the connection was closed")

    def answer(self) -> Answer:
        """The answer, once it is complete."""
        chunks = self._chunks
        return Answer(self._status, self._headers, chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def take_body(self) -> bytes:
        """What has arrived of the body since it was last taken."""
        chunks, self._chunks = self._chunks, []
        self._bytes = 0
        return b"".join(chunks)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Any second message is one that nobody asked for."""
        if self.complete:
            self.surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of the head, or of a trailer, which nobody needs."""
        if not self.head_complete:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is there, of this answer or of an interim one."""
        if self.complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._status = status
        headers = self._headers
        framed = b"content-length" in headers or b"transfer-encoding" in headers or status in _NO_BODY
        self._until_eof = not framed
        self.head_complete = True

    def on_body(self, body: bytes) -> None:
        """Some bytes of the body."""
        if self.complete:
            return
        self._bytes += len(body)
        if self._bytes > BODY_BYTES_MAX:
            raise Malformed(f"the answer is larger than {BODY_BYTES_MAX:,} bytes")
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        """The answer is complete, or an interim one is over."""
        if not self.head_complete:
            self._headers = {}
        elif not self.complete:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()


def _text(error: Exception, data: bytes | memoryview) -> str:
    shown = bytes(data[:40]).decode("latin-1")
    return f"what answers does not speak HTTP/1.1: {error} ({shown!r})"
