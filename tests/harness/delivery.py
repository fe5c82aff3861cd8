"""ManualDelivery: streams without sockets. A stream is a `Listener`, which writes down what it is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from tests.harness.loop import ManualLoop
from topics.engine import Engine, Write
from topics.server.api.principal import ALL_SCOPES, Principal
from topics.server.delivery.channel import Unsynced
from topics.server.delivery.delivery import Delivery
from topics.server.delivery.notice import Notice
from topics.server.delivery.subscriber import Feed, Subscriber
from topics.server.delivery.view import View, WatchOptions, view_of
from topics.server.flow.slots import Cap
from topics.server.http.account import Account
from topics.server.http.traffic import Pushes
from topics.settings import Settings
from topics.storage.job import Job
from topics.testing import MemoryEngine

GRACE_MS = 5_000
PULSE_MS = 100


class ManualDelivery:
    """An engine in memory, a loop and the delivery between them; jobs wait in `jobs` until `run_jobs`."""

    def __init__(self, slow_consumer_timeout_ms: int = 30_000) -> None:
        self.engine = MemoryEngine()
        self.clock = self.engine.clock
        self.loop = ManualLoop(self.clock)
        self.jobs: list[tuple[Job, Callable[[], None]]] = []
        loop = cast("Any", self.loop)
        settings = Settings(buffer_grace_ms=GRACE_MS, slow_consumer_timeout_ms=slow_consumer_timeout_ms)
        self.delivery = Delivery(self.engine, loop, self._run_then, Unsynced(), Account(), settings, Pushes())

    def _run_then(self, job: Job, then: Callable[[], None]) -> None:
        self.jobs.append((job, then))

    def write(self, topic: str, count: int = 1, **fields: Any) -> None:
        """Append `count` records."""
        self.engine.write(topic, Write.of(range(count), **fields))

    def listener(self, topic: str, cursor: int = 0, **view: Any) -> Listener:
        """A stream that follows a topic."""
        listener = Listener(self.delivery)
        listener.follow(self.engine, topic, cursor, plain_view(**view))
        return listener

    def pulse(self, ms: int) -> None:
        """Let time pass, with the pulses by which the server looks after its streams."""
        for _ in range(ms // PULSE_MS):
            self.clock.advance(PULSE_MS)
            self.delivery.pulse()
            self.loop.run_until_idle()

    def run_jobs(self) -> None:
        """Run the jobs that wait for a thread."""
        jobs, self.jobs = self.jobs, []
        for job, then in jobs:
            job.run()
            job.done(None)
            then()


class Listener(Subscriber):
    """A stream that remembers what it was sent, and pauses on demand."""

    kind = "watch"

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery, self, Principal(None, ALL_SCOPES))
        self._delivery = delivery
        self.write_paused = False
        self.unsent_bytes = 0
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.warnings: list[list[str]] = []
        self.beats = 0
        self.given_up = False
        self.followed: list[Feed] = []

    def follow(self, engine: Engine, topic: str, cursor: int = 0, view: View | None = None) -> Feed:
        feed = Feed(self, len(self.followed), cursor, view or plain_view())
        self.followed.append(feed)
        self._delivery.follow(feed, engine.topic(topic))
        return feed

    def feeds(self) -> list[Feed]:
        return self.followed

    def send(self, feed: Feed, notice: Notice) -> None:
        assert not self.closed
        feed.cursor = notice.cursor
        self.last_ms = self.delivery.tick_ms
        self.received.append((notice.kind.decode(), json.loads(notice.json)))

    def ended(self, feed: Feed) -> None:
        self.followed.remove(feed)

    def unreadable(self, feed: Feed, error: Exception) -> None:
        raise error

    def beat(self, tick_ms: int) -> int:
        self.beats += 1
        return tick_ms + 1_000

    def warn(self, retry_after_ms: int, topics: list[str]) -> None:
        self.warnings.append(topics)

    def revoke(self) -> None:
        self.delivery.leave(self)

    def give_up(self) -> None:
        self.given_up = True
        self.delivery.leave(self)

    def flush(self) -> None:
        pass

    def pause(self) -> None:
        self.write_paused = True
        self.unsent_bytes = 100_000

    def resume(self) -> None:
        self.write_paused = False
        self.unsent_bytes = 0
        self.drained()

    def seqs(self, topic: str | None = None) -> list[int]:
        return [
            record["$seq"]
            for kind, body in self.received
            if kind == "record" and topic in (None, body["topic"])
            for record in body["records"]
        ]

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.received]


def plain_view(**options: Any) -> View:
    """A view with the defaults of POST /v0/watch."""
    match = options.pop("match", None)
    return view_of(WatchOptions(**options), 1000, match, Cap("max_subscription_bytes", 0))
