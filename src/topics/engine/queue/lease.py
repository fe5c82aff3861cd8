"""Lease: what a queue knows about one job beyond its record, and the life it leads (QUEUE-20).

Rule 1. A job that was never delivered or delayed has no Lease. It is `FRESH`: the queue's claim cursor says which jobs
        are.
Rule 2. A Lease is in exactly one state. `LEASED`: a worker holds it and its deadline has not passed. `LAPSED`: the
        deadline has passed and no other worker has claimed it: it is ready, and its holder may still ack, nack or
        extend it (QUEUE-9). `FREE`: given back, ready. `DELAYED`: hidden until `due_ms`. `GONE`: the job is done and
        its record is about to leave the log, or has left.
Rule 3. `TRANSITIONS` lists every step there is. A step that is not listed does not happen: the seq is skipped. Only a
        restart takes over what the leases log says without a look at the state before.
Rule 4. Nothing here watches a clock. `LAPSE` and `FALL_DUE` are steps that a pass over the queue takes when it finds
        that a time has passed; there is no timer per job.
Rule 5. A delivery is counted by `CLAIM` and by nothing else.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct

from topics.engine.slices import Work
from topics.storage.block import Block

Candidate = tuple[int, Block, "Lease | None"]
"""A job that a pass may hand out: its seq, the Block that holds its record, and its Lease if it has one."""

STALE_SLACK: Final = 1024
NEVER_MS: Final = 1 << 62
ENTRY_LEASES: Final = 1000
# How many leases a look for the next one that is due takes in.
LOOKED_MAX: Final = 20_000

FRESH: Final = "fresh"
LEASED: Final = "leased"
LAPSED: Final = "lapsed"
FREE: Final = "free"
DELAYED: Final = "delayed"
GONE: Final = "gone"

CLAIM: Final = "claim"
DELAY: Final = "delay"
ACK: Final = "ack"
ACK_FAILED: Final = "ack_failed"
NACK: Final = "nack"
NACK_LATER: Final = "nack_later"
EXTEND: Final = "extend"
LAPSE: Final = "lapse"
FALL_DUE: Final = "fall_due"
RELEASE: Final = "release"
REMOVE: Final = "remove"

TRANSITIONS: Final[dict[tuple[str, str], str]] = {
    (FRESH, CLAIM): LEASED,
    (FRESH, DELAY): DELAYED,
    (FRESH, REMOVE): GONE,
    (FREE, CLAIM): LEASED,
    (LAPSED, CLAIM): LEASED,
    (LEASED, ACK): GONE,
    (LAPSED, ACK): GONE,
    (GONE, ACK_FAILED): LEASED,
    (LEASED, NACK): FREE,
    (LAPSED, NACK): FREE,
    (LEASED, NACK_LATER): DELAYED,
    (LAPSED, NACK_LATER): DELAYED,
    (LEASED, EXTEND): LEASED,
    (LAPSED, EXTEND): LEASED,
    (LEASED, LAPSE): LAPSED,
    (DELAYED, FALL_DUE): FREE,
    (LEASED, RELEASE): FREE,
    (LEASED, REMOVE): GONE,
    (LAPSED, REMOVE): GONE,
    (FREE, REMOVE): GONE,
    (DELAYED, REMOVE): GONE,
    (GONE, REMOVE): GONE,
}
"""(state, step) to the state after it."""

HELD: Final = frozenset((LEASED, LAPSED))
"""The states in which a job has a holder."""
READY: Final = frozenset((LAPSED, FREE))
"""The states in which the next claim may take the job."""


class Stream(Protocol):
    """What a job was pushed to, as far as its lease needs it."""

    def lost(self, lease: Lease) -> None:
        """The job is no longer leased to this stream."""


class Lease(Struct, eq=False, array_like=True):
    """One job that was delivered or delayed. `id` is that of the last delivery, `node` its holder.

    A Struct because nothing else is made as fast, and a claim makes one for each of its jobs. A checkpoint has its
    fields in this order (event.LeaseImage), and the worker comes last because it is not part of that.
    """

    seq: int
    state: str = FREE
    node: str = ""
    id: int = 0
    due_ms: int = 0
    """The deadline while leased, the time of the next delivery while delayed, both on the steady scale."""
    deliveries: int = 0
    worker: Stream | None = None
    """The /work stream that the job was pushed to, if any."""


class Timetable:
    """When leases run out, or delays end: a heap with one entry for the jobs of a call that are in `state`.

    An entry is not removed when an ack or an extend makes it obsolete: it is recognised as stale when it comes up, and
    the heap is built anew once most of it is stale.
    """

    __slots__ = ("_entries", "_noted", "_serial", "_state", "next_ms")

    def __init__(self, state: str) -> None:
        self._state = state
        # The serial is there so that lists are never compared.
        self._entries: list[tuple[int, int, list[Lease]]] = []
        self._serial = 0
        # How many leases are noted, stale ones included.
        self._noted = 0
        # Before then `take` has nothing to give.
        self.next_ms = NEVER_MS

    def add(self, due_ms: int, leases: list[Lease], all_leases: dict[int, Lease]) -> None:
        """Note leases that are due then; `all_leases` are those of the queue."""
        self._noted += len(leases)
        if self._noted > 2 * len(all_leases) + STALE_SLACK:
            self._rebuild(all_leases)
        if len(leases) <= ENTRY_LEASES:
            self._serial += 1
            heapq.heappush(self._entries, (due_ms, self._serial, leases))
        else:
            self._add_many(due_ms, leases)
        self.next_ms = self._entries[0][0]

    def _add_many(self, due_ms: int, leases: list[Lease]) -> None:
        for at in range(0, len(leases), ENTRY_LEASES):
            self._serial += 1
            heapq.heappush(self._entries, (due_ms, self._serial, leases[at : at + ENTRY_LEASES]))

    def _rebuild(self, all_leases: dict[int, Lease]) -> None:
        by_time: dict[int, list[Lease]] = {}
        for lease in all_leases.values():
            if lease.state is self._state:
                by_time.setdefault(lease.due_ms, []).append(lease)
        self._entries = []
        for due_ms, leases in by_time.items():
            self._add_many(due_ms, leases)
        self._noted = sum(map(len, by_time.values()))

    def take(self, now_ms: int, count: int) -> Sequence[Lease]:
        """Leases that are due at `now_ms`; they are no longer noted. It stops once it has looked at `count`."""
        due: list[Lease] = []
        while self._entries and self._entries[0][0] <= now_ms and count > 0:
            due_ms, _, leases = heapq.heappop(self._entries)
            self._noted -= len(leases)
            count -= len(leases)
            due += [lease for lease in leases if lease.state is self._state and lease.due_ms == due_ms]
        self.next_ms = self._entries[0][0] if self._entries else NEVER_MS
        return due

    def clear(self) -> Work:
        """Forget everything, in slices."""
        while self._entries:
            self._entries.pop()
            yield None

    def first_ms(self) -> int | None:
        """The first time at which a lease is due, or None; an earlier one where there is much that is stale."""
        looked = 0
        while self._entries:
            due_ms, _, leases = self._entries[0]
            looked += len(leases)
            if looked > LOOKED_MAX or any(lease.state is self._state and lease.due_ms == due_ms for lease in leases):
                return due_ms
            heapq.heappop(self._entries)
            self._noted -= len(leases)
        return None


def lease_number(text: str) -> int:
    """The number in a lease's id, or -1 where it is none of ours: it then matches no lease."""
    digits = text[6:]
    if not text.startswith("lease_") or not digits.isascii() or not digits.isalnum() or len(digits) > 16:
        return -1
    try:
        return int(digits, 16)
    except ValueError:
        return -1
