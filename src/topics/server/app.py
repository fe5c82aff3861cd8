"""App: from a parsed request to the handler that answers it, and the server's life from start to stop.

Everything that can be decided from the head is decided in `resolve`, before a byte of the body is read: the route, the
key, its scopes and prefixes, the content type. What may change from one request to the next (readiness, the in-flight
cap) is looked at in `handle`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from topics.engine import Engine, Limits
from topics.errors import (
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    NotReady,
    ShuttingDown,
    TopicsError,
    UnsupportedMediaType,
)
from topics.names import check_router_name, check_topic_name
from topics.server import limits as caps
from topics.server.api import routes
from topics.server.api.blocks import Blocks
from topics.server.api.handlers import Handlers
from topics.server.api.probes import Probes
from topics.server.api.queues import QueueHandlers
from topics.server.api.routers import RouterHandlers
from topics.server.auth import Keys, Principal, bearer_token
from topics.server.delivery.delivery import Delivery
from topics.server.delivery.watch import Watch
from topics.server.delivery.websocket import WebSockets
from topics.server.delivery.work import Work
from topics.server.flow.governor import Governor
from topics.server.http.query import Query
from topics.settings import Settings
from topics.storage.job import Job, Miss

if TYPE_CHECKING:
    from topics.server.http.exchange import Exchange
    from topics.server.http.head import Head

log = logging.getLogger("topics")

STARTING: Final = "starting"
READY: Final = "ready"
DRAINING: Final = "draining"
RETRY_AFTER_MS: Final = 1000
_ALWAYS_OPEN: Final = frozenset(("health", "ready", "metrics", "page"))

_JSON: Final = re.compile(rb"application/json[ \t]*(?:;[ \t]*charset=\"?utf-?8\"?[ \t]*)?;?", re.IGNORECASE)


class Route:
    """What a head resolved to: who asks, for what, and who answers. Shared by all requests with the same head."""

    __slots__ = (
        "gathers",
        "handle",
        "idempotency_key",
        "inflight",
        "name",
        "name_bytes",
        "open",
        "principal",
        "query",
        "return_seqs",
    )

    def __init__(self, row: routes.Row, name: str, principal: Principal, query: Query) -> None:
        self.name = name
        self.name_bytes = name.encode()
        self.principal = principal
        self.query = query
        self.handle: Callable[[Exchange], None]
        self.inflight: caps.Cap | None = None
        # Open while the server recovers or drains: the probes and what a person looks at.
        self.open = row.handler in _ALWAYS_OPEN
        # Whether requests may wait for others of the same kind; any other kind is handled behind them.
        self.gathers = row.handler == "write"
        self.return_seqs = True
        self.idempotency_key: str | None = None


class App:
    """The server's routes over one engine."""

    def __init__(self, settings: Settings, keys: Keys, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.keys = keys
        self.engine = engine
        self.limits = caps.Limits(settings)
        self.phase = STARTING
        self.run_then: Callable[[Job, Callable[[], None]], None]
        self.replay_progress: Callable[[], float] = lambda: 0.0
        self.delivery = Delivery(engine, loop, settings.buffer_grace_ms, settings.slow_consumer_timeout_ms)
        self.delivery.run_then = lambda job, then: self.run_then(job, then)
        self.governor = Governor(engine, self.delivery, loop)
        self._gathering = self.governor.admission.gathering
        self.handlers = Handlers(engine, loop, self.governor.admission)
        self.handlers.run_then = lambda job, then: self.run_then(job, then)
        self.watch = Watch(engine, self.delivery, self.limits, settings)
        self.websockets = WebSockets(engine, self.delivery, self.governor.admission, settings, loop, self.limits)
        self.probes = Probes(self)
        self.blocks = Blocks(engine, loop, self._attempt)
        self.routers = RouterHandlers(engine)
        self.queues = QueueHandlers(engine, self.governor.admission, self._again)
        self.work = Work(engine, self.delivery, self.governor.admission, self.limits)

    def resolve(self, head: Head) -> Route:
        """The route of a head, or the error that answers it."""
        match = routes.find(head.path)
        if match is None:
            raise NotFound(f"there is nothing at {head.path[:200]}{_other_path(head.path)}", path=head.path[:200])
        method = "GET" if head.method == "HEAD" else head.method
        row = match.rows.get(method)
        if row is None:
            allow = sorted(match.rows)
            message = f"{head.path[:200]} does not take {head.method}, but {', '.join(allow)}"
            raise MethodNotAllowed(message, method=head.method, allow=allow)
        principal = self._authorise(head, row)
        if row.name is not None:
            (check_router_name if row.name == "router" else check_topic_name)(match.name)
            principal.require_name(match.name)
        if row.body:
            _check_content_type(head)
        route = Route(row, match.name, principal, Query(head.query))
        route.handle = self._handler(row.handler)
        if principal.key_id is not None and row.scopes is not None:
            route.inflight = self.limits.inflight_per_key.of(principal)
        if row.handler == "write":
            route.return_seqs = route.query.flag("return_seqs", True)
            route.idempotency_key = _header_key(head)
        return route

    def _handler(self, name: str) -> Callable[[Exchange], None]:
        owners = (
            self.handlers,
            self.queues,
            self.routers,
            self.blocks,
            self.watch,
            self.work,
            self.websockets,
            self.probes,
        )
        for owner in owners:
            found: Callable[[Exchange], None] | None = getattr(owner, name, None)
            if found is not None:
                return found
        raise AssertionError(f"no handler is called {name}")

    def _authorise(self, head: Head, row: routes.Row) -> Principal:
        if row.scopes is None and not (self.settings.probe_auth and row.handler in ("health", "ready")):
            return self.keys.anyone
        token: bytes | str | None = bearer_token(head.headers.get(b"authorization"))
        if row.token and b"authorization" not in head.headers:
            token = Query(head.query).text("token") or None
        principal = self.keys.authenticate(token)
        principal.require_scopes(row.scopes or 0)
        return principal

    def handle(self, exchange: Exchange) -> None:
        """Answer a complete request, now or later."""
        route: Route = exchange.head.route
        if self.phase is not READY and not route.open:
            raise self.unready()
        if route.inflight is not None:
            exchange.on_over = route.inflight.take().free
        if self._gathering.waiting and not route.gathers:
            self._gathering.flush()
        try:
            route.handle(exchange)
        except Miss as miss:
            self.run_then(miss.job, lambda: self._again(exchange))

    def _again(self, exchange: Exchange) -> None:
        self._attempt(exchange, exchange.head.route.handle)

    def _attempt(self, exchange: Exchange, handle: Callable[[Exchange], None]) -> None:
        """Answer outside of `handle`, whatever happens.

        Once what a request needed is read from the disk, it is handled from the start, as nothing was changed by it.
        """
        try:
            handle(exchange)
        except Miss as miss:
            self.run_then(miss.job, lambda: self._attempt(exchange, handle))
        except TopicsError as error:
            exchange.fail(error)
        except Exception:
            log.exception("handling %s %s failed", exchange.head.method, exchange.head.path)
            exchange.fail(Internal())

    @property
    def ready(self) -> bool:
        """Whether the server serves."""
        return self.phase is READY

    def unready(self) -> NotReady | ShuttingDown:
        """Why the server does not serve right now."""
        if self.phase is DRAINING:
            return ShuttingDown(retry_after_ms=RETRY_AFTER_MS)
        return NotReady(retry_after_ms=RETRY_AFTER_MS, replay_progress=self.progress())

    def progress(self) -> float:
        """How much of the log is replayed, 0.0 to 1.0."""
        return 1.0 if self.phase is not STARTING else self.replay_progress()


def _other_path(path: str) -> str:
    """A word about the path that was probably meant, if there is one."""
    if path.endswith("/") and routes.find(path.rstrip("/")) is not None:
        return ": leave out the / at the end"
    return ": paths begin with /v0" if routes.find(f"/v0{path}") is not None else ""


def _check_content_type(head: Head) -> None:
    if not (head.chunked or head.content_length):
        return
    value = head.headers.get(b"content-type")
    if value is None or _JSON.fullmatch(value.strip()) is None:
        shown = "" if value is None else value[:100].decode("latin-1")
        raise UnsupportedMediaType(
            f'the body must be sent as Content-Type: application/json, not as "{shown}"' if shown else None,
            content_type=shown or None,
        )


def _header_key(head: Head) -> str | None:
    value = head.headers.get(b"idempotency-key")
    if not value:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the Idempotency-Key header is not UTF-8", field="idempotency-key") from None


def engine_limits(settings: Settings) -> Limits:
    """The part of the settings that the engine enforces."""
    values: dict[str, Any] = {name: getattr(settings, name) for name in Limits.__struct_fields__}
    return Limits(**values)


def serve(settings: Settings, keys: Keys) -> int:
    """Run the server until SIGTERM or SIGINT; the exit code."""
    from topics.server.server import Server

    return Server(settings, keys).run()
