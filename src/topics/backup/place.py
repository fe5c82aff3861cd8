"""Place: the directory of `topics backup DIRECTORY`: one backup after the other, each whole, each under its time.

A backup is made under another name (`.partial`) and renamed when it is complete and durable. So whatever happens to the
one that is being made, those that are there stay as they are. Files that are the same are shared by hard links.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from topics.backup import manifest
from topics.backup.manifest import Manifest
from topics.backup.taking import sync_directory
from topics.commands.failures import CommandError
from topics.storage.marked import BACKUP_NAME

PARTIAL_NAME: Final = ".partial"
LOCK_NAME: Final = ".lock"


class Place:
    """A directory of backups."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def backups(self) -> list[Path]:
        """The backups that are there, oldest first."""
        if not self.directory.is_dir():
            return []
        found = [each for each in self.directory.iterdir() if not each.name.startswith(".") and each.is_dir()]
        return sorted(each for each in found if (each / BACKUP_NAME).exists())

    def newest(self) -> tuple[Path, Manifest] | None:
        """The last backup; None where there is none, or its manifest is damaged: then nothing of it is used."""
        for path in reversed(self.backups()):
            with contextlib.suppress(manifest.Damaged):
                read = manifest.read(path)
                return None if read is None else (path, read)
        return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[Path]:
        """Where to make the next backup; no other process does so at the same time."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if (self.directory / "LAYOUT").exists():
            raise CommandError(f"{self.directory} is a data directory: choose another one for backups")
        with (self.directory / LOCK_NAME).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(f"another process is making a backup in {self.directory}") from None
            yield self.directory / PARTIAL_NAME

    def publish(self, partial: Path, taken: Manifest) -> Path:
        """Give a backup that is complete its name."""
        name = datetime.fromtimestamp(taken.taken_ts / 1000, UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
        path = self.directory / f"{name[:-4]}Z"
        partial.rename(path)
        sync_directory(self.directory)
        return path

    def rotate(self, keep: int) -> int:
        """Remove all but the newest backups; how many were removed."""
        old = self.backups()[:-keep]
        for path in old:
            # First the manifest: what is half removed is no backup.
            (path / BACKUP_NAME).unlink()
            sync_directory(path)
            shutil.rmtree(path)
        return len(old)


def find(path: Path, until_ts: int | None) -> tuple[Path, Manifest]:
    """The backup at a path, which may be a directory of backups.

    That is the last one, or, for a time, the first one that was taken after it. Raises CommandError.
    """
    own = manifest.read(path)
    if own is not None:
        return path, own
    found: tuple[Path, Manifest] | None = None
    for each in reversed(Place(path).backups()):
        read = manifest.read(each)
        if read is None or (found is not None and (until_ts is None or read.taken_ts < until_ts)):
            break
        found = each, read
    if found is None:
        lacks = f"there is no file {BACKUP_NAME} in it" if path.exists() else "it does not exist"
        raise CommandError(f"{path} is no backup: {lacks}")
    return found


def partial_beside(file: Path) -> Path:
    """Where the backup for a file is made."""
    return file.with_name(f".{file.name}.{os.getpid()}.partial")
