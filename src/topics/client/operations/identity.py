"""Identity: what makes a write known again when it is sent twice.

A server remembers an idempotency key for two minutes, and all keys within a bound: some thousand writes a second, of
all clients together. A client that writes much would use that up, so from `KEYED_WRITES` on, or when a server reports
that the bound is reached, it numbers its writes to a topic instead (`producer_id`, `producer_seq`). A number costs the
server nothing that stays. Numbers of one producer must arrive in order, so each write that is under way at the same
time has a producer of its own, a `Lane`.

A server that takes no more producers gets keys again. A write keeps the identity that it began with.
"""

from __future__ import annotations

import uuid
from typing import Final

from topics.client.transport import forks
from topics.errors import TopicsError

KEYED_WRITES: Final = 10_000
"""So many that programs that live for a short time never become producers, which are remembered for long."""
LANES_MAX: Final = 256
TOPICS_MAX: Final = 10_000


class Lane:
    """A producer for one write after the other."""

    __slots__ = ("number", "producer_id")

    def __init__(self) -> None:
        self.producer_id = uuid.uuid4().hex
        self.number = 0


class Lanes:
    """The producers of one client in one topic. Any number of threads may use them."""

    __slots__ = ("_forks", "_free", "_numbers", "_refused", "_writes")

    def __init__(self) -> None:
        self._free: list[Lane] = []
        self._writes = 0
        self._numbers = False
        self._refused = False
        self._forks = forks.count

    def take(self) -> Lane | None:
        """A lane with the next number, for one write; None where it should have a key."""
        if not self._numbers:
            self._writes += 1
            self._numbers = self._writes > KEYED_WRITES and not self._refused
            return None
        if self._forks != forks.count:
            # The numbers of the process that this one was forked from are used there.
            self._forks = forks.count
            self._free = []
        try:
            lane = self._free.pop()
        except IndexError:
            lane = Lane()
        # A number is never used again, whatever becomes of its write.
        lane.number += 1
        return lane

    def give(self, lane: Lane) -> None:
        """A write is over, well or not."""
        if len(self._free) < LANES_MAX:
            self._free.append(lane)

    def noticed(self, failure: TopicsError) -> None:
        """The server has refused an attempt; it may have had enough of keys, or of producers."""
        limit = failure.detail.get("limit")
        if limit == "max_dedupe_bytes" and not self._refused:
            self._numbers = True
        elif limit == "max_producers_per_topic":
            self._numbers = False
            self._refused = True
            self._free = []


class Identities:
    """The lanes of one client, by topic."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lanes] = {}

    def of(self, topic: str) -> Lanes:
        """The lanes of a topic."""
        found = self._lanes.get(topic)
        if found is None:
            if len(self._lanes) >= TOPICS_MAX:
                self._lanes.clear()
            found = self._lanes.setdefault(topic, Lanes())
        return found
