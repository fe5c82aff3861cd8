"""Unsynced: the channels that wait for a sync of the WAL (`consistency: strong`, WATCH-13).

A channel with a reader that must see only what is synced waits here while the log is ahead of the disk. The store calls
`synced` after each sync.
"""

from __future__ import annotations

from collections.abc import Callable


class Unsynced:
    """The channels that wait, each by its `look_at_sync`."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: dict[Callable[[], bool], None] = {}

    def add(self, look: Callable[[], bool]) -> None:
        """Call `look` after every sync, until it returns that nothing waits any more."""
        self._looks[look] = None

    def discard(self, look: Callable[[], bool]) -> None:
        """The channel waits no longer."""
        self._looks.pop(look, None)

    def synced(self) -> None:
        """A sync has come further: let the channels show what it covers."""
        for look in [each for each in self._looks if not each()]:
            self.discard(look)
