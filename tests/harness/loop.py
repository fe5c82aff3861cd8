"""An event loop that turns when told to, by a clock that moves when told to, and a stream that writes things down."""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Callable
from typing import Any

from topics.engine import Engine
from topics.server.delivery.delivery import Delivery
from topics.server.delivery.part import Part
from topics.server.delivery.subscriber import Feed, Subscriber
from topics.server.delivery.view import View, view_of
from topics.testing import ManualClock


class Handle:
    """A callback that may be cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class ManualLoop:
    """The part of an event loop that the server's own logic uses."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.turns = 0
        self._soon: list[Handle] = []
        self._later: list[tuple[float, int, Handle]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self.clock.elapsed_ns() / 1e9

    def call_soon(self, call: Callable[..., None], *args: Any) -> Handle:
        handle = Handle(lambda: call(*args))
        self._soon.append(handle)
        return handle

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> Handle:
        return self.call_at(self.time() + delay_s, call, *args)

    def call_at(self, when: float, call: Callable[..., None], *args: Any) -> Handle:
        handle = Handle(lambda: call(*args))
        heapq.heappush(self._later, (when, next(self._order), handle))
        return handle

    def turn(self) -> bool:
        """One turn: everything that is due, and nothing that it brings about; whether there was anything."""
        while self._later and self._later[0][0] <= self.time() + 1e-9:
            self._soon.append(heapq.heappop(self._later)[2])
        due, self._soon = self._soon, []
        for handle in due:
            if handle.call is not None:
                handle.call()
        self.turns += bool(due)
        return bool(due)

    def run_until_idle(self) -> None:
        """Turn until nothing is due at this moment."""
        while self.turn():
            pass

    def advance(self, ms: int, step_ms: int = 10) -> None:
        """Let time pass, and do what falls due on the way."""
        while ms > 0:
            self.clock.advance(min(ms, step_ms))
            ms -= step_ms
            self.run_until_idle()


class Listener(Subscriber):
    """A stream that remembers what it was told, and pauses when told to."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery)
        self.link = self
        self.write_paused = False
        self.unsent_bytes = 0
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.warnings: list[list[str]] = []
        self.beats = 0
        self.given_up = False
        self.followed: list[Feed] = []

    def follow(self, engine: Engine, topic: str, cursor: int = 0, view: View | None = None) -> Feed:
        feed = Feed(self, len(self.followed), cursor, view or plain_view())
        self.followed.append(feed)
        self.delivery.follow(feed, engine.topic(topic))
        return feed

    def feeds(self) -> list[Feed]:
        return self.followed

    def send(self, feed: Feed, part: Part) -> None:
        assert not self.closed
        feed.cursor = part.cursor
        self.last_ms = self.delivery.tick_ms
        self.told.append((part.kind.decode(), json.loads(part.json)))

    def ended(self, feed: Feed) -> None:
        self.followed.remove(feed)

    def unreadable(self, feed: Feed, error: Exception) -> None:
        raise error

    def beat(self, tick_ms: int) -> int:
        self.beats += 1
        return tick_ms + 1_000

    def warn(self, retry_after_ms: int, topics: list[str]) -> None:
        self.warnings.append(topics)

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
            for kind, body in self.told
            if kind == "record" and topic in (None, body["topic"])
            for record in body["records"]
        ]

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.told]


def plain_view(**options: Any) -> View:
    """A view with the defaults of POST /v0/watch."""
    asked: dict[str, Any] = {
        "limit": 0, "limit_max": 1000, "max_batch_bytes": 256 << 10, "node": None, "include_data": True,
        "include_tags": False, "include_meta": True, "strong": False,
    }  # fmt: skip
    return view_of(**(asked | options))
