"""Quarantine: copies of damaged bytes, so that nothing is thrown away before somebody has looked at it.

One file per damaged region, named after the file, the offset and the length it came from. The name is all that decides
whether a region is there already, so recovery may run any number of times and leave the same files.
"""

from __future__ import annotations

import contextlib

from topics.storage.disk import Disk


def keep(disk: Disk, directory: str, source: str, offset: int, data: bytes) -> str:
    """Store a copy of `data`, found at `offset` of the file named `source`; its path, or "" where that failed."""
    path = f"{directory}/{source}-{offset:x}-{len(data):x}.bin"
    if disk.exists(path):
        return path
    temporary = path + ".tmp"
    try:
        if disk.exists(temporary):
            disk.unlink(temporary)
        handle = disk.create(temporary)
        try:
            disk.write(handle, 0, data)
            disk.sync(handle)
        finally:
            with contextlib.suppress(OSError):
                disk.close(handle)
        disk.rename(temporary, path)
        disk.sync_dir(directory)
    except OSError:
        return ""
    return path
