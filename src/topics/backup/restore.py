"""Restore: from a backup to a data directory that a server can be started on (BACKUP-7, BACKUP-8).

1. The files are copied, and each is compared with its checksum. Nothing is linked: a server changes its files in place.
2. An engine recovers from them as a server does after it was killed at the moment of the backup: nothing is missing.
3. Everything goes on far above the seqs that may have been handed out since (engine/restart/restored.py).
4. An orderly stop writes it down.

Until then the directory is marked, and no server starts on it. A restore that was cut off is begun anew.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from topics.backup import archive, place
from topics.backup.manifest import Damaged, Manifest, digest
from topics.backup.taking import FOLDERS, sync_directory, write_durably
from topics.clock import SystemClock
from topics.commands.failures import CommandError
from topics.engine import Engine
from topics.engine.log.archive import Shelf
from topics.engine.restart.restored import go_on_above, jump_after
from topics.engine.upkeep.upkeep import Upkeep
from topics.storage.damage import UnknownFormat, Unusable
from topics.storage.disk import RealDisk
from topics.storage.job import run_inline
from topics.storage.marked import RESTORING_NAME
from topics.storage.store import Store


class Restored(NamedTuple):
    """What a restore has made."""

    manifest: Manifest
    topics: int
    records: int
    left_out: int


def restore(source: Path, target: Path, until_ts: int | None = None) -> Restored:
    """Make a data directory of a backup. `until_ts`: records that were written after this time are left out.

    Raises CommandError.
    """
    _look_for(source, until_ts)
    _prepare(target)
    taken = _copy(source, target, until_ts)
    try:
        restored = _begin_again(target, taken, until_ts)
    except (Unusable, UnknownFormat) as error:
        raise CommandError(f"{source} cannot be restored: {error}") from None
    (target / RESTORING_NAME).unlink()
    sync_directory(target)
    return restored


def _look_for(source: Path, until_ts: int | None) -> None:
    """Raise where there is no backup, before anything is made for it."""
    if not source.is_file():
        place.find(source, until_ts)
    elif not archive.is_archive(source):
        raise CommandError(f"{source} is no backup: an archive ends in {', '.join(archive.SUFFIXES)}")


def _prepare(target: Path) -> None:
    """An empty directory with the mark. What a restore that was cut off has left is removed; nothing else ever is."""
    target.mkdir(parents=True, exist_ok=True)
    marked = (target / RESTORING_NAME).exists()
    if not marked and any(target.iterdir()):
        raise CommandError(f"{target} is not empty: restore into a new directory, or move this one away first")
    write_durably(target / RESTORING_NAME, b"a restore into this directory is under way, or was cut off\n")
    for folder in FOLDERS:
        if (target / folder).exists():
            shutil.rmtree(target / folder)
        (target / folder).mkdir()
    sync_directory(target)


def _copy(source: Path, target: Path, until_ts: int | None) -> Manifest:
    if source.is_file():
        (taken,) = archive.unpack(source, target)
    else:
        directory, taken = place.find(source, until_ts)
        for entry in taken.files:
            with (target / entry.path).open("wb") as file:
                try:
                    found = digest(directory / entry.path, file.write)
                except FileNotFoundError:
                    raise Damaged(f"{directory}: {entry.path} is missing") from None
                file.flush()
                os.fsync(file.fileno())
            if found != (entry.bytes, entry.xxh3):
                raise Damaged(f"{directory}: {entry.path} is damaged; see `topics verify {directory}`")
    for folder in FOLDERS:
        sync_directory(target / folder)
    return taken


class _Disk(RealDisk):
    """A disk under the kernel that ran when the backup was taken: to it, nothing of the log was lost."""

    def __init__(self, boot_id: str) -> None:
        super().__init__()
        self._boot_id = boot_id

    def boot_id(self) -> str:
        return self._boot_id


def _begin_again(target: Path, taken: Manifest, until_ts: int | None) -> Restored:
    clock = SystemClock()
    store = Store(str(target), disk=_Disk(taken.boot_id), clock=clock)
    store.open()
    try:
        engine = Engine(clock, store, shelf=Shelf(store))
        upkeep = Upkeep(engine, store)
        for _ in upkeep.recover():
            pass
        store.segments.tiers.patient = True
        left_out = go_on_above(engine, jump_after(clock.now_ms() - taken.taken_ts), until_ts)
        store.run_until_idle()
        while run_inline(store.jobs()):
            pass
        upkeep.close()
        return Restored(taken, len(engine.topics), engine.totals.count, left_out)
    finally:
        store.close()
