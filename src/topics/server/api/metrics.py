"""Metrics: gauges of what there is, counters of the WAL and the Block cache, sync latency (PROBE-7 to PROBE-9).

Values are read when they are asked for; nothing is counted twice on the hot path. The per-topic gauges are bounded, and
a gauge says when they are cut. They name topics, so a key that is limited to prefixes sees its own there and no others,
as in the lists (AUTH-15); the totals are those of the instance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from operator import attrgetter
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from topics.engine import Engine
from topics.engine.log.log import Log
from topics.server.api.phase import Phase
from topics.server.api.principal import Principal
from topics.server.flow.pressure import Pressure
from topics.server.flow.slots import Slots
from topics.server.http.account import Account
from topics.storage.memory import MemoryShard
from topics.storage.segment.cache import BlockCache
from topics.storage.wal.shard import LATENCY_BOUNDS_US, Shard

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
TOPICS_SHOWN_MAX: Final = 1000
_class_of: Final = attrgetter("config.durability")
CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")

_TOPIC_GAUGES: Final[tuple[tuple[str, str, Callable[[Log], int]], ...]] = (
    ("topics_topic_head_seq", "Highest visible seq per topic.", lambda log: log.head),
    ("topics_topic_earliest_seq", "First live seq per topic.", lambda log: log.start),
    ("topics_topic_records_live", "Live records per topic.", lambda log: log.count),
    ("topics_topic_bytes_live", "Live record bytes per topic.", lambda log: log.bytes),
)
_WAL_COUNTERS: Final = (
    ("frames", "Frames written to the WAL."),
    ("batches", "Writes to the WAL, each of all the frames of a turn."),
    ("fsyncs", "Syncs of the WAL."),
    ("bytes_written", "Bytes written to the WAL."),
    ("rotations", "WAL files that were full."),
    ("submit_full", "Writes refused because a shard's queue was full."),
)

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

    def _of_topics(self, principal: Principal) -> Iterator[Metric]:
        """What takes a look at every topic, as far as `principal` may see it."""
        engine = self._engine
        engine.catalog.expire_all(engine.clock.now_ms())
        by_class = Counter(map(_class_of, engine.topics.values()))
        classes = {name: by_class[name] for name in CLASSES}
        queues = [topic for topic in engine.topics.values() if topic.queue is not None]
        leases = sum(engine.queues.state(topic).in_flight for topic in queues)
        yield _labelled("topics_topics_by_class", "Topics per durability class.", "class", classes.items())
        yield GaugeMetricFamily("topics_queue_topics", "Topics that are queues.", len(queues))
        yield GaugeMetricFamily("topics_queue_leases_in_flight", "Jobs that are leased right now.", leases)
        yield from _per_topic(engine, principal)

    def _of_server(self) -> Iterator[Metric]:
        """Everything else, always as it is now: it costs the same however many topics there are."""
        engine, slots, phase = self._engine, self._slots, self._phase
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
            ("topics_pressure_level", "The level of elastic throttling, 0 (calm) to 4.", self._pressure.level),
            ("topics_ready", "1 while the server serves.", int(phase.ready)),
            ("topics_recovery_progress", "How much of the log is replayed, 0 to 1.", phase.progress()),
            ("topics_uptime_ms", "Milliseconds since the start.", phase.uptime_ms),
        ):
            yield GaugeMetricFamily(name, help, value)
        yield from _buffered(self._account)
        yield CounterMetricFamily(
            "topics_corruption", "Damaged places found in the data directory.", value=engine.totals.corruption_total
        )
        yield from _wal(engine.store.shards)
        if self._cache is not None:
            yield from _block_cache(self._cache)


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


def _labelled(name: str, help: str, label: str, values: Iterable[tuple[str, int]]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=[label])
    for text, value in values:
        family.add_metric([text], value)
    return family


def _buffered(account: Account) -> Iterator[Metric]:
    kinds = (("bodies", account.bodies_bytes), ("answers", account.answers_bytes), ("streams", account.streams_bytes))
    yield _labelled("topics_buffered_bytes", "Bytes that are held for clients, by kind.", "kind", kinds)
    help = "Requests refused and clients cut off because too many bytes were held."
    yield CounterMetricFamily("topics_buffered_refused", help, value=account.refused_total)


def _per_topic(engine: Engine, principal: Principal) -> Iterator[Metric]:
    may_see = (topic for name, topic in engine.topics.items() if principal.may_touch(name))
    visible = list(islice(may_see, TOPICS_SHOWN_MAX + 1))
    shown = visible[:TOPICS_SHOWN_MAX]
    for name, help, value in _TOPIC_GAUGES:
        yield _labelled(name, help, "topic", ((topic.name, value(topic.log)) for topic in shown))
    states = [(topic.name, engine.queues.state(topic)) for topic in shown if topic.queue is not None]
    ready = ((name, state.ready) for name, state in states)
    in_flight = ((name, state.in_flight) for name, state in states)
    yield _labelled("topics_topic_queue_ready", "Claimable jobs per queue.", "topic", ready)
    yield _labelled("topics_topic_queue_in_flight", "Leased jobs per queue.", "topic", in_flight)
    truncated = len(visible) > TOPICS_SHOWN_MAX
    yield GaugeMetricFamily("topics_topic_metrics_truncated", "1 if not every topic is shown.", int(truncated))


def _wal(shards: Sequence[Shard | MemoryShard]) -> Iterator[Metric]:
    for name, help in _WAL_COUNTERS:
        total = sum(getattr(shard, f"{name}_total") for shard in shards)
        yield CounterMetricFamily(f"topics_wal_{name}", help, value=total)
    yield GaugeMetricFamily("topics_wal_queue_depth", "Frames that wait.", sum(s.queue_depth for s in shards))
    yield GaugeMetricFamily(
        "topics_wal_queue_depth_peak", "Most frames that waited.", max((s.queue_depth_peak for s in shards), default=0)
    )
    read_only = any(shard.read_only is not None for shard in shards)
    yield GaugeMetricFamily("topics_wal_read_only", "1 after a failed write or sync, until a restart.", int(read_only))
    counts = [sum(column) for column in zip(*(shard.fsync_us_buckets for shard in shards), strict=True)]
    buckets = list(zip((*map(str, LATENCY_BOUNDS_US), "+Inf"), accumulate(counts), strict=True))
    yield HistogramMetricFamily(
        "topics_wal_fsync_latency_us",
        "Microseconds that a sync took.",
        buckets=buckets,
        sum_value=sum(shard.fsync_us_sum for shard in shards),
    )


def _block_cache(cache: BlockCache) -> Iterator[Metric]:
    yield CounterMetricFamily("topics_block_cache_hits", "Sealed Blocks found in memory.", value=cache.hits_total)
    yield CounterMetricFamily("topics_block_cache_misses", "Sealed Blocks read from disk.", value=cache.misses_total)
    yield GaugeMetricFamily("topics_block_cache_bytes", "Bytes of sealed Blocks that are kept in memory.", cache.bytes)
