"""Pages: has the machine take hold of its memory before a measurement fills the page cache.

A virtual machine may get a page of memory from its host only when it is touched, and give it back a few seconds after
it was freed. On such a machine a GiB of new pages took 2.1 s of processor time to write and a GiB of used ones 0.1 s:
a server that writes gigabytes slows down once it has used up the pages that the machine had by chance, and its last
million records say more about the host than about the server. A machine whose page cache is full, as that of any
server that has run for a while, has all its pages: new files take them over from old ones.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

CHUNK = 1 << 20
LEFT_BYTES = 256 << 20
"""Of free memory, for the processes that are measured."""
MAX_BYTES = 32 << 30


class Pages:
    """A directory of files that take the memory that is free."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = 0

    def fill(self) -> str:
        """Take what is free now, also what was freed since the last time; the text says what that took."""
        size = min(_free_bytes() - LEFT_BYTES, shutil.disk_usage(self._directory).free // 2, MAX_BYTES)
        size = max(size, CHUNK)
        self._files += 1
        begin = time.process_time()
        _write(self._directory / f"pages-{self._files}", size)
        gib = size / (1 << 30)
        return f"page cache filled first: {gib:.1f} GiB, {(time.process_time() - begin) / gib:.1f} s of CPU each"


def _write(file: Path, size: int) -> None:
    chunk = bytes(CHUNK)
    with file.open("wb", buffering=0) as out:
        for _ in range(size // CHUNK):
            out.write(chunk)
        # What is written later would disturb the measurement.
        os.fsync(out.fileno())


def _free_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemFree:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not report MemFree")
