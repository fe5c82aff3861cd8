"""Used: the part of a preallocated file that holds something."""

from __future__ import annotations

from typing import Final

from topics.storage.disk import Disk
from topics.storage.replay import SLACK_BYTES

PROBE_BYTES: Final = 1 << 20
ZEROS_KEPT_BYTES: Final = 64 << 10
_ZEROS: Final = bytes(PROBE_BYTES)


def read_used(disk: Disk, handle: int) -> tuple[bytes, int, int]:
    """The bytes of a file, up to where only zeros follow and SLACK_BYTES beyond; where that is; the file's length.

    A preallocated file is mostly zeros: they are compared from the end, and what is used is read in one piece.
    """
    size = used = disk.size(handle)
    while used > 0:
        start = (used - 1) // PROBE_BYTES * PROBE_BYTES
        chunk = disk.read(handle, start, used - start)
        if chunk != _ZEROS[: len(chunk)]:
            break
        used = start
    # A frame may end in zeros of its own; this is more than any that this program writes has.
    used = min(size, used + ZEROS_KEPT_BYTES)
    data = disk.read(handle, 0, min(size, used + SLACK_BYTES))
    if len(data) < used + SLACK_BYTES:
        data += bytes(used + SLACK_BYTES - len(data))
    return data, used, size
