"""Worker: one /work stream as the engine sees it (the WORK rules).

It is a claimer that is never done: it holds at most `max` jobs at a time, and wants the next one as soon as one of them
is acked, given back, or lost to a deadline. Only leases that were delivered on this stream count, and only those are
released when it ends; what the same node claimed elsewhere is not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.engine.queue.claim import Claimer, Hand

if TYPE_CHECKING:
    from topics.engine.queue.lease import Lease
    from topics.errors import TopicsError


class Worker(Claimer):
    """A stream that is kept filled with jobs."""

    __slots__ = ("closed", "held", "max", "on_end", "on_jobs", "paused")

    def __init__(
        self,
        node: str,
        max: int,
        lease_ms: int | None,
        on_jobs: Callable[[Hand], None],
        on_end: Callable[[TopicsError], None],
    ) -> None:
        super().__init__(node, lease_ms)
        self.max = max
        self.on_jobs = on_jobs
        self.on_end = on_end
        self.held: dict[int, Lease] = {}
        # Set while the client does not read: more jobs would only age in a buffer.
        self.paused = False
        self.closed = False

    @property
    def demand(self) -> int:
        """How many more jobs it may hold."""
        return 0 if self.closed or self.paused else self.max - len(self.held)

    def took(self, leases: list[Lease]) -> None:
        """Hold jobs from the moment they are leased."""
        for lease in leases:
            self.held[lease.seq] = lease
            lease.worker = self

    def deliver(self, hand: Hand, ready: int) -> None:
        """Push these jobs."""
        if hand.leases and not self.closed:
            self.on_jobs(hand)

    def lost(self, lease: Lease) -> None:
        """A job of this stream is no longer leased to it; the Queue calls this."""
        lease.worker = None
        self.held.pop(lease.seq, None)

    def fail(self, error: TopicsError) -> None:
        """There will be no more jobs."""
        if not self.closed:
            self.closed = True
            self.on_end(error)
