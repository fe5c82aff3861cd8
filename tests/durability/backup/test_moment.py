"""A backup is what a kill at its moment would have left, whatever happens while it is taken (BACKUP-1, BACKUP-3)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.harness.backup import WorldSource, disk_of, lasting, step
from tests.harness.machine import SMALL, Machine, small
from tests.harness.oracle import difference
from tests.harness.world import TINY, World
from topics.backup.manifest import Manifest, damage
from topics.backup.transfer import Transfer
from topics.commands.failures import CommandError
from topics.engine import Write
from topics.engine.upkeep.backups import LEASE_MS
from topics.errors import BackupNotFound, BackupRunning
from topics.testing.fake_disk import FakeDisk

BACKUPS = 3
SEEDS = 9
ATTEMPTS = 20


def take(
    world: World, target: Path, before: tuple[Path, Manifest] | None = None, kill_at: int | None = None
) -> tuple[WorldSource, Manifest]:
    source = WorldSource(world, kill_at=kill_at)
    reported: list[str] = []
    for _ in range(ATTEMPTS):
        # The clock of this world makes leaps that are longer than a backup may take where text is erased soon.
        with suppress(CommandError):
            manifest = Transfer(source, target, before, reported.append).take()
            break
    else:
        raise AssertionError(reported)
    assert not [line for line in reported if line.startswith("DAMAGE")]
    assert source.at_moment is not None
    return source, manifest


def compare(world: World, disk: FakeDisk, at_moment: FakeDisk) -> None:
    at_moment.crash("kill", world.rng)
    expected = lasting(world.boot(at_moment)[1])
    found = lasting(world.boot(disk)[1])
    assert found == expected, difference("the backup differs from its moment", expected, found)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_backup_is_the_state_at_its_moment(seed: int, tmp_path: Path) -> None:
    """BACKUP-1: writes, deletes, caps, checkpoints, merges, erasure and moves to the cold tier go on meanwhile."""
    with small():
        # Where nothing is erased, segments live on from backup to backup, and their flags change.
        settings = replace(TINY, erase_after_ms=86_400_000) if seed % 3 else TINY
        world = World(seed, settings, shards=1 + seed % 2, monitored=False)
        before: tuple[Path, Manifest] | None = None
        for number in range(BACKUPS):
            for _ in range(world.rng.choice((20, 60, 200))):
                step(world)
            target = tmp_path / str(number)
            source, manifest = take(world, target, before)
            assert source.at_moment is not None
            compare(world, disk_of(target, manifest, world.disk.boot), source.at_moment)
            if before is not None:
                # What earlier backups share with this one is as it was.
                assert list(damage(before[0], before[1].files)) == []
            before = target, manifest
        world.run_until_idle()
        if not world.done["miss"]:
            # Whose request failed for a cold store, the oracle does not know.
            world.crash("kill")


@pytest.mark.parametrize("kill_at", [1, 2, 5, 20, 60])
def test_server_that_is_killed_meanwhile_is_backed_up_all_the_same(kill_at: int, tmp_path: Path) -> None:
    """BACKUP-6: the backup begins again, with what it has copied, and is one of the server after the kill."""
    with small():
        # Without a cold store, which requests would have to wait for.
        world = World(7, replace(TINY, erase_after_ms=86_400_000), monitored=False, cold_directory=None)
        for _ in range(120):
            world.step()
        source, manifest = take(world, tmp_path / "backup", kill_at=kill_at)
        assert world.done["kill"] == 1
        assert source.at_moment is not None
        compare(world, disk_of(tmp_path / "backup", manifest, world.disk.boot), source.at_moment)


def test_files_go_once_a_backup_is_over_or_was_cut_off(tmp_path: Path) -> None:
    """BACKUP-3: nothing is removed meanwhile, and everything soon after; a lease ends what nobody ends."""
    with small():
        machine = Machine(SMALL)
        backups = machine.upkeep.backups
        for is_ended in (True, False):
            begun: list[Any] = []
            backups.begin(begun.append)
            while not begun:
                machine.clock.advance(100)
                machine.run_until_idle()
            with pytest.raises(BackupRunning):
                backups.begin(begun.append)
            snapshot = begun[0].snapshot
            for _ in range(3):
                machine.engine.write("t", Write.of(list(range(10))))
                machine.checkpoint()
            assert len(machine.disk.list("data/snapshots")) == 4
            assert begun[0].read(snapshot, 0, 8) == b"TOPICSNP"
            if is_ended:
                backups.end(begun[0].id)
            else:
                machine.clock.advance(LEASE_MS + 1)
            for _ in range(4):
                machine.clock.advance(3000)
                machine.run_until_idle()
            assert len(machine.disk.list("data/snapshots")) == 1
            with pytest.raises(BackupNotFound):
                backups.find(begun[0].id)


def test_backup_that_would_keep_too_much_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """BACKUP-3: by bytes, and where the disk is nearly full."""
    monkeypatch.setattr("topics.engine.upkeep.backups.KEPT_BYTES_MAX", 10_000)
    for fills in (False, True):
        machine = Machine(SMALL, min_free_bytes=1000)
        begun: list[Any] = []
        machine.upkeep.backups.begin(begun.append)
        machine.run_until_idle()
        machine.upkeep.backups.find(begun[0].id)
        if fills:
            machine.disk.free = 10
            machine.clock.advance(2000)
        else:
            machine.engine.write("t", Write.of(["x" * 10_000]))
        machine.run_until_idle()
        with pytest.raises(BackupNotFound):
            machine.upkeep.backups.find(begun[0].id)


BUGS = {
    "flags are those of the copied file": ("storage.segment.segment.Segment.has_flags", False),
    "nothing is kept": ("storage.store.Store.keeps", property(lambda store: False, lambda store, keeps: None)),
    "the log is left out": ("storage.wal.shard_files.ShardFiles.written", lambda files: []),
}


@pytest.mark.parametrize("bug", BUGS)
def test_comparison_finds_a_backup_that_is_wrong(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROOF-1: for each instrument a planted bug that it catches."""
    place, planted = BUGS[bug]
    monkeypatch.setattr(f"topics.{place}", planted)
    with pytest.raises((AssertionError, CommandError, FileNotFoundError)):
        _all_seeds(tmp_path)


def _all_seeds(tmp_path: Path) -> None:
    for seed in range(SEEDS):
        test_backup_is_the_state_at_its_moment(seed, tmp_path / str(seed))
