"""Failures: why jobs of one queue were given back, and which of them have no delivery left (QUEUE-14, QUEUE-32).

The reason of a nack is a short text for people: it goes into the dead letter of its job, and with the job when that is
done. Clients choose it, so what is kept has bounds: a longer text is cut, and a queue that already keeps as much as it
may keeps no more until some of its jobs are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from topics.engine.queue.lease import READY, Lease

ANY_NUMBER: Final = 1 << 62
"""The last delivery of a job that may be delivered as often as it takes."""
REASON_BYTES_MAX: Final = 1024
REASONS_BYTES_MAX: Final = 16 << 20
ENTRY_BYTES: Final = 160
"""About what a reason takes in memory besides its text."""


def shortened(text: str) -> str:
    """The text, cut to REASON_BYTES_MAX of UTF-8 where it is longer."""
    if len(text) * 4 <= REASON_BYTES_MAX:
        return text
    return text.encode()[:REASON_BYTES_MAX].decode(errors="ignore")


class Failures:
    """The reasons of one queue by seq, and its spent jobs: those that are ready after their last delivery."""

    __slots__ = ("_bytes", "last_delivery", "reasons", "spent")

    def __init__(self) -> None:
        self.last_delivery = ANY_NUMBER
        self.spent: dict[int, Lease] = {}
        self.reasons: dict[int, str] = {}
        self._bytes = 0

    def expect(self, last_delivery: int, leases: Iterable[Lease] = ()) -> None:
        """From now on this delivery is the last one; of `leases` those that are ready after it are spent."""
        self.last_delivery = last_delivery
        self.spent |= {each.seq: each for each in leases if each.state in READY and each.deliveries >= last_delivery}

    def take_spent(self, count: int) -> list[Lease]:
        """The first jobs of those that are spent, at most `count`."""
        first = list(islice(self.spent, count))
        return [self.spent.pop(seq) for seq in first]

    def keep(self, seqs: Iterable[int], reason: str) -> None:
        """These jobs were given back for this reason, which replaces an earlier one; an empty one replaces nothing."""
        size = ENTRY_BYTES + len(reason.encode())
        for seq in seqs if reason else ():
            self.forget(seq)
            if self._bytes + size <= REASONS_BYTES_MAX:
                self.reasons[seq] = reason
                self._bytes += size

    def forget(self, seq: int) -> None:
        """A job is gone."""
        reason = self.reasons.pop(seq, None)
        if reason is not None:
            self._bytes -= ENTRY_BYTES + len(reason.encode())

    def restore(self, reasons: Mapping[int, str]) -> None:
        """Take over what a checkpoint has."""
        for seq, reason in reasons.items():
            self.keep([seq], reason)
