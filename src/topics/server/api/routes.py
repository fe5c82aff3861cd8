"""The one table that says which route there is, who may use it and who answers it (API §0.2, §9).

Every route has a row. `scopes` is what the key must have; None means that the route is open unless `TOPICS_PROBE_AUTH`
is set. `name` says what the variable part of the path names: it is checked against the key's prefixes before anything
else looks at it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from topics.server.auth import ADMIN, DELETE, READ, WRITE


class Row(NamedTuple):
    """One route."""

    method: str
    path: str
    scopes: int | None
    handler: str
    name: str | None = None
    body: bool = False
    token: bool = False
    """Whether the key may also come as `?token=`: the SSE streams, and nothing else (API §7.1)."""


ROUTES: Final = (
    Row("PUT", "/v0/topics/:topic", ADMIN, "put_topic", "topic", body=True),
    Row("GET", "/v0/topics/:topic", READ, "get_topic", "topic"),
    Row("GET", "/v0/topics", READ, "list_topics"),
    Row("DELETE", "/v0/topics/:topic", DELETE, "delete_topic", "topic"),
    Row("POST", "/v0/topics/:topic", WRITE, "write", "topic", body=True),
    Row("POST", "/v0/topics/:topic/diff", READ, "diff", "topic", body=True),
    Row("POST", "/v0/topics/:topic/delete", DELETE, "delete", "topic", body=True),
    Row("GET", "/v0/topics/:topic/blocks", READ, "blocks", "topic"),
    Row("GET", "/v0/topics/:topic/plan", READ, "plan", "topic"),
    Row("POST", "/v0/topics/:topic/claim", READ | WRITE, "claim", "topic", body=True),
    Row("POST", "/v0/topics/:topic/ack", WRITE, "ack", "topic", body=True),
    Row("POST", "/v0/topics/:topic/nack", WRITE, "nack", "topic", body=True),
    Row("POST", "/v0/topics/:topic/extend", WRITE, "extend", "topic", body=True),
    Row("POST", "/v0/topics/:topic/redrive", READ | WRITE, "redrive", "topic", body=True),
    Row("GET", "/v0/topics/:topic/work", READ | WRITE, "open_work", "topic", token=True),
    Row("PUT", "/v0/routers/:router", ADMIN, "put_router", "router", body=True),
    Row("GET", "/v0/routers/:router", READ, "get_router", "router"),
    Row("GET", "/v0/routers", READ, "list_routers"),
    Row("DELETE", "/v0/routers/:router", DELETE, "delete_router", "router"),
    Row("POST", "/v0/watch", READ, "create_watch", body=True),
    Row("GET", "/v0/watch/:wid", 0, "open_watch", token=True),
    Row("GET", "/v0/ws", 0, "open_websocket"),
    Row("GET", "/v0/metrics", READ, "metrics"),
    Row("GET", "/v0/health", None, "health"),
    Row("GET", "/healthz", None, "health"),
    Row("GET", "/v0/ready", None, "ready"),
    Row("GET", "/readyz", None, "ready"),
    Row("GET", "/", None, "page"),
)


class Match(NamedTuple):
    """The rows of one path by method, and the name that its variable part holds."""

    rows: dict[str, Row]
    name: str


def _pattern(path: str) -> str:
    return re.sub(r":\w+", "([^/]+)", path)


_BY_PATH: Final[dict[str, dict[str, Row]]] = {}
for _row in ROUTES:
    _BY_PATH.setdefault(_row.path, {})[_row.method] = _row
_PATTERNS: Final = [(re.compile(_pattern(path)), rows) for path, rows in _BY_PATH.items() if ":" in path]


def find(path: str) -> Match | None:
    """The routes at a path, or None."""
    rows = _BY_PATH.get(path)
    if rows is not None and ":" not in path:
        return Match(rows, "")
    for pattern, rows in _PATTERNS:
        matched = pattern.fullmatch(path)
        if matched is not None:
            return Match(rows, matched[1])
    return None
