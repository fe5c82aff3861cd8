"""Access: what a request is called, and the line that the log has for it (the LOG rules).

A line holds the route as the table of routes names it, never the path or the query that came: those may hold a key or
the name of a watch session, which is a secret too. What the app knows about a request, it gives with the route.

Which requests are logged is the level of the logger `topics.access`: none, those that were answered with an error
(WARNING), or all (INFO). Where successes are not logged, they cost nothing here: a head is made ready for it only then.
"""

from __future__ import annotations

import logging
import re
import secrets
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from topics.server.http.head import Head

if TYPE_CHECKING:
    from topics.server.http.exchange import Exchange

access: Final = logging.getLogger("topics.access")
access.setLevel(logging.CRITICAL + 1)

_GIVEN: Final = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_PROCESS: Final = secrets.token_hex(4)
_numbers: Final = count(1)


def request_id_of(head: Head) -> str:
    """What a request is called: as its client calls it in `X-Request-Id`, or a name that no other has."""
    given = head.headers.get(b"x-request-id")
    if given is not None and _GIVEN.fullmatch(given) is not None:
        return given.decode("ascii")
    return f"{_PROCESS}-{next(_numbers):x}"


def traceparent_of(head: Head) -> str | None:
    """The trace context that came with a request, if it is one (W3C Trace Context, version 00 or later)."""
    given = head.headers.get(b"traceparent")
    return given.decode("ascii") if given is not None and _TRACEPARENT.fullmatch(given) is not None else None


def log_all() -> bool:
    """Whether requests are logged that were answered well."""
    return access.isEnabledFor(logging.INFO)


def note(exchange: Exchange, status: int, sent_bytes: int, code: str | None = None) -> None:
    """Log an answered request; `code` is that of its error."""
    level = logging.INFO if status < 400 else logging.WARNING
    if not access.isEnabledFor(level):
        return
    head = exchange.head
    fields: dict[str, Any] = {
        "request_id": exchange.request_id,
        "method": head.method,
        "route": head.tally.route,
        "status": status,
        "ms": exchange.elapsed_ms,
        "bytes": sent_bytes,
    }
    if code is not None:
        fields["code"] = code
    traceparent = traceparent_of(head)
    if traceparent is not None:
        fields["traceparent"] = traceparent
    transport = exchange.carrier.transport
    peer = None if transport is None else transport.get_extra_info("peername")
    if isinstance(peer, tuple):
        fields["peer"] = peer[0]
    log_fields = getattr(head.route, "log_fields", None)
    if log_fields is not None:
        fields |= log_fields()
    access.log(level, "request", extra={"fields": fields})
