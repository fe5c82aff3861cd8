"""ShardFiles: the files of one shard in this generation, from the making of one to its removal.

A file is prepared ahead of time by a job, then written until it is full, then retired, then synced, and removed once a
checkpoint covers its last frame. Files grow with use: a server that is hardly written to prepares nothing, a busy one
the full size.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Collection
from functools import partial
from typing import Final

from topics.clock import Clock
from topics.storage.disk import Disk
from topics.storage.job import Job, Task
from topics.storage.wal import file as walfile
from topics.storage.wal.file import WalName

FILE_BYTES: Final = 64 << 20
FIRST_FILE_BYTES: Final = 4 << 20
FILE_GROWTH: Final = 4
# A file that would be full sooner than this is followed by a larger one, and one that lasts long by a smaller one.
GROW_BELOW_NS: Final = 60_000_000_000
SHRINK_FROM_NS: Final = 600_000_000_000
PREPARE_AT_FRACTION: Final = 4
PREPARE_AT_BYTES: Final = 256 << 10
PREPARE_RETRY_NS: Final = 1_000_000_000
# A file of the full size that fills faster than this is under bulk load, and so is a smaller one in proportion: writing
# its successor's zeros would double the load, and the dearer sync of unwritten extents is shared by large groups.
ZERO_FILL_LIFE_NS: Final = 5_000_000_000
# How full a file must be for a checkpoint to move on from it: below that, reading it again costs less than a new one.
TRIM_USED_PERCENT: Final = 25
WARM_BYTES: Final = 1 << 20


class WrittenFile:
    """A file of this generation: how far it is written, and the last lsn in it, by which it is trimmed."""

    __slots__ = ("at", "handle", "last_lsn", "name", "prepare_at", "size")

    def __init__(self, name: WalName, handle: int, size: int) -> None:
        self.name = name
        self.handle = handle
        self.size = size - walfile.TAIL_BYTES
        self.at = walfile.HEADER_BYTES
        self.prepare_at = min(self.size // PREPARE_AT_FRACTION, PREPARE_AT_BYTES)
        self.last_lsn = 0


class ShardFiles:
    """The file being written (`current`), the one after it (`next`, once prepared), and those that are full."""

    def __init__(
        self, disk: Disk, clock: Clock, directory: str, generation: int, index: int, *, file_bytes: int
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._generation = generation
        self._index = index
        self._boot = walfile.boot_digest(disk.boot_id())
        self._file_bytes = file_bytes
        self._preparing = False
        # The file that is being prepared is needed now.
        self._hurried = False
        self._prepare_after_ns = 0
        self._closed = False
        # The next file is asked for however little of this one is used: what is in this one is to go.
        self._leaving = False
        # There was no room for the next file: nothing may be written but what frees some.
        self.no_room = False
        self.rotations_total = 0
        # The size of the file before the current one.
        self._filled_bytes = 0
        self.current = self._create(1, min(file_bytes, FIRST_FILE_BYTES), zero_fill=True)
        self._since_ns = self._began_ns = clock.elapsed_ns()
        self.next: WrittenFile | None = None
        # Made before `next` and too small for what was expected: never used, and retired with `current`.
        self._skipped: list[WrittenFile] = []
        # Full and not synced; taken by the running sync; full and synced.
        self.retired: list[WrittenFile] = []
        self._under_sync: list[WrittenFile] = []
        self._synced: list[WrittenFile] = []

    def _create(self, number: int, size: int, *, zero_fill: bool) -> WrittenFile:
        name = WalName(self._generation, self._index, number)
        handle = walfile.create(
            self._disk, self._directory, name, self._boot, size, zero_fill=zero_fill, enough=lambda: self._hurried
        )
        return WrittenFile(name, handle, size)

    def rotate(self, frame_bytes: int) -> bool:
        """Make the next file the current one; False where it is not ready yet. A frame of this size fits into it."""
        needed = walfile.HEADER_BYTES + frame_bytes + walfile.TAIL_BYTES
        following = self.next
        if following is not None and needed <= following.size + walfile.TAIL_BYTES:
            self.next = None
        elif self._preparing:
            # Dearer syncs of one file are better than writers that wait for all of its zeros.
            self._hurried = True
            return False
        else:
            number = (following or self.current).name.number + 1
            try:
                following = self._create(number, max(needed, self._file_bytes), zero_fill=False)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                # Nothing was written: what is queued waits until there is room.
                self.no_room = True
                return False
            self._skip_next()
        self._leaving = False
        self._filled_bytes = self.current.size
        self.retired += [self.current, *self._skipped]
        self._skipped = []
        self.current = following
        self._began_ns = self._clock.elapsed_ns()
        self.rotations_total += 1
        return True

    def _skip_next(self) -> None:
        """Leave a file unused; it goes when the one before it goes, since a missing number is damage."""
        if self.next is not None:
            self._skipped.append(self.next)
            self.next = None

    def expect_job(self, frame_bytes: int) -> Job | None:
        """What makes a file ready for a large frame that will come soon; None where nothing can be done ahead.

        The loop is to find the pages of the file in memory, and a file that is large enough: it reads what it will
        write over, and makes the next file where the frame fits into none.
        """
        needed = walfile.HEADER_BYTES + frame_bytes + walfile.TAIL_BYTES
        current, following = self.current, self.next
        if current.at + frame_bytes <= current.size:
            return Task("warm", partial(self._warm, current, current.at, frame_bytes), _ignore)
        if following is not None and needed <= following.size + walfile.TAIL_BYTES:
            return Task("warm", partial(self._warm, following, 0, needed), _ignore)
        if self._preparing:
            return None
        self._preparing = True
        made: list[WrittenFile] = []
        number = (following or current).name.number + 1

        def work() -> None:
            made.append(self._create(number, max(needed, self._file_bytes), zero_fill=False))
            self._warm(made[0], 0, needed)

        return Task("prepare", work, partial(self._prepared, made))

    def _warm(self, file: WrittenFile, begin: int, size: int) -> None:
        for at in range(begin, begin + size, WARM_BYTES):
            self._disk.read(file.handle, at, min(WARM_BYTES, begin + size - at))

    def _prepared(self, made: list[WrittenFile], error: BaseException | None) -> None:
        self._preparing = self._hurried = False
        if made:
            self._skip_next()
            self.next, self._leaving, self.no_room = made[0], False, False
            if self._closed:
                self.close()
        elif error is not None:
            self._prepare_after_ns = self._clock.elapsed_ns() + PREPARE_RETRY_NS

    @property
    def prepare_needed(self) -> bool:
        """Whether the current file is so far used that its successor should be made: early, for a slow disk."""
        return self._leaving or self.current.at >= self.current.prepare_at

    def _next_bytes(self, now_ns: int) -> int:
        """How large the next file should be: what is allocated ahead of use is room that nobody else has."""
        size = self.current.size + walfile.TAIL_BYTES
        fills_ns = (now_ns - self._began_ns) * size // self.current.at
        if fills_ns > SHRINK_FROM_NS:
            size = max(size // FILE_GROWTH, FIRST_FILE_BYTES)
        elif fills_ns < GROW_BELOW_NS and not self._leaving:
            size = self.current.size * FILE_GROWTH
        return min(self._file_bytes, size)

    def prepare_job(self, now_ns: int) -> Job | None:
        """The making of the next file, or None where it is there, being made, not needed soon, or has just failed."""
        if self.next is not None or self._preparing or now_ns < self._prepare_after_ns or not self.prepare_needed:
            return None
        self._preparing = True
        bulk = (now_ns - self._since_ns) * FILE_BYTES < ZERO_FILL_LIFE_NS * self._filled_bytes
        self._since_ns = now_ns
        made: list[WrittenFile] = []
        number = self.current.name.number + 1
        size = self._next_bytes(now_ns)
        smallest = min(size, FIRST_FILE_BYTES)

        def work() -> None:
            try:
                made.append(self._create(number, size, zero_fill=not bulk))
            except OSError as error:
                if error.errno != errno.ENOSPC or size == smallest:
                    raise
                made.append(self._create(number, smallest, zero_fill=not bulk))

        def finish(error: BaseException | None) -> None:
            self.no_room = isinstance(error, OSError) and error.errno == errno.ENOSPC
            self._prepared(made, error)

        return Task("prepare", work, finish)

    def written(self) -> list[tuple[WalName, int]]:
        """Every file of this generation that is there and may hold frames, in order, and how far each is written."""
        files = [*self._synced, *self._under_sync, *self.retired, self.current]
        return [(file.name, file.at) for file in files]

    def unsynced(self) -> list[WrittenFile]:
        """The files that may have bytes which are not durable, oldest first."""
        return [*self._under_sync, *self.retired, self.current]

    def begin_sync(self) -> list[WrittenFile]:
        """The files that a sync has to cover, oldest first, so that an order seen on disk is one that was written."""
        self._under_sync, self.retired = self.retired, []
        return self.unsynced()

    def end_sync(self) -> None:
        """The sync has succeeded: the full files among those it covered may be trimmed."""
        self._synced += self._under_sync
        self._under_sync = []

    def rotate_for_trim(self, *, clean: bool) -> None:
        """As the shard's; `clean` says that everything written is durable already."""
        if self.next is None or self.current.at < self.current.size * TRIM_USED_PERCENT // 100:
            return
        self.rotate(0)
        if clean:
            self._synced += self.retired
            self.retired = []

    @property
    def may_leave(self) -> bool:
        """Whether the next file is there, or this one empty; where it is not, this asks for it."""
        self._leaving = self._leaving or (self.next is None and self.current.at > walfile.HEADER_BYTES)
        return not self._leaving

    def leave(self, *, clean: bool) -> None:
        """Move on to the next file, unless this one is empty."""
        if self.current.at > walfile.HEADER_BYTES:
            self.rotate(0)
            if clean:
                self._synced += self.retired
                self.retired = []

    def trimmable(self, upto_lsn: int) -> list[WalName]:
        """The full, synced files with every frame at or below `upto_lsn`: the oldest ones, without a gap."""
        upto = itertools.takewhile(lambda file: file.last_lsn <= upto_lsn, self._synced)
        return [file.name for file in upto]

    def trimmed(self, names: Collection[WalName]) -> list[int]:
        """These files have been unlinked; their handles, for a job to close: that frees their room, which may wait."""
        handles = [file.handle for file in self._synced if file.name in names]
        self._synced = [file for file in self._synced if file.name not in names]
        return handles

    def blank_rest(self) -> None:
        """Zero the current file from where writing got to, if that can be done: nothing there was acknowledged."""
        with contextlib.suppress(OSError):
            self._disk.write(self.current.handle, self.current.at, bytes(self.current.size - self.current.at))

    def mark_suspect(self) -> None:
        """Leave a mark for the next start under this kernel: the kernel's memory may hold what is not on the disk."""
        with contextlib.suppress(OSError):
            self._disk.close(self._disk.create(f"{self._directory}/{walfile.SUSPECT_NAME}"))

    def close(self) -> None:
        """Close the files. The ones that a running sync uses stay open."""
        self._closed = True
        files = [*self.retired, *self._synced, *self._skipped]
        if self.current.handle >= 0:
            files.append(self.current)
        if self.next is not None:
            files.append(self.next)
        for file in files:
            with contextlib.suppress(OSError):
                self._disk.close(file.handle)
            file.handle = -1
        self.retired, self._synced, self._skipped, self.next = [], [], [], None


def _ignore(error: BaseException | None) -> None:
    """What was to be read ahead is read when it is needed."""
