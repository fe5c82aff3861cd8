"""The head of an HTTP/1.x request: found in the byte stream, parsed once, immutable.

`scan` finds the end of a head and refuses what can never become one; `parse` turns the complete head into a `Head`.
`httptools` (llhttp) does the tokenising. It is strict about header fields, conflicting framing and line ends, but
accepts some things that a proxy in front of the server may read differently, so these are refused here too:

- request lines other than `METHOD target HTTP/1.0|1.1` with single spaces (llhttp accepts HTTP/0.9, HTTP/2.0, RTSP, ICE
  and runs of spaces);
- any transfer coding but exactly `chunked`, and `chunked` on HTTP/1.0 (llhttp accepts `gzip, chunked`);
- repeated fields of which one value must win (`Host`, `Authorization`, ...): never guess which one a proxy looked at;
- `Upgrade` or `CONNECT` with a body, fragments and encoded slashes or NULs in the target.

Refusals depend only on the bytes, never on how they were split into reads: a violation is the first one by position in
the stream, and the size limit is the position `max_header_bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Protocol
from urllib.parse import unquote_to_bytes

import httptools

from topics.errors import ExpectationFailed, HeadTooLarge, InvalidRequest, UnsupportedMediaType
from topics.server.http.body import BodyLimit
from topics.server.http.traffic import UNROUTED, Tally

_REQUEST_LINE: Final = re.compile(rb"([A-Z]+) ([!-~]+) HTTP/1\.([01])")
# Control characters other than TAB and CRLF, and CR or LF without its partner; a CR at the end may still get its LF.
_ILLEGAL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?=[^\n])")
# Everything else: what is left after deleting these must be pairs of CR and LF.
_PRINTABLE: Final = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])
_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})|%2[Ff]|%00")
_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:%\[\]-]*")
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
_QVALUE_ZERO: Final = re.compile(rb"q=0(?:\.0{0,3})?")

_SINGLE: Final = frozenset(
    b"host content-length transfer-encoding content-type authorization expect idempotency-key last-event-id "
    b"sec-websocket-key sec-websocket-version".split()
)


class Door(Protocol):
    """Where complete requests go."""

    @property
    def handle(self) -> Callable[[Any], None]:
        """Answers an exchange, now or later; must not block. A raised TopicsError becomes the answer.

        Another function may be here for the next request.
        """


class Head:
    """One parsed request head. Nothing changes after `parse`, except for what is set when it is resolved."""

    __slots__ = (
        "accepts_gzip", "answer_headers", "body_limit", "cacheable", "chunked", "content_length", "door",
        "expects_continue", "gzip_body",
        "headers", "keep_alive", "message_bytes", "method", "path", "plain", "query", "raw_bytes", "route", "tally",
        "target", "upgrade", "version",
    )  # fmt: skip

    def __init__(self, method: str, target: bytes, headers: dict[bytes, bytes], version: bytes = b"1.1") -> None:
        """Read the meaning of the fields; raises InvalidRequest where they contradict each other or are malformed."""
        self.method = method
        self.target = target
        self.headers = headers
        """By lower-case name; repeated fields joined by a comma."""
        self.version = version
        """`1.1` or `1.0`; `2` on HTTP/2."""
        self.path, self.query = _split_target(method, target)
        """The percent-decoded path (`*` for `OPTIONS *`), and the raw query string without its `?`."""
        self.raw_bytes = self.message_bytes = 0
        """The length of the head, its final empty line included; and that with the body's."""
        self.route: Any = None
        """What `App.resolve` returned for this head."""
        self.door: Door
        """What `App.resolve` has chosen to handle the requests with this head."""
        self.tally: Tally = UNROUTED
        """What the requests with this head are counted in; `App.resolve` sets that of the route."""
        self.body_limit: BodyLimit | None = None
        """What `App.resolve` allows the body, where that differs from the limit of the connection."""
        self.answer_headers = b""
        """Complete lines that every answer to this head carries (see `add_to_answers`)."""
        self.content_length: int | None = None
        self.chunked = False
        """Whether a body of unknown length follows."""
        self._read_framing(headers, version)
        connection = headers.get(b"connection")
        tokens = () if connection is None else [token.strip() for token in connection.lower().split(b",")]
        self.keep_alive = b"close" not in tokens and (version != b"1.0" or b"keep-alive" in tokens)
        """Whether the client wants the connection to stay open after the answer."""
        self.upgrade: bytes | None = None
        """The lower-case protocol of a GET that asks to leave HTTP, such as `websocket`."""
        if b"upgrade" in tokens and b"upgrade" in headers and version == b"1.1" and method == "GET":
            self.upgrade = headers[b"upgrade"].lower()
            if self.has_body:
                raise InvalidRequest("A request that asks for an upgrade must not carry a body.")
        self.expects_continue = version == b"1.1" and self.has_body and b"expect" in headers
        coding = headers.get(b"content-encoding")
        self.gzip_body = coding is not None and coding.lower() in (b"gzip", b"x-gzip")
        accept = headers.get(b"accept-encoding")
        self.accepts_gzip = accept is not None and _accepts_gzip(accept.lower())
        self.plain = self.keep_alive and version == b"1.1" and method != "HEAD"
        """Whether a rendered response can go out as it is: with its body, without a `Connection` or any other line."""
        self.cacheable = self.plain and not (
            self.chunked or self.expects_continue or self.gzip_body or self.upgrade is not None
        )
        """Whether the same bytes may be answered from this Head again: complete framing, no interim steps."""

    def _read_framing(self, headers: dict[bytes, bytes], version: bytes) -> None:
        length = headers.get(b"content-length")
        if length is not None:
            if _DIGITS.fullmatch(length) is None:
                raise InvalidRequest("Content-Length must be a decimal number of bytes.", header="content-length")
            self.content_length = int(length)
        coding = headers.get(b"transfer-encoding")
        self.chunked = coding is not None
        if coding is not None:
            if coding.lower() != b"chunked" or version != b"1.1":
                raise InvalidRequest(
                    "The only Transfer-Encoding this server takes is chunked, on HTTP/1.1.", header="transfer-encoding"
                )
            if length is not None:
                raise InvalidRequest("Send either Content-Length or Transfer-Encoding, not both.")
        host = headers.get(b"host")
        if host is None:
            if version == b"1.1":
                raise InvalidRequest("HTTP/1.1 requests must carry a Host header.", header="host")
        elif _HOST.fullmatch(host) is None:
            raise InvalidRequest("The Host header is not a host name.", header="host")

    @property
    def has_body(self) -> bool:
        """Whether bytes follow the head as this request's body."""
        return self.chunked or bool(self.content_length)

    def alike(self, content_length: int | None, raw_bytes: int, target: bytes | None = None) -> Head:
        """The same head with another Content-Length; with another target, which has no route yet, if one is given.

        The length must be zero or absent exactly where this one's is. Raises InvalidRequest for a bad target.
        """
        head = Head.__new__(Head)
        head.method = self.method
        head.version = self.version
        head.content_length = content_length
        head.headers = self.headers
        if content_length and content_length != self.content_length:
            head.headers = {**self.headers, b"content-length": b"%d" % content_length}
        head.chunked = self.chunked
        head.keep_alive = self.keep_alive
        head.expects_continue = self.expects_continue
        head.gzip_body = self.gzip_body
        head.accepts_gzip = self.accepts_gzip
        head.upgrade = self.upgrade
        head.plain = self.plain
        head.answer_headers = self.answer_headers
        head.cacheable = self.cacheable
        head.raw_bytes = raw_bytes
        head.message_bytes = raw_bytes + (content_length or 0)
        if target is None:
            head.target = self.target
            head.path = self.path
            head.query = self.query
            head.route = self.route
            head.door = self.door
            head.tally = self.tally
            head.body_limit = self.body_limit
        else:
            head.target = target
            head.path, head.query = _split_target(self.method, target)
            head.route = None
            head.tally = UNROUTED
            head.body_limit = None
        return head

    def add_to_answers(self, lines: bytes) -> None:
        """Have every answer to this head carry these header lines, refusals included."""
        self.answer_headers = lines
        self.plain = False

    def require_supported(self) -> None:
        """Raise for an expectation (417) or a content coding (415) that this server does not know."""
        if self.expects_continue and self.headers[b"expect"].lower() != b"100-continue":
            raise ExpectationFailed()
        coding = self.headers.get(b"content-encoding")
        if coding is not None and not self.gzip_body and coding.lower() not in (b"", b"identity"):
            raise UnsupportedMediaType(
                "The only Content-Encoding this server takes is gzip.", header="content-encoding"
            )


