"""A connection without a socket, and an app that does what the path names: for the tests of the connection layer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast

from tests.harness.api import Reply
from tests.harness.loop import ManualLoop
from topics.errors import MethodNotAllowed, NotFound, Throttled, TopicsError, Unauthorized
from topics.server.http.account import MAX_BYTES_DEFAULT, Account
from topics.server.http.connection import Connection
from topics.server.http.connections import Connections
from topics.server.http.exchange import Exchange
from topics.server.http.head import Head
from topics.server.http.limits import ConnectionLimits
from topics.server.http.stream import Stream
from topics.server.http.traffic import Traffic
from topics.server.http.turns import Turns
from topics.testing import ManualClock

REFUSALS: dict[str, TopicsError] = {
    "/missing": NotFound(),
    "/secret": Unauthorized(),
    "/busy": Throttled(retry_after_ms=1500, limit="max_topics", max=2),
    "/readonly": MethodNotAllowed(allow=["GET", "HEAD"]),
}


class PathApp:
    """Answers at once with what it was asked, except where the path says otherwise."""

    def __init__(self) -> None:
        self.resolved: list[str] = []
        self.handled: list[tuple[str, str, bytes]] = []
        self.waiting: list[Exchange] = []
        self.streams: list[Stream] = []
        self.left: list[str] = []
        self.over: list[str] = []
        self.upgrade_to: Any = None

    def resolve(self, head: Head) -> str:
        self.resolved.append(head.path)
        if head.path in REFUSALS:
            raise REFUSALS[head.path]
        if head.path == "/resolve-bug":
            raise ZeroDivisionError("a defect in resolve")
        head.door = self
        return "route of " + head.path

    def handle(self, exchange: Exchange) -> None:
        head = exchange.head
        assert head.route == "route of " + head.path
        self.handled.append((head.method, head.path, exchange.body))
        if head.path == "/handle-bug":
            raise ZeroDivisionError("a defect in handle")
        if head.path == "/full":
            raise Throttled(limit="max_records", max=1)
        if head.path.startswith("/wait"):
            self.waiting.append(exchange)
            exchange.on_over = lambda: self.over.append(head.path)
            if head.path.startswith("/wait-watching"):
                exchange.on_disconnect = lambda: self.left.append(head.path)
        elif head.path == "/stream":
            self.streams.append(exchange.stream(200, b"Content-Type: text/event-stream\r\n"))
        elif head.path == "/upgrade" and head.upgrade == b"websocket":
            exchange.upgrade(self.upgrade_to.connected)
        elif head.path == "/parts":
            exchange.respond_parts([b'"', b"x" * int(head.query), b'"'])
        elif head.path.startswith("/large"):
            exchange.respond(200, b"x" * int(head.query), b"text/plain")
        else:
            exchange.respond(200, f"{head.method} {head.path} ".encode() + exchange.body, b"text/plain")


class FakeTransport(asyncio.Transport):
    """Keeps what is written; `unsent` is how much of it the pretended peer has not taken."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.writes: list[int] = []
        self.reading = True
        self.eof_sent = False
        self.closing = False
        self.aborted = False
        self.unsent = 0
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        assert not self.closing
        assert not self.eof_sent
        self.sent += data
        self.writes.append(len(data))

    def write_eof(self) -> None:
        self.eof_sent = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5) if name == "peername" else default


def connections_of(
    app: Any = None,
    http2: Any = None,
    clock_ns: Callable[[], int] | None = None,
    buffered: int = MAX_BYTES_DEFAULT,
    **limits: int,
) -> Connections:
    """Connections without a socket, on a loop that turns when a `Client` looks.

    `clock_ns` is what turns are measured by; it stands still if it is not given.
    """
    clock = ManualClock()
    loop = cast("Any", ManualLoop(clock))
    turns = Turns(loop, clock_ns or clock.elapsed_ns)
    return Connections(app or PathApp(), loop, ConnectionLimits(**limits), turns, Account(buffered), http2, Traffic())


class Client:
    """The other end of one connection that has no socket in between. The loop turns when the client looks."""

    def __init__(self, app: Any = None, *, connections: Connections | None = None, **limits: int) -> None:
        self.app = app or PathApp()
        if connections is None:
            connections = connections_of(self.app, None, None, **limits)
            connections.start()
        self.connections = connections
        self.transport = FakeTransport()
        self.connection = Connection(connections)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        self._seen = 0

    def send(self, *reads: bytes) -> None:
        """Each argument arrives as one read, for as long as the server reads."""
        for data in reads:
            if not self.transport.closing:
                self.transport.protocol.data_received(data)

    def send_eof(self) -> None:
        """The client sends nothing more; a connection that nobody waits for is closed in the next turn."""
        self.note_eof()
        self._turn()

    def note_eof(self) -> None:
        """As `send_eof`, before the loop has turned."""
        if not self.transport.closing and not self.transport.protocol.eof_received():
            self.transport.close()

    def lose(self) -> None:
        """The connection is gone; what nobody waits for is taken down in the next turn."""
        self.note_lost()
        self._turn()

    def note_lost(self) -> None:
        """As `lose`, before the loop has turned."""
        self.transport.closing = True
        self.transport.protocol.connection_lost(None)

    def received(self) -> bytes:
        """What was sent since the last call."""
        self._turn()
        sent = self.transport.sent[self._seen :]
        self._seen = len(self.transport.sent)
        return sent

    def replies(self) -> list[Reply]:
        """The complete responses sent since the last call; fails on anything else."""
        return split_replies(self.received())

    @property
    def ended(self) -> bool:
        """Whether the server has closed its sending side or the whole connection."""
        self._turn()
        return self.transport.closing or self.transport.eof_sent

    def _turn(self) -> None:
        loop: object = self.connections._loop
        if isinstance(loop, ManualLoop):
            loop.turn()


_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Za-z -]+\r\n")


def split_replies(data: bytes, *, head_only: bool = False) -> list[Reply]:
    """The responses that `data` is made of, strictly."""
    replies = []
    while data:
        match = _STATUS.match(data)
        assert match, data[:200]
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator, head
        headers = {}
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.decode("ascii").partition(": ")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value
        status = int(match.group(1))
        length = 0 if status in (100, 204) or head_only else int(headers["content-length"])
        assert len(data) >= length, f"{length} bytes announced, {len(data)} sent"
        replies.append(Reply(status, headers, data[:length]))
        data = data[length:]
    return replies


def request(method: str, path: str, body: bytes | None = None, *lines: str, version: str = "1.1") -> bytes:
    """A request as a plain client writes it."""
    head = [f"{method} {path} HTTP/{version}", "Host: topics.localhost", *lines]
    if body is not None:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def chunked(path: str, *chunks: bytes, lines: tuple[str, ...] = (), trailer: bytes = b"") -> bytes:
    """A POST with a body in these chunks."""
    coded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return request("POST", path, None, "Transfer-Encoding: chunked", *lines) + coded + b"0\r\n" + trailer + b"\r\n"
