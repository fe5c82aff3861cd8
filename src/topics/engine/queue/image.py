"""The image of a queue in a checkpoint: what the log of its jobs does not say.

A queue may have very many leases, so they are encoded some at a time, while the queue goes on. Each piece has its
leases as they are by then; whatever happens to them meanwhile is in the leases log after the lsn of the image, and to
replay it changes nothing that a piece has already. A job that is gone by then is in its piece as one that waits: it is
dropped with the job, unless a loss of power took the frame that removed it. Leases that come after the first step are
in the log and in no piece.

Leases are encoded as they are: nothing is made of a lease whose job is there, neither an object that the garbage
collector would then look at, nor a time in another scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

from topics.clock import Clock, wall_of
from topics.engine.queue import event as lease_event
from topics.engine.queue.event import LeaseImage, LeasesImage, QueueImage
from topics.engine.queue.lease import DELAYED, FREE, GONE, LAPSED, LEASED, Lease

STATES: Final = {state: state for state in (LEASED, LAPSED, FREE, DELAYED)} | {GONE: LEASED}
"""States by their text: those read from a checkpoint are other objects, and states are compared by identity.

An ack that had no frame yet got it after the checkpoint; without it the job is held as before.
"""


PIECE_LEASES: Final = 2000


def capture(clock: Clock, fresh: int, dead_lettered: int, free: Iterable[int], reasons: dict[int, str]) -> bytes:
    """A queue as a checkpoint keeps it, without its leases."""
    return lease_event.encode_image(
        QueueImage(fresh, dead_lettered, [], list(free), clock.now_ms(), {}, reasons, wall_of(clock, 0))
    )


def pieces(clock: Clock, leases: dict[int, Lease], dates: dict[int, int]) -> Iterator[bytes]:
    """The leases of now in pieces, for steps of their own."""
    return _pieces(clock, leases, list(leases.values()), dates)


def _pieces(clock: Clock, now: dict[int, Lease], leases: Sequence[Lease], dates: dict[int, int]) -> Iterator[bytes]:
    for at in range(0, len(leases), PIECE_LEASES):
        piece = [
            _waiting(lease) if lease.state is GONE and lease.seq not in now else lease
            for lease in leases[at : at + PIECE_LEASES]
        ]
        dated = {lease.seq: dates[lease.seq] for lease in piece if lease.seq in dates} if dates else {}
        images = cast("list[LeaseImage]", piece)
        yield lease_event.encode_image(LeasesImage(images, clock.now_ms(), wall_of(clock, 0), dated))


def _waiting(lease: Lease) -> Lease:
    """The lease of a job that is gone, as far as it is known: one that was never delivered was delayed."""
    state = FREE if lease.deliveries else DELAYED
    return Lease(lease.seq, state, "", lease.id, lease.due_ms, lease.deliveries)
