"""Memory goes back to the system once a burst is over, and not while it lasts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, cast

from tests.harness.loop import ManualLoop
from topics.server.memory import GROWN_BYTES, LONG_NS, LOOK_S, OLDEST, Collector, Trimming
from topics.testing import ManualClock

MIB = 1 << 20


class Process:
    """A process whose memory is what the test says; its executor runs at once."""

    def __init__(self, kept: int) -> None:
        self.resident = 50 * MIB
        self.kept = kept
        self.trims = 0
        self.taken: list[str] = []
        self.loop = ManualLoop(ManualClock())
        cast("Any", self.loop).run_in_executor = self._execute
        self.trimming = Trimming(cast("Any", self.loop), lambda: self.resident, cast("Any", self))
        self.trimming.start()

    def _execute(self, executor: None, call: Any, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*arguments))
        return done

    def take(self, most_bytes: int) -> Iterator[list[str]]:
        assert most_bytes == self.resident
        for pieces in (["a", "b"], ["c"]):
            self.taken += pieces
            yield pieces

    def empty(self, pieces: list[str]) -> None:
        assert self.taken[-len(pieces) :] == pieces

    def put_back(self, pieces: list[str]) -> None:
        assert pieces == self.taken
        self.taken = []

    def trim(self) -> None:
        assert not self.taken
        self.trims += 1
        self.resident = min(self.resident, self.kept)

    def seconds(self, count: int, grow: int = 0) -> None:
        for _ in range(count):
            self.resident += grow
            self.loop.advance(int(LOOK_S * 1000), step_ms=1000)


def test_what_a_burst_took_goes_back_when_it_is_over() -> None:
    """FAIR-6."""
    process = Process(kept=60 * MIB)
    process.seconds(3)
    process.seconds(10, grow=50 * MIB)
    assert process.trims == 0, "it still grows"
    process.seconds(2)
    assert process.trims == 1
    assert process.resident == 60 * MIB
    process.seconds(100)
    assert process.trims == 1, "nothing has grown since"


def test_what_is_under_way_ends_with_the_server_and_is_not_begun_twice() -> None:
    """A thread is not asked for anything once the server has stopped."""
    process = Process(kept=60 * MIB)
    waiting: list[Future[Any]] = []

    def execute(*_: Any) -> Future[Any]:
        waiting.append(Future())
        return waiting[-1]

    cast("Any", process.loop).run_in_executor = execute
    process.seconds(3)
    process.seconds(4, grow=50 * MIB)
    process.seconds(5)
    assert len(waiting) == 1, "the first is not done"
    process.trimming.stop()
    waiting[0].set_result(None)
    assert len(waiting) == 1
    assert process.trims == 0


def test_small_growth_is_left_alone() -> None:
    process = Process(kept=50 * MIB)
    process.seconds(2)
    process.seconds(1, grow=GROWN_BYTES - MIB)
    process.seconds(100)
    assert process.trims == 0


def test_memory_that_is_in_use_is_looked_at_less_and_less() -> None:
    """FAIR-6: where nothing comes of it, it is not done every second."""
    process = Process(kept=10_000 * MIB)
    for _ in range(300):
        process.seconds(1, grow=15 * MIB)
    assert 0 < process.trims < 20


def test_the_system_says_how_much_this_process_has() -> None:
    """In a process of its own: one that has freed much already would take it from there."""
    script = """
from topics.server.memory import resident_bytes
before = resident_bytes()
block = bytearray(b"x") * (64 << 20)
print((resident_bytes() - before) >> 20)
"""
    grown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert 60 < int(grown) < 80


def test_free_memory_goes_back_before_the_allocator_has_to_be_held_for_it() -> None:
    """FAIR-6: in a process of its own; what is left for the trim is little, since an allocation waits for that."""
    script = """
from topics.server.heap import TOGETHER, Heap
from topics.server.memory import resident_bytes, tune
tune()
heap, before = Heap(), resident_bytes()
blocks = [bytes([i]) * size for i in range(200) for size in (1 << 20, 250_000, 250_000)]
kept = blocks[2::60]
del blocks
grown = resident_bytes()
pieces = []
for taken in heap.take(grown):
    assert len(taken) <= TOGETHER
    heap.empty(taken)
    pieces += taken
emptied = resident_bytes()
heap.put_back(pieces)
assert all(block == bytes([20 * i]) * 250_000 for i, block in enumerate(kept)), "what is in use was emptied"
heap.trim()
print((grown - before) >> 20, (emptied - before) >> 20, (resident_bytes() - before) >> 20)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    grown, emptied, trimmed = map(int, said.split())
    assert grown >= 190
    assert emptied < 30, "ten are kept, and a little is smaller than a piece"
    assert trimmed <= emptied


def test_what_takes_long_to_look_at_is_not_looked_at_again() -> None:
    """FAIR-6: a server with many topics does not stand still for the collector again and again."""
    now_ns = 0
    frozen: list[int] = []
    collector = Collector(lambda: now_ns, lambda: frozen.append(now_ns))

    def collect(generation: int, took_ns: int) -> None:
        nonlocal now_ns
        collector.collected("start", {"generation": generation})
        now_ns += took_ns
        collector.collected("stop", {"generation": generation})

    collect(OLDEST - 1, 10 * LONG_NS)
    collect(OLDEST, LONG_NS)
    assert not frozen, "young objects may still end, and a short look at the old ones costs little"
    collect(OLDEST, LONG_NS + 1)
    assert len(frozen) == 1


def test_a_server_leaves_what_it_began_with_to_itself() -> None:
    """FAIR-6: in a process of its own, whose collector it is."""
    script = """
import gc
from topics.server.memory import COLLECT_AT, Collector
gc.disable()
Collector().start()
print(gc.isenabled(), gc.get_threshold() == COLLECT_AT, gc.get_freeze_count() > 1000)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True"] * 3
