"""The library keeps its promises while its server is killed. Longer: `python -m tools.client_chaos --restarts 50`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.chaos import Chaos
from topics import Record, Tombstone
from topics.client.operations import identity

RESTARTS = 5


def test_nothing_is_lost_or_doubled_while_the_server_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLIENT-19: with writes that have a key, and writes that have a number."""
    monkeypatch.setattr(identity, "KEYED_WRITES", 20)
    chaos = Chaos(tmp_path, RESTARTS)
    chaos.run()
    chaos.judge()
    assert min(chaos.produced.values()) > 100
    assert len(chaos.singles) > 25


def test_the_judge_sees_what_is_wrong(tmp_path: Path) -> None:
    """PROOF-1: of a run without kills, each promise broken once."""
    chaos = Chaos(tmp_path, 0)
    chaos.run()
    chaos.judge()

    def breaks(change: object, restore: object) -> None:
        assert callable(change)
        assert callable(restore)
        change()
        with pytest.raises(AssertionError):
            chaos.judge()
        restore()
        chaos.judge()

    stored = chaos.stored["threads"]
    breaks(lambda: stored.append(0), lambda: stored.pop())
    breaks(lambda: stored.insert(1, 0), lambda: stored.pop(1))
    seen = chaos.consumed["topic"]
    first = seen[0]
    breaks(lambda: seen.insert(1, first), lambda: seen.pop(1))
    breaks(lambda: seen.pop(0), lambda: seen.insert(0, first))
    at = next(i for i, item in enumerate(chaos.followed) if isinstance(item, Tombstone))
    gap = chaos.followed[at]
    breaks(lambda: chaos.followed.insert(at, gap), lambda: chaos.followed.pop(at))
    breaks(lambda: chaos.followed.pop(at), lambda: chaos.followed.insert(at, gap))
    breaks(lambda: chaos.gaps["file"].append(("t", 1, 2)), lambda: chaos.gaps["file"].pop())
    breaks(lambda: chaos.worked.pop(1), lambda: chaos.worked.update((1,)))
    breaks(lambda: chaos.errors.append(ValueError()), lambda: chaos.errors.pop())
    assert isinstance(chaos.followed[-1], Record | Tombstone)
