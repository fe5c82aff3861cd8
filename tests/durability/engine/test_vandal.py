"""Files damaged, cut, emptied, removed, swapped and copied: a start loses nothing in silence and invents nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.damage import Act
from tests.harness.machine import DIRECTORY, small
from tests.harness.oracle import Broken
from tests.harness.vandal import Victim, vandalise
from topics.engine.restart.recovery import Recovery
from topics.storage import history
from topics.storage.damage import Unusable
from topics.testing.fake_disk import FakeDisk


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small():
        yield


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_done_to_the_files_is_reported_or_harmless(seed: int) -> None:
    """DURABLE-18: loss is counted and exact, and everything else is there."""
    outcomes = vandalise(seed, 156)
    assert outcomes["costly"] > 20
    assert outcomes["harmless"] > 20
    assert outcomes["refused"] > 0


def test_records_lost_with_their_index_are_reported_by_every_start() -> None:
    """DURABLE-18: the index is made again without them, and a kill comes before the next checkpoint."""
    victim = Victim.grow(50006)
    segments = [
        segment
        for topic in victim.world.engine.topics.values()
        for segment in topic.archive.segments
        if len(segment.blocks) > 1 and not segment.is_cold and segment.blocks[0].live
    ]

    def flip_record_and_index(disk: FakeDisk, rng: random.Random) -> Act:
        segment = rng.choice(segments)
        directory, name = f"{DIRECTORY}/segments", segment.name
        disk.damage(f"{directory}/{name.index_file}", 19, b"\xff")
        disk.damage(f"{directory}/{name.data_file}", segment.blocks[0].offset + 70, b"\xff")
        return Act(f"flipped {name.data_file} and its index")

    for seed in range(len(segments)):
        victim.suffer(random.Random(seed), flip_record_and_index)
    assert victim.outcomes["costly"] == len(segments) > 0


def _counts_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "_damage", lambda self, event: None)


def _goes_on_without_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = history.History._load_snapshot

    def load(self: history.History, wal: Any, segment_files: int) -> Iterator[Any]:
        try:
            yield from newest(self, wal, segment_files)
        except Unusable:
            yield history.Started(None, same_boot=True)

    monkeypatch.setattr(history.History, "_load_snapshot", load)


def _forgets_what_a_jump_means(monkeypatch: pytest.MonkeyPatch) -> None:
    lose = Recovery._lose

    def silent(topic: Any, first: int, last: int, reason: str = "corruption") -> None:
        if reason != "corruption":
            lose(topic, first, last, reason)

    monkeypatch.setattr(Recovery, "_lose", staticmethod(silent))


@pytest.mark.parametrize(
    "bug",
    [_counts_no_damage, _goes_on_without_a_checkpoint, _forgets_what_a_jump_means],
    ids=lambda bug: bug.__name__.strip("_"),
)
def test_vandal_finds(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """PROOF-1: for each instrument a planted bug that it catches."""
    bug(monkeypatch)
    with pytest.raises(Broken):
        vandalise(1, 300)
