"""The image of a queue in a checkpoint: what the log of its jobs does not say.

It is taken in one step, and a queue may have very many leases. So they are encoded as they are, and nothing is made per
lease: neither is an object that the garbage collector would then look at, nor a time in another scale.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from topics.clock import Clock, wall_of
from topics.engine.queue import event as lease_event
from topics.engine.queue.event import LeaseImage, QueueImage
from topics.engine.queue.lease import DELAYED, FREE, GONE, LAPSED, LEASED, Lease

STATES: Final = {state: state for state in (LEASED, LAPSED, FREE, DELAYED)} | {GONE: LEASED}
"""States by their text: those read from a checkpoint are other objects, and states are compared by identity.

An ack that had no frame yet got it after the checkpoint; without it the job is held as before.
"""


def capture(
    clock: Clock,
    fresh: int,
    dead_lettered: int,
    leases: Iterable[Lease],
    free: Iterable[int],
    dates: dict[int, int],
    reasons: dict[int, str],
) -> bytes:
    """A queue as a checkpoint keeps it."""
    now_ms, ahead_ms = clock.now_ms(), wall_of(clock, 0)
    images = cast("list[LeaseImage]", list(leases))
    return lease_event.encode_image(
        QueueImage(fresh, dead_lettered, images, list(free), now_ms, dates, reasons, ahead_ms)
    )
