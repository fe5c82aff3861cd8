"""Ready: which jobs of a queue the next claim may take: those that were given back first, then fresh ones in order.

The freelist has the jobs that were given back, and `fresh` is the claim cursor: from it on no job was ever delivered. A
choice looks at a bounded number of jobs in vain, and reads a bounded number of bytes. Where that is not enough, it has
`stopped`: there may be more, and the next choice goes on from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Final

from topics.engine.log.log import Log
from topics.engine.queue.hidden import Hidden
from topics.engine.queue.lease import READY, STALE_SLACK, Candidate, Lease
from topics.storage.block import Extent

# How many jobs a choice may look at in vain, and how many it may find that were delivered too often.
STALE_MAX: Final = 10_000
DEAD_MAX: Final = 250
READ_BYTES_MAX: Final = 8 << 20
"""How much a choice may read from segments, where each job may be in a Block of its own."""


class Ready:
    """The jobs of one log as claims choose from them."""

    __slots__ = ("_floor", "_forgetting", "_hidden", "free", "fresh", "leases", "log", "stopped")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.leases: dict[int, Lease] = {}
        self.fresh = 1
        self.free: deque[int] = deque()
        # Below it, no job has a Lease.
        self._floor = 1
        # How many works forget jobs that have left the log.
        self._forgetting = 0
        # From the claim cursor on, what has a Lease.
        self._hidden = Hidden()
        # Whether the last choice has stopped before it knew everything that is ready.
        self.stopped = False

    @property
    def _is_behind(self) -> bool:
        """Whether there may be a Lease without its job."""
        return self._floor != self.log.start or self._forgetting > 0

    def choose(
        self, count: int, is_dead: Callable[[Lease], bool] | None = None, dead_max: int = DEAD_MAX
    ) -> tuple[list[Candidate], list[Candidate]]:
        """The first `count` jobs that are ready, those that were given back first, then fresh ones in order.

        So where the first has no Lease, none of them has, and all are in order. Also those met on the way that were
        delivered too often, as `is_dead` says. It looks at a bounded number of jobs that turn out not to be ready;
        where that is not enough, `stopped` says so, and the next call goes on. Raises Miss or Corrupt where a record
        cannot be read.
        """
        jobs: list[Candidate] = []
        dead: list[Candidate] = []
        self.stopped = False
        if self.free:
            log, leases = self.log, self.leases
            behind = self._is_behind
            stale = read_bytes = 0
            seen = set()
            last: Extent | None = None
            for seq in self.free:
                if len(jobs) == count:
                    return jobs, dead
                if stale > STALE_MAX or len(dead) == dead_max or read_bytes >= READ_BYTES_MAX:
                    self.stopped = True
                    return jobs, dead
                lease = leases.get(seq)
                if lease is None or lease.state not in READY or seq in seen or (behind and not log.is_live(seq)):
                    stale += 1
                    continue
                seen.add(seq)
                entry = log.entries[log.index_of(seq)]
                block = entry.block()
                if entry is not block and entry is not last:
                    last = entry
                    read_bytes += len(block.raw)
                (dead if is_dead is not None and is_dead(lease) else jobs).append((seq, block, lease))
        if len(jobs) < count:
            jobs += self.choose_fresh(count - len(jobs))
        return jobs, dead

    def choose_fresh(self, count: int) -> list[Candidate]:
        """The first `count` jobs that were never delivered, in order. Raises as `choose` does."""
        jobs: list[Candidate] = []
        log, hidden = self.log, self._hidden
        entries = log.entries
        read_bytes = 0
        seq = max(self.fresh, log.start)
        if hidden.runs:
            hidden.forget(seq)
            # Delayed jobs at the cursor are passed once and not with every claim.
            seq = self.fresh = hidden.past(seq)
        runs = hidden.runs
        for k in range(log.index_of(seq), len(entries)):
            entry = entries[k]
            first_seq, n = entry.first_seq, entry.n
            a = entry.next_live(max(0, seq - first_seq))
            while a < n:
                # Where some are hidden, more than are wanted may have to be looked at.
                b = entry.live_end(a, n if runs else min(n, a + count - len(jobs)))
                whole = first_seq + a, first_seq + b
                for first, end in hidden.between(*whole) if runs else (whole,):
                    block = entry.block()
                    jobs += zip(range(first, min(end, first + count - len(jobs))), repeat(block), repeat(None))
                    if len(jobs) == count:
                        return jobs
                a = entry.next_live(b)
            if not jobs:
                self.fresh = first_seq + entry.n
            elif jobs[-1][1] is not entry:
                read_bytes += len(jobs[-1][1].raw)
                if read_bytes >= READ_BYTES_MAX:
                    self.stopped = True
                    break
        return jobs

    def prune_free(self) -> None:
        """Drop what a pass has taken from the front of the freelist."""
        free, leases = self.free, self.leases
        for _ in range(min(len(free), 2 * STALE_MAX)):
            lease = leases.get(free[0])
            if lease is not None and lease.state in READY:
                break
            free.popleft()
        if len(free) > 2 * len(leases) + STALE_SLACK:
            # A job at the front that nobody may take keeps what comes after it, and a nack adds a job once more.
            self.free = deque(seq for seq in dict.fromkeys(free) if seq in leases and leases[seq].state in READY)

    def pass_back(self, jobs: list[Candidate]) -> None:
        """Jobs were chosen for a claimer and not leased: those that the cursor has passed meanwhile are ready again."""
        for seq, _, lease in jobs:
            if lease is None and seq < self.fresh:
                self.leases[seq] = Lease(seq)
                self.free.append(seq)

    def pass_over(self, count: int) -> None:
        """Have the first of the freelist come last: they are ready, and cannot be delivered now."""
        self.free.rotate(-count)
