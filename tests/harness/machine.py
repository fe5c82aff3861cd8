"""Machine: one engine after the other on one fake disk, on a clock that the test moves.

A machine is killed, loses power or is stopped, and the next engine starts on what is left. Nothing happens by itself:
a test runs `turn`s and jobs one by one, or `run_until_idle`. What clients were promised a machine does not know;
tests.harness.world.World does.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.harness.oracle import read_all
from tests.harness.storage import resolve
from topics.engine import Engine, Limits, Write
from topics.engine.log.archive import Shelf
from topics.engine.upkeep import merger
from topics.engine.upkeep.upkeep import Upkeep, UpkeepSettings
from topics.engine.write import ceiling
from topics.storage import splice
from topics.storage.disk import Disk
from topics.storage.job import run_inline
from topics.storage.segment import rewrite
from topics.storage.store import Store
from topics.testing import ManualClock
from topics.testing.fake_disk import Damage, FakeDisk

DIRECTORY: Final = "data"
SMALL: Final = UpkeepSettings(segment_max_events=50, checkpoint_wal_bytes=1 << 40)
OPTIONS: Final[dict[str, Any]] = {"wal_file_bytes": 1 << 20, "min_free_bytes": 0}
CEILING_STEP: Final = 8

# A record as it is in a log: ts, data, tag, meta.
Record = tuple[int, bytes, bytes | None, bytes | None]


class HastyClock(ManualClock):
    """A clock by which every look at it takes a millisecond: what is done for about so long is done piece by piece."""

    def elapsed_ns(self) -> int:
        """Monotonic nanoseconds; a millisecond more each time."""
        self._elapsed_ns += 1_000_000
        return super().elapsed_ns()


class Machine:
    """A disk, a clock, and one engine after the other on them; keyword arguments are options of the store."""

    def __init__(
        self,
        settings: UpkeepSettings = SMALL,
        limits: Limits | None = None,
        *,
        disk: FakeDisk | None = None,
        clock: ManualClock | None = None,
        **options: Any,
    ) -> None:
        self.disk = FakeDisk() if disk is None else disk
        self.clock = clock or ManualClock()
        self.settings = settings
        self.limits = limits
        self.options = OPTIONS | options
        self.start()

    def start(self) -> None:
        """Start the next engine on the disk."""
        self.store, self.engine, self.upkeep = self.boot(self.disk)

    def boot(self, disk: Disk) -> tuple[Store, Engine, Upkeep]:
        """An engine recovered from any disk; this machine's own is not touched."""
        store = Store(DIRECTORY, disk=disk, clock=self.clock, **self.options)
        store.open()
        shelf = Shelf(store, self.settings.segment_max_events, self.settings.segment_max_bytes)
        engine = Engine(self.clock, store, self.limits, shelf=shelf)
        upkeep = Upkeep(engine, store, self.settings)
        for _ in upkeep.recover():
            pass
        return store, engine, upkeep

    def run_until_idle(self) -> None:
        """Run everything that is due, background work included, until nothing is left."""
        while True:
            self.engine.run_until_idle()
            if not self.upkeep.step() and not run_inline(self.store.jobs()):
                return

    def checkpoint(self) -> None:
        """A whole checkpoint."""
        self.run_until_idle()
        self.upkeep.checkpoint()
        self.clock.advance(100)
        self.run_until_idle()

    def close(self) -> None:
        """An orderly stop."""
        self.run_until_idle()
        self.upkeep.close()
        self.store.close()

    def stop(self) -> None:
        """An orderly stop, and the next start."""
        self.close()
        self.crash("kill")

    def crash(self, damage: Damage = "kill") -> None:
        """End the engine, and start the next on what the damage leaves."""
        self.disk.crash(damage, random.Random(1))
        self.start()

    def read(self, topic: str, from_seq: int = 0) -> tuple[list[int], list[tuple[int, int, str]]]:
        """Everything that a reader gets after a cursor: seqs, and gaps."""
        records, gaps = read_all(self.engine, topic, from_seq)
        return list(records), gaps

    def datas(self, topic: str) -> list[Any]:
        """The data of every record that a reader gets; nothing where there is no such topic."""
        if topic not in self.engine.topics:
            return []
        return [json.loads(record.data) for record in read_all(self.engine, topic)[0].values()]

    def visible(self, topic: str) -> dict[int, Record]:
        """The live records of a topic by seq. Unlike a read, this forwards and expires nothing first."""
        log = self.engine.topics[topic].log
        records: dict[int, Record] = {}
        for entry in log.retained():
            block = resolve(entry.block)
            for i, j in entry.live_runs(max(0, log.start - entry.first_seq), entry.n):
                for k in range(i, j):
                    records[entry.first_seq + k] = (block.columns.ts[k], block.data(k), block.tag(k), block.meta(k))
        return records


def numbers(first: int, last: int) -> Write:
    """A write of the numbers first to last."""
    return Write.of(range(first, last + 1))


@contextmanager
def small() -> Iterator[None]:
    """Sizes for tests that recover thousands of times.

    No log lines, since the damage is done on purpose; `disk` topics reserve a few seqs at a time, so that the limit of
    what is reserved is reached often; two segments are enough for a merge, which takes many pieces.
    """
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    sizes: list[tuple[Any, str, int]] = [
        (ceiling, "STEP_MIN", CEILING_STEP),
        (merger, "MERGE_SEGMENTS", 2),
        (rewrite, "CHUNK_BYTES", 600),
        (splice, "LEAVE_OUT_RECORDS", 3),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in sizes]
    for module, name, size in sizes:
        setattr(module, name, size)
    try:
        yield
    finally:
        logging.disable(level)
        for module, name, size in before:
            setattr(module, name, size)


def uncached(machine: Machine, topic: str) -> None:
    """Have nothing of the sealed records of a topic in memory, neither here nor in the kernel."""
    for segment in machine.engine.topics[topic].archive.segments:
        for sealed in segment.blocks:
            segment.cache.drop(sealed)
    machine.disk.uncached = {path for path in machine.disk.files() if path.endswith(".data")}
