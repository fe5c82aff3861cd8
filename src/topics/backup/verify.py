"""Verify: `topics verify` of a data directory or a backup; of a backup also that every byte is what it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from topics.backup import manifest, tar_file
from topics.backup.backups import Backups
from topics.storage.inspect import verify as inspect
from topics.storage.marked import BACKUP_NAME
from topics.storage.store import LAYOUT_NAME

Write = Callable[[str], object]


def verify(path: Path, write: Write, *, cold_directory: Path | None = None) -> int:
    """Check a data directory, a backup, the last backup of a directory of them, or a tar file; the exit code."""
    if path.is_file() and tar_file.is_tar(path):
        return _tar_file(path, write)
    backups = Backups(path).all() if not (path / LAYOUT_NAME).exists() else []
    if backups:
        write(f"note   {path}: of {len(backups)} in all, this is the last backup, {backups[-1].name}")
        path = backups[-1]
    damaged = 0
    try:
        taken = manifest.read(path)
    except manifest.Damaged as error:
        write(f"DAMAGE {BACKUP_NAME}: {error}")
        taken, damaged = None, 1
    if taken is not None:
        for line in manifest.damage(path, taken.files):
            write(line)
            damaged += 1
        text = f"{damaged} files are damaged" if damaged else "all files are as they were"
        write(f"note   a backup as of {manifest.time_text(taken.taken_ts)}: {len(taken.files)} files, {text}")
    cold = None if cold_directory is None else str(cold_directory)
    code = inspect.verify(str(path), write, cold_directory=cold)
    return max(code, 1) if damaged else code


def _tar_file(path: Path, write: Write) -> int:
    try:
        for taken in tar_file.unpack(path):
            when = manifest.time_text(taken.taken_ts)
            write(f"note   a backup as of {when}: {len(taken.files)} files, {taken.size_bytes} bytes")
    except manifest.Damaged as error:
        write(f"DAMAGE {error}")
        return 1
    write(f"{path}: all is well")
    return 0
