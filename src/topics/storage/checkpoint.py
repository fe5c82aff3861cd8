"""Checkpoint: the job that publishes a snapshot, and then removes what it has replaced.

The order keeps every promise across a crash: first the WAL is made durable as far as delete flags are about to be
written that its frames explain; then the flags; then the snapshot; and only once that is durable, the snapshot before
it, the WAL files that it covers, and whatever else was waiting for it are removed.

While a backup is made, nothing is removed (`keeps`): the next checkpoint after it removes what this one has left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topics.storage.disk import Disk
from topics.storage.segment.flips import Flips
from topics.storage.snapshot.snapshot import Header, parse_name
from topics.storage.snapshot.writer import SnapshotWriter
from topics.storage.wal.file import WalName
from topics.storage.wal.shard import Shard


class Draft:
    """A checkpoint whose sections are not all there yet: they are added to `snapshot`."""

    __slots__ = ("bytes_written", "removals", "snapshot")

    def __init__(self, snapshot: SnapshotWriter, bytes_written: int, removals: list[Callable[[], None]]) -> None:
        """`bytes_written` is how many bytes of log there were, and `removals` what may be done once it is durable."""
        self.snapshot = snapshot
        self.bytes_written = bytes_written
        self.removals = removals

    def again(self) -> Draft:
        """The same without any section: what was added is no longer right. Nothing may be under way."""
        return Draft(self.snapshot.again(), self.bytes_written, self.removals)


class Checkpoint:
    """A checkpoint that is complete. `on_done` gets it, and the error or None, on the engine's thread."""

    def __init__(
        self,
        disk: Disk,
        wal_directory: str,
        snapshot_directory: str,
        header: Header,
        draft: Draft,
        *,
        shards: Sequence[Shard],
        flips: Flips,
        covered: Sequence[WalName],
        keeps: bool,
        on_done: Callable[[Checkpoint, BaseException | None], None],
    ) -> None:
        self.name = "checkpoint"
        self.header = header
        self.covered = () if keeps else covered
        self.keeps = keeps
        self.bytes_written = draft.bytes_written
        self.removals = draft.removals
        self.is_durable = False
        self._disk = disk
        self._wal = wal_directory
        self._snapshots = snapshot_directory
        self._snapshot = draft.snapshot
        self._on_done = on_done
        # A flag on disk must never be ahead of the frame that explains it: that frame may say more than the delete.
        self._flushes = [(shard, shard.flush()) for shard in shards] if flips else []
        self._flushing: Shard | None = None
        self._write_flips, self._flips_written = flips.checkpoint()

    @property
    def snapshot_bytes(self) -> int:
        """How long its snapshot is."""
        return self._snapshot.size_bytes

    def run(self) -> None:
        """Publish the snapshot and remove what it has replaced."""
        for shard, flush in self._flushes:
            self._flushing = shard
            flush()
        self._flushing = None
        self._write_flips()
        self._snapshot.publish(self.header)
        self.is_durable = True
        if self.keeps:
            return
        self._remove_replaced()
        self.removals = [removal for removal in self.removals if not _done(removal)]

    def _remove_replaced(self) -> None:
        """Unlink older snapshots and covered WAL files. Oldest first, so that a crash leaves no hole in the WAL."""
        disk = self._disk
        for name in disk.list(self._snapshots):
            number = parse_name(name)
            if number is not None and number < self.header.number:
                disk.unlink(f"{self._snapshots}/{name}")
        disk.sync_dir(self._snapshots)
        for file in self.covered:
            path = f"{self._wal}/{file}"
            if disk.exists(path):
                disk.unlink(path)
        disk.sync_dir(self._wal)

    def done(self, error: BaseException | None) -> None:
        """Report the outcome to the shard that failed, to the flips, and to the store."""
        if error is not None and self._flushing is not None:
            self._flushing.sync_failed(error)
        if not self.is_durable:
            self._flips_written(error)
        self._on_done(self, error)


def _done(removal: Callable[[], None]) -> bool:
    """Do a removal; False where it failed and has to be tried again, with the next checkpoint."""
    try:
        removal()
    except OSError:
        return False
    return True
