"""The metrics of single topics, queues and routers, for a bounded number of them (PROBE-8).

They name topics and routers, so a key that is limited to prefixes sees its own there and no others, as in the lists
(AUTH-15). A gauge says when they are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from topics.engine import Engine
from topics.engine.log.log import Log
from topics.engine.queue.queue import queue_of
from topics.engine.router.forward import forward_of
from topics.engine.topic import Topic
from topics.server.api.exposition import Family, Gauge, labelled
from topics.server.api.principal import Principal
from topics.storage.block import Block

T = TypeVar("T")

CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")
PIECE: Final = 1000
_TOPIC_GAUGES: Final[tuple[tuple[str, str, Callable[[Log], int]], ...]] = (
    ("topics_topic_head_seq", "Highest visible seq per topic.", lambda log: log.head),
    ("topics_topic_earliest_seq", "First live seq per topic.", lambda log: log.start),
    ("topics_topic_records_live", "Live records per topic.", lambda log: log.count),
    ("topics_topic_bytes_live", "Live record bytes per topic.", lambda log: log.bytes),
)


def topic_metrics(engine: Engine, principal: Principal, shown_max: int) -> Iterator[Family | None]:
    """What takes a look at every topic, and the gauges of at most `shown_max` topics and as many routers of a client.

    Yields None after a piece of work that made no metric. Between two pieces everything may change: a topic that was
    deleted meanwhile may still be shown.
    """
    visible: list[Topic] = []
    by_class = dict.fromkeys(CLASSES, 0)
    jobs = dict.fromkeys(("ready", "in_flight", "delayed"), 0)
    queues = 0
    for topics in pieces(list(engine.topics.values())):
        now_ms = engine.clock.now_ms()
        for topic in topics:
            config = topic.config
            if config.ttl_ms:
                topic.expire_if_at_hand(now_ms)
            by_class[config.durability] += 1
            if topic.queue is not None:
                state = engine.queues.state(topic)
                queues += 1
                jobs["ready"] += state.ready
                jobs["in_flight"] += state.in_flight
                jobs["delayed"] += delayed_in(topic)
            if len(visible) <= shown_max and principal.may_touch(topic.name):
                visible.append(topic)
        yield None
    yield labelled("topics_topics_by_class", "Topics per durability class.", "class", by_class.items())
    yield Gauge("topics_queue_topics", "Topics that are queues.", queues)
    help = "Jobs that are leased right now."
    yield Gauge("topics_queue_leases_in_flight", help, jobs["in_flight"])
    yield labelled("topics_queue_jobs", "Jobs over all queues, by state.", "state", jobs.items())
    shown = visible[:shown_max]
    for name, help, value in _TOPIC_GAUGES:
        yield labelled(name, help, "topic", ((topic.name, value(topic.log)) for topic in shown))
    yield from _queues(engine, [topic for topic in shown if topic.queue is not None])
    lags: list[tuple[str, int]] = []
    for routers in pieces(list(engine.routers.graph.by_name.values())):
        for router in routers:
            names = router.name, router.source.name, router.dest.name
            if len(lags) <= shown_max and all(map(principal.may_touch, names)):
                lags.append((router.name, forward_of(router).lag))
        yield None
    help = "Records of its source that a router has not looked at yet."
    yield labelled("topics_router_lag_records", help, "router", lags[:shown_max])
    truncated = len(visible) > shown_max or len(lags) > shown_max
    help = "1 if not every topic and router is shown."
    yield Gauge("topics_topic_metrics_truncated", help, int(truncated))


def pieces(all_of_them: list[T]) -> Iterator[list[T]]:
    """All of them, so many at a time that a piece takes about a millisecond."""
    return (all_of_them[at : at + PIECE] for at in range(0, len(all_of_them), PIECE))


def _queues(engine: Engine, topics: list[Topic]) -> Iterator[Family]:
    states = [(topic, engine.queues.state(topic)) for topic in topics]
    now_ms = engine.clock.now_ms()
    for name, help, values in (
        ("ready", "Claimable jobs per queue.", [state.ready for _, state in states]),
        ("in_flight", "Leased jobs per queue.", [state.in_flight for _, state in states]),
        ("delayed", "Jobs per queue that are hidden for now.", [delayed_in(topic) for topic, _ in states]),
        ("dead", "Jobs per queue that became dead letters.", [state.dead_lettered for _, state in states]),
        (
            "oldest_age_seconds",
            "Seconds since the oldest job of a queue was written; 0 without jobs.",
            [_oldest_age_s(topic.log, now_ms) for topic in topics],
        ),
    ):
        named = ((topic.name, value) for topic, value in zip(topics, values, strict=True))
        yield labelled(f"topics_topic_queue_{name}", help, "topic", named)


def delayed_in(topic: Topic) -> int:
    """How many jobs of a queue are hidden until a time."""
    queue = queue_of(topic)
    return 0 if queue is None else queue.delayed


def _oldest_age_s(log: Log, now_ms: int) -> float:
    """How old the first job is. Nothing is read for it: one that is only on disk counts as old as its whole Block."""
    entry = next(log.retained(), None)
    if entry is None or not log.count:
        return 0.0
    at = max(0, log.start - entry.first_seq)
    ts = entry.ts_at(at) if isinstance(entry, Block) else entry.first_ts
    return max(0, now_ms - ts) / 1000
