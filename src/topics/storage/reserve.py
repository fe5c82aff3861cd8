"""Reserve: a file that does nothing but take room, so that there is some for a checkpoint when the disk is full.

Files are removed only once a checkpoint is durable that does not need them, and a checkpoint takes room itself. On a
disk that is full to the last byte, deleting would free nothing without this: the checkpoint that finds no room gives
the reserve back and goes on at once, before anything else takes it. The file is made anew once there is room to spare.
"""

from __future__ import annotations

import contextlib
from typing import Final

from topics.storage.disk import Disk
from topics.storage.job import Job, Task

RESERVE_NAME: Final = "RESERVE"


class Reserve:
    """The reserve of one data directory; of 0 bytes, there is none."""

    def __init__(self, disk: Disk, path: str, size_bytes: int) -> None:
        self.held = size_bytes == 0
        self._disk = disk
        self._path = path
        self._size_bytes = size_bytes

    def job(self, spare_bytes: int) -> Job | None:
        """The making of the file, or None where there are not twice its bytes to spare."""
        if self.held or spare_bytes < 2 * self._size_bytes:
            return None
        self.held = True

        def finish(error: BaseException | None) -> None:
            self.held = error is None

        return Task("reserve", self._make, finish)

    def _make(self) -> None:
        disk, path = self._disk, self._path
        if disk.exists(path):
            handle = disk.open(path)
            size = disk.size(handle)
            disk.close(handle)
            if size == self._size_bytes:
                return
            disk.unlink(path)
        handle = disk.create(path)
        try:
            disk.allocate(handle, self._size_bytes, zero_fill=False)
        except OSError:
            with contextlib.suppress(OSError):
                disk.unlink(path)
            raise
        finally:
            disk.close(handle)

    def release(self) -> bool:
        """Give the room back, at once; False where there is none. For a job's thread."""
        try:
            self._disk.unlink(self._path)
        except FileNotFoundError:
            return False
        self.held = False
        return True
