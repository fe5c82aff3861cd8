"""Link: the calls that the commands make to a server, with every failure as one line for people.

Every call is safe to repeat: reads are by nature, and a write carries an idempotency key. So a connection that breaks
and an answer of 429 or 503 may be retried for as long as the caller has patience. Without any, only a connection that
the server has closed meanwhile is opened once more.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from topics.client.client import Client
from topics.client.errors import BadAnswer
from topics.client.options import ClientError
from topics.errors import TopicsError

TIMEOUT_S: Final = 60.0
"""Longer than any long-poll."""
PATIENCE_S: Final = 30.0
"""How long a command waits for a server that restarts: well within the time for which a key is remembered."""


class ServerError(ClientError):
    """The server cannot be reached, or refuses the request."""


class Refused(ServerError):
    """The server refuses the request."""


class Link:
    """A connection to the server at an address, with the key for it."""

    def __init__(self, url: str, token: str | None) -> None:
        try:
            self._client = Client(url, token=token, timeout_s=TIMEOUT_S, deadline_s=TIMEOUT_S)
        except TopicsError as error:
            raise ServerError(error.message) from None

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def call(
        self, method: Literal["GET", "POST"], path: str, body: bytes | None = None, *, patience_s: float = 0.0
    ) -> bytes:
        """The body of a success; raises ServerError."""
        try:
            return self._client.request(
                method, path, body, deadline_s=patience_s or TIMEOUT_S, retries=bool(patience_s)
            )
        except BadAnswer as error:
            raise Refused(error.message) from None
        except TopicsError as error:
            if error.status:
                raise Refused(f"{error.message} ({error.status} {error.code})") from None
            raise ServerError(error.message) from None

    def read(self, path: str) -> Any:
        """What a GET answers with, decoded."""
        return msgspec.json.decode(self.call("GET", path))
