"""Overview: all that a person who looks at the server needs at a glance, in one answer (CONSOLE-13).

`GET /v0/overview` is what an open console asks for every two seconds. It must cost next to nothing, with thousands of
topics and any number of open consoles. So it shows a bounded number of topics, chosen among a bounded number of them,
the rates come from `Rounds`, and an answer is given again for a moment to every request with the same key and the same
question, for longer where it took long to make.

A key that is limited to prefixes sees its own topics, queues and losses and no others; totals are those of the server.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from topics import __version__
from topics.engine import Engine
from topics.engine.queue.queue import queue_of
from topics.engine.topic import Topic
from topics.errors import InvalidRequest
from topics.server.api.answers import answer
from topics.server.api.phase import Phase
from topics.server.api.principal import Principal
from topics.server.api.rounds import QUIET_NS, Loss, Rounds
from topics.server.api.route import Route
from topics.server.flow.pressure import Pressure
from topics.server.flow.slots import Slots
from topics.server.http.account import Account
from topics.server.http.exchange import Exchange
from topics.server.http.query import Query
from topics.storage.segment.cache import BlockCache
from topics.storage.store import Store
from topics.storage.wal.shard import LATENCY_BOUNDS_US

SHOWN: Final = 100
SHOWN_MAX: Final = 500
CANDIDATES_MAX: Final = 5000
KEPT_NS: Final = 900_000_000
REST_FACTOR: Final = 200
"""An answer that took t to make is given again for this many t."""
KEPT_MAX: Final = 64
LOSSES_SHOWN: Final = 20
FILTER_CHARS_MAX: Final = 255
LOOKED_MAX: Final = 20_000
"""A filter looks at so many names."""

Key = Callable[[Topic], float]


class TopicRow(Struct, frozen=True, omit_defaults=True):
    """One topic; the last fields are those of a queue."""

    topic: str
    type: str
    durability: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    rate: float | None
    """Records per second; None where it was looked at only once."""
    last_write_ts: int | None
    ready: int | UnsetType = UNSET
    in_flight: int | UnsetType = UNSET
    delayed: int | UnsetType = UNSET
    dead_lettered: int | UnsetType = UNSET
    dead_letter: str | UnsetType = UNSET
    dead_letters: int | UnsetType = UNSET
    """How many letters are in the topic `dead_letter` now, where the key may see that."""


class ServerNow(Struct, frozen=True):
    """The whole server."""

    topics: int
    routers: int
    records: int
    bytes: int
    rate: float | None
    pressure: int
    read_only: bool
    disk_full: bool
    waiting_frames: int
    corruption_total: int
    connections: int
    streams: int
    watch_sessions: int
    buffered_bytes: int


class StorageNow(Struct, frozen=True, kw_only=True):
    """Where the bytes are; the last fields are those of a server with a data directory."""

    unsealed_bytes: int
    resident_bytes: int
    wal_bytes: int | UnsetType = UNSET
    free_bytes: int | UnsetType = UNSET
    cache_bytes: int | UnsetType = UNSET
    cache_hits: int | UnsetType = UNSET
    cache_misses: int | UnsetType = UNSET


class SyncTimes(Struct, frozen=True):
    """How long syncs took."""

    bounds_us: list[int]
    counts: list[int]
    sum_us: int


class OverviewNow(Struct, frozen=True):
    """All that is seen at a glance."""

    version: str
    now: int
    uptime_ms: int
    server: ServerNow
    storage: StorageNow
    sync: SyncTimes
    topics: list[TopicRow]
    topics_complete: bool
    losses: list[Loss]


class Overview:
    """Answers `GET /v0/overview`."""

    def __init__(
        self,
        engine: Engine,
        slots: Slots,
        phase: Phase,
        pressure: Pressure,
        account: Account,
        cache: BlockCache | None,
    ) -> None:
        """`cache` is the one of sealed Blocks; None where nothing is sealed."""
        self._engine = engine
        self._slots = slots
        self._phase = phase
        self._pressure = pressure
        self._account = account
        self._cache = cache
        self._rounds = Rounds(engine)
        # Until when an answer is given again, by key and question.
        self._kept: dict[tuple[str | None, _Question], tuple[int, msgspec.Raw]] = {}

    def beat(self) -> None:
        """Called several times a second: look at topics now and then, whether or not anybody asks."""
        if self._phase.ready:
            self._rounds.step(QUIET_NS)

    def show(self, exchange: Exchange) -> None:
        """`GET /v0/overview`."""
        route: Route = exchange.head.route
        question = _question(route.query)
        elapsed_ns = self._engine.clock.elapsed_ns
        began_ns = elapsed_ns()
        key = (route.principal.key_id, question)
        until_ns, body = self._kept.get(key, (0, None))
        if body is None or began_ns >= until_ns:
            self._rounds.step()
            body = msgspec.Raw(msgspec.json.encode(self._made(question, route.principal)))
            ended_ns = elapsed_ns()
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[key] = ended_ns + max(KEPT_NS, (ended_ns - began_ns) * REST_FACTOR), body
        answer(exchange, 200, body)

    def _made(self, question: _Question, principal: Principal) -> OverviewNow:
        chosen, complete = self._choose(question, principal)
        now = self._engine.clock.now_ms()
        rows = [self._row(topic, now, principal) for topic in chosen]
        parts = self._server(), self._storage(), self._sync(), rows
        return OverviewNow(__version__, now, self._phase.uptime_ms, *parts, complete, self._losses(principal))

    def _server(self) -> ServerNow:
        engine = self._engine
        totals = engine.totals
        return ServerNow(
            topics=len(engine.topics),
            routers=len(engine.routers),
            records=totals.count,
            bytes=totals.bytes,
            rate=round(self._rounds.total, 2) if self._rounds.over > 1 else None,
            pressure=self._pressure.level,
            read_only=any(shard.read_only is not None for shard in engine.store.shards),
            disk_full=isinstance(engine.store, Store) and engine.store.is_full,
            waiting_frames=sum(shard.queue_depth for shard in engine.store.shards),
            corruption_total=totals.corruption_total,
            connections=self._account.connections,
            streams=self._slots.sse_connections.used,
            watch_sessions=self._slots.watch_sessions.used,
            buffered_bytes=self._account.total_bytes,
        )

    def _storage(self) -> StorageNow:
        totals, store = self._engine.totals, self._engine.store
        kept: dict[str, int] = {}
        if isinstance(store, Store):
            kept |= {"wal_bytes": store.wal_bytes, "free_bytes": store.free_bytes}
        if self._cache is not None:
            hits, misses = self._cache.hits_total, self._cache.misses_total
            kept |= {"cache_bytes": self._cache.bytes, "cache_hits": hits, "cache_misses": misses}
        return StorageNow(unsealed_bytes=totals.unsealed.bytes, resident_bytes=totals.resident.bytes, **kept)

    def _sync(self) -> SyncTimes:
        shards = self._engine.store.shards
        counts = [sum(column) for column in zip(*(shard.fsync_us_buckets for shard in shards), strict=True)]
        return SyncTimes(list(LATENCY_BOUNDS_US), counts, sum(shard.fsync_us_sum for shard in shards))

    def _losses(self, principal: Principal) -> list[Loss]:
        mine = (loss for loss in reversed(self._rounds.losses.values()) if principal.may_touch(loss.topic))
        return list(islice(mine, LOSSES_SHOWN))

    def _row(self, topic: Topic, now: int, principal: Principal) -> TopicRow:
        topic.expire_if_at_hand(now)
        log, queue = topic.log, queue_of(topic)
        rate = self._rounds.rate(topic.name)
        jobs: dict[str, Any] = {}
        if queue is not None:
            state = self._engine.queues.state(topic)
            jobs = {"ready": state.ready, "in_flight": state.in_flight, "delayed": queue.delayed}
            jobs["dead_lettered"] = state.dead_lettered
            target = topic.config.dead_letter
            if target is not None and principal.may_touch(target):
                letters = self._engine.topics.get(target)
                jobs |= {"dead_letter": target, "dead_letters": 0 if letters is None else letters.log.count}
        kind, durability = topic.config.type, topic.config.durability
        counted = (log.head, log.start, log.count, log.bytes)
        return TopicRow(
            topic.name,
            kind,
            durability,
            *counted,
            None if rate is None else round(rate, 2),
            topic.last_write_ts,
            **jobs,
        )

    def _choose(self, question: _Question, principal: Principal) -> tuple[list[Topic], bool]:
        """The topics to show, and whether they are chosen among all that there are."""
        if question.topic is not None:
            topic = self._engine.topics.get(question.topic)
            return ([topic] if topic is not None and principal.may_touch(topic.name) else []), True
        topics, rounds = self._engine.topics, self._rounds
        found = self._names(question, principal)
        names = list(islice(found, CANDIDATES_MAX))
        complete = next(found, None) is None and (not question.text or len(topics) <= LOOKED_MAX)
        if question.order == "rate":
            if not complete:
                grow = [name for name in rounds.growing if name in topics and principal.may_touch(name)]
                names += islice((name for name in grow if question.text in name.lower()), CANDIDATES_MAX)
                names = list(dict.fromkeys(names))
            # Of those that do not grow, the ones that did so last.
            found_topics = (topics[name] for name in names)
            by_rate = heapq.nlargest(
                question.limit, found_topics, key=lambda each: (rounds.rate(each.name) or 0, each.last_write_ts or 0)
            )
            return by_rate, complete
        if question.order == "name":
            return [topics[name] for name in names[: question.limit]], complete
        key = _ORDERS[question.order]
        return heapq.nlargest(question.limit, (topics[name] for name in names), key=key), complete

    def _names(self, question: _Question, principal: Principal) -> Iterator[str]:
        names = self._engine.catalog.names.after("", "", principal.prefixes)
        if not question.text:
            return names
        return (name for name in islice(names, LOOKED_MAX) if question.text in name.lower())


_ORDERS: Final[dict[str, Key]] = {
    "records": lambda topic: topic.log.count,
    "bytes": lambda topic: topic.log.bytes,
}
ORDERS: Final = ("rate", "name", *_ORDERS)


class _Question(Struct, frozen=True):
    topic: str | None
    text: str
    order: str
    limit: int


def _question(query: Query) -> _Question:
    order = query.text("order", "rate")
    if order not in ORDERS:
        raise InvalidRequest(f"order must be one of {', '.join(ORDERS)}", field="order", got=order[:64])
    topic = query.text("topic") if query.has("topic") else None
    text = query.text("filter").lower()[:FILTER_CHARS_MAX]
    return _Question(topic, text, order, min(query.number("limit", SHOWN, 0), SHOWN_MAX))
