"""Tier: a place where sealed segments live, with an interface small enough for an object store.

A tier holds named files that are written once, whole, and read in ranges. `DirectoryTier` is a folder on a Disk, and
serves both as the hot tier and as the cold one; being a folder, it can also change bytes in place (`patch`), which only
the hot tier is asked for.

`put` returns once the file is durable under its name, and a name is there only when the whole file is: a process
that dies in the middle of a copy leaves a temporary name, which `clean` removes. `read_now` is for the
engine's thread and returns None where it would wait; a tier that cannot know returns None.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

from topics.storage.disk import TEMPORARY_SUFFIX, Disk, write_whole

OPEN_FILES_MAX: Final = 128


class Tier(Protocol):
    """Named files, written whole and read in ranges. Everything but `read_now` and `forget` may wait: jobs only."""

    name: str

    def put(self, file: str, parts: Iterable[bytes]) -> None:
        """Write a file and return once it is durable under its name."""

    def read(self, file: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`; fewer only at the end of the file."""

    def read_ranges(self, file: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """As `read`, for many (offset, length) of one file."""

    def read_now(self, file: str, offset: int, length: int) -> bytes | None:
        """As `read`, but None where that would wait."""

    def size(self, file: str) -> int | None:
        """The length of a file, or None where there is none."""

    def delete(self, file: str) -> None:
        """Remove a file, if it is there, and return once that is durable."""

    def list(self) -> list[str]:
        """The names of all files."""

    def clean(self) -> None:
        """Remove what a crash left half written, and make the names that are there durable."""

    def forget(self, file: str) -> None:
        """Close what `read_now` keeps open of a file."""


class DirectoryTier:
    """A tier in a folder."""

    def __init__(self, name: str, disk: Disk, directory: str, *, cached_reads: bool = True) -> None:
        self.name = name
        self._disk = disk
        self._directory = directory
        # A folder of the cold tier may be on a network: there even a cached read might wait.
        self._cached_reads = cached_reads
        self._open: OrderedDict[str, int] = OrderedDict()

    def path(self, file: str) -> str:
        """Where a file is."""
        return f"{self._directory}/{file}"

    def put(self, file: str, parts: Iterable[bytes]) -> None:
        """Write a file and return once it is durable under its name."""
        write_whole(self._disk, self.path(file), parts)

    def read(self, file: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`; fewer only at the end of the file."""
        return self.read_ranges(file, ((offset, length),))[0]

    def read_ranges(self, file: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """As `read`, for many (offset, length) of one file."""
        # A handle of its own: the ones kept open belong to the engine's thread, which may close them at any time.
        handle = self._disk.open(f"{self._directory}/{file}")
        try:
            return [self._disk.read(handle, offset, length) for offset, length in ranges]
        finally:
            self._disk.close(handle)

    def read_now(self, file: str, offset: int, length: int) -> bytes | None:
        """As `read`, but None where that would wait."""
        if not self._cached_reads:
            return None
        handle = self._open.get(file)
        if handle is None:
            handle = self._open[file] = self._disk.open(f"{self._directory}/{file}")
            if len(self._open) > OPEN_FILES_MAX:
                _, oldest = self._open.popitem(last=False)
                self._disk.close(oldest)
        else:
            self._open.move_to_end(file)
        return self._disk.read_now(handle, offset, length)

    def patch(self, file: str, writes: Iterable[tuple[int, bytes]]) -> None:
        """Overwrite bytes in place and return once that is durable."""
        handle = self._disk.open(f"{self._directory}/{file}", writable=True)
        try:
            for offset, data in writes:
                self._disk.write(handle, offset, data)
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)

    def size(self, file: str) -> int | None:
        """The length of a file, or None where there is none."""
        try:
            handle = self._disk.open(f"{self._directory}/{file}")
        except FileNotFoundError:
            return None
        try:
            return self._disk.size(handle)
        finally:
            self._disk.close(handle)

    def delete(self, file: str) -> None:
        """Remove a file, if it is there, and return once that is durable."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(f"{self._directory}/{file}")
            self._disk.sync_dir(self._directory)

    def list(self) -> list[str]:
        """The names of all files."""
        return [name for name in self._disk.list(self._directory) if not name.endswith(TEMPORARY_SUFFIX)]

    def clean(self) -> None:
        """Create the folder where it is missing, remove what a crash left half written, make the rest durable."""
        self._disk.make_dir(self._directory)
        for name in self._disk.list(self._directory):
            if name.endswith(TEMPORARY_SUFFIX):
                self._disk.unlink(f"{self._directory}/{name}")
        self._disk.sync_dir(self._directory)

    def forget(self, file: str) -> None:
        """Close what `read_now` keeps open of a file."""
        handle = self._open.pop(file, None)
        if handle is not None:
            self._disk.close(handle)

    def close(self) -> None:
        """Close every file."""
        for handle in self._open.values():
            self._disk.close(handle)
        self._open.clear()
