"""App: from a parsed request to the handler that answers it.

Everything that can be decided from the head is decided in `resolve`, before a byte of the body is read: whether the
request is meant for this server and comes from a page that may send it, the route, the key, its scopes and prefixes,
the content type. The last of it is the door through which complete requests come: shut while the server is not ready
(phase.py), it leads a plain write straight to its handler, and everything else by way of `_handle`, which looks at what
may change from one request to the next.
"""

from __future__ import annotations

import re
from typing import Final

from topics.errors import InvalidRequest, MethodNotAllowed, NotFound, UnsupportedMediaType
from topics.server.api.attempts import Attempts
from topics.server.api.phase import Door, Phase
from topics.server.api.principal import Principal
from topics.server.api.route import Route, Row
from topics.server.auth import Keys, bearer_token, subprotocol_token
from topics.server.flow.admission import Admission
from topics.server.flow.slots import CapPerKey
from topics.server.http.access import log_all, traceparent_of
from topics.server.http.body import BodyLimit
from topics.server.http.exchange import Exchange
from topics.server.http.head import Head
from topics.server.http.query import Query
from topics.server.http.traffic import Tally
from topics.server.origins import Origins
from topics.server.routes import Routes
from topics.settings import Settings
from topics.storage.job import Miss

_JSON: Final = re.compile(rb"application/json[ \t]*(?:;[ \t]*charset=\"?utf-?8\"?[ \t]*)?;?", re.IGNORECASE)


class App:
    """The routes of the server."""

    def __init__(
        self,
        routes: Routes,
        keys: Keys,
        origins: Origins,
        phase: Phase,
        inflight_per_key: CapPerKey,
        admission: Admission,
        attempts: Attempts,
        settings: Settings,
        preflights: Tally,
    ) -> None:
        """`preflights` counts the questions of browsers whether a page may send a request, at whatever path."""
        self._routes = routes
        self._keys = keys
        self._origins = origins
        self._phase = phase
        self._always_open = Door(self._handle)
        self._inflight_per_key = inflight_per_key
        self._admission = admission
        self._attempts = attempts
        self._preflights = preflights
        self._trace_context = settings.trace_context
        self._probe_auth = settings.probe_auth
        self._write_limit = BodyLimit("max_body_bytes", settings.max_body_bytes, in_parts=True)
        self._command_limit = BodyLimit("max_command_bytes", settings.max_command_bytes)
        if settings.max_body_bytes < settings.max_command_bytes:
            self._command_limit = BodyLimit("max_body_bytes", settings.max_body_bytes)

    def resolve(self, head: Head) -> Route:
        """The route of a head, or the error that answers it."""
        origins = self._origins
        origins.greet(head)
        if log_all():
            # Then an answer passes through what adapts it, where it is logged.
            head.plain = False
        if origins.is_preflight(head):
            asked = Row("OPTIONS", head.path, None, origins.preflight, always_open=True, tally=self._preflights)
            return self._route(head, asked, "")
        match = self._routes.find(head.path)
        if match is None:
            raise NotFound(f"there is nothing at {head.path[:200]}{self._hint(head.path)}", path=head.path[:200])
        method = "GET" if head.method == "HEAD" else head.method
        row = match.rows.get(method)
        if row is None:
            allow = sorted(match.rows)
            message = f"{head.path[:200]} does not take {head.method}, but {', '.join(allow)}"
            raise MethodNotAllowed(message, method=head.method, allow=allow)
        if row.public:
            head.add_to_answers(b"")
        if method != "GET" or row.get_changes:
            origins.require_own(head)
        return self._route(head, row, match.name)

    def _route(self, head: Head, row: Row, name: str) -> Route:
        """What answers the head at this row, if its key allows it; and the door to that."""
        head.tally = row.tally
        principal = self._authorise(head, row)
        if row.check_name is not None:
            row.check_name(name)
            principal.require_name(name)
        if row.body:
            _check_content_type(head)
        head.body_limit = self._write_limit if row.appends else self._command_limit
        query = Query(head.query)
        key = _header_key(head) if row.appends else None
        traceparent = traceparent_of(head) if row.appends and self._trace_context else None
        counted = principal.key_id is not None and row.scopes is not None
        inflight = self._inflight_per_key.of(principal) if counted else None
        if row.always_open:
            head.door = self._always_open
        else:
            head.door = self._phase.door(row.handle if row.appends and inflight is None else self._handle)
        return Route(
            handle=row.handle,
            appends=row.appends,
            name=name,
            name_bytes=name.encode(),
            principal=principal,
            query=query,
            inflight=inflight,
            return_seqs=query.flag("return_seqs", True) if row.appends else True,
            idempotency_key=key,
            traceparent=traceparent,
            adds_to_writes=not (key is None is traceparent),
            log_name=name if row.check_name is not None else "",
        )

    def _authorise(self, head: Head, row: Row) -> Principal:
        if row.scopes is None and not (row.probe and self._probe_auth):
            return self._keys.anyone
        token: bytes | str | None = bearer_token(head.headers.get(b"authorization"))
        if row.token and b"authorization" not in head.headers:
            token = Query(head.query).text("token") or None
        if row.subprotocol and b"authorization" not in head.headers:
            token = subprotocol_token(head.headers.get(b"sec-websocket-protocol"))
        principal = self._keys.authenticate(token)
        principal.require_scopes(row.scopes or 0)
        return principal

    def _hint(self, path: str) -> str:
        """The path that was probably meant, if there is one."""
        if path.endswith("/") and self._routes.find(path.rstrip("/")) is not None:
            return ": leave out the / at the end"
        return ": paths begin with /v0" if self._routes.find(f"/v0{path}") is not None else ""

    def _handle(self, exchange: Exchange) -> None:
        """Answer a complete request, now or later, after the writes that were gathered before it."""
        route: Route = exchange.head.route
        if route.inflight is not None:
            exchange.on_over = route.inflight.take().free
        if not route.appends and self._admission.gathered:
            self._admission.flush()
        try:
            route.handle(exchange)
        except Miss as miss:
            self._attempts.after(miss, exchange, route.handle)


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
