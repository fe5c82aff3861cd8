"""Waiter: what waits for a frame to be as safe as was asked."""

from __future__ import annotations

from typing import Protocol

from topics.errors import TopicsError


class Waiter(Protocol):
    """Exactly one of the two methods is called, once, on the engine's thread."""

    def commit(self, write_ns: int, sync_ns: int) -> None:
        """The frame is as safe as was asked.

        `write_ns` is what the kernel took, `sync_ns` the wait for the sync (0 for a frame that is not gated).
        """

    def fail(self, error: TopicsError) -> None:
        """The frame will never be acknowledged. It may or may not be there after a restart."""
