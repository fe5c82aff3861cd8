"""Tier, a place where sealed segments live, and Tiers, the places of one data directory and what is read through them.

A `Tier` holds named files that are written once, whole, and read in ranges: an interface small enough for an object
store. Being a folder on a Disk, it can also change bytes in place (`patch`), which only the hot tier is asked for.

`put` returns once the file is durable under its name, and a name is there only when the whole file is: a process
that dies in the middle of a copy leaves a temporary name, which `clean` removes. `read_now` is for the
engine's thread and returns None where it would wait; a tier that cannot know returns None.

The hot tier is a folder of the data directory and holds every index. The cold tier, where there is one, holds records
only, and may be out of reach at any time: nothing but the records in it may depend on that.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from topics.storage import quarantine
from topics.storage.disk import TEMPORARY_SUFFIX, Disk, write_named, write_whole
from topics.storage.segment.cache import BlockCache

OPEN_FILES_MAX: Final = 128
# From how many files on they are asked for ahead of time, and how far ahead.
ASK_FILES_MIN: Final = 16
ASK_FILES_MAX: Final = 64


class Edges(NamedTuple):
    """The length of a file, and the bytes that it begins and ends with."""

    size: int
    first: bytes
    last: bytes


class Tier:
    """A tier in a folder. Everything but `read_now` and `forget` may wait: jobs only."""

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

    def extend(self, file: str, offset: int, parts: Iterable[bytes]) -> None:
        """Write a piece of a file under a temporary name; at offset 0 it begins anew. `publish` makes it a file."""
        path = self.path(file) + TEMPORARY_SUFFIX
        if offset == 0:
            self.discard(file)
        handle = self._disk.open(path, writable=True) if offset else self._disk.create(path)
        try:
            self._disk.write_parts(handle, offset, list(parts))
        finally:
            self._disk.close(handle)

    def publish(self, file: str, header: bytes) -> None:
        """Write the first bytes of a file that was made by `extend`; return once it is durable under its name."""
        path = self.path(file)
        handle = self._disk.open(path + TEMPORARY_SUFFIX, writable=True)
        try:
            self._disk.write(handle, 0, header)
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)
        self._disk.rename(path + TEMPORARY_SUFFIX, path)
        self._disk.sync_dir(self._directory)

    def discard(self, file: str) -> None:
        """Remove what `extend` has written and nobody published."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self.path(file) + TEMPORARY_SUFFIX)

    def put_all(self, files: Sequence[tuple[str, Iterable[bytes]]]) -> None:
        """Write files in this order, and return once all of them are durable under their names; or leave none.

        The directory is synced once for all of them, so a loss of power before that may keep any of the names. Each
        that is kept names a whole file.
        """
        begun: list[str] = []
        try:
            for file, parts in files:
                begun.append(self.path(file))
                write_named(self._disk, begun[-1], parts)
            self._disk.sync_dir(self._directory)
        except OSError:
            with contextlib.suppress(OSError):
                self._undo(begun)
            raise

    def _undo(self, begun: list[str]) -> None:
        """Remove what was written: it would only take room, perhaps on a disk that has none left."""
        disk = self._disk
        disk.sync_dir(self._directory)
        for path in [begun[-1] + TEMPORARY_SUFFIX, *reversed(begun)]:
            if disk.exists(path):
                disk.unlink(path)
        disk.sync_dir(self._directory)

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

    def edges(self, wanted: Sequence[tuple[str, int, int]]) -> Iterator[Edges | None]:
        """Of each (file, first, last): its length, up to `first` bytes of its beginning and `last` of its end.

        None stands for a file that is missing; one that is shorter than `last` has no end. Many files are asked for
        before they are read: a device reads many pieces at once in little more time than one.
        """
        disk = self._disk
        ahead: deque[tuple[int, int, int, int] | None] = deque()
        asks = len(wanted) >= ASK_FILES_MIN
        try:
            for file, first, last in wanted:
                try:
                    handle = disk.open(f"{self._directory}/{file}")
                except FileNotFoundError:
                    ahead.append(None)
                else:
                    size = disk.size(handle)
                    ahead.append((handle, size, first, last))
                    if asks:
                        disk.expect(handle, 0, first)
                        if 0 < last <= size:
                            disk.expect(handle, size - last, last)
                if len(ahead) == ASK_FILES_MAX:
                    yield self._edges(ahead.popleft())
            while ahead:
                yield self._edges(ahead.popleft())
        finally:
            for opened in ahead:
                if opened is not None:
                    disk.close(opened[0])

    def _edges(self, opened: tuple[int, int, int, int] | None) -> Edges | None:
        if opened is None:
            return None
        handle, size, first, last = opened
        disk = self._disk
        try:
            begin = disk.read(handle, 0, min(first, size))
            return Edges(size, begin, disk.read(handle, size - last, last) if 0 < last <= size else b"")
        finally:
            disk.close(handle)

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

    def delete(self, *files: str) -> None:
        """Remove files, those that are there, and return once that is durable."""
        removed = False
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self.path(file))
                removed = True
        if removed:
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


class Tiers:
    """The hot tier, the cold tier or None, the cache, and the quarantine for damaged bytes."""

    def __init__(
        self, disk: Disk, directory: str, quarantine_directory: str, cold_directory: str | None, cache_bytes: int
    ) -> None:
        self.hot = Tier("hot", disk, directory)
        self.cold = None if cold_directory is None else Tier("cold", disk, cold_directory, cached_reads=False)
        self.cache = BlockCache(cache_bytes)
        # At a start nothing else has to run, so reads wait for the disk and none of them raises Miss.
        self.patient = False
        # The cold store was out of reach at the start: nothing is written to where it should be mounted.
        self.away = False
        self.corrupt_total = 0
        self._disk = disk
        self._quarantine = quarantine_directory

    def open(self) -> None:
        """Remove what a crash left half done, before anything is read. The cold store may be out of reach."""
        self.hot.clean()
        if self.cold is not None:
            with contextlib.suppress(OSError):
                self.cold.clean()

    def quarantine(self, file: str, offset: int, data: bytes) -> str:
        """Keep a copy of damaged bytes; the path of the copy, or "" where that failed."""
        self.corrupt_total += 1
        return quarantine.keep(self._disk, self._quarantine, file, offset, data)

    def set_aside(self, file: str) -> str:
        """Move a file of the hot tier to quarantine; its new path, or "" where that failed."""
        return quarantine.move(self._disk, self._quarantine, self.hot.path(file))

    def close(self) -> None:
        """Close every file that `read_now` keeps open."""
        self.hot.close()
