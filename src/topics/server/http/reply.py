"""The one place where HTTP/1.1 responses, errors included, become bytes.

Every response carries `Date`, `Content-Type` and `Content-Length`. For JSON what precedes the length is rendered once
per second (`JSON_PREFIXES`), so that a hot response is one formatting of prefix, length and body, without a call into
this module. The sweep of the connections clears the prefixes; a `Date` is therefore at most about a second old.

Errors have the envelope of HTTP-10 with `performance` next to it, whatever went wrong. Nothing of an unexpected
exception reaches the client.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final

import msgspec

from topics.errors import TopicsError

JSON: Final = b"application/json"
GZIP_FLOOR_BYTES: Final = 1024
"""Bodies up to this size are sent as they are: gzip would cost more than it saves."""
GZIP_INLINE_MAX_BYTES: Final = 64 * 1024
"""Larger bodies would hold up the event loop for more than about a millisecond: they are compressed in a thread."""
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE: Final = b"Connection: close\r\n"
KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"

_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_encode: Final = msgspec.json.Encoder(enc_hook=repr).encode


def status_line(status: int) -> bytes:
    """The status line and the `Date` field."""
    date = formatdate(time.time(), usegmt=True).encode("ascii")
    return b"HTTP/1.1 %d %b\r\nDate: %b\r\n" % (status, _REASONS.get(status, b"Unknown"), date)


def prefix(status: int, content_type: bytes) -> bytes:
    """A response up to the value of `Content-Length`, to which digits, CRLF CRLF and the body are added."""
    return status_line(status) + b"Content-Type: " + content_type + b"\r\nContent-Length: "


class _Prefixes(dict[int, bytes]):
    def __missing__(self, status: int) -> bytes:
        found = self[status] = prefix(status, JSON)
        return found


JSON_PREFIXES: Final = _Prefixes()
"""`prefix` of a JSON response by status, cleared once per second: look it up for every response."""


def render(status: int, body: bytes, content_type: bytes = JSON, headers: bytes = b"") -> bytes:
    """A whole response. `headers` are further complete lines."""
    start = JSON_PREFIXES[status] if content_type is JSON else prefix(status, content_type)
    return b"%b%d\r\n%b\r\n%b" % (start, len(body), headers, body)


def adapt(response: bytes, lines: bytes, send_body: bool) -> bytes:
    """A rendered response with further lines added, and without its body for HEAD; copied at most once."""
    if not send_body:
        response = response[: response.index(b"\r\n\r\n") + 4]
    if not lines:
        return response
    line_end = response.index(b"\r\n") + 2
    return b"".join((response[:line_end], lines, memoryview(response)[line_end:]))


def gzip(body: bytes) -> bytes:
    """The body as one gzip member, quick rather than small."""
    deflate = zlib.compressobj(1, zlib.DEFLATED, 31)
    return deflate.compress(body) + deflate.flush()


def error_body(error: TopicsError, elapsed_ns: int, request_id: str) -> bytes:
    """The error envelope (HTTP-10) with its `performance`, and what the log calls the request."""
    envelope: dict[str, Any] = {"code": error.code, "message": error.message, "request_id": request_id}
    detail: Mapping[str, Any] = error.detail
    if error.retry_after_ms is not None:
        detail = {**detail, "retry_after_ms": error.retry_after_ms}
    if detail:
        envelope["detail"] = detail
    return _encode({"error": envelope, "performance": {"server_total_ms": round(elapsed_ns / 1e6, 3)}})


def error_headers(error: TopicsError) -> bytes:
    """The header lines that an error's status asks for: Retry-After, Allow, WWW-Authenticate."""
    if error.status in (429, 503):
        return b"Retry-After: %d\r\n" % max(1, math.ceil((error.retry_after_ms or 0) / 1000))
    if error.status == 401:
        return b"WWW-Authenticate: Bearer\r\n"
    if error.status == 405:
        allow = error.detail.get("allow", ())
        names = allow if isinstance(allow, str) else ", ".join(allow)
        return b"Allow: %b\r\n" % names.encode("ascii")
    return b""
