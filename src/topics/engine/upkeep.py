"""Upkeep: what the engine does for its data directory beside serving: checkpoints, seals, relocation.

All of it happens off the path of any request: on the engine's thread in slices of at most about a millisecond, and in
jobs that wait for the disk elsewhere. `step` is called after every turn and at least once a second.

A checkpoint begins when a restart would have to read more than `checkpoint_wal_bytes`, so that both the size of the
WAL and the time of a restart are bounded by a setting and not by history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from topics.engine.checkpoint import Capture
from topics.storage.job import run_inline
from topics.storage.store import Store
from topics.storage.wal import Shard

if TYPE_CHECKING:
    from topics.engine.engine import Engine

CAPTURE_TOPICS: Final = 100


class UpkeepSettings(Struct, frozen=True):
    """When to seal, to move and to checkpoint."""

    segment_max_events: int = 10_000
    segment_max_bytes: int = 64 << 20
    segment_max_age_ms: int = 3_600_000
    hot_retain_segments: int = 4
    hot_retain_bytes: int = 0
    checkpoint_wal_bytes: int = 256 << 20


class Upkeep:
    """The background work of one engine on one store."""

    def __init__(self, engine: Engine, store: Store, settings: UpkeepSettings | None = None) -> None:
        self._engine = engine
        self._store = store
        self._settings = settings or UpkeepSettings()
        self._waiting: list[tuple[Shard, int]] | None = None
        self._waiting_lsn = 0
        self._capture: Capture | None = None
        self._checkpointing = False

    def step(self) -> bool:
        """Do a slice of what is due; whether there is more to do at once."""
        if self._capture is not None:
            if not self._capture.step(CAPTURE_TOPICS):
                return True
            self._publish(self._capture)
            self._capture = None
            return False
        if self._waiting is not None:
            return self._await_sync()
        if self._store.wal_bytes > self._settings.checkpoint_wal_bytes and not self._checkpointing:
            self.checkpoint()
        return False

    def checkpoint(self) -> None:
        """Begin a checkpoint: once everything written up to now is synced, it is captured."""
        if self._checkpointing or any(shard.pending for shard in self._store.shards):
            return
        self._checkpointing = True
        self._waiting_lsn = self._store.last_lsn
        self._waiting = [(shard, shard.written_lsn) for shard in self._store.shards]

    def _await_sync(self) -> bool:
        assert self._waiting is not None
        if any(shard.synced_lsn < lsn for shard, lsn in self._waiting):
            return False
        self._waiting = None
        self._capture = Capture(self._engine, self._store, self._waiting_lsn)
        return True

    def _publish(self, capture: Capture, clean: bool = False) -> None:
        job = self._store.checkpoint(
            capture.sections,
            capture.essential,
            lsn=capture.lsn,
            next_topic_id=self._engine.next_topic_id,
            clean=clean,
            on_done=self._published,
        )
        if job is None:
            self._checkpointing = False
        else:
            self._store.enqueue(job)

    def _published(self, error: BaseException | None) -> None:
        self._checkpointing = False

    def close(self) -> None:
        """A last checkpoint that says that the stop was orderly. Nothing may be in flight any more."""
        store = self._store
        if any(shard.read_only is not None for shard in store.shards):
            return
        for topic in self._engine.topics.values():
            topic.ceiling = topic.ceiling_asked = topic.log.head
        capture = Capture(self._engine, store, store.last_lsn)
        while not capture.step(CAPTURE_TOPICS):
            pass
        self._publish(capture, clean=True)
        run_inline(store.jobs())
