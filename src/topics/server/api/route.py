"""Row and Route: one route of the API, and what the head of a request resolved to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from topics.server.api.principal import Principal
from topics.server.flow.slots import Cap
from topics.server.http.exchange import Exchange
from topics.server.http.query import Query
from topics.server.http.traffic import UNROUTED, Tally

Handler = Callable[[Exchange], None]


class Row(NamedTuple):
    """One route: which keys may use it, and what answers it."""

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
    subprotocol: bool = False
    """Whether the key may also come as a subprotocol: the WebSocket, and nothing else (JS-7)."""
    probe: bool = False
    """Whether `TOPICS_PROBE_AUTH` asks for a key where `scopes` does not."""
    always_open: bool = False
    """Whether it is answered while the server recovers or drains: the probes and what a person looks at."""
    appends: bool = False
    """Whether requests wait for others of the same kind, to be written together; any other kind comes after them."""
    public: bool = False
    """Whether a page of any origin may load it: what is no secret and holds no data."""
    file: bool = False
    """Whether it is a file of a page for people, which nobody else asks for."""
    get_changes: bool = False
    """Whether this is a GET that changes something, as every other method does: a foreign page may not (AUTH-22)."""
    tally: Tally = UNROUTED
    """What its requests are counted in."""


class Route(Struct, eq=False):
    """What a head resolved to: which client asks, for what, what answers. Shared by all requests with the same head."""

    handle: Handler
    appends: bool
    name: str
    name_bytes: bytes
    principal: Principal
    query: Query
    inflight: Cap | None
    """The cap on requests of the key that are answered at the same time."""
    return_seqs: bool
    idempotency_key: str | None
    traceparent: str | None
    """The trace context that is kept with the records of a write."""
    adds_to_writes: bool
    """Whether one of these two is given."""
    log_name: str
    """The name as it may be logged; empty for that of a watch session, which is a secret."""

    def log_fields(self) -> dict[str, str]:
        """What a log line says about a request, besides what HTTP knows."""
        named = (("name", self.log_name), ("key", self.principal.key_id))
        return {name: value for name, value in named if value}
