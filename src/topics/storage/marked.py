"""Marks: files in a data directory that say that no server may use it.

A backup shares its segments with other backups, by hard links, and a server would change them in place. A restore that
was cut off has not yet seen to it that no seq is handed out again. `topics restore` makes a directory that can be
served of either.
"""

from __future__ import annotations

from typing import Final

from topics.storage.damage import UnknownFormat
from topics.storage.disk import Disk

BACKUP_NAME: Final = "BACKUP"
RESTORING_NAME: Final = "RESTORING"


def refuse(disk: Disk, directory: str) -> None:
    """Raise UnknownFormat where a directory has one of the marks."""
    if disk.exists(f"{directory}/{BACKUP_NAME}"):
        raise UnknownFormat(f"it is a backup: run `topics restore {directory} DIRECTORY`, and serve that directory")
    if disk.exists(f"{directory}/{RESTORING_NAME}"):
        raise UnknownFormat("a restore into it was cut off: run `topics restore` once more")
