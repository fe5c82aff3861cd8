"""Catalog: every topic of one engine by its name, from create to delete, and whether there is room for more.

A topic is made here, for a command and for a restart alike, and is findable from then until it leaves. What needs to
find or make topics takes a Catalog and needs no engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from topics.clock import Clock
from topics.engine import config as configs
from topics.engine.config import TopicConfig
from topics.engine.journal import Journal
from topics.engine.limits import Limits
from topics.engine.log.archive import Shelf
from topics.engine.log.directory import Totals
from topics.engine.log.log import Log
from topics.engine.promise import Receipt
from topics.engine.slices import Work
from topics.engine.sorted_names import SortedNames
from topics.engine.topic import Jobs, Topic
from topics.engine.write import room
from topics.errors import RETRY_AFTER_MS, Throttled, TopicNotFound
from topics.names import check_topic_name
from topics.storage.wal import frame as frames

NewJobs = Callable[[Log, Clock], Jobs]
# How many Blocks a piece of work gives back.
GIVEN_BACK: Final = 2000
# After a look at all topics, the next one waits for so many times as long as it took.
REST_FACTOR: Final = 20


class Catalog:
    """The topics of one engine, and the limits on all of them together."""

    __slots__ = (
        "_journal",
        "_new_jobs",
        "_rest_until_ns",
        "limits",
        "names",
        "next_topic_id",
        "shelf",
        "topics",
        "totals",
    )

    def __init__(self, journal: Journal, limits: Limits, shelf: Shelf | None, new_jobs: NewJobs) -> None:
        """`new_jobs` makes the leases of a queue topic."""
        self._journal = journal
        self._new_jobs = new_jobs
        self.limits = limits
        self.shelf = shelf
        self.topics: dict[str, Topic] = {}
        self.names = SortedNames()
        self.totals = Totals()
        self._rest_until_ns = 0
        self.next_topic_id = 1

    def topic(self, name: str) -> Topic:
        """The topic of this name; raises TopicNotFound."""
        topic = self.topics.get(name)
        if topic is None:
            check_topic_name(name)
            raise TopicNotFound(f'topic "{name}" does not exist', topic=name)
        return topic

    def create(self, name: str, config: TopicConfig, receipt: Receipt | None = None) -> Topic:
        """Make a topic; the receipt is done once it is durable. Raises Throttled where there are too many."""
        self.check_room(1)
        topic = self.new(self.next_topic_id, name, config, self._journal.clock.now_ms())
        create = frames.Create(name, msgspec.json.encode(config), topic.created_ts)
        topic.last_config = topic.last_change = receipt or Receipt()
        topic.config_lsn = self._journal.submit_twice(topic, frames.CREATE, create, topic.last_config)
        self.next_topic_id += 1
        self.enter(topic)
        return topic

    def create_default(self, name: str) -> Topic:
        """Make a topic that something else refers to."""
        check_topic_name(name)
        return self.create(name, configs.DEFAULTS)

    def new(self, id: int, name: str, config: TopicConfig, created_ts: int) -> Topic:
        """A topic that is not findable yet."""
        log = Log(self.totals)
        queue = self._new_jobs(log, self._journal.clock) if config.type == "queue" else None
        return Topic(name, id, config, created_ts, log, queue, self.shelf)

    def enter(self, topic: Topic) -> None:
        """Make a topic findable by its name."""
        self.topics[topic.name] = topic
        self.names.add(topic.name)

    def leave(self, topic: Topic) -> None:
        """Forget a topic and all it holds."""
        for _ in self.leaving(topic):
            pass

    def leaving(self, topic: Topic) -> Work:
        """As `leave`: with the first piece the topic is gone, with the others what it held is given back."""
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]
            self.names.remove(topic.name)
        topic.deleted = True
        extents = topic.log.clear()
        yield None
        while extents:
            del extents[-GIVEN_BACK:]
            yield None
        if topic.dedupe is not None:
            topic.dedupe.clear()
        yield from topic.archive.clear()
        if topic.queue is not None:
            yield from topic.queue.clear()

    def _expire_all(self, now: int) -> None:
        """Apply every TTL, so that the totals are exact; where that takes long, not too often."""
        elapsed_ns = self._journal.clock.elapsed_ns
        began_ns = elapsed_ns()
        if began_ns < self._rest_until_ns:
            return
        for topic in [topic for topic in self.topics.values() if topic.config.ttl_ms]:
            topic.expire(now)
        ended_ns = elapsed_ns()
        self._rest_until_ns = ended_ns + (ended_ns - began_ns) * REST_FACTOR

    def check_room(self, added: int) -> None:
        """Raise Throttled where so many more topics are too many."""
        max_topics = self.limits.max_topics
        if added and 0 < max_topics < len(self.topics) + added:
            raise Throttled(
                f"there are {max_topics} topics already; delete one or raise TOPICS_MAX_TOPICS",
                retry_after_ms=RETRY_AFTER_MS,
                limit="max_topics",
                max=max_topics,
            )

    def check_quota(self, topic: Topic | None, n: int, size_bytes: int, now: int) -> None:
        """Raise Throttled where a write exceeds the quota over all topics; what expires or makes way for it is room."""
        max_total_bytes = self.limits.max_total_bytes
        totals = self.totals
        added_bytes = size_bytes + totals.pending_bytes
        if not max_total_bytes or totals.bytes + added_bytes <= max_total_bytes:
            return
        freed_bytes = 0 if topic is None else room.freed_bytes(topic, n, size_bytes)
        if totals.bytes + added_bytes - freed_bytes <= max_total_bytes:
            return
        self._expire_all(now)
        if totals.bytes + added_bytes > max_total_bytes:
            raise Throttled(
                f"{totals.bytes} bytes are retained and {added_bytes} more would exceed {max_total_bytes}",
                retry_after_ms=RETRY_AFTER_MS,
                limit="max_total_bytes",
                max=max_total_bytes,
            )
