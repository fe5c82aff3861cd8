"""WorldSource: a backup that is taken of a World in which things go on happening between any two calls.

`at_moment` is what a kill at the moment of the backup would have left: an engine that starts on the backup must be the
same as one that starts on that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness.machine import DIRECTORY
from tests.harness.oracle import state
from tests.harness.world import World
from topics.backup.manifest import Manifest
from topics.backup.source import Interrupted, Source
from topics.engine import Engine
from topics.engine.log.loss import CAP, MIXED, TTL
from topics.engine.upkeep.backups import Backup
from topics.errors import BackupNotFound, TopicsError
from topics.storage.job import Miss, run_inline
from topics.storage.store import Store
from topics.testing.fake_disk import FakeDisk

BEGIN_STEPS_MAX = 200
PIECE_BYTES = 1000
TAKEN = (CAP, TTL, MIXED)


def step(world: World) -> None:
    """Something happens; what it needs of a cold store is read, and it may not have happened then."""
    try:
        world.step()
    except Miss as miss:
        run_inline([miss.job])
        world.done["miss"] += 1


class WorldSource(Source):
    """The calls of a backup, to the engine of a world; `steps` things happen before each of them."""

    def __init__(self, world: World, steps: int = 3, *, kill_at: int | None = None) -> None:
        """With `kill_at`, the world is killed before that call."""
        self.world = world
        self.calls_left = kill_at
        self.steps = steps
        self.received_bytes = 0
        self.received: list[str] = []
        self.at_moment: FakeDisk | None = None
        self.id = ""

    def _happen(self) -> None:
        for _ in range(self.world.rng.randrange(self.steps + 1)):
            step(self.world)

    def begin(self, patience_s: float) -> tuple[str, int]:
        """Begin a backup, and let the world go on until its checkpoint is made."""
        begun: list[Backup | TopicsError] = []
        self.world.upkeep.backups.begin(begun.append)
        for _ in range(BEGIN_STEPS_MAX):
            if begun:
                break
            step(self.world)
        while not begun:
            self.world.clock.advance(1000)
            self.world.run_until_idle()
        assert isinstance(begun[0], Backup), begun[0]
        self.id = begun[0].id
        return begun[0].snapshot, begun[0].snapshot_bytes

    def _backup(self) -> Backup:
        self._happen()
        if self.calls_left is not None:
            self.calls_left -= 1
            if not self.calls_left:
                self.world.crash("kill")
        try:
            return self.world.upkeep.backups.find(self.id)
        except BackupNotFound as error:
            raise Interrupted(error.message) from None

    def describe(self, stems: list[str]) -> list[dict[str, Any]]:
        """As the server would."""
        return self._backup().describe(stems)

    def piece(self, file: str, offset: int, size: int) -> bytes:
        """A small piece, so that more can happen between two of them."""
        data = self._backup().read(file, offset, min(size, PIECE_BYTES))
        assert data, f"{file} ends at {offset}"
        self.received_bytes += len(data)
        if offset == 0:
            self.received.append(file)
        return data

    def moment(self) -> dict[str, Any]:
        """The moment, and what a kill would leave then."""
        self._backup()
        taken: list[dict[str, Any] | TopicsError] = []
        self.world.upkeep.backups.moment(self.id, taken.append)
        while not taken:
            self.world.turn()
            if taken:
                self.at_moment = self.world.disk.clone()
            else:
                self.world.run_job()
                self.world.finish_job()
        assert isinstance(taken[0], dict), taken[0]
        return taken[0]

    def pause(self, seconds: float) -> None:
        """Let that time pass in the world."""
        self.world.clock.advance(int(seconds * 1000))
        self.world.run_until_idle()

    def end(self) -> None:
        """The end of the backup."""
        id, self.id = self.id, ""
        if id:
            self._happen()
            self.end_other(id)

    def end_other(self, id: str) -> None:
        """The end of a backup that was cut off."""
        try:
            self.world.upkeep.backups.end(id)
        except BackupNotFound:
            return

    def close(self) -> None:
        """There is nothing to close."""


def disk_of(directory: Path, manifest: Manifest, boot: int) -> FakeDisk:
    """A fake disk with the files of a backup, under the kernel that the backup was taken under."""
    disk = FakeDisk()
    disk.boot = boot
    for entry in manifest.files:
        path = f"{DIRECTORY}/{entry.path}"
        disk.make_dir(path.rpartition("/")[0])
        handle = disk.create(path)
        disk.write(handle, 0, (directory / entry.path).read_bytes())
        disk.sync(handle)
        disk.close(handle)
        disk.sync_dir(path.rpartition("/")[0])
    return disk


def lasting(engine: Engine) -> dict[str, Any]:
    """Everything that clients can see of the topics that a kill leaves as they are.

    An idempotency key that is older than its window may be there still, or not: nobody can tell. In this world records
    may become visible long after they were written. Where others have expired in between, a restart cannot know that it
    was not the cap that took them.
    """
    assert isinstance(engine.store, Store)
    engine.store.segments.tiers.patient = True
    names = [name for name, topic in engine.topics.items() if topic.config.durability != "ephemeral"]
    shown = state(engine, names)
    now = engine.clock.now_ms()
    for name, (id, config, seqs, lost, keys, producers, (records, gaps)) in shown.items():
        keys = {key: write for key, write in keys.items() if write[2] + config.idempotency_window_ms > now}
        gaps = [(first, last, "taken" if reason in TAKEN else reason) for first, last, reason in gaps]
        shown[name] = (id, config, seqs, lost, keys, producers, (records, gaps))
    return shown
