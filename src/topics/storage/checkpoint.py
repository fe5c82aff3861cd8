"""Checkpoint: the job that publishes a snapshot, and then removes what it has replaced.

The order keeps every promise across a crash: first the WAL is made durable as far as delete flags are about to be
written that its frames explain; then the flags; then the snapshot; and only once that is durable, the snapshot before
it, the WAL files that it covers, and whatever else was waiting for it are removed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from topics.storage.disk import Disk
from topics.storage.reserve import Reserve
from topics.storage.segment.flips import Flips
from topics.storage.snapshot import snapshot
from topics.storage.wal.file import WalName
from topics.storage.wal.shard import Shard


class Checkpoint:
    """One checkpoint under way. `on_done` gets it, and the error or None, on the engine's thread."""

    def __init__(
        self,
        disk: Disk,
        wal_directory: str,
        snapshot_directory: str,
        header: snapshot.Header,
        sections: Sequence[bytes],
        essential: Sequence[int],
        *,
        shards: Sequence[Shard],
        flips: Flips,
        covered: Sequence[WalName],
        removals: list[Callable[[], None]],
        reserve: Reserve,
        on_done: Callable[[Checkpoint, BaseException | None], None],
    ) -> None:
        self.name = "checkpoint"
        self.header = header
        self.covered = covered
        self.removals = removals
        self.is_durable = False
        self.bytes_written = sum(shard.bytes_written_total for shard in shards)
        self._disk = disk
        self._wal = wal_directory
        self._snapshots = snapshot_directory
        self._sections = sections
        self._essential = essential
        self._reserve = reserve
        self._on_done = on_done
        # A flag on disk must never be ahead of the frame that explains it: that frame may say more than the delete.
        self._flushes = [(shard, shard.flush()) for shard in shards] if flips else []
        self._flushing: Shard | None = None
        self._write_flips, self._flips_written = flips.checkpoint()

    def run(self) -> None:
        """Publish the snapshot and remove what it has replaced."""
        for shard, flush in self._flushes:
            self._flushing = shard
            flush()
        self._flushing = None
        self._write_flips()
        self._write_snapshot()
        self.is_durable = True
        self._remove_replaced()
        self.removals = [removal for removal in self.removals if not _done(removal)]

    def _write_snapshot(self) -> None:
        """Write the snapshot; where there is no room, in that of the reserve: afterwards there is more."""
        try:
            snapshot.write(self._disk, self._snapshots, self.header, self._sections, self._essential)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self._reserve.release():
                raise
            snapshot.write(self._disk, self._snapshots, self.header, self._sections, self._essential)

    def _remove_replaced(self) -> None:
        """Unlink older snapshots and covered WAL files. Oldest first, so that a crash leaves no hole in the WAL."""
        disk = self._disk
        for name in disk.list(self._snapshots):
            number = snapshot.parse_name(name)
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
