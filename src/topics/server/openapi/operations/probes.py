"""The operations that look at the server itself: probes, metrics, and what is served to people and pages."""

from __future__ import annotations

from typing import Any, Final

from topics.errors import NotReady, ShuttingDown, StorageReadOnly
from topics.server.api.overview import ORDERS, SHOWN, SHOWN_MAX, OverviewNow
from topics.server.api.shapes import Health, KeyList, Ready, WhoAmI
from topics.server.openapi.operation import JSON, Answer, Operation, Parameter, whole

GROUP: Final = "Server"
_TEXT: Final = {"type": "string"}
_HEALTH: Final[dict[str, Any]] = {
    "group": GROUP,
    "summary": "Whether the process is alive",
    "answers": {
        200: (
            Answer(
                "It is.",
                Health,
                {"status": "ok", "version": "1.0.0", "uptime_ms": 61_234, "performance": {"server_total_ms": 0.02}},
            ),
        )
    },
}
_OVERVIEW: Final[dict[str, Any]] = {
    "version": "1.0.0",
    "now": 1767225600000,
    "uptime_ms": 61_234,
    "server": {
        "topics": 1,
        "routers": 0,
        "records": 2,
        "bytes": 46,
        "rate": 0.5,
        "pressure": 0,
        "read_only": False,
        "disk_full": False,
        "waiting_frames": 0,
        "corruption_total": 0,
        "connections": 1,
        "streams": 0,
        "watch_sessions": 0,
        "buffered_bytes": 0,
    },
    "storage": {"unsealed_bytes": 120, "resident_bytes": 0},
    "sync": {"bounds_us": [1000], "counts": [7, 0], "sum_us": 4200},
    "topics": [
        {
            "topic": "orders",
            "type": "log",
            "durability": "disk",
            "head_seq": 5,
            "earliest_seq": 4,
            "count": 2,
            "bytes": 46,
            "rate": 0.5,
            "last_write_ts": 1767225599000,
        }
    ],
    "topics_complete": True,
    "losses": [{"topic": "orders", "reason": "cap", "first_seq": 1, "last_seq": 3, "noticed_ts": None}],
    "performance": {"server_total_ms": 0.08},
}
_READY: Final[dict[str, Any]] = {
    "group": GROUP,
    "summary": "Whether the server serves",
    "text": "200 once the log is replayed, 503 while nothing can be stored.",
    "answers": {
        200: (
            Answer(
                "It does.",
                Ready,
                {
                    "status": "ready",
                    "wal_replay_complete": True,
                    "topics": 12,
                    "performance": {"server_total_ms": 0.02},
                },
            ),
        )
    },
    "errors": (NotReady, ShuttingDown, StorageReadOnly),
}


def _page(id: str, summary: str, content_type: str, schema: dict[str, Any] | None = None) -> Operation:
    answer = Answer("The file.", content_type=content_type, schema=schema or _TEXT)
    return Operation(id=id, group=GROUP, summary=summary, answers={200: (answer,)})


OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/v0/health"): Operation(id="health", **_HEALTH),
    ("GET", "/healthz"): Operation(id="healthz", **_HEALTH),
    ("GET", "/v0/ready"): Operation(id="ready", **_READY),
    ("GET", "/readyz"): Operation(id="readyz", **_READY),
    ("GET", "/v0/metrics"): Operation(
        id="metrics",
        group=GROUP,
        summary="Metrics, as Prometheus text or as JSON",
        text="JSON where `Accept` names `application/json`, otherwise text.",
        answers={
            200: (
                Answer("The metrics.", content_type="text/plain", schema=_TEXT),
                Answer(
                    "The same: a number by name, or an object of numbers by label.",
                    content_type=JSON,
                    schema={
                        "type": "object",
                        "additionalProperties": {
                            "anyOf": [
                                {"type": "number"},
                                {"type": "object", "additionalProperties": {"type": "number"}},
                            ]
                        },
                    },
                ),
            )
        },
    ),
    ("GET", "/v0/overview"): Operation(
        id="overview",
        group=GROUP,
        summary="The server at a glance, and topics with their rates",
        text="What the console shows. An answer may be that of a moment ago.",
        parameters=(
            Parameter("topic", "Only this topic.", {"type": "string"}),
            Parameter("filter", "Only topics that have this in their name.", {"type": "string"}),
            Parameter("order", "Which topics come first.", {"enum": list(ORDERS), "default": "rate"}),
            Parameter("limit", f"The most topics, at most {SHOWN_MAX}.", whole(default=SHOWN)),
        ),
        answers={200: (Answer("What there is.", OverviewNow, _OVERVIEW),)},
    ),
    ("GET", "/v0/keys"): Operation(
        id="keys",
        group=GROUP,
        summary="Which keys there are and what each may do",
        text="A key with prefixes sees itself and those within its own.",
        answers={
            200: (
                Answer(
                    "The keys, without their secrets.",
                    KeyList,
                    {
                        "keys": [{"key": "2bb80d53", "scopes": ["read"], "prefixes": ["tenant42:"], "yours": True}],
                        "performance": {"server_total_ms": 0.02},
                    },
                ),
            )
        },
    ),
    ("GET", "/v0/whoami"): Operation(
        id="whoami",
        group=GROUP,
        summary="What the key of this request may do",
        answers={
            200: (
                Answer(
                    "Its scopes and prefixes.",
                    WhoAmI,
                    {
                        "key": "2bb80d53",
                        "scopes": ["read", "write"],
                        "prefixes": ["tenant42:"],
                        "performance": {"server_total_ms": 0.02},
                    },
                ),
            )
        },
    ),
    ("GET", "/v0/openapi.json"): _page("openapi", "This document", JSON, {"type": "object"}),
    ("GET", "/v0/docs"): _page("docs", "This document for people", "text/html"),
    ("GET", "/"): _page("console", "The console, a page for people", "text/html"),
    ("GET", "/topics.js"): _page("library", "The JavaScript library", "text/javascript"),
}
