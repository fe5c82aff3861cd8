"""Line: the claimers that wait for jobs of one queue, in the order of their arrival (QUEUE-21).

Claims with `wait_ms`, claims of a coalescing window and /work streams wait in the same line, so that a pass balances
them together. A line exists only while a claimer waits in it.
"""

from __future__ import annotations

from collections.abc import Collection

from topics.engine.queue.claim import Claim, Claimer
from topics.engine.queue.worker import Worker


class Line:
    """The claimers of one queue that wait, and when the window that gathers them closes."""

    __slots__ = ("claimers", "closes_ms")

    def __init__(self) -> None:
        self.claimers: list[Claimer] = []
        self.closes_ms: int | None = None

    def wanting(self) -> list[Claimer]:
        """The claimers that want jobs now, longest waiting first."""
        return [claimer for claimer in self.claimers if claimer.demand]

    def reorder(self, served: Collection[Claimer]) -> None:
        """After a pass: answered claims leave, streams that were served go to the end."""
        ids = set(map(id, served))
        stay: list[Claimer] = []
        back: list[Claimer] = []
        for claimer in self.claimers:
            if isinstance(claimer, Claim):
                if claimer.demand:
                    stay.append(claimer)
            elif not (isinstance(claimer, Worker) and claimer.closed):
                (back if id(claimer) in ids else stay).append(claimer)
        self.claimers = stay + back

    def leave(self, claimer: Claimer) -> None:
        """A claimer waits no longer."""
        self.claimers = [each for each in self.claimers if each is not claimer]

    def next_due_ms(self) -> int | None:
        """When a claim stops waiting or the window closes, whichever is first; None where neither will."""
        times = [claimer.until_ms for claimer in self.claimers if isinstance(claimer, Claim) and claimer.demand]
        if self.closes_ms is not None:
            return self.closes_ms
        return min(times, default=None)
