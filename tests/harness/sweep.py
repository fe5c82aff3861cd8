"""Sweep: a world ends after every single call that changes its disk, and each end is recovered and checked.

After every mutating call, and in the middle of every write to the WAL, the disk is copied; each copy suffers each kind
of damage, is recovered and checked by the oracle, then is killed and recovered a second time, which must show the same
and change no byte. Where asked, recovery itself is swept too: a crash after each of its calls, in every kind of damage,
then a recovery that must hold. Nothing is run again from the start, so a crash point costs only its own recovery.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.harness.oracle import Broken, Crash, difference, state
from tests.harness.world import World
from topics.engine import Engine
from topics.storage.damage import Unusable
from topics.storage.wal import file as walfile
from topics.testing.fake_disk import DAMAGES, Damage, FakeDisk


@dataclass
class Sweep:
    """Ends a world after every call, and counts how often it has."""

    world: World
    damages: Sequence[Damage] = DAMAGES
    # Recovery itself is swept at every nth point; 0 means never.
    nested_every: int = 0
    points: int = 0
    calls: int = 0
    nested_points: int = 0
    # The share of the calls that are followed by an end, by dice: in a long life many are alike.
    share: float = 1.0
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    # What is raised inside a job may be taken for a failure of the disk, so it is raised again at the end.
    _failure: BaseException | None = None

    def __enter__(self) -> Sweep:
        self.world.disk.after_call = self._after_call
        return self

    def __exit__(self, *_: object) -> None:
        self.world.disk.after_call = None
        if self._failure is not None:
            raise self._failure

    def _after_call(self, number: int, operation: str, path: str) -> None:
        if self.dice.random() >= self.share:
            return
        self.calls += 1
        for damage in self.damages:
            self.points += 1
            nested = self.nested_every and self.points % self.nested_every == 0
            try:
                self._end(number, damage, nested=bool(nested))
            except BaseException as error:
                error.add_note(f"crash point: call {number} ({operation} {path}), {damage}")
                self._failure = self._failure or error
                raise

    def _end(self, number: int, damage: Damage, *, nested: bool) -> None:
        world = self.world
        how = world.how(damage)
        twin = world.disk.clone()
        twin.crash(damage, random.Random(number))
        if nested:
            twin.after_call = lambda inner, operation, path: self._end_recovery(twin, how, inner, operation, path)
        engine = self._recover(twin)
        twin.after_call = None
        if self._failure is not None:
            raise self._failure
        world.oracle.check(engine, how, world.engine)
        shown, files = state(engine), _used_files(twin)
        twin.crash("kill", random.Random(0))
        again = self._recover(twin)
        if state(again) != shown:
            raise Broken(difference("a second recovery shows something else", shown, state(again)))
        if _used_files(twin) != files:
            raise Broken("a second recovery changed bytes")

    def _recover(self, disk: FakeDisk) -> Engine:
        try:
            return self.world.boot(disk)[1]
        except Unusable as refusal:
            raise Broken(f"a crash is no reason to refuse a start: {refusal}") from refusal

    def _end_recovery(self, disk: FakeDisk, how: Crash, number: int, operation: str, path: str) -> None:
        for damage in self.damages:
            self.points += 1
            self.nested_points += 1
            twin = disk.clone()
            twin.crash(damage, random.Random(number))
            both = Crash(how.kill and damage == "kill", how.synced_lsns)
            try:
                engine = self._recover(twin)
                self.world.oracle.check(engine, both, self.world.engine)
            except BaseException as error:
                error.add_note(f"crash in recovery: call {number} ({operation} {path}), {damage}")
                self._failure = self._failure or error
                raise


def live(seed: int, steps: int, share: float = 1.0, crash_share: float = 0.01, **options: Any) -> tuple[World, Sweep]:
    """A whole life by dice, swept, with crashes that it survives; what breaks a promise is raised with its seed."""
    world = World(seed, shards=1 + seed % 2, **options)
    sweep = Sweep(world, nested_every=101, share=share, dice=random.Random(seed))
    try:
        for _ in range(steps):
            with sweep:
                world.step()
            if world.rng.random() < crash_share:
                world.crash(world.rng.choice(DAMAGES))
            elif world.rng.random() < crash_share / 4:
                world.stop()
    except BaseException as error:
        error.add_note(f"life: seed {seed}, {steps} steps, share {share}")
        raise
    return world, sweep


def _used_files(disk: FakeDisk) -> dict[str, bytes]:
    """The bytes of all files but those of generations that have nothing in them yet: every start opens one."""
    files: dict[str, bytes] = {}
    for path, content in disk.files().items():
        name = walfile.parse_name(path.rpartition("/")[2])
        if name is None or any(content[walfile.HEADER_BYTES :]):
            files[path] = content
    return files
