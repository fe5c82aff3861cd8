"""Account: how many bytes are buffered for clients, by kind, against one bound for the process.

| kind | what is counted | given back when |
|---|---|---|
| bodies | what has arrived of requests that are not complete or not answered | the request is answered or refused |
| answers | what a client has not taken of its answers, once its socket is full | the client reads, or is gone |
| streams | what streams have not taken, once their sockets are full; a frame that many share counts once | the same |

A connection counts with its `Hold`, in which it notes how much it holds now. What fits into the socket's own buffers is
not counted: an honest client that reads what it asked for hardly appears here.

Rules:

1. Over the bound, a connection that adds more than a little gives way: a body is refused with the limit's name, and so
   is a request for a large answer. Small requests are served as long as there is any memory.
2. The fuller the account, the smaller the answers: one may take a part of what is free (`share_bytes`), so that many at
   a time approach the bound and do not pass it.
3. From `TIGHT` on, connections that hold the most and do not move are cut off (`Connections.sweep`, `Delivery.pulse`).
"""

from __future__ import annotations

from typing import Final

from topics.errors import RETRY_AFTER_MS, Throttled

MAX_BYTES_DEFAULT: Final = 256 << 20
SMALL_BYTES: Final = 64 * 1024
"""What is no larger than this is never refused for the sake of the bound."""
SHARE: Final = 16
TIGHT: Final = 0.75
LIMIT: Final = "max_buffered_bytes"


class Account:
    """The bytes that are buffered for all clients, see the module."""

    __slots__ = (
        "answers_bytes",
        "bodies_bytes",
        "connections",
        "max_bytes",
        "refused_total",
        "streams_bytes",
        "total_bytes",
    )

    def __init__(self, max_bytes: int = MAX_BYTES_DEFAULT) -> None:
        self.max_bytes = max_bytes
        self.total_bytes = 0
        self.bodies_bytes = 0
        self.answers_bytes = 0
        self.streams_bytes = 0
        self.connections = 0
        """How many clients are connected, those that were refused not counted."""
        self.refused_total = 0
        """How often something was refused or cut off for the sake of the bound."""

    @property
    def full(self) -> bool:
        """Whether nothing large may be added."""
        return self.total_bytes >= self.max_bytes

    @property
    def tight(self) -> bool:
        """Whether connections that hold much and do not move have to go."""
        return self.total_bytes > self.max_bytes * TIGHT

    def share_bytes(self) -> int:
        """How large an answer may be for now."""
        return max(SMALL_BYTES, (self.max_bytes - self.total_bytes) // SHARE)

    def refusal(self) -> Throttled:
        """What a client is answered that wants more than there is room for."""
        self.refused_total += 1
        return Throttled(
            "the server buffers as many bytes for its clients as it may; retry later, or send and read less at a time",
            limit=LIMIT,
            max=self.max_bytes,
            retry_after_ms=RETRY_AFTER_MS,
        )


class Hold:
    """What one connection holds."""

    __slots__ = ("_account", "_marked_answers", "_marked_bodies", "answers_bytes", "bodies_bytes")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.answers_bytes = 0
        self.bodies_bytes = 0
        self._marked_answers = 0
        self._marked_bodies = 0

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.answers_bytes + self.bodies_bytes

    def set_answers(self, now_bytes: int) -> None:
        """This much of its answers waits for the client now."""
        account = self._account
        added = now_bytes - self.answers_bytes
        self.answers_bytes = now_bytes
        account.answers_bytes += added
        account.total_bytes += added

    def set_bodies(self, now_bytes: int) -> None:
        """This much of its requests is held now."""
        account = self._account
        added = now_bytes - self.bodies_bytes
        self.bodies_bytes = now_bytes
        account.bodies_bytes += added
        account.total_bytes += added

    def release(self) -> None:
        """The connection is gone."""
        self.set_answers(0)
        self.set_bodies(0)

    def mark(self) -> bool:
        """Remember how much is held; whether it has hardly moved since the last time."""
        taken = self._marked_answers - self.answers_bytes
        brought = self.bodies_bytes - self._marked_bodies
        self._marked_answers, self._marked_bodies = self.answers_bytes, self.bodies_bytes
        return max(taken, brought) < SMALL_BYTES


class Share:
    """A frame that streams hold together: it counts once, for as long as one of them has not taken it."""

    __slots__ = ("_account", "_bytes", "_holders")

    def __init__(self, account: Account, size_bytes: int) -> None:
        self._account = account
        self._bytes = size_bytes
        self._holders = 0

    def keep(self) -> None:
        """One more stream holds the frame."""
        self._holders += 1
        if self._holders == 1:
            self._account.streams_bytes += self._bytes
            self._account.total_bytes += self._bytes

    def release(self) -> None:
        """One of them has taken it, or is gone."""
        self._holders -= 1
        if not self._holders:
            self._account.streams_bytes -= self._bytes
            self._account.total_bytes -= self._bytes
