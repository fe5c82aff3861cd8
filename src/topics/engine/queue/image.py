"""The image of a queue in a checkpoint: what the log of its jobs does not say, in wall-clock time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from topics.clock import Clock, wall_of
from topics.engine.queue import event as lease_event
from topics.engine.queue.event import QueueImage
from topics.engine.queue.lease import DELAYED, FREE, GONE, LAPSED, LEASED, Lease

STATES: Final = {state: state for state in (LEASED, LAPSED, FREE, DELAYED)}
"""States by their text: those read from a checkpoint are other objects, and states are compared by identity."""


def capture(
    clock: Clock,
    fresh: int,
    dead_lettered: int,
    leases: Iterable[Lease],
    free: Iterable[int],
    dates: dict[int, int],
    reasons: dict[int, str],
) -> bytes:
    """A queue as a checkpoint keeps it. An ack that has no frame yet gets it after the checkpoint."""
    ahead_ms = wall_of(clock, 0)
    images = [
        (s.seq, LEASED if s.state is GONE else s.state, s.node, s.id, s.due_ms + ahead_ms, s.deliveries) for s in leases
    ]
    return lease_event.encode(QueueImage(fresh, dead_lettered, images, list(free), clock.now_ms(), dates, reasons))
