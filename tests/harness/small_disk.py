"""SmallDisk: a FakeDisk with room for so many bytes. What does not fit fails with ENOSPC, as a file system's would."""

from __future__ import annotations

import errno
from collections.abc import Callable

from topics.testing.fake_disk import FakeDisk


class SmallDisk(FakeDisk):
    """A disk of `capacity` bytes, of which files that others keep there take `foreign`."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.foreign = 0

    def used(self) -> int:
        """What all files take; one that is open counts though its name is gone."""
        inodes = {id(inode): inode for inode in self._names.values()}
        inodes |= {id(inode): inode for _, inode, _ in self._handles.values()}
        return sum(len(inode.content) for inode in inodes.values())

    def _take(self, handle: int, length: int) -> None:
        if max(0, length - self.size(handle)) > self.free_bytes(""):
            raise OSError(errno.ENOSPC, "no space left on device")

    def write(self, handle: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write, if there is room."""
        self._take(handle, offset + len(data))
        super().write(handle, offset, data)

    def allocate(self, handle: int, length: int, *, zero_fill: bool, enough: Callable[[], bool] | None = None) -> None:
        """Allocate, if there is room."""
        self._take(handle, length)
        super().allocate(handle, length, zero_fill=zero_fill, enough=enough)

    def free_bytes(self, path: str) -> int:
        """What is left."""
        return max(0, self.capacity - self.foreign - self.used())
