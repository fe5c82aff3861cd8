"""Story: a machine on which things happen by dice, one step after the other, until it crashes.

A test subclasses Story, defines in `step` what may happen, and checks after the crash what must hold. Everything is
chosen by `rng`, so a seed always tells the same story; dice thrown in another order tell another one.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from tests.harness.machine import Machine
from tests.harness.storage import resolve
from topics.engine import Engine, RecordIn
from topics.engine.router.router import PutRouter
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.storage.job import run_inline
from topics.testing.fake_disk import Crashed

TAGS = (None, "x", "y")


def ignore(_: Any) -> None:
    """Take the answer of a command, and do nothing with it."""


class Story(ABC):
    """A machine and the dice; keyword arguments are options of the store."""

    def __init__(self, seed: int, segment_max_events: int = 20, **options: Any) -> None:
        self.rng = random.Random(seed)
        settings = UpkeepSettings(segment_max_events=segment_max_events, checkpoint_wal_bytes=1 << 40)
        self.machine = Machine(settings, **options)
        self.serial = 0

    @property
    def engine(self) -> Engine:
        """The engine that runs now."""
        return self.machine.engine

    @abstractmethod
    def step(self) -> None:
        """Something happens."""

    def run_until_crash(self, steps: int, calls_min: int, calls_max: int) -> None:
        """Take steps until the disk stops at one of the calls in this range, or the steps are over."""
        disk = self.machine.disk
        disk.crash_at = disk.calls + self.rng.randrange(calls_min, calls_max)
        with suppress(Crashed):
            for _ in range(steps):
                self.step()

    def choose(self, **weights: float) -> str:
        """One of these kinds, by weight."""
        return self.rng.choices(tuple(weights), tuple(weights.values()))[0]

    def numbered(self, sizes: Sequence[int]) -> list[RecordIn]:
        """Records that no other write of this story has, one of these many, with tags by dice."""
        records = []
        for _ in range(self.rng.choice(sizes)):
            self.serial += 1
            records.append(RecordIn(msgspec.Raw(b"%d" % self.serial), tag=self.rng.choice(TAGS)))
        return records

    def happen(self, kind: str, edges: Sequence[tuple[str, str]]) -> None:
        """What may happen in any story with routers along these edges; for a kind that is not possible, all is done."""
        if kind == "move" and self.engine.routers.graph.by_name:
            self.put_router(self.any_router(), *self.rng.choice(edges))
        elif kind == "drop" and self.engine.routers.graph.by_name:
            name = self.any_router()
            resolve(lambda: self.engine.routers.delete(name, ignore))
        elif kind == "checkpoint":
            self.machine.checkpoint()
        elif kind == "time":
            self.machine.clock.advance(self.rng.choice((1, 50, 1500)))
        elif kind == "job":
            run_inline(self.machine.store.jobs())
        else:
            self.machine.run_until_idle()

    def put_router(self, name: str, source: str, dest: str, **rule: Any) -> None:
        """Create a router or change it."""
        resolve(lambda: self.engine.routers.put(name, PutRouter(source, dest, **rule), ignore))

    def any_router(self) -> str:
        """The name of one of the routers."""
        return self.rng.choice(sorted(self.engine.routers.graph.by_name))
