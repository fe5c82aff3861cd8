"""Quarantine: copies of damaged bytes, so that nothing is thrown away before it can be looked at.

One file per damaged region, named after the file, the offset and the length it came from. The name alone decides
whether a region is there already, so recovery may run any number of times and leaves the same files. A file that does
not belong where it was found is moved here whole, under its own name.
"""

from __future__ import annotations

from typing import Final

from topics.storage.disk import Disk, write_whole

CHUNK_BYTES: Final = 1 << 20


def keep(disk: Disk, directory: str, source: str, offset: int, data: bytes) -> str:
    """Store a copy of `data`, found at `offset` of the file `source`; the path of the copy, or "" where that failed."""
    path = f"{directory}/{source}-{offset:x}-{len(data):x}.bin"
    try:
        if not disk.exists(path):
            write_whole(disk, path, [data])
    except OSError:
        return ""
    return path


def move(disk: Disk, directory: str, path: str) -> str:
    """Move a whole file here; its new path, or "" where that failed and the file stayed."""
    source_directory, _, name = path.rpartition("/")
    target = f"{directory}/{name}"
    try:
        handle = disk.open(path)
        try:
            chunks = range(0, disk.size(handle), CHUNK_BYTES)
            write_whole(disk, target, (disk.read(handle, at, CHUNK_BYTES) for at in chunks))
        finally:
            disk.close(handle)
        disk.unlink(path)
        disk.sync_dir(source_directory)
    except OSError:
        return ""
    return target
