"""Connections leave the store its files: a limit of open files is raised, or else lowers `max_connections`."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from topics.server import descriptors
from topics.settings import Settings

BACKLOG = 100
ASIDE = descriptors.reserved(Settings(), BACKLOG)
INFINITE = resource.RLIM_INFINITY


class Process:
    """The limits of a process, in place of those of this one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int = 1 << 40) -> None:
        self.limits = (soft, hard)
        self._most = most
        self.room = 0
        monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: self.limits)
        monkeypatch.setattr(descriptors.resource, "setrlimit", self._set)
        monkeypatch.setattr(descriptors, "_make_room", self._make_room)

    def _set(self, _: int, limits: tuple[int, int]) -> None:
        if limits[0] > self._most:
            raise ValueError("not allowed")
        self.limits = limits

    def _make_room(self, count: int) -> None:
        self.room = count


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "allowed", "raised"),
    [
        (1024, 1_000_000, 20_000, 20_000, 20_000 + ASIDE),  # the usual machine
        (1024, INFINITE, 20_000, 20_000, 20_000 + ASIDE),
        (INFINITE, INFINITE, 20_000, 20_000, INFINITE),
        (1_000_000, 1_000_000, 20_000, 20_000, 1_000_000),  # never lowered
        (1024, 10_000, 20_000, 10_000 - ASIDE, 10_000),
        (200, 200, 20_000, 100, 200),  # too few for the reserve: half
        (1024, 10_000, 0, 10_000 - ASIDE, 10_000),  # unlimited means as many as there can be
        (1024, INFINITE, 0, descriptors.UNBOUNDED - ASIDE, INFINITE),
    ],
)  # fmt: skip
def test_limit_is_raised_and_connections_are_what_it_leaves(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, allowed: int, raised: int
) -> None:
    process = Process(monkeypatch, soft, hard)
    connections, refused = descriptors.allot(Settings(max_connections=wanted), BACKLOG)
    assert connections == allowed
    assert refused == (25 if soft == 200 else 256)
    assert process.limits == (raised, hard)
    assert process.room == min(allowed + ASIDE, 1 << 16) if soft != 200 else 200


def test_a_limit_that_cannot_be_raised_is_lived_with(monkeypatch: pytest.MonkeyPatch) -> None:
    Process(monkeypatch, 5_000, 1_000_000, most=5_000)
    assert descriptors.allot(Settings(), BACKLOG) == (5_000 - ASIDE, 256)


def test_a_cold_tier_and_further_shards_need_files_too() -> None:
    cold = Settings(cold_dir=Path("cold"), wal_shards=8)
    assert descriptors.reserved(cold, 0) - descriptors.reserved(Settings(), 0) == 128 + 7 * descriptors.FILES_PER_SHARD


def test_the_table_of_descriptors_has_its_size_from_the_start() -> None:
    """FAIR-1: a table that grows later holds up everybody for as long as the system takes, for each doubling."""
    script = """
from pathlib import Path
from topics.server.descriptors import allot
from topics.settings import Settings
def size():
    return int(Path("/proc/self/status").read_text().partition("FDSize:")[2].split()[0])
before = size()
connections, _ = allot(Settings(max_connections=3000), 100)
print(before, connections, size())
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    before, connections, after = map(int, said.split())
    assert before < connections
    assert after >= connections
