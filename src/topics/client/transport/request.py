"""Request: what is sent, and what may be done if no answer comes."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from topics.client.transport.address import Address

JSON: Final = b"Content-Type: application/json\r\n"
EVENTS: Final = b"Accept: text/event-stream\r\n"


class Request:
    """One request, also as the effect that asks for its answer (`topics.client.operations.operation`).

    `timeout_s` is how long the server may be silent, and `until` (a reading of `time.monotonic`) when it is too late
    for any answer; `attempts` counts how often it was sent. `repeatable` says that to send it twice does no more than
    to send it once.
    """

    __slots__ = ("attempts", "body", "fields", "method", "repeatable", "target", "timeout_s", "until")

    def __init__(
        self,
        method: bytes,
        target: bytes,
        body: bytes | None = None,
        *,
        timeout_s: float | None = None,
        repeatable: bool = True,
        fields: bytes = b"",
    ) -> None:
        self.method = method
        self.target = target
        self.body = body
        self.timeout_s = timeout_s
        self.repeatable = repeatable
        self.fields = fields
        self.until = 0.0
        self.attempts = 0

    def encode(self, address: Address) -> bytes:
        """The bytes to send. The length comes last: a server need not parse again what has not changed."""
        body = self.body
        if body is None:
            return b"%b %b%b HTTP/1.1\r\n%b%b\r\n" % (
                self.method, address.base, self.target, address.head, self.fields
            )  # fmt: skip
        return b"%b %b%b HTTP/1.1\r\n%b%b%bContent-Length: %d\r\n\r\n%b" % (
            self.method, address.base, self.target, address.head, self.fields, JSON, len(body), body
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.method.decode()} {self.target.decode('latin-1')}"


def path(*parts: str) -> bytes:
    """A path of these parts, each of them quoted."""
    return b"".join([b"/" + quote(part, safe="").encode() for part in parts])
