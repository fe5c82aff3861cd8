"""Reclaimer: says when a checkpoint is worth making because of the files that go with it.

Segments that hold nothing live, and WAL files and a snapshot full of what is gone, go only with a checkpoint. So one
falls due soon after something was freed, whether or not anything is written. What is freed within a second shares one,
and between two of them the server rests for a multiple of the time that one takes: a server with very many topics pays
at most a tenth of its time for this.
"""

from __future__ import annotations

from typing import Final

from topics.engine.engine import Engine
from topics.storage.store import Store

GATHER_NS: Final = 1_000_000_000
REST_NS: Final = 2_500_000_000
REST_TIMES: Final = 9
# Less than this in the WAL and the snapshot, or less of them than a quarter, is not worth a checkpoint.
FREED_BYTES_MIN: Final = 1 << 20
FREED_FRACTION: Final = 4


class Reclaimer:
    """What was freed since the last checkpoint, and when the next one may be made for it."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store
        self._since_ns: int | None = None
        self._began_ns = 0
        self._rest_until_ns = 0
        self._freed_bytes = 0

    def is_due(self, now_ns: int) -> bool:
        """Whether a checkpoint should be made now."""
        if not self._store.removals_pending and not self._is_log_dead():
            self._since_ns = None
            return False
        if self._since_ns is None:
            self._since_ns = now_ns
        return now_ns >= max(self._rest_until_ns, self._since_ns + (0 if self._store.is_full else GATHER_NS))

    def _is_log_dead(self) -> bool:
        if self._store.is_full and self._store.wal_bytes >= FREED_BYTES_MIN:
            # Most of it is in segments too.
            return True
        freed_bytes = self._engine.totals.freed_bytes - self._freed_bytes
        if freed_bytes < FREED_BYTES_MIN:
            return False
        log_bytes = self._store.wal_bytes + self._store.snapshot_bytes
        return freed_bytes * FREED_FRACTION >= log_bytes >= FREED_BYTES_MIN

    def began(self, now_ns: int) -> None:
        """A checkpoint has begun, for whatever reason."""
        self._began_ns = now_ns
        self._since_ns = None
        self._freed_bytes = self._engine.totals.freed_bytes

    def ended(self, now_ns: int) -> None:
        """It is over."""
        self._rest_until_ns = now_ns + max(REST_NS, REST_TIMES * (now_ns - self._began_ns))
