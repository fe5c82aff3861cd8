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
BEYOND_BYTES = 512 << 20
"""More than is free, so that what the kernel keeps free was in use before too."""


class Pages:
    """A file that takes the memory that is free."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "pages"
        self._file.touch()
        self._at = 0

    def fill(self) -> str:
        """Take what is free now, also what was freed since the last time; the text says what that took."""
        total, free = _memory_bytes("MemTotal:"), _memory_bytes("MemFree:")
        # The kernel drops first what was written first, which is written again first here.
        length = min(total, self._file.stat().st_size + shutil.disk_usage(self._file.parent).free // 2) // CHUNK
        chunks = min((free + BEYOND_BYTES) // CHUNK, length)
        begin = time.process_time()
        self._write(chunks, length)
        gib = chunks * CHUNK / (1 << 30)
        return f"page cache filled first: {gib:.1f} GiB, {(time.process_time() - begin) / gib:.1f} s of CPU each"

    def _write(self, chunks: int, length: int) -> None:
        chunk = bytes(CHUNK)
        with self._file.open("r+b", buffering=0) as out:
            for _ in range(chunks):
                out.seek(self._at % length * CHUNK)
                out.write(chunk)
                self._at += 1
            # What is written later would disturb the measurement.
            os.fsync(out.fileno())


def _memory_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"the kernel does not report {name}")
