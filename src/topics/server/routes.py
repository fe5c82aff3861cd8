"""The one table of routes: which there are, which keys may use them, and which handler answers each (AUTH-11)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from topics.names import check_router_name, check_topic_name
from topics.server.api.backups import BackupHandlers
from topics.server.api.blocks import BlockHandlers
from topics.server.api.console import Console
from topics.server.api.diff import DiffHandler
from topics.server.api.library import Library
from topics.server.api.metrics import Metrics
from topics.server.api.overview import Overview
from topics.server.api.principal import ADMIN, DELETE, READ, WRITE
from topics.server.api.probes import Probes
from topics.server.api.queues import QueueHandlers
from topics.server.api.records import RecordHandlers
from topics.server.api.route import Row
from topics.server.api.routers import RouterHandlers
from topics.server.api.topics import TopicHandlers
from topics.server.delivery.watch import WatchHandlers
from topics.server.delivery.websocket import WebSockets
from topics.server.delivery.work import WorkStreams
from topics.server.http.traffic import Traffic
from topics.server.openapi.reference import Reference


def rows(
    topics: TopicHandlers,
    records: RecordHandlers,
    diffs: DiffHandler,
    blocks: BlockHandlers,
    queues: QueueHandlers,
    routers: RouterHandlers,
    work: WorkStreams,
    watch: WatchHandlers,
    websockets: WebSockets,
    backups: BackupHandlers,
    probes: Probes,
    metrics: Metrics,
    overview: Overview,
    library: Library,
    console: Console,
    reference: Reference,
) -> list[Row]:
    """Every route of the server."""
    topic, router = check_topic_name, check_router_name
    return [
        Row("PUT", "/v0/topics/:topic", ADMIN, topics.put, topic, body=True),
        Row("GET", "/v0/topics/:topic", READ, topics.get, topic),
        Row("GET", "/v0/topics", READ, topics.list),
        Row("DELETE", "/v0/topics/:topic", DELETE, topics.delete, topic),
        Row("POST", "/v0/topics/:topic", WRITE, records.write, topic, body=True, appends=True),
        Row("POST", "/v0/topics/:topic/diff", READ, diffs.diff, topic, body=True),
        Row("POST", "/v0/topics/:topic/delete", DELETE, records.delete, topic, body=True),
        Row("GET", "/v0/topics/:topic/blocks", READ, blocks.blocks, topic),
        Row("GET", "/v0/topics/:topic/plan", READ, blocks.plan, topic),
        Row("POST", "/v0/topics/:topic/claim", READ | WRITE, queues.claim, topic, body=True),
        Row("POST", "/v0/topics/:topic/ack", WRITE, queues.ack, topic, body=True),
        Row("POST", "/v0/topics/:topic/nack", WRITE, queues.nack, topic, body=True),
        Row("POST", "/v0/topics/:topic/extend", WRITE, queues.extend, topic, body=True),
        Row("POST", "/v0/topics/:topic/redrive", READ | WRITE, queues.redrive, topic, body=True),
        Row("GET", "/v0/topics/:topic/leases", READ, queues.leases, topic),
        Row("GET", "/v0/topics/:topic/history", READ, queues.history, topic),
        Row("GET", "/v0/topics/:topic/work", READ | WRITE, work.open, topic, token=True, get_changes=True),
        Row("PUT", "/v0/routers/:router", ADMIN, routers.put, router, body=True),
        Row("GET", "/v0/routers/:router", READ, routers.get, router),
        Row("GET", "/v0/routers", READ, routers.list),
        Row("DELETE", "/v0/routers/:router", DELETE, routers.delete, router),
        Row("POST", "/v0/backup", READ | ADMIN, backups.begin),
        Row("GET", "/v0/backup/:backup", READ | ADMIN, backups.read),
        Row("POST", "/v0/backup/:backup/segments", READ | ADMIN, backups.segments, body=True),
        Row("POST", "/v0/backup/:backup/moment", READ | ADMIN, backups.moment),
        Row("DELETE", "/v0/backup/:backup", READ | ADMIN, backups.end),
        Row("POST", "/v0/watch", READ, watch.create, body=True),
        Row("GET", "/v0/watch/:wid", 0, watch.open, token=True, get_changes=True),
        Row("GET", "/v0/ws", 0, websockets.open, subprotocol=True, get_changes=True),
        *_server_rows(probes, metrics, overview, library, console, reference),
    ]


def _server_rows(
    probes: Probes,
    metrics: Metrics,
    overview: Overview,
    library: Library,
    console: Console,
    reference: Reference,
) -> list[Row]:
    """What is asked of the server itself, and what it shows to people."""
    return [
        Row("GET", "/v0/metrics", READ, metrics.show, always_open=True),
        Row("GET", "/v0/overview", READ, overview.show),
        Row("GET", "/v0/whoami", 0, probes.whoami),
        Row("GET", "/v0/keys", ADMIN, probes.keys),
        Row("GET", "/v0/health", None, probes.health, probe=True, always_open=True),
        Row("GET", "/healthz", None, probes.health, probe=True, always_open=True),
        Row("GET", "/v0/ready", None, probes.ready, probe=True, always_open=True),
        Row("GET", "/readyz", None, probes.ready, probe=True, always_open=True),
        Row("GET", "/topics.js", None, library.script, always_open=True, public=True),
        Row("GET", "/v0/openapi.json", None, reference.openapi, always_open=True, public=True),
        Row("GET", "/v0/docs", None, reference.page, always_open=True),
        *console.rows(),
        *reference.files(),
    ]


class Match(NamedTuple):
    """The rows of one path by method, and the name in its variable part."""

    rows: dict[str, Row]
    name: str


class Routes:
    """The table, by path."""

    def __init__(self, rows: Iterable[Row], traffic: Traffic) -> None:
        """`traffic` gets a tally for each row."""
        self._by_path: dict[str, dict[str, Row]] = {}
        for row in rows:
            counted = row._replace(tally=traffic.tally(row.method, row.path))
            self._by_path.setdefault(row.path, {})[row.method] = counted
        self._patterns = [
            (re.compile(re.sub(r":\w+", "([^/]+)", path)), rows_of)
            for path, rows_of in self._by_path.items()
            if ":" in path
        ]

    def find(self, path: str) -> Match | None:
        """The routes at a path, or None."""
        rows_of = self._by_path.get(path)
        if rows_of is not None and ":" not in path:
            return Match(rows_of, "")
        for pattern, rows_of in self._patterns:
            matched = pattern.fullmatch(path)
            if matched is not None:
                return Match(rows_of, matched[1])
        return None
