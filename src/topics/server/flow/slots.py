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

    key_id: str | None
    """The name of its key, or None where there are no keys."""


class Slot:
    """One place, or `amount` of them, under each of some caps, given back once and only once."""

    __slots__ = ("_amount", "_caps")

    def __init__(self, *caps: Cap, amount: int = 1) -> None:
        self._caps: tuple[Cap, ...] = ()
        self._amount = amount
        for cap in caps:
            if cap.used + amount > cap.max > 0:
                raise Throttled(
                    f"{cap.name} is reached: {cap.used} of {cap.max} are in use; retry when others have finished",
                    retry_after_ms=RETRY_AFTER_MS,
                    limit=cap.name,
                    max=cap.max,
                )
        for cap in caps:
            cap.used += amount
        self._caps = caps

    def free(self) -> None:
        """Give the place back; every further call does nothing."""
        caps, self._caps = self._caps, ()
        for cap in caps:
            cap.used -= self._amount

    __del__ = free


class Cap:
    """A named maximum and how much of it is in use."""

    __slots__ = ("max", "name", "used")

    def __init__(self, name: str, max: int) -> None:
        self.name = name
        self.max = max
        self.used = 0

    def take(self, amount: int = 1) -> Slot:
        """A slot, or `Throttled` if there is none."""
        return Slot(self, amount=amount)


class CapPerKey:
    """The same cap for every key, each counted alone."""

    __slots__ = ("_caps", "max", "name")

    def __init__(self, name: str, max: int) -> None:
        self.name = name
        self.max = max
        # One for each key that has asked for something; a key that is removed is forgotten.
        self._caps: dict[Holder, Cap] = {}

    def of(self, holder: Holder) -> Cap:
        """The cap of a holder, which is off where that is no key."""
        cap = self._caps.get(holder)
        if cap is None:
            cap = self._caps[holder] = Cap(self.name, self.max if holder.key_id is not None else 0)
        return cap

    def forget(self, holder: Holder) -> None:
        """The key is gone. What it holds still counts in its own cap until it is given back."""
        self._caps.pop(holder, None)


class Slots:
    """The concurrency caps of one server."""

    __slots__ = (
        "inflight_per_key",
        "sse_connections",
        "sse_connections_per_key",
        "subscription_bytes",
        "watch_sessions",
    )

    def __init__(self, settings: Settings) -> None:
        self.inflight_per_key = CapPerKey("max_inflight_per_key", settings.max_inflight_per_key)
        self.watch_sessions = Cap("max_watch_sessions", settings.max_watch_sessions)
        self.subscription_bytes = Cap("max_subscription_bytes", settings.max_subscription_bytes)
        self.sse_connections = Cap("max_sse_connections", settings.max_sse_connections)
        self.sse_connections_per_key = CapPerKey("max_sse_connections_per_key", settings.max_sse_connections_per_key)

    def forget(self, holder: Holder) -> None:
        """The key is gone."""
        self.inflight_per_key.forget(holder)
        self.sse_connections_per_key.forget(holder)

    def take_stream(self, holder: Holder) -> Slot:
        """The slot of one more open stream of `holder`, or `Throttled`; free it when the stream ends."""
        return Slot(self.sse_connections, self.sse_connections_per_key.of(holder))
