"""SnapshotWriter: one snapshot on its way to the disk, section by section, so that it is never in memory as a whole.

The engine's thread adds sections; `job` hands those that wait to a thread, one job at a time. `publish` writes what
comes after the last section, then the header, and gives the file its name: until then it has a temporary one, which a
start removes. Only the sections that are written twice stay in memory until the end.
"""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from topics.storage.disk import TEMPORARY_SUFFIX, WRITE_BYTES, Disk
from topics.storage.job import Job, Task
from topics.storage.snapshot import snapshot
from topics.storage.snapshot.snapshot import Header, LargeBlock
from topics.storage.wal import frame

# What may wait to be written before whoever adds sections should wait for the disk.
UNWRITTEN_BYTES_MAX: Final = 4 << 20
# How much is copied in one go: some ten microseconds.
COPIED_BYTES: Final = 16 << 10


class SnapshotWriter:
    """A snapshot file that is being written."""

    def __init__(self, disk: Disk, directory: str, number: int, make_room: Callable[[], bool] = lambda: False) -> None:
        """`make_room` is called where the disk is full: whether there is more room now."""
        self.number = number
        self._make_room = make_room
        self.error: BaseException | None = None
        """Why it can no longer be completed, or None."""
        self.is_writing = False
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{snapshot.name(number)}"
        # Sections in the order of the file, in runs that are written in one go; the last run still grows.
        self._waiting: list[list[bytes] | LargeBlock] = []
        self._waiting_bytes = 0
        self._run: list[bytes] = []
        self._run_bytes = 0
        # Essential sections that have no second copy yet.
        self._twice: deque[bytes] = deque()
        self._sections = 0
        self._handle: int | None = None
        self._at = snapshot.HEADER_BYTES

    def add(self, section: bytes, *, essential: bool = False) -> None:
        """Take the next section; an essential one is written twice."""
        size = len(section)
        if self._run_bytes + size > WRITE_BYTES:
            self._end_run()
        self._run.append(section)
        self._run_bytes += size
        self._waiting_bytes += size
        self._sections += 1
        if essential:
            self._twice.append(section)

    def _end_run(self) -> None:
        if self._run:
            self._waiting.append(self._run)
            self._run, self._run_bytes = [], 0

    def add_large(self, section: LargeBlock) -> None:
        """Take the next section, of a large Block; nothing is done to it before it is written."""
        self._end_run()
        self._waiting.append(section)
        self._waiting_bytes += section.size_bytes
        self._sections += 1

    def copy_some(self) -> bool:
        """Add second copies of essential sections, once all sections were added; returns whether there were any.

        `publish` adds those that are left, but on a thread, where it would contend with the engine's for a while.
        """
        if not self._twice:
            return False
        size = 0
        while self._twice and size < COPIED_BYTES:
            section = self._twice.popleft()
            size += len(section)
            self.add(frame.with_flags(section, snapshot.COPY))
        return True

    @property
    def size_bytes(self) -> int:
        """How long the file is by now."""
        return self._at

    @property
    def is_full(self) -> bool:
        """Whether so much waits that the disk should come first."""
        return self._waiting_bytes >= UNWRITTEN_BYTES_MAX

    def job(self) -> Job | None:
        """The writing of what was added, once that is worth a job; None while one runs."""
        if self.is_writing or self.error is not None or self._waiting_bytes < WRITE_BYTES:
            return None
        waiting = self._take_waiting()
        self.is_writing = True

        def done(error: BaseException | None) -> None:
            self.is_writing = False
            self.error = error

        return Task("snapshot", lambda: self._write(waiting), done)

    def _take_waiting(self) -> list[list[bytes] | LargeBlock]:
        self._end_run()
        waiting, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        return waiting

    def _write(self, waiting: Iterable[list[bytes] | LargeBlock]) -> None:
        if self._handle is None:
            temporary = self._path + TEMPORARY_SUFFIX
            if self._disk.exists(temporary):
                self._disk.unlink(temporary)
            self._handle = self._disk.create(temporary)
        # No step per section: this thread would take the interpreter's lock from the engine's for each of them.
        for run in waiting:
            if isinstance(run, LargeBlock):
                for part in run.parts():
                    self._put(part)
            else:
                self._put(b"".join(run))

    def _put(self, data: bytes) -> None:
        assert self._handle is not None
        try:
            self._disk.write(self._handle, self._at, data)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self._make_room():
                raise
            self._disk.write(self._handle, self._at, data)
        self._at += len(data)

    def publish(self, header: Header) -> None:
        """Write the rest and return once the snapshot is durable under its name. For a job's thread; none may run."""
        assert header.number == self.number
        assert not self.is_writing
        try:
            while self.copy_some():
                pass
            self.add(snapshot.end_section(header, self._sections))
            self._write(self._take_waiting())
            assert self._handle is not None
            self._disk.write(self._handle, 0, snapshot.encode_header(header))
            self._disk.sync(self._handle)
        except OSError:
            self.abandon()
            raise
        self.close()
        self._disk.rename(self._path + TEMPORARY_SUFFIX, self._path)
        self._disk.sync_dir(self._directory)

    def close(self) -> None:
        """Close the file, complete or not; while it has its temporary name, the next snapshot or start removes it."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            with contextlib.suppress(OSError):
                self._disk.close(handle)

    def again(self) -> SnapshotWriter:
        """A writer of the same snapshot from its beginning, in the place of this one. None of its jobs may run."""
        self.close()
        return SnapshotWriter(self._disk, self._directory, self.number, self._make_room)

    def abandon(self) -> None:
        """Give up a snapshot that was not published, and the room that it takes. For a job's thread; none may run."""
        self.close()
        temporary = self._path + TEMPORARY_SUFFIX
        with contextlib.suppress(OSError):
            if self._disk.exists(temporary):
                self._disk.unlink(temporary)
