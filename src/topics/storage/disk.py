"""Disk: everything that storage does to the world, as one small protocol.

Production has `RealDisk`; tests have `topics.testing.FakeDisk`, which keeps durable and pending bytes apart. The rules
that a caller may rely on, and a fake must model:

1. Bytes given to `write` are in the kernel when it returns: they survive the death of the process, but not of the
   machine, until `sync` of that file has returned.
2. A name that `create`, `rename` or `unlink` made or removed is durable once `sync_dir` of its directory has returned.
3. `write` writes all of it or raises OSError; after an error any prefix may be there. After a failed `sync` the dirty
   bytes of that file may be gone, and a later `sync` that succeeds does not bring them back.
4. A failure is always an OSError with its errno.

Handles are small integers that mean something to the disk that gave them. `read_now` is the one call made on the
engine's thread for bytes of any age: it returns None rather than wait for a device.
"""

# Each method here is one system call on a plain path, and `Disk` says what it does.
# ruff: noqa: D102, PTH103, PTH104, PTH108, PTH110, PTH123, PTH208

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

# A name with this suffix is of a file that is half made.
TEMPORARY_SUFFIX: Final = ".tmp"
WRITE_BYTES: Final = 1 << 20
ZERO_CHUNK_BYTES: Final = 1 << 20
SCRATCH_BYTES: Final = 1 << 20
READ_NOW_BYTES_MAX: Final = 4 << 20
"""What is larger takes long even from memory, so a thread reads it."""
PARTS_MAX: Final = 1024
_ZEROS: Final = bytes(ZERO_CHUNK_BYTES)
_WOULD_WAIT: Final = (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Locked(Exception):
    """Another process holds the lock. `holder` is what it wrote about itself, or an empty text."""

    def __init__(self, path: str, holder: str) -> None:
        self.path = path
        self.holder = holder
        super().__init__(f"{path} is locked{f' by {holder}' if holder else ''}")


class Disk(Protocol):
    """The calls that storage makes. Every path is absolute or relative to the process; every size is in bytes."""

    def create(self, path: str) -> int:
        """Create an empty file for reading and writing; FileExistsError where the name is taken."""

    def open(self, path: str, *, writable: bool = False) -> int:
        """Open an existing file."""

    def close(self, handle: int) -> None:
        """Give the handle back. Never syncs."""

    def read(self, handle: int, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`; fewer only at the end of the file."""

    def read_now(self, handle: int, offset: int, length: int) -> bytes | None:
        """As `read`, but None where the bytes are not in memory and the call would wait for the device."""

    def expect(self, handle: int, offset: int, length: int) -> None:
        """Have these bytes in memory soon, for a later `read`. Does not wait, and never fails."""

    def write(self, handle: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `offset`."""

    def write_parts(self, handle: int, offset: int, parts: Sequence[bytes]) -> None:
        """Write all of `parts`, one after the other from `offset` on, as one `write` would."""

    def allocate(self, handle: int, length: int, *, zero_fill: bool, enough: Callable[[], bool] | None = None) -> None:
        """Reserve `length` bytes that read as zeros.

        With `zero_fill` they are written and synced, so that a later `sync` of a small write has no metadata to carry;
        what is left of them once `enough` says so is only reserved.
        """

    def size(self, handle: int) -> int:
        """The length of the file."""

    def sync(self, handle: int) -> None:
        """Return once the file's bytes are on stable storage."""

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing the file that has it."""

    def unlink(self, path: str) -> None:
        """Remove a name."""

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted; empty where there is no such directory."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory with this name."""

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents where missing."""

    def sync_dir(self, path: str) -> None:
        """Return once the directory's entries are on stable storage."""

    def free_bytes(self, path: str) -> int:
        """What is left for use on the file system that holds `path`."""

    def lock(self, path: str) -> int:
        """Take the exclusive lock on a file, created where missing, and write the holder into it. Raises Locked."""

    def unlock(self, handle: int) -> None:
        """Give the lock back."""

    def holder(self, path: str) -> str | None:
        """What the process that holds the lock on a file wrote about itself; None where it is free."""

    def boot_id(self) -> str:
        """A text that changes whenever the kernel starts; 36 ASCII characters or fewer."""


def write_whole(disk: Disk, path: str, parts: Iterable[bytes]) -> None:
    """Write a file and return once it is durable under its name, which is there only when the whole file is."""
    write_named(disk, path, parts)
    disk.sync_dir(path.rpartition("/")[0])


def write_named(disk: Disk, path: str, parts: Iterable[bytes]) -> None:
    """As `write_whole`, but the name is durable only once its directory has been synced: for several files in a row."""
    temporary = path + TEMPORARY_SUFFIX
    if disk.exists(temporary):
        disk.unlink(temporary)
    handle = disk.create(temporary)
    try:
        at = size = 0
        pending: list[bytes] = []
        for part in parts:
            pending.append(part)
            size += len(part)
            if size >= WRITE_BYTES:
                disk.write(handle, at, b"".join(pending))
                at, size, pending = at + size, 0, []
        if size:
            disk.write(handle, at, b"".join(pending))
        disk.sync(handle)
    except OSError:
        # On a full disk what is half made takes the room that would help.
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    finally:
        disk.close(handle)
    disk.rename(temporary, path)


def read_at(disk: Disk, path: str, offset: int, length: int) -> bytes:
    """Up to `length` bytes at `offset` of a file; fewer only at its end."""
    handle = disk.open(path)
    try:
        return disk.read(handle, offset, length)
    finally:
        disk.close(handle)


class RealDisk:
    """The operating system's files."""

    def __init__(self) -> None:
        # Only the engine's thread calls `read_now`. A buffer of its own for each call costs twice as much, for zeroing.
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    def create(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: str, *, writable: bool = False) -> int:
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    def close(self, handle: int) -> None:
        os.close(handle)

    def read(self, handle: int, offset: int, length: int) -> bytes:
        data = os.pread(handle, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(handle, length - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_now(self, handle: int, offset: int, length: int) -> bytes | None:
        if length > READ_NOW_BYTES_MAX:
            return None
        buffer = self._scratch[:length] if length <= SCRATCH_BYTES else memoryview(bytearray(length))
        try:
            got = os.preadv(handle, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in _WOULD_WAIT:
                return None
            raise
        if got == length:
            return bytes(buffer)
        # A short answer is either the end of the file or the end of what is cached; only fstat can tell.
        return bytes(buffer[:got]) if offset + got >= os.fstat(handle).st_size else None

    def expect(self, handle: int, offset: int, length: int) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.posix_fadvise(handle, offset, length, os.POSIX_FADV_WILLNEED)

    def write(self, handle: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        written = os.pwrite(handle, data, offset)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(view):
            step = os.pwrite(handle, view[written:], offset + written)
            if step == 0:
                raise OSError(errno.EIO, "the device took no more bytes")
            written += step

    def write_parts(self, handle: int, offset: int, parts: Sequence[bytes]) -> None:
        while parts:
            step = os.pwritev(handle, parts[:PARTS_MAX], offset)
            if step == 0:
                raise OSError(errno.EIO, "the device took no more bytes")
            offset += step
            while parts and step >= len(parts[0]):
                step -= len(parts[0])
                parts = parts[1:]
            if step:
                # The kernel stopped within a part, after at most 2 GiB.
                rest = parts[0][step:]
                self.write(handle, offset, rest)
                offset += len(rest)
                parts = parts[1:]

    def allocate(self, handle: int, length: int, *, zero_fill: bool, enough: Callable[[], bool] | None = None) -> None:
        try:
            os.posix_fallocate(handle, 0, length)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            os.ftruncate(handle, length)
        if not zero_fill:
            return
        # Synced chunk by chunk: one large flush would delay every commit on this disk.
        for at in range(0, length, ZERO_CHUNK_BYTES):
            if enough is not None and enough():
                break
            self.write(handle, at, _ZEROS if length - at >= ZERO_CHUNK_BYTES else _ZEROS[: length - at])
            os.fdatasync(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def make_dir(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def sync_dir(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def lock(self, path: str) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 1024, 0).decode("utf-8", "replace").strip()
            os.close(handle)
            raise Locked(path, holder) from None
        except OSError:
            os.close(handle)
            raise
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        holder = json.dumps({"pid": os.getpid(), "host": os.uname().nodename, "since": started})
        os.ftruncate(handle, 0)
        os.pwrite(handle, holder.encode() + b"\n", 0)
        return handle

    def holder(self, path: str) -> str | None:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            # Shared, so that two processes that ask do not take each other for a holder.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            return os.pread(handle, 1024, 0).decode("utf-8", "replace").strip()
        finally:
            os.close(handle)

    def unlock(self, handle: int) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
        os.close(handle)

    def boot_id(self) -> str:
        """The kernel's boot id; on a system without one, a text that never matches that of an earlier start."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()[:36]
        except OSError:
            return os.urandom(18).hex()
