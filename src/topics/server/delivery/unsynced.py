"""Unsynced: the channels that wait for a sync of the WAL (`consistency: strong`, decision 38).

A channel with a reader that must see only what is synced waits here while the log is ahead of the disk. The store calls
`synced` after each sync.
"""

from __future__ import annotations

from typing import Protocol


class Waiting(Protocol):
    """A channel that waits."""

    def look_at_sync(self) -> bool:
        """Show what has been synced since; whether something still waits."""


class Unsynced:
    """The channels that wait."""

    __slots__ = ("_channels",)

    def __init__(self) -> None:
        self._channels: dict[Waiting, None] = {}

    def add(self, channel: Waiting) -> None:
        """Have a channel look at every sync, until nothing of it waits."""
        self._channels[channel] = None

    def discard(self, channel: Waiting) -> None:
        """The channel waits no longer."""
        self._channels.pop(channel, None)

    def synced(self) -> None:
        """A sync has come further: let the channels show what it covers."""
        for channel in [each for each in self._channels if not each.look_at_sync()]:
            self.discard(channel)
