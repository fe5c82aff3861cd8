"""What load balancers and scrapers ask for: health and readiness (the PROBE rules)."""

from __future__ import annotations

from collections.abc import Callable

from topics import __version__
from topics.engine import Engine
from topics.errors import RETRY_AFTER_MS, StorageReadOnly
from topics.server.api.answers import answer
from topics.server.api.keys import listed
from topics.server.api.phase import Phase
from topics.server.api.principal import Principal, scope_names
from topics.server.api.shapes import Health, Ready, WhoAmI
from topics.server.http.exchange import Exchange


class Probes:
    """Answers the routes that are open while the server recovers or drains."""

    def __init__(self, engine: Engine, phase: Phase, principals: Callable[[], list[Principal]]) -> None:
        """`principals` are those of the keys of the server, one per key."""
        self._engine = engine
        self._phase = phase
        self._principals = principals

    def health(self, exchange: Exchange) -> None:
        """`GET /v0/health`: 200 as long as the process can serve."""
        answer(exchange, 200, Health("ok", __version__, self._phase.uptime_ms))

    def whoami(self, exchange: Exchange) -> None:
        """`GET /v0/whoami`: what the key of this request may do."""
        principal: Principal = exchange.head.route.principal
        answer(exchange, 200, WhoAmI(principal.key_id, scope_names(principal.scopes), list(principal.prefixes)))

    def keys(self, exchange: Exchange) -> None:
        """`GET /v0/keys`: which keys there are, without their secrets."""
        answer(exchange, 200, listed(self._principals(), exchange.head.route.principal))

    def ready(self, exchange: Exchange) -> None:
        """`GET /v0/ready`: 200 when serving, 503 while it starts, drains or can store nothing."""
        if not self._phase.ready:
            exchange.fail(self._phase.unready())
            return
        for shard in self._engine.store.shards:
            if shard.read_only is not None:
                raise StorageReadOnly(shard.read_only.message, retry_after_ms=RETRY_AFTER_MS)
        answer(exchange, 200, Ready("ready", wal_replay_complete=True, topics=len(self._engine.topics)))
