"""History: what has happened to the jobs of one queue that were not done at their first delivery (QUEUE-41).

For a person who asks why a job does not get done. A job that is claimed and acked leaves nothing here, so the usual way
of a job costs nothing: the history of a job begins when its first delivery ends in another way, and goes on from then.

What is known of a job that is done or a dead letter stays until others need the room; of one that is deleted, nothing
does. It is kept in memory, for the jobs that had trouble last and for the last steps of each, so that it has a bound
whatever clients do. A restart knows what the leases log has since the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from topics.engine.queue.lease import Lease

JOBS_MAX: Final = 500
STEPS_MAX: Final = 20
REASON_CHARS_MAX: Final = 200

CLAIMED: Final = "claimed"
RELEASED: Final = "released"
LAPSED: Final = "lapsed"
ACKED: Final = "acked"
DEAD: Final = "dead"
ENDS: Final = frozenset((ACKED, DEAD))


class Step(Struct, frozen=True):
    """One thing that happened to a job, at a wall-clock time; `node` is the worker that it was delivered to."""

    step: str
    ts: int
    node: str
    delivery: int
    reason: str = ""
    until: int | None = None
    """Of a claim, when its lease ends; of a job that was released, when its delay does."""


class History:
    """The steps of some jobs of one queue, by seq; the job that had trouble last comes last."""

    __slots__ = ("jobs",)

    def __init__(self) -> None:
        self.jobs: dict[int, list[Step]] = {}

    def claimed(self, leases: Iterable[Lease], ts: int, until: int) -> None:
        """These jobs were delivered, of which a first delivery is nothing to note."""
        for lease in leases:
            if lease.deliveries > 1:
                self.add(lease.seq, Step(CLAIMED, ts, lease.node, lease.deliveries, until=until))

    def released(self, lease: Lease, node: str, ts: int, reason: str, due_ms: int) -> None:
        """The worker `node` gave a job back, to be claimed from `due_ms` on."""
        until = due_ms if due_ms > ts else None
        self.add(lease.seq, Step(RELEASED, ts, node, lease.deliveries, reason[:REASON_CHARS_MAX], until))

    def lapsed(self, leases: Sequence[Lease], ahead_ms: int) -> None:
        """These leases ran out; the wall clock is `ahead_ms` of the scale of their deadlines."""
        for lease in leases[-JOBS_MAX:]:
            self.add(lease.seq, Step(LAPSED, lease.due_ms + ahead_ms, lease.node, lease.deliveries))

    def left(self, lease: Lease, ts: int, *, done: bool) -> None:
        """A job has left the queue. Where it was not done, what a worker has said about it goes too."""
        if lease.seq in self.jobs:
            if done:
                self.add(lease.seq, Step(ACKED, ts, lease.node, lease.deliveries))
            else:
                del self.jobs[lease.seq]

    def buried(self, leases: Iterable[Lease | None], ts: int) -> dict[int, list[Step]]:
        """These jobs become dead letters; returns their history, for `restore` once they have left the queue."""
        for lease in leases:
            if lease is not None:
                self.add(lease.seq, Step(DEAD, ts, lease.node, lease.deliveries))
        return dict(self.jobs)

    def restore(self, jobs: dict[int, list[Step]]) -> None:
        """Have this again."""
        self.jobs = jobs

    def add(self, seq: int, step: Step) -> None:
        """Note a step; the job that had none for the longest time makes room."""
        steps = self.jobs.pop(seq, None)
        if steps is None:
            steps = []
            if len(self.jobs) >= JOBS_MAX:
                del self.jobs[next(iter(self.jobs))]
        elif len(steps) >= STEPS_MAX:
            del steps[0]
        steps.append(step)
        self.jobs[seq] = steps

    def last(self, count: int) -> list[int]:
        """The jobs that had a step last, the very last one first."""
        return list(islice(reversed(self.jobs), count))
