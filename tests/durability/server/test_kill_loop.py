"""A real server, killed under load over HTTP: nothing acknowledged is lost, repeated, or given a seq twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.kill import KillLoop
from tests.harness.oracle import Broken
from topics.testing import ServerProcess

ROUNDS_S = (0.9, 0.4, 0.7, 0.2, 0.8)

# Loaded by the interpreter before anything else. From its thirtieth turn on, the server acks without writing.
LYING_SERVER = """
from topics.storage.wal.shard import Shard

honest = Shard.write

def write(self):
    self.turns = getattr(self, "turns", 0) + 1
    if self.turns < 30 or not self._frames:
        honest(self)
        return
    waiters, self._frames, self._waiters, self._gates = self._waiters, [], [], []
    self._queue_bytes = 0
    for waiter in waiters:
        if waiter is not None:
            waiter.commit(0, 0)

Shard.write = write
"""


def test_kill_under_load_loses_repeats_and_reuses_nothing(tmp_path: Path) -> None:
    """DURABLE-3: kill -9 with concurrent writers on every class with a log; retries are safe (RETRY-8)."""
    with ServerProcess(
        data_dir=tmp_path / "data", wal_shards=2, segment_max_events=150, checkpoint_wal_bytes=200_000
    ) as server:
        loop = KillLoop(server, seed=1)
        for seconds in ROUNDS_S:
            loop.round(seconds)
        loop.round(0.4, kill=False)
        # On a machine that is busy with other things, rounds of this length may come to little.
        while loop.acked < 200:
            loop.round(0.9)


def test_kill_loop_finds_a_server_that_acks_without_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROOF-1: for each instrument a planted bug that it catches."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(LYING_SERVER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    with ServerProcess(data_dir=tmp_path / "data") as server:
        loop = KillLoop(server, seed=1)
        with pytest.raises(Broken):
            _rounds(loop)


def _rounds(loop: KillLoop) -> None:
    for _ in range(30):
        loop.round(0.5)


def test_kill_while_segments_are_merged_and_text_is_erased(tmp_path: Path) -> None:
    """SPACE-1, SPACE-5: what is rewritten in the background loses nothing and brings nothing back."""
    with ServerProcess(
        data_dir=tmp_path / "data", segment_max_events=20, checkpoint_wal_bytes=200_000, erase_after_ms=10_000
    ) as server:
        loop = KillLoop(server, seed=2)
        editions: set[str] = set()
        for _ in range(12):
            loop.round(1.6)
            editions |= {path.name for path in (tmp_path / "data" / "segments").glob("*-*-*.data")}
            if len(editions) > 6:
                break
        assert editions
        loop.round(0.4, kill=False)
