"""Metrics: what a Prometheus server or the console asks for (PROBE-6 to PROBE-9, PROBE-13 to PROBE-17).

Values are read when they are asked for. What counts, counts in plain numbers of its own, and knows nothing of metrics.
The totals are those of the instance, whatever key asks; what names topics is limited to those that the key may see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from topics.engine import Engine
from topics.engine.upkeep.upkeep import Upkeep
from topics.server.api.phase import Phase
from topics.server.api.principal import Principal
from topics.server.api.process_metrics import ProcessMetrics
from topics.server.api.storage_metrics import storage_metrics
from topics.server.api.topic_metrics import delayed_in, labelled, topic_metrics
from topics.server.api.traffic_metrics import traffic_metrics
from topics.server.flow.parking import Parking
from topics.server.flow.pressure import Pressure
from topics.server.flow.slots import Slots
from topics.server.http.account import Account
from topics.server.http.traffic import Traffic
from topics.storage.segment.cache import BlockCache

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
TOPICS_SHOWN_MAX: Final = 1000
_class_of: Final = attrgetter("config.durability")
CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")

SLOW_NS: Final = 5_000_000
REST_FACTOR: Final = 20


class Metrics:
    """The metrics of one server, with the values of the moment."""

    def __init__(
        self,
        engine: Engine,
        slots: Slots,
        phase: Phase,
        pressure: Pressure,
        parking: Parking,
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
        # What about topics took long to make, by kind and key, and until when it is given again.
        self._kept: dict[tuple[str, str | None], tuple[int, Any]] = {}

    def exposition(self, principal: Principal) -> bytes:
        """The metrics as Prometheus text."""
        topics: bytes = self._seldom("text", principal, _text)
        return _text(self._of_server()) + topics

    def snapshot(self, principal: Principal) -> dict[str, Any]:
        """The metrics as a JSON object: a number per name, an object of numbers where there are labels."""
        topics: dict[str, Any] = self._seldom("json", principal, _values)
        return _values(self._of_server()) | topics

    def _seldom(self, kind: str, principal: Principal, make: Callable[[Iterable[Metric]], Any]) -> Any:
        """What there is to say of topics; where many make it long, so seldom that it takes a small part of the time."""
        elapsed_ns = self._engine.clock.elapsed_ns
        key = (kind, principal.key_id)
        began_ns = elapsed_ns()
        until_ns, made = self._kept.get(key, (0, None))
        if began_ns < until_ns:
            return made
        made = make(self._of_topics(principal))
        ended_ns = elapsed_ns()
        if ended_ns - began_ns > SLOW_NS and len(self._engine.topics) > TOPICS_SHOWN_MAX:
            self._kept[key] = ended_ns + (ended_ns - began_ns) * REST_FACTOR, made
        return made

    def forget(self) -> None:
        """Keep nothing: the keys have changed, and with them what each may see."""
        self._kept.clear()

    def _of_topics(self, principal: Principal) -> Iterator[Metric]:
        """What takes a look at every topic, as far as `principal` may see it."""
        engine = self._engine
        engine.catalog.expire_all(engine.clock.now_ms())
        by_class = Counter(map(_class_of, engine.topics.values()))
        classes = ((name, by_class[name]) for name in CLASSES)
        yield labelled("topics_topics_by_class", "Topics per durability class.", "class", classes)
        yield from self._queues()
        yield from topic_metrics(engine, principal, TOPICS_SHOWN_MAX)

    def _of_server(self) -> Iterator[Metric]:
        """Everything else, always as it is now: it costs the same however many topics there are."""
        yield from self._totals()
        yield from self._load()
        yield from traffic_metrics(self._traffic)
        yield from storage_metrics(self._engine, self._cache, self._upkeep)
        yield from self._process.collect()

    def _totals(self) -> Iterator[Metric]:
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
        ):
            yield GaugeMetricFamily(name, help, value)

    def _queues(self) -> Iterator[Metric]:
        queues = [topic for topic in self._engine.topics.values() if topic.queue is not None]
        states = [self._engine.queues.state(topic) for topic in queues]
        in_flight = sum(state.in_flight for state in states)
        yield GaugeMetricFamily("topics_queue_topics", "Topics that are queues.", len(queues))
        yield GaugeMetricFamily("topics_queue_leases_in_flight", "Jobs that are leased right now.", in_flight)
        jobs = (
            ("ready", sum(state.ready for state in states)),
            ("in_flight", in_flight),
            ("delayed", sum(map(delayed_in, queues))),
        )
        yield labelled("topics_queue_jobs", "Jobs over all queues, by state.", "state", jobs)

    def _load(self) -> Iterator[Metric]:
        pressure, parking, account = self._pressure, self._parking, self._account
        for name, help, value in (
            ("topics_pressure_level", "The level of elastic throttling, 0 (calm) to 4.", pressure.level),
            ("topics_loop_lag_seconds", "How late the loop's timers run, smoothed.", pressure.lag_ms / 1000),
            ("topics_pressure_fill_ratio", "How full the fullest queue is, 0 to 1.", pressure.fill),
            ("topics_parked_requests", "Writes and claims that wait until there is room.", len(parking.waiting)),
        ):
            yield GaugeMetricFamily(name, help, value)
        help = "Writes and claims that had to wait until there was room."
        yield CounterMetricFamily("topics_requests_parked", help, value=parking.parked_total)
        help = "Writes, claims and work streams that were refused under pressure."
        yield CounterMetricFamily("topics_requests_refused", help, value=parking.refused_total)
        kinds = (
            ("bodies", account.bodies_bytes),
            ("answers", account.answers_bytes),
            ("streams", account.streams_bytes),
        )
        yield labelled("topics_buffered_bytes", "Bytes that are held for clients, by kind.", "kind", kinds)
        help = "Requests refused and clients cut off because too many bytes were held."
        yield CounterMetricFamily("topics_buffered_refused", help, value=account.refused_total)


def _text(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(list(families)))
    return generate_latest(registry)


def _values(families: Iterable[Metric]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for family in families:
        for sample in family.samples:
            if not sample.labels:
                values[sample.name] = sample.value
            else:
                label = ",".join(sample.labels.values())
                values.setdefault(sample.name, {})[label] = sample.value
    return values


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
