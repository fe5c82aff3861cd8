"""MemoryStore: the interface of `Store` without files, for an engine that keeps nothing.

Waiters commit at `write`, as they would on a disk that is infinitely fast and forgets everything: the engine's code is
the same with and without a data directory.
"""

from __future__ import annotations

from topics.storage.job import Job
from topics.storage.wal.frame import Frame
from topics.storage.wal.shard import Counters, Waiter


class MemoryShard(Counters):
    """A shard that drops its frames and commits their waiters."""

    def __init__(self) -> None:
        super().__init__(index=0)
        self.read_only = None
        self.queue_bytes = self.unwritten_bytes = 0
        self.rotations_total = 0
        self._waiters: list[Waiter | None] = []

    @property
    def queue_depth(self) -> int:
        """How many waiters wait."""
        return len(self._waiters)

    def submit(self, frame: Frame, gated: bool, waiter: Waiter | None = None) -> None:
        """Take a waiter; the frame is forgotten."""
        self._waiters.append(waiter)
        self.unwritten_bytes += len(frame)

    def expect_job(self, frame_bytes: int) -> None:
        """There is nothing to make ready."""

    def after_sync(self, waiter: Waiter) -> None:
        """Commit a waiter that has no frame."""
        waiter.commit(0, 0)

    def write(self) -> None:
        """Commit every waiter."""
        waiters, self._waiters = self._waiters, []
        self.unwritten_bytes = 0
        for waiter in waiters:
            if waiter is not None:
                waiter.commit(0, 0)


class MemoryStore:
    """A store without a data directory: same calls, no files, nothing survives."""

    def __init__(self) -> None:
        self.shards = (MemoryShard(),)
        self._shard = self.shards[0]
        self._lsn = 0

    @property
    def is_full(self) -> bool:
        """It takes no more and gives nothing back: nothing is ever sealed."""
        return True

    def next_lsn(self) -> int:
        """The next lsn, handed out once."""
        self._lsn += 1
        shard = self._shard
        shard.written_lsn = shard.synced_lsn = self._lsn
        return self._lsn

    def shard_of(self, topic_id: int) -> MemoryShard:
        """The one shard there is."""
        return self._shard

    @property
    def pending(self) -> bool:
        """Whether waiters wait for `write`."""
        return bool(self._shard._waiters)

    def write(self) -> None:
        """Commit every waiter."""
        self._shard.write()

    def jobs(self) -> list[Job]:
        """No disk, no jobs."""
        return []

    def next_due_ns(self) -> int | None:
        """Nothing ever falls due."""
        return None

    def close(self) -> None:
        """Nothing is open."""
