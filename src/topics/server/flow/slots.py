"""Slots: how much may be open at the same time (the LIMIT rules).

A `Cap` counts what is in use and refuses the one too many with 429 `throttled`, which names the limit and its maximum.
It hands out a `Slot`, which gives its place back exactly once: by hand, or when its holder is gone. So a handler that
fails halfway or a connection that is dropped never keeps capacity for good.

A cap with `max` 0 refuses nothing and still counts, because the metrics show the count. Per-key caps apply only where
there are keys: without any, the one principal there is gets a cap that is off.
"""

from __future__ import annotations

from typing import Protocol

from topics.errors import RETRY_AFTER_MS, Throttled
from topics.settings import Settings


class Holder(Protocol):
    """What takes slots: a principal."""

    @property
    def key_id(self) -> str | None:
        """The name of its key, or None where there are no keys."""


class Slot:
    """One place under a cap, given back once and only once."""

    __slots__ = ("_cap",)

    def __init__(self, cap: Cap) -> None:
        self._cap: Cap | None = cap

    def free(self) -> None:
        """Give the place back; every further call does nothing."""
        cap = self._cap
        if cap is not None:
            self._cap = None
            cap.used -= 1

    __del__ = free


class Cap:
    """A named maximum and how much of it is in use."""

    __slots__ = ("max", "name", "used")

    def __init__(self, name: str, max: int) -> None:
        self.name = name
        self.max = max
        self.used = 0

    def take(self) -> Slot:
        """A slot, or `Throttled` if there is none."""
        if self.used >= self.max > 0:
            raise Throttled(
                f"{self.name} is reached: {self.max} are in use; retry when others have finished",
                retry_after_ms=RETRY_AFTER_MS,
                limit=self.name,
                max=self.max,
            )
        self.used += 1
        return Slot(self)


class CapPerKey:
    """The same cap for every key, each counted alone."""

    __slots__ = ("_caps", "max", "name")

    def __init__(self, name: str, max: int) -> None:
        self.name = name
        self.max = max
        # Keys are fixed when the server starts, so there are never more entries than keys.
        self._caps: dict[Holder, Cap] = {}

    def of(self, holder: Holder) -> Cap:
        """The cap of a holder, which is off where that is no key."""
        cap = self._caps.get(holder)
        if cap is None:
            cap = self._caps[holder] = Cap(self.name, self.max if holder.key_id is not None else 0)
        return cap


class Slots:
    """The concurrency caps of one server."""

    __slots__ = ("inflight_per_key", "sse_connections", "sse_connections_per_key", "watch_sessions")

    def __init__(self, settings: Settings) -> None:
        self.inflight_per_key = CapPerKey("max_inflight_per_key", settings.max_inflight_per_key)
        self.watch_sessions = Cap("max_watch_sessions", settings.max_watch_sessions)
        self.sse_connections = Cap("max_sse_connections", settings.max_sse_connections)
        self.sse_connections_per_key = CapPerKey("max_sse_connections_per_key", settings.max_sse_connections_per_key)

    def take_stream(self, holder: Holder) -> list[Slot]:
        """The slots of one more open stream of `holder`, or `Throttled`; free them when it ends."""
        slot = self.sse_connections.take()
        try:
            return [slot, self.sse_connections_per_key.of(holder).take()]
        except Throttled:
            slot.free()
            raise
