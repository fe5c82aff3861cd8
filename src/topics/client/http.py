"""HttpClient: the calls that the commands make, over one kept-alive connection.

Every call is safe to repeat: reads are by nature, and a write carries an idempotency key. So a connection that breaks
and an answer of 429 or 503 may be retried, with growing pauses, for as long as the caller has patience. Without any,
only a kept-alive connection that the server has closed meanwhile is opened once more.
"""

from __future__ import annotations

import http.client
import time
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from topics.client.options import ClientError

TIMEOUT_S: Final = 60.0
"""Longer than any long-poll."""
PATIENCE_S: Final = 30.0
"""How long a command waits for a server that restarts: well within the time for which a key is remembered."""
PAUSE_FIRST_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
_RETRIED: Final = frozenset((429, 503))


class ServerError(ClientError):
    """The server cannot be reached, or refuses the request."""


class Refused(ServerError):
    """The server refuses the request."""


class HttpClient:
    """A connection to the server at an address, with the key for it."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise ServerError(f'the address "{url}" is not valid: it must be like http://127.0.0.1:4000')
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._url = url
        self._base = parts.path.rstrip("/")
        self._connection = kind(parts.hostname, port, timeout=TIMEOUT_S)
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            if not (token.isascii() and token.isprintable()):
                raise ServerError("the key holds characters that no key has: it must be printable ASCII")
            self._headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def call(self, method: str, path: str, body: bytes | None = None, *, patience_s: float = 0.0) -> bytes:
        """The body of a success; raises ServerError."""
        deadline = time.monotonic() + patience_s
        pause_s = PAUSE_FIRST_S
        while True:
            kept_alive = self._connection.sock is not None
            try:
                self._connection.request(method, self._base + path, body, self._headers)
                answer = self._connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if kept_alive:
                    continue
                failure = ServerError(f"cannot reach {self._url}: {_reason(error)}; is the server running?")
            else:
                if answer.status < 300:
                    return content
                failure = _refusal(answer.status, content)
                if answer.status not in _RETRIED:
                    raise failure
            if time.monotonic() + pause_s > deadline:
                raise failure
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def read(self, path: str) -> Any:
        """What a GET answers with, decoded."""
        return msgspec.json.decode(self.call("GET", path))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def _refusal(status: int, content: bytes) -> Refused:
    try:
        error = msgspec.json.decode(content)["error"]
        return Refused(f"{error['message']} ({status} {error['code']})")
    except (msgspec.DecodeError, KeyError, TypeError):
        return Refused(f"the answer was {status} and is not from a topics server")