def scan(data: bytes, since: int, limit_bytes: int) -> int:
    """The length of the head that `data` begins with, or 0 if it is still incomplete.

    `since` is how much of `data` an earlier call has seen. Raises InvalidRequest for bytes that no head may hold and
    for a bad request line as soon as that line is there, and HeadTooLarge once the head passes `limit_bytes`.
    """
    end = data.find(b"\r\n\r\n", since - 3 if since > 3 else 0)
    stop = min(limit_bytes, len(data) if end < 0 else end + 4)
    line_end = data.find(b"\r\n", 0, stop)
    fresh = data[since - 1 if since else 0 : stop]
    illegal = None
    if len(fresh.translate(None, _PRINTABLE)) != 2 * fresh.count(b"\r\n"):
        # Something is odd (or a pair was split between reads): look closely.
        illegal = _ILLEGAL.search(data, since - 1 if since else 0, stop)
    if line_end >= 0 and line_end + 2 > since and (illegal is None or illegal.start() > line_end):
        line = _REQUEST_LINE.fullmatch(data, 0, line_end)
        if line is None:
            raise InvalidRequest("The request line must read `METHOD /path HTTP/1.1`.")
        if line.group(1) == b"CONNECT":
            raise InvalidRequest("This server is not a proxy: CONNECT is not supported.")
    if illegal is not None:
        raise InvalidRequest(
            "The request head holds a control character or a line end that is not CRLF.", position=illegal.start()
        )
    if end < 0:
        if len(data) >= limit_bytes:
            raise HeadTooLarge(limit="max_header_bytes", max=limit_bytes)
        return 0
    if end + 4 > limit_bytes:
        raise HeadTooLarge(limit="max_header_bytes", max=limit_bytes)
    return end + 4


