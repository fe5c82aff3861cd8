"""Backpressure: a destination that has no room stops the cursor.

A full destination that refuses (`discard: "reject"`), or a quota that is used up, takes copies only as far as they fit.
Nothing is dropped: the rest is tried again with growing pauses, and whenever a client reads the destination.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topics.engine.router.copying import Run, room_for
from topics.engine.router.router import Router
from topics.engine.topic import Topic

BACKOFF_MS_MIN: Final = 10
BACKOFF_MS_MAX: Final = 1000


class Backpressure:
    """What a destination takes, and when to try again. `retry_ms` is None while nothing is in the way."""

    __slots__ = ("_dest", "_quota_bytes", "backoff_ms", "retry_ms")

    def __init__(self, dest: Topic, quota_bytes: int) -> None:
        self._dest = dest
        self._quota_bytes = quota_bytes
        self.backoff_ms = 0
        self.retry_ms: int | None = None

    def block(self, now: int) -> None:
        """The destination refused: pause, for longer each time."""
        self.backoff_ms = min(max(BACKOFF_MS_MIN, self.backoff_ms * 2), BACKOFF_MS_MAX)
        self.retry_ms = now + self.backoff_ms

    def unblock(self) -> None:
        """The destination took something."""
        self.retry_ms, self.backoff_ms = None, 0

    def admit(self, runs: list[Run], routers: Sequence[Router], now: int) -> list[Run]:
        """The runs as far as the destination, and the quota over all topics, take their copies."""
        if self._dest.config.discard != "reject" and not self._quota_bytes:
            return runs
        self._dest.expire(now)
        return fitting(runs, routers, self._dest, self._quota_bytes)


def fitting(runs: list[Run], routers: Sequence[Router], dest: Topic, quota_bytes: int = 0) -> list[Run]:
    """The runs as far as there is room for their copies; a quota of 0 is none."""
    config, log = dest.config, dest.log
    records = bytes_ = 1 << 62
    if config.discard == "reject" and config.cap_records:
        records = config.cap_records - log.count - dest.pending_records
    if config.discard == "reject" and config.cap_bytes:
        bytes_ = config.cap_bytes - log.bytes - dest.pending_bytes
    if quota_bytes:
        bytes_ = min(bytes_, quota_bytes - log.totals.bytes - log.totals.pending_bytes)
    taken: list[Run] = []
    for block, a, b in runs:
        i = a
        while i < b:
            copies, size = room_for(block, i, routers)
            if copies and (records < copies or bytes_ < size):
                break
            records -= copies
            bytes_ -= size
            i += 1
        if i > a:
            taken.append((block, a, i))
        if i < b:
            break
    return taken
