"""An SSE client for tests: a socket, the rules of the event-stream format, and deadlines on everything.

It reads bytes as a browser does (CR, LF and CRLF end a line, a blank line ends an event), keeps what came before the
events (status, headers) and the comments between them, and never reads more than it is asked to.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from typing import Any

from tests.harness.api import DEADLINE_S, Api, Json

FOLLOW_ATTEMPTS = 5
_LINE = re.compile(rb"\r\n|\r(?=[^\n])|\n")


class Event:
    """One event: its kind, its parsed data, and the id that holds after it."""

    def __init__(self, kind: str, data: str, id: str) -> None:
        self.kind = kind
        self.text = data
        self.id = id

    def __repr__(self) -> str:
        return f"<{self.kind} {self.text[:300]}>"

    @property
    def json(self) -> Json:
        """The data, parsed."""
        body: Json = json.loads(self.text)
        return body

    @property
    def cursor(self) -> Json:
        """The composite cursor in the id."""
        return read_id(self.id)

    @property
    def seqs(self) -> list[int]:
        """The seqs of a record event."""
        return [record["$seq"] for record in self.json["records"]]


def read_id(id: str) -> Json:
    """The map that an id holds."""
    body: Json = json.loads(base64.urlsafe_b64decode(id + "=" * (-len(id) % 4)))
    return body


def make_id(positions: Json) -> str:
    """The id that holds a map."""
    return base64.urlsafe_b64encode(json.dumps(positions).encode()).rstrip(b"=").decode()


class Events:
    """One open stream."""

    def __init__(
        self,
        api: Api,
        path: str,
        last_event_id: str | None = None,
        headers: dict[str, str] | None = None,
        accept: str = "text/event-stream",
        receive_buffer: int | None = None,
    ) -> None:
        self.comments: list[str] = []
        self.retry: int | None = None
        self.last_id = ""
        self.ended = False
        self.buffer = bytearray()
        self.raw = bytearray()
        self._kind = ""
        self._data: list[str] = []
        lines = [f"GET {path} HTTP/1.1", f"Host: {api.host}:{api.port}", f"Accept: {accept}"]
        if api.key is not None and "?token=" not in path:
            lines.append(f"Authorization: Bearer {api.key}")
        if last_event_id is not None:
            lines.append(f"Last-Event-ID: {last_event_id}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.sock = socket.socket()
        try:
            if receive_buffer is not None:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self.sock.settimeout(DEADLINE_S)
            self.sock.connect((api.host, api.port))
            self.sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
            self.status, self.headers = self._head()
        except BaseException:
            self.sock.close()
            raise

    def _head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the answer."""
        while b"\r\n\r\n" not in self.buffer:
            if not self._receive():
                raise ConnectionResetError("the connection was closed before there was an answer")
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        status, *fields = head.decode("latin-1").split("\r\n")
        named = (field.partition(":") for field in fields)
        return int(status.split()[1]), {name.lower(): value.strip() for name, _, value in named}

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.sock.close()

    def _receive(self, deadline: float | None = None) -> bool:
        left = DEADLINE_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.sock.settimeout(left)
        data = self.sock.recv(65536)
        self.ended = not data
        self.buffer += data
        self.raw += data
        return bool(data)

    def _line(self, deadline: float | None) -> str | None:
        looked = 0
        while True:
            found = _LINE.search(self.buffer, looked)
            if found is not None:
                line = self.buffer[: found.start()].decode()
                del self.buffer[: found.end()]
                return line
            # A carriage return at the end may be half of the end of a line.
            looked = max(0, len(self.buffer) - 1)
            if self.ended or not self._receive(deadline):
                return None

    def next(self, deadline_s: float = DEADLINE_S) -> Event:
        """The next event; fails where the stream ends or stays silent."""
        event = self.next_or_end(deadline_s)
        assert event is not None, "the stream ended"
        return event

    def next_or_end(self, deadline_s: float = DEADLINE_S) -> Event | None:
        """The next event, or None where the stream ends before it."""
        assert self.status == 200, f"there is no stream: {self.status} {bytes(self.buffer)!r}"
        deadline = time.monotonic() + deadline_s
        while (line := self._line(deadline)) is not None:
            if line == "":
                if self._data:
                    event = Event(self._kind or "message", "\n".join(self._data), self.last_id)
                    self._kind, self._data = "", []
                    return event
                self._kind = ""
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "":
                self.comments.append(value)
            elif name == "event":
                self._kind = value
            elif name == "data":
                self._data.append(value)
            elif name == "id":
                self.last_id = value
            elif name == "retry":
                self.retry = int(value)
        return None

    def until(self, kind: str, deadline_s: float = DEADLINE_S) -> list[Event]:
        """Every event up to and including the first of this kind."""
        deadline = time.monotonic() + deadline_s
        events: list[Event] = []
        while not events or events[-1].kind != kind:
            events.append(self.next(deadline - time.monotonic()))
        return events

    def records(self, count: int, topic: str | None = None, deadline_s: float = DEADLINE_S) -> list[Json]:
        """Exactly the next `count` records (of one topic), whatever else comes between."""
        deadline = time.monotonic() + deadline_s
        found: list[Json] = []
        while len(found) < count:
            event = self.next(deadline - time.monotonic())
            if event.kind == "record" and topic in (None, event.json["topic"]):
                found += event.json["records"]
        assert len(found) == count, f"{len(found)} records instead of {count}"
        return found

    def silent(self, seconds: float) -> bool:
        """Whether nothing, not even a comment, comes for a while."""
        try:
            self.next_or_end(seconds)
        except TimeoutError:
            return True
        return False


def watch(api: Api, topics: Any, query: str = "", **options: Any) -> Json:
    """Make a session for topics, given by name or as a map, and return the answer."""
    named = (
        {topics: {}} if isinstance(topics, str) else {key: {} for key in topics} if isinstance(topics, list) else topics
    )
    return api.call("POST", f"/v0/watch{query}", {"topics": named, **options}).ok(200)


def follow(api: Api, topics: Any, **options: Any) -> Events:
    """Make a session and open its stream; another one where the machine stood still for longer than a session lives."""
    for _ in range(FOLLOW_ATTEMPTS):
        events = Events(api, watch(api, topics, **options)["stream_url"])
        if events.status != 404:
            break
        events.close()
    return events


def handshake(api: Api) -> socket.socket:
    """A raw socket after an accepted handshake."""
    sock = socket.create_connection((api.host, api.port), timeout=DEADLINE_S)
    sock.sendall(
        b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = sock.recv(4096)
        assert chunk, "the connection was closed before there was an answer"
        data += chunk
    assert data.startswith(b"HTTP/1.1 101")
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in data
    return sock
