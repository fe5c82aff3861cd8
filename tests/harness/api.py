"""The HTTP API as a test speaks it: one call per endpoint, raw bytes on both sides, sharp answers.

An `Api` knows only an address and perhaps a key. It goes through `http.client`, not through the product's own client,
so that a test sees exactly the bytes that went over the wire. A `Reply` answers `ok()` with the parsed body of a
success, and `refused(status, code)` with the `detail` of an error, after checking that the envelope is the documented
one.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from topics.testing import ServerProcess

Json = dict[str, Any]
# What the fixtures `start_server` and `start_api` give: settings in, a running server or a client of one out.
StartServer = Callable[..., ServerProcess]
StartApi = Callable[..., "Api"]

DEADLINE_S = 40.0
"""How long a poll may take before the test gives up: only failures take so long, so it costs nothing to be patient."""


class Reply:
    """One response: status, headers by lower-case name, and the body as it came."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"<{self.status} {self.body[:600]!r}>"

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8")

    @property
    def json(self) -> Any:
        """The parsed body."""
        return json.loads(self.body)

    @property
    def pause_ms(self) -> int:
        """How long a request is to wait before it is sent again, 0 if the server is under no pressure (PRESSURE-2)."""
        if self.status != 429:
            return 0
        detail = self.json["error"]["detail"]
        return 0 if "limit" in detail else int(detail["retry_after_ms"])

    def ok(self, status: int | None = None) -> Json:
        """The parsed body of a success (exactly `status` where it is given), which must not look like an error."""
        assert self.status in ((200, 201) if status is None else (status,)), self
        assert self.headers["content-type"].startswith("application/json"), self.headers
        body = self.json
        assert isinstance(body, dict), self
        assert "error" not in body, self
        assert isinstance(body["performance"]["server_total_ms"], int | float), self
        return body

    def refused(self, status: int, code: str) -> Json:
        """The `detail` of an error that has exactly this status, this code and the envelope of HTTP-10."""
        assert self.status == status, self
        assert self.headers["content-type"].startswith("application/json"), self.headers
        body = self.json
        assert set(body) <= {"error", "performance"}, self
        error = body["error"]
        assert set(error) - {"detail"} == {"code", "message", "request_id"}, self
        assert self.headers["x-request-id"] == error["request_id"], self
        assert error["code"] == code, self
        assert isinstance(error["message"], str), self
        assert error["message"], self
        assert "Traceback" not in error["message"], self
        detail = error.get("detail", {})
        assert isinstance(detail, dict), self
        return detail

    def refused_naming(self, *names: object, status: int = 400, code: str = "invalid_request") -> Json:
        """Like `refused`, and the message or the detail names every one of `names` (a field, an index, a limit)."""
        detail = self.refused(status, code)
        error = json.dumps(self.json["error"], ensure_ascii=False)
        for name in names:
            assert str(name) in error, f"{name!r} is not named in {error}"
        return detail


# What the state of a topic shows differently from one moment to the next.
_MOVES_ON = ("performance", "effective_priority", "erased_before_ts")


