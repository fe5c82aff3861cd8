"""The metrics of the process, under the names that every Prometheus client library gives them (PROBE-17).

They are read from /proc, where there is one. Counting the open files takes a listing of them, which may be many, so
that is done seldom.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from topics import __version__
from topics.clock import Clock
from topics.server.api.exposition import Counter, Family, Gauge, Info

FDS_REST_NS: Final = 10_000_000_000
_STATM: Final = Path("/proc/self/statm")
_FDS: Final = Path("/proc/self/fd")


class ProcessMetrics:
    """What the system says about this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_s = time.time()
        self._fds = 0
        self._fds_until_ns = 0

    def collect(self) -> Iterator[Family]:
        """Processor time, memory, files and the version."""
        yield Counter("process_cpu_seconds", "Processor time of user and system in seconds.", time.process_time())
        yield Gauge("process_start_time_seconds", "When the process began, in seconds since 1970.", self._started_s)
        with suppress(OSError):
            virtual, resident = map(int, _STATM.read_text().split()[:2])
            page = resource.getpagesize()
            yield Gauge("process_resident_memory_bytes", "Memory in RAM.", resident * page)
            yield Gauge("process_virtual_memory_bytes", "Address space in use.", virtual * page)
            yield Gauge("process_open_fds", "Open files and sockets, as last counted.", self._count_fds())
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield Gauge("process_max_fds", "How many files and sockets may be open.", limit)
        yield Info("topics_build", "What runs.", {"version": __version__})

    def _count_fds(self) -> int:
        now_ns = self._clock.elapsed_ns()
        if now_ns >= self._fds_until_ns:
            self._fds_until_ns = now_ns + FDS_REST_NS
            self._fds = sum(1 for _ in _FDS.iterdir())
        return self._fds
