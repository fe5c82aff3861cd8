"""What is asked by load balancers, scrapers and people: health, readiness, metrics, and a page (API §8)."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from topics import __version__
from topics.server.api import metrics, page
from topics.server.api.handlers import answer

if TYPE_CHECKING:
    from topics.server.app import App
    from topics.server.auth import Principal
    from topics.server.http.exchange import Exchange


class Probes:
    """Answers the routes that are open while the server recovers or drains."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._started_ns = perf_counter_ns()

    @property
    def uptime_ms(self) -> int:
        """Milliseconds since the server started."""
        return (perf_counter_ns() - self._started_ns) // 1_000_000

    def health(self, exchange: Exchange) -> None:
        """`GET /v0/health`: 200 as long as the process can serve."""
        answer(exchange, 200, {"status": "ok", "version": __version__, "uptime_ms": self.uptime_ms})

    def ready(self, exchange: Exchange) -> None:
        """`GET /v0/ready`: 200 when serving, 503 while the log is replayed or the server drains."""
        if not self._app.ready:
            exchange.fail(self._app.unready())
            return
        body = {"status": "ready", "wal_replay_complete": True, "topics": len(self._app.engine.topics)}
        answer(exchange, 200, body)

    def metrics(self, exchange: Exchange) -> None:
        """`GET /v0/metrics`: Prometheus text, or a JSON snapshot where that is what the client accepts."""
        principal: Principal = exchange.head.route.principal
        if b"application/json" in exchange.head.headers.get(b"accept", b""):
            answer(exchange, 200, metrics.snapshot(self._app, principal))
        else:
            exchange.respond(200, metrics.exposition(self._app, principal), metrics.CONTENT_TYPE)

    def page(self, exchange: Exchange) -> None:
        """`GET /`: what runs here, for who opens the address in a browser."""
        host = exchange.head.headers.get(b"host", b"").decode("latin-1")
        exchange.respond(200, page.render(self._app, host), b"text/html; charset=utf-8", page.HEADERS)