class Api:
    """A client of one server, with one key or none. Every thread gets a connection of its own."""

    def __init__(self, host: str, port: int, key: str | None = None) -> None:
        self.host = host
        self.port = port
        self.key = key
        self._local = threading.local()
        self._opened: list[http.client.HTTPConnection] = []

    def with_key(self, key: str | None) -> Api:
        """The same server, spoken to with another key."""
        other = Api(self.host, self.port, key)
        other._opened = self._opened
        return other

    def close(self) -> None:
        """Close every connection that was opened by this client or by one made with `with_key`."""
        for connection in self._opened:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection(self.host, self.port)
            self._opened.append(connection)
        return connection

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
        content_type: str | None = "application/json",
        timeout_s: float = 60.0,
    ) -> Reply:
        """Send one request: `body` as JSON, or `raw` as it is, or no body at all.

        It is sent again, as the answer asks, where the server is under pressure: the machine may have more to do than
        these tests, and what they are about is something else.
        """
        payload = raw if raw is not None else None if body is None else json.dumps(body).encode()
        head = dict(headers or {})
        if payload is not None and content_type is not None:
            head.setdefault("Content-Type", content_type)
        if self.key is not None:
            head.setdefault("Authorization", f"Bearer {self.key}")
        end = time.monotonic() + timeout_s
        while True:
            reply = self._send(method, path, payload, head, timeout_s)
            pause_ms = reply.pause_ms
            if not pause_ms or time.monotonic() > end:
                return reply
            time.sleep(pause_ms / 1000)

    def _send(self, method: str, path: str, payload: bytes | None, head: dict[str, str], timeout_s: float) -> Reply:
        """Send one request, once more where the server had closed the connection meanwhile."""
        connection = self._connection()
        for attempt in (1, 2):
            reused = connection.sock is not None
            connection.timeout = timeout_s
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            try:
                connection.request(method, path, payload, head)
                response = connection.getresponse()
                content = response.read()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                connection.close()
                if attempt == 2 or not reused:
                    raise
                continue
            except BaseException:
                connection.close()
                raise
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, content)
        raise AssertionError("unreachable")

    def get(self, path: str, **kwargs: Any) -> Reply:
        """GET `path`."""
        return self.call("GET", path, **kwargs)

    def put(self, topic: str, **config: Any) -> Reply:
        """PUT a topic with this config."""
        return self.call("PUT", f"/v0/topics/{topic}", config)

    def post(self, topic: str, body: Any = None, query: str = "", **kwargs: Any) -> Reply:
        """POST a write body as it is."""
        return self.call("POST", f"/v0/topics/{topic}{query}", body, **kwargs)

    def diff(self, topic: str, **fields: Any) -> Reply:
        """POST a diff."""
        return self.call("POST", f"/v0/topics/{topic}/diff", fields)

    def erase(self, topic: str, **fields: Any) -> Reply:
        """POST a delete of records."""
        return self.call("POST", f"/v0/topics/{topic}/delete", fields)

    def remove(self, topic: str, query: str = "") -> Reply:
        """DELETE a topic."""
        return self.call("DELETE", f"/v0/topics/{topic}{query}")

    def write(self, topic: str, *records: Json, **fields: Any) -> Json:
        """Append these records and return the body of the answer."""
        return self.post(topic, {"records": list(records), **fields}).ok()

    def fill(self, topic: str, count: int, **record: Any) -> Json:
        """Append `count` records with the data 1, 2, 3 ..., each with these further fields."""
        return self.write(topic, *({"data": n, **record} for n in range(1, count + 1)))

    def read(self, topic: str, from_seq: int = 0, **fields: Any) -> Json:
        """The body of a diff that succeeded."""
        return self.diff(topic, from_seq=from_seq, **fields).ok(200)

    def seqs(self, topic: str, from_seq: int = 0, **fields: Any) -> list[int]:
        """The `$seq`s which one diff delivers."""
        return [record["$seq"] for record in self.read(topic, from_seq, **fields)["records"]]

    def state(self, topic: str, *, touch: bool = False) -> Json:
        """The state of a topic, by default without looking like a consumer."""
        return self.get(f"/v0/topics/{topic}{'' if touch else '?touch=false'}").ok(200)

    def exists(self, topic: str) -> bool:
        """Whether the topic exists."""
        reply = self.get(f"/v0/topics/{topic}?touch=false")
        assert reply.status in (200, 404), reply
        return reply.status == 200

    def topics(self, **query: Any) -> Reply:
        """GET the list of topics."""
        pairs = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in query.items())
        return self.get("/v0/topics" + ("?" + pairs if pairs else ""))

    def names(self, prefix: str) -> list[str]:
        """Every topic name with this prefix, over all pages."""
        names: list[str] = []
        query = {"prefix": prefix}
        while True:
            page = self.topics(**query).ok(200)
            names += [item["topic"] for item in page["topics"]]
            if "next_cursor" not in page:
                return names
            query["cursor"] = page["next_cursor"]

    @contextmanager
    def unchanged(self, topic: str) -> Iterator[None]:
        """Check that the block changes nothing that the topic's state shows, nor whether the topic exists."""

        def look() -> Json | None:
            reply = self.get(f"/v0/topics/{topic}?touch=false")
            if reply.status == 404:
                return None
            body = reply.ok(200)
            return {k: v for k, v in body.items() if k not in _MOVES_ON}

        before = look()
        yield
        assert look() == before, "a refused request changed the topic"


def until(check: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Poll `check` until it returns something true, and return that."""
    end = time.monotonic() + deadline_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, f"timed out waiting until {what}"
        time.sleep(0.01)


def free_port() -> int:
    """A port of the loopback that nobody listens on, for a server that must come back at the same address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
