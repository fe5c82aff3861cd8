"""Memory: how the process takes it from the system, how it gives it back, and the most that it can take.

The allocator is told to keep what it has: a large reply that is mapped anew for every request spends most of its time
in page faults. So what a burst took would stay with the process for ever. `Trimming` returns it when the burst is over:
once the memory has grown well beyond what it was after the last time, and has stopped growing, free pages go back to
the system, on a thread and without the interpreter's lock (heap.py).

That takes about a tenth of a millisecond per MiB, and pages that are needed again cost more; so it is done less and
less often where nothing comes of it, because the memory is in use.

The garbage collector stops the loop while it looks for objects that keep each other. A look at everything that a server
with 100,000 topics holds would take half a second. So it looks at a few thousand new objects at a time, and what a look
at all of them has found alive, and took long for, is not looked at again (`Collector`). That is sound as long as what
lives long does not keep itself: whatever ends, from a topic to a connection, lets go of what knows it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Final

from topics.engine.log.render import WIRE_CACHE_BYTES_MAX
from topics.server.heap import Heap, Piece
from topics.settings import Settings
from topics.storage.segment.cache import CACHE_BYTES as BLOCK_CACHE_BYTES
from topics.storage.wal.shard import QUEUE_BYTES_MAX

LOOK_S: Final = 1.0
GROWN_BYTES: Final = 64 << 20
WORTH_BYTES: Final = 16 << 20
PAUSE_LOOKS_MAX: Final = 64
"""The most looks that are left out after trims that were not worth it."""
BASE_BYTES: Final = 64 << 20
"""The process itself, and what the allocator holds between two requests."""
CACHE_BYTES: Final = WIRE_CACHE_BYTES_MAX + BLOCK_CACHE_BYTES
TOPIC_BYTES: Final = 4 << 10
CONNECTION_BYTES: Final = 128 << 10
"""What a connection may hold without being counted in the account; one that is idle holds 6 KiB."""
BODIES_AT_HAND: Final = 3
"""A body that is handled at this moment is there as it was received, as records and as a Block."""
UNSEALED_TIMES: Final = 2
"""What is being sealed is there once more, as the segment that is written."""
COLLECT_AT: Final = (2_000, 2, 0)
"""After how many new objects, and after more than how many collections of those, the next older generation is
collected: a look at everything comes after some 10,000 new objects, which is 10 ms where they are spread in memory."""
OLDEST: Final = 2
LONG_NS: Final = 5_000_000
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_STATM: Final = Path("/proc/self/statm")


class Collector:
    """How the garbage of this process is collected, see the module."""

    def __init__(
        self,
        clock_ns: Callable[[], int] = perf_counter_ns,
        freeze: Callable[[], None] = gc.freeze,
    ) -> None:
        self._clock_ns = clock_ns
        self._freeze = freeze
        self._begun_ns = 0

    def start(self) -> None:
        """Collect from now on, but never what is there already."""
        # Not collected first: that would take a tenth of an empty start, and imports leave next to no garbage.
        self._freeze()
        gc.set_threshold(*COLLECT_AT)
        gc.callbacks.append(self.collected)
        gc.enable()

    def collected(self, phase: str, info: dict[str, int]) -> None:
        """A collection begins or has ended."""
        if info["generation"] < OLDEST:
            return
        if phase == "start":
            self._begun_ns = self._clock_ns()
        elif self._clock_ns() - self._begun_ns > LONG_NS:
            self._freeze()


def tune() -> None:
    """Keep large replies off mmap, where each is faulted in again."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    # Above the largest reply, and low enough that a growing body is moved by the kernel and not copied.
    mallopt(_M_MMAP_THRESHOLD, 16 << 20)
    mallopt(_M_TRIM_THRESHOLD, 512 << 20)
    mallopt(_M_TOP_PAD, 16 << 20)


def most_bytes(settings: Settings, *, topics: int = 0, connections: int = 0) -> int:
    """The most memory that a server with these settings takes with so many topics and open connections (FAIR-6).

    The records of `ephemeral` topics come on top: as many as the caps of those topics keep.
    """
    return (
        BASE_BYTES
        + UNSEALED_TIMES * settings.max_unsealed_bytes
        + settings.max_buffered_bytes
        + settings.max_subscription_bytes
        + settings.max_dedupe_bytes
        + BODIES_AT_HAND * settings.max_body_bytes
        + settings.wal_shards * QUEUE_BYTES_MAX
        + CACHE_BYTES
        + topics * TOPIC_BYTES
        + connections * CONNECTION_BYTES
    )


def resident_bytes() -> int:
    """The anonymous memory of this process; 0 where the system does not say."""
    try:
        fields = _STATM.read_bytes().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def _heap() -> Heap | None:
    try:
        return Heap()
    except (OSError, AttributeError):
        return None


class Trimming:
    """Gives memory back once it is not needed any more, see the module."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        resident: Callable[[], int] = resident_bytes,
        heap: Heap | None = None,
    ) -> None:
        self._loop = loop
        self._resident = resident
        self._heap = heap or _heap()
        self._timer: asyncio.TimerHandle | None = None
        self._floor_bytes = 0
        self._last_bytes = 0
        self._pause = 0
        self._left_out = 0
        self._giving_back = False
        self._stopped = False

    def start(self) -> None:
        """Begin to look."""
        if self._heap is not None and self._resident():
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def stop(self) -> None:
        """Look no longer."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.start()
        now = self._resident()
        last, self._last_bytes = self._last_bytes, now
        self._floor_bytes = min(self._floor_bytes or now, now)
        if now - self._floor_bytes < GROWN_BYTES or now > last + WORTH_BYTES:
            return
        if self._left_out < self._pause:
            self._left_out += 1
            return
        self._left_out = 0
        if not self._giving_back:
            self._give_back(now)

    def _give_back(self, before: int) -> None:
        heap = self._heap
        assert heap is not None
        taken: list[Piece] = []
        batches = heap.take(before)
        self._giving_back = True

        def go_on(_: object) -> None:
            if self._stopped:
                return
            pieces = next(batches, None)
            if pieces is not None:
                taken.extend(pieces)
                self._loop.run_in_executor(None, heap.empty, pieces).add_done_callback(go_on)
            else:
                heap.put_back(taken)
                self._loop.run_in_executor(None, heap.trim).add_done_callback(lambda _: self._trimmed(before))

        go_on(None)

    def _trimmed(self, before: int) -> None:
        self._giving_back = False
        self._floor_bytes = self._last_bytes = now = self._resident()
        worth = before - now >= WORTH_BYTES
        self._pause = 0 if worth else min(PAUSE_LOOKS_MAX, 2 * self._pause + 1)
