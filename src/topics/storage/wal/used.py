"""Used: the part of a preallocated file that holds something."""

from __future__ import annotations

from typing import Final

from topics.storage.disk import Disk
from topics.storage.wal.reader import SLACK_BYTES

PROBE_BYTES: Final = 1 << 20
ZEROS_KEPT_BYTES: Final = 64 << 10
_ZEROS: Final = bytes(PROBE_BYTES)


def used_bytes(disk: Disk, handle: int) -> tuple[int, int]:
    """Where in a file only zeros follow, and the file's length. A preallocated file is compared from its end."""
    size = used = disk.size(handle)
    while used > 0:
        start = (used - 1) // PROBE_BYTES * PROBE_BYTES
        chunk = disk.read(handle, start, used - start)
        if chunk != _ZEROS[: len(chunk)]:
            break
        used = start
    # A frame may end in zeros of its own; this is more than any that this program writes has.
    return min(size, used + ZEROS_KEPT_BYTES), size


def read_used(disk: Disk, handle: int) -> tuple[bytes, int, int]:
    """The bytes of a file up to where only zeros follow, and SLACK_BYTES beyond; where that is; the file's length."""
    used, size = used_bytes(disk, handle)
    return read_slack(disk, handle, 0, used), used, size


def read_file(disk: Disk, path: str) -> tuple[bytes, int, int]:
    """As `read_used`, of a file that is not open."""
    handle = disk.open(path)
    try:
        return read_used(disk, handle)
    finally:
        disk.close(handle)


def read_slack(disk: Disk, handle: int, begin: int, end: int) -> bytes:
    """The bytes [begin, end) of a file and SLACK_BYTES beyond them, zeros where the file has none."""
    data = disk.read(handle, begin, end + SLACK_BYTES - begin)
    return data.ljust(end + SLACK_BYTES - begin, b"\0")
