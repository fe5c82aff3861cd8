"""Metrics: what a Prometheus server or the console asks for (PROBE-6 to PROBE-9, PROBE-13 to PROBE-19).

Values are read when they are asked for. What counts, counts in plain numbers of its own, and knows nothing of metrics.
The totals are those of the instance, whatever key asks; what names topics is limited to those that the key may see.

The figures of topics take a look at every one of them. That is done a piece at a time between the requests of others,
once for all that ask for it meanwhile; where there are many topics, the outcome is given again for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from topics.engine import Engine
from topics.engine.upkeep.upkeep import Upkeep
from topics.errors import Internal
from topics.server.api.answers import answer
from topics.server.api.exposition import Counter, Family, Gauge, labelled, text, values
from topics.server.api.phase import Phase
from topics.server.api.pipeline_metrics import PipelineMetrics
from topics.server.api.principal import Principal
from topics.server.api.process_metrics import ProcessMetrics
from topics.server.api.storage_metrics import storage_metrics
from topics.server.api.topic_metrics import topic_metrics
from topics.server.api.traffic_metrics import traffic_metrics
from topics.server.flow.parking import Parking
from topics.server.flow.pressure import Pressure
from topics.server.flow.slots import Slots
from topics.server.http.account import Account
from topics.server.http.exchange import Exchange
from topics.server.http.traffic import Traffic
from topics.server.http.turns import Turns
from topics.storage.segment.cache import BlockCache

log = logging.getLogger("topics.server")

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
TOPICS_SHOWN_MAX: Final = 1000

SLOW_NS: Final = 5_000_000
REST_FACTOR: Final = 20

_Key = tuple[bool, str | None]
"""Whether it is JSON, and the key that asks."""


class Metrics:
    """The metrics of one server, with the values of the moment."""

    def __init__(
        self,
        engine: Engine,
        slots: Slots,
        phase: Phase,
        pressure: Pressure,
        parking: Parking,
        turns: Turns,
        account: Account,
        traffic: Traffic,
        cache: BlockCache | None,
        upkeep: Upkeep | None,
    ) -> None:
        """`cache` is the one of sealed Blocks; it and `upkeep` are None where nothing is sealed."""
        self._engine = engine
        self._slots = slots
        self._phase = phase
        self._pressure = pressure
        self._parking = parking
        self._account = account
        self._traffic = traffic
        self._cache = cache
        self._upkeep = upkeep
        self._process = ProcessMetrics(engine.clock)
        self._pipelines = PipelineMetrics(engine, phase)
        self._turns = turns
        # What there is to say of topics: on its way, and what took long to make, with the time until it is given again.
        self._making: dict[_Key, _Making] = {}
        self._kept: dict[_Key, tuple[int, list[Any]]] = {}

    def show(self, exchange: Exchange) -> None:
        """`GET /v0/metrics`: Prometheus text, or a JSON snapshot where that is what the client accepts.

        Raises Miss where reports of pipelines have to be read from disk first.
        """
        # First of all, because it may have to be attempted again.
        self._pipelines.read()
        as_json = b"application/json" in exchange.head.headers.get(b"accept", b"")
        principal: Principal = exchange.head.route.principal
        key = as_json, principal.key_id
        until_ns, parts = self._kept.get(key, (0, []))
        if self._turns.clock_ns() < until_ns:
            self._answer(exchange, as_json, parts)
        elif key in self._making:
            self._making[key].exchanges.append(exchange)
        else:
            making = self._making[key] = _Making(key, self._parts(principal, values if as_json else text), exchange)
            self._turns.in_turn(lambda: self._go_on(making))

    def forget(self) -> None:
        """Keep nothing: the keys have changed, and with them what each may see."""
        self._kept.clear()
        self._making.clear()

    def _parts(self, principal: Principal, rendered: Callable[[Iterable[Family]], Any]) -> Iterator[Any]:
        """What there is to say of topics, rendered family by family; None after a piece of work without one."""
        for family in topic_metrics(self._engine, principal, TOPICS_SHOWN_MAX):
            yield None if family is None else rendered((family,))

    def _go_on(self, making: _Making) -> None:
        """Make the next parts for as long as this turn allows, and the rest in later ones."""
        turns = self._turns
        began_ns = turns.clock_ns()
        try:
            for part in making.steps:
                if part is not None:
                    making.parts.append(part)
                if turns.clock_ns() >= turns.deadline_ns():
                    making.took_ns += turns.clock_ns() - began_ns
                    turns.wait(lambda: self._go_on(making))
                    return
        except Exception:
            log.exception("metrics could not be made")
            making.failed = True
        making.took_ns += turns.clock_ns() - began_ns
        self._made(making)

    def _made(self, making: _Making) -> None:
        """Answer everybody that waits; where many topics made it long, it is given again for a while."""
        key, parts = making.key, making.parts
        if self._making.get(key) is making:
            del self._making[key]
            if not making.failed and making.took_ns > SLOW_NS and len(self._engine.topics) > TOPICS_SHOWN_MAX:
                self._kept[key] = self._turns.clock_ns() + making.took_ns * REST_FACTOR, parts
        for exchange in making.exchanges:
            if making.failed:
                exchange.fail(Internal())
            else:
                self._answer(exchange, key[0], parts)

    def _answer(self, exchange: Exchange, as_json: bool, parts: list[Any]) -> None:
        principal: Principal = exchange.head.route.principal
        now = [*self._of_server(), *self._pipelines.collect(principal)]
        if not as_json:
            exchange.respond(200, text(now) + b"".join(parts), CONTENT_TYPE)
            return
        found = values(now)
        for part in parts:
            found |= part
        answer(exchange, 200, found)

    def _of_server(self) -> Iterator[Family]:
        """Everything else, always as it is now: it costs the same however many topics there are."""
        yield from self._totals()
        yield from self._load()
        yield from traffic_metrics(self._traffic)
        yield from storage_metrics(self._engine, self._cache, self._upkeep)
        yield from self._process.collect()

    def _totals(self) -> Iterator[Family]:
        engine, phase, slots = self._engine, self._phase, self._slots
        for name, help, value in (
            ("topics_topics", "Topics.", len(engine.topics)),
            ("topics_routers", "Routers.", len(engine.routers)),
            ("topics_records_live", "Live records over all topics.", engine.totals.count),
            ("topics_bytes_live", "Live record bytes over all topics.", engine.totals.bytes),
            ("topics_unsealed_bytes", "Bytes in memory that are not sealed yet.", engine.totals.unsealed.bytes),
            ("topics_resident_bytes", "Bytes of ephemeral topics in memory.", engine.totals.resident.bytes),
            ("topics_rendered_bytes", "Bytes of rendered Blocks that are kept in memory.", engine.wires.bytes),
            ("topics_sse_connections", "Open streams, SSE and WebSocket.", slots.sse_connections.used),
            ("topics_watch_sessions", "Watch sessions.", slots.watch_sessions.used),
            ("topics_ready", "1 while the server serves.", int(phase.ready)),
            ("topics_recovery_progress", "How much of the log is replayed, 0 to 1.", phase.progress()),
            ("topics_uptime_ms", "Milliseconds since the start.", phase.uptime_ms),
            ("topics_time_seconds", "The server's clock, in seconds since 1970.", engine.clock.now_ms() / 1000),
        ):
            yield Gauge(name, help, value)

    def _load(self) -> Iterator[Family]:
        pressure, parking, account = self._pressure, self._parking, self._account
        for name, help, value in (
            ("topics_pressure_level", "The level of elastic throttling, 0 (calm) to 4.", pressure.level),
            ("topics_loop_lag_seconds", "How late the loop's timers run, smoothed.", pressure.lag_ms / 1000),
            ("topics_pressure_fill_ratio", "How full the fullest queue is, 0 to 1.", pressure.fill),
            ("topics_parked_requests", "Writes and claims that wait until there is room.", len(parking.waiting)),
        ):
            yield Gauge(name, help, value)
        help = "Writes and claims that had to wait until there was room."
        yield Counter("topics_requests_parked", help, parking.parked_total)
        help = "Writes, claims and work streams that were refused under pressure."
        yield Counter("topics_requests_refused", help, parking.refused_total)
        kinds = (
            ("bodies", account.bodies_bytes),
            ("answers", account.answers_bytes),
            ("streams", account.streams_bytes),
        )
        yield labelled("topics_buffered_bytes", "Bytes that are held for clients, by kind.", "kind", kinds)
        help = "Requests refused and clients cut off because too many bytes were held."
        yield Counter("topics_buffered_refused", help, account.refused_total)


class _Making:
    """What there is to say of topics on its way, and the requests that wait for it."""

    __slots__ = ("exchanges", "failed", "key", "parts", "steps", "took_ns")

    def __init__(self, key: _Key, steps: Iterator[Any], exchange: Exchange) -> None:
        self.key = key
        self.steps = steps
        self.parts: list[Any] = []
        self.failed = False
        self.took_ns = 0
        self.exchanges = [exchange]
