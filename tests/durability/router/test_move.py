"""A router that is given another source or dest, and a crash at every call to the disk around that (ROUTER-9).

The change is one step: afterwards the router is where it was or where it is to be, wherever the world ended, and
whatever other shards had lost by then. What it had copied is there, and what it has to copy comes.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from tests.harness.machine import Machine, numbers, small
from topics.engine import ConfigPatch
from topics.engine.router.router import PutRouter
from topics.storage.job import run_inline
from topics.testing.fake_disk import DAMAGES, FakeDisk

OLD = ("a", "b")
WAL_FILE_BYTES = 1 << 14
MOVES = {"both ends, made for it": ("c", "d"), "source": ("c", "b"), "dest": ("a", "d"), "to and fro": ("b", "a")}


class End(NamedTuple):
    """The disk after one of the calls, and what clients had been answered by then."""

    disk: FakeDisk
    acked: list[str]


class Move:
    """A router r from a to b with its copies, on a machine that remembers every moment from then on."""

    def __init__(self, shards: int, others: int, durability: str) -> None:
        self.machine = Machine(shards=shards, wal_file_bytes=WAL_FILE_BYTES)
        engine = self.machine.engine
        engine.put_topic("a", ConfigPatch(durability="fsync"))
        # Which shards the topics are in depends on how many there are before them.
        for i in range(others):
            engine.put_topic(f"other{i}", ConfigPatch())
        engine.put_topic("b", ConfigPatch(durability=durability))  # type: ignore[arg-type]
        engine.routers.put("r", PutRouter(*OLD))
        engine.write("a", numbers(1, 3))
        engine.write("b", numbers(101, 102))
        engine.write("a", numbers(4, 5))
        self.machine.run_until_idle()
        self.before = self.machine.datas("b")
        self.acked: list[str] = []
        self.ends: list[End] = []
        self.machine.disk.after_call = self._remember

    def _remember(self, *_: Any) -> None:
        self.ends.append(End(self.machine.disk.clone(), list(self.acked)))

    def answered(self, what: str) -> Any:
        def on_done(answer: Any) -> None:
            if answer.error is None:
                self.acked.append(what)

        return on_done

    def move(self, source: str, dest: str) -> None:
        """The change, and writes to every topic while it is on its way."""
        engine = self.machine.engine
        engine.routers.put("r", PutRouter(source, dest), self.answered("moved"))
        for name, number in (("a", 6), ("b", 103), ("c", 201), ("d", 301)):
            engine.write(name, numbers(number, number), self.answered(f"{name} {number}"))
        engine.prepare()
        engine.turn()
        for _ in range(20):
            run_inline(self.machine.store.jobs())
            self.machine.clock.advance(20)
            engine.prepare()
            engine.turn()
        self.machine.disk.after_call = None


def check(end: End, damage: Any, move: Move, moved_to: tuple[str, str], shards: int) -> str:
    """Hold what is left to the rule; whether the router is `old` or `new`."""
    disk = end.disk.clone()
    disk.crash(damage, random.Random(len(end.acked)))
    machine = Machine(disk=disk, shards=shards, wal_file_bytes=WAL_FILE_BYTES)
    state = machine.engine.routers.get("r")
    ends = (state.source, state.dest)
    assert ends in (OLD, moved_to), ends
    assert ends == moved_to or "moved" not in end.acked, "the answer promised it"
    copies = machine.datas("b")
    if machine.engine.topics["b"].config.durability == "fsync" or damage == "kill":
        assert copies[: len(move.before)] == move.before, "what readers saw is there, at its place"
    source, dest = ends
    machine.engine.write(source, numbers(999, 999))
    assert machine.datas(dest)[-1] == 999
    assert not ({999} & set(machine.datas("b"))) or dest == "b" or source == "b"
    before = {name: machine.datas(name) for name in sorted(machine.engine.topics)}
    machine.crash("kill")
    assert {name: machine.datas(name) for name in sorted(machine.engine.topics)} == before
    state = machine.engine.routers.get("r")
    assert (state.source, state.dest) == ends, "a second start finds the same"
    return "old" if ends == OLD else "new"


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("move", MOVES)
def test_router_whose_ends_change_is_never_at_neither_place(move: str, others: int, durability: str) -> None:
    """ROUTER-9: a change is one step; a power loss finds the old router or the new one."""
    shards = 3
    with small():
        story = Move(shards, others, durability)
        story.move(*MOVES[move])
        assert "moved" in story.acked
        found = {check(end, damage, story, MOVES[move], shards) for end in story.ends for damage in DAMAGES}
    assert found == {"old", "new"}, "the crashes lie on both sides of the change"