def add_field(headers: dict[bytes, bytes], name: bytes, value: bytes) -> None:
    """Add a field by its lower-case name; raises InvalidRequest for a second one where only one can be meant."""
    if name not in headers:
        headers[name] = value
    elif name in _SINGLE:
        raise InvalidRequest(f"The {name.decode()} header may be sent only once.", header=name.decode())
    else:
        headers[name] = headers[name] + b", " + value


class _Fields:
    """Collects what httptools reports of one head."""

    __slots__ = ("count", "headers", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.count = 0

    def on_url(self, url: bytes) -> None:
        self.target = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.count += 1
        name = name.lower()
        if name in self.headers:
            add_field(self.headers, name, value.rstrip(b" \t"))
        else:
            self.headers[name] = value.rstrip(b" \t")


def parse(raw: bytes, headers_max: int) -> Head:
    """The Head in the complete head `raw`; raises InvalidRequest or HeadTooLarge."""
    fields = _Fields()
    parser = httptools.HttpRequestParser(fields)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserCallbackError as error:
        cause = error.__context__
        if isinstance(cause, InvalidRequest):
            raise cause from None
        raise
    except httptools.HttpParserError as error:
        raise InvalidRequest(f"The request head is malformed: {error}.") from None
    if fields.count > headers_max:
        raise HeadTooLarge(f"More than {headers_max} header fields.", limit="max_headers", max=headers_max)
    version = b"1.1" if raw[raw.index(b"\r\n") - 1] == 0x31 else b"1.0"
    head = Head(parser.get_method().decode("ascii"), fields.target, fields.headers, version)
    head.raw_bytes = len(raw)
    head.message_bytes = len(raw) + (head.content_length or 0)
    return head


def _split_target(method: str, target: bytes) -> tuple[str, str]:
    if target == b"*" and method == "OPTIONS":
        return "*", ""
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.match(target)
        if absolute is None:
            raise InvalidRequest("The request target must be a path that begins with `/`.")
        target = target[absolute.end() :]
        if not target.startswith(b"/"):
            target = b"/" + target
    if b"#" in target:
        raise InvalidRequest("The request target must not hold a fragment.")
    raw_path, _, query = target.partition(b"?")
    try:
        if b"%" not in raw_path:
            return raw_path.decode("ascii"), query.decode("ascii")
        if _BAD_ESCAPE.search(raw_path) is not None:
            raise InvalidRequest("The path holds a malformed escape, or an escaped `/` or NUL.")
        return unquote_to_bytes(raw_path).decode("utf-8"), query.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidRequest("The path is not UTF-8 once its escapes are decoded.") from None


def _accepts_gzip(accept: bytes) -> bool:
    star = False
    for item in accept.split(b","):
        coding, *parameters = (part.strip() for part in item.split(b";"))
        refused = any(_QVALUE_ZERO.fullmatch(parameter) for parameter in parameters)
        if coding in (b"gzip", b"x-gzip"):
            return not refused
        if coding == b"*":
            star = not refused
    return star
