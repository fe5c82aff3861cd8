"""A backup is what a kill at its moment would have left, whatever happens while it is taken (BACKUP-1, BACKUP-3)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.harness.backup import WorldSource, disk_of, lasting, step
from tests.harness.machine import small
from tests.harness.oracle import difference
from tests.harness.world import TINY, World
from topics.backup.manifest import Manifest, damage
from topics.backup.taking import Taking
from topics.client.options import ClientError
from topics.testing.fake_disk import FakeDisk

BACKUPS = 3
SEEDS = 12
ATTEMPTS = 20


def take(world: World, target: Path, before: tuple[Path, Manifest] | None) -> tuple[WorldSource, Manifest]:
    source = WorldSource(world)
    reported: list[str] = []
    for _ in range(ATTEMPTS):
        # The clock of this world makes leaps that are longer than a backup may take where text is erased soon.
        with suppress(ClientError):
            manifest = Taking(source, target, before, reported.append).take()
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
    with pytest.raises((AssertionError, ClientError, FileNotFoundError)):
        _all_seeds(tmp_path)


def _all_seeds(tmp_path: Path) -> None:
    for seed in range(SEEDS):
        test_backup_is_the_state_at_its_moment(seed, tmp_path / str(seed))
