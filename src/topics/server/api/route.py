"""Row and Route: one route of the API, and what the head of a request resolved to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from topics.server.api.principal import Principal
from topics.server.flow.slots import Cap
from topics.server.http.exchange import Exchange
from topics.server.http.query import Query

Handler = Callable[["Exchange"], None]


class Row(NamedTuple):
    """One route: who may use it, and what answers it."""

    method: str
    path: str
    scopes: int | None
    """What the key must have; None where no key is asked for."""
    handle: Handler
    check_name: Callable[[str], object] | None = None
    """Checks the name in the variable part of the path, before it is compared with the key's prefixes."""
    body: bool = False
    """Whether a body must be JSON."""
    token: bool = False
    """Whether the key may also come as `?token=`: the SSE streams, and nothing else (AUTH-19)."""
    probe: bool = False
    """Whether `TOPICS_PROBE_AUTH` asks for a key where `scopes` does not."""
    always_open: bool = False
    """Whether it is answered while the server recovers or drains: the probes and what a person looks at."""
    appends: bool = False
    """Whether requests wait for others of the same kind, to be written together; any other kind comes after them."""


class Route:
    """What a head resolved to: who asks, for what, and what answers. Shared by all requests with the same head."""

    __slots__ = (
        "always_open", "appends", "handle", "idempotency_key", "inflight", "name", "name_bytes", "principal", "query",
        "return_seqs",
    )  # fmt: skip

    def __init__(
        self,
        row: Row,
        name: str,
        principal: Principal,
        query: Query,
        *,
        inflight: Cap | None = None,
        return_seqs: bool = True,
        idempotency_key: str | None = None,
    ) -> None:
        self.handle = row.handle
        self.always_open = row.always_open
        self.appends = row.appends
        self.name = name
        self.name_bytes = name.encode()
        self.principal = principal
        self.query = query
        self.inflight = inflight
        """The cap on requests of the key that are answered at the same time."""
        self.return_seqs = return_seqs
        self.idempotency_key = idempotency_key
