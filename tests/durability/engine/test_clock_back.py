"""DURABLE-27: a clock that is set back brings nothing back that a TTL has taken, over any end of the process."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.harness.machine import Machine, numbers, small
from tests.harness.storage import resolve
from tests.harness.story import Story, ignore
from topics.engine import ConfigPatch, Delete, Write
from topics.engine.router.router import PutRouter
from topics.errors import TopicsError
from topics.testing.fake_disk import DAMAGES

TTL_MS = 60_000
HOUR_MS = 3_600_000


def _machine(durability: str = "memory") -> Machine:
    """A machine with five records, of which a reader is told that they have expired."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability=durability, ttl_ms=TTL_MS))  # type: ignore[arg-type]
    machine.engine.write("t", numbers(1, 5))
    machine.clock.advance(HOUR_MS)
    assert machine.read("t") == ([], [(1, 5, "ttl")])
    return machine


def _floors(machine: Machine) -> tuple[int, int, int]:
    log = machine.engine.topics["t"].log
    return log.start, log.evict_floor, log.head


@pytest.mark.parametrize(
    ("durability", "damage"), [("memory", "kill"), ("disk", "kill"), *(("fsync", damage) for damage in DAMAGES)]
)
@pytest.mark.parametrize("captured", [False, True], ids=["log", "checkpoint"])
def test_what_has_expired_stays_gone_when_the_clock_is_set_back_before_a_start(
    durability: str, damage: str, captured: bool
) -> None:
    machine = _machine(durability)
    machine.run_until_idle()
    if captured:
        machine.checkpoint()
    floors = _floors(machine)
    for _ in range(2):
        machine.clock.set(machine.clock.now_ms() - HOUR_MS)
        machine.crash(damage)  # type: ignore[arg-type]
        assert machine.read("t") == ([], [(1, 5, "ttl")])
        assert _floors(machine) == floors


def test_a_clock_that_was_ahead_for_a_while_takes_nothing_that_nobody_missed() -> None:
    """DURABLE-3: nothing has expired before somebody was told so."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability="memory", ttl_ms=TTL_MS))
    machine.engine.write("t", numbers(1, 5))
    machine.clock.set(machine.clock.now_ms() + HOUR_MS)
    machine.engine.write("t", numbers(6, 6))
    machine.clock.set(machine.clock.now_ms() - HOUR_MS)
    assert machine.read("t") == ([1, 2, 3, 4, 5, 6], [])
    machine.run_until_idle()
    machine.crash()
    assert machine.read("t") == ([1, 2, 3, 4, 5, 6], [])


def test_what_expired_as_a_capped_topic_was_written_stays_gone() -> None:
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability="memory", ttl_ms=TTL_MS, cap_records=100))
    machine.engine.write("t", numbers(1, 5))
    machine.clock.advance(HOUR_MS)
    machine.engine.write("t", numbers(6, 6))
    machine.run_until_idle()
    machine.clock.set(machine.clock.now_ms() - HOUR_MS)
    assert machine.read("t") == ([6], [(1, 5, "ttl")])
    machine.crash()
    assert machine.read("t") == ([6], [(1, 5, "ttl")])


def test_records_that_are_written_after_the_clock_was_set_back_are_kept() -> None:
    machine = _machine()
    machine.run_until_idle()
    machine.clock.set(machine.clock.now_ms() - HOUR_MS)
    machine.engine.write("t", numbers(6, 7))
    machine.run_until_idle()
    for _ in range(2):
        machine.crash()
        assert machine.read("t") == ([6, 7], [(1, 5, "ttl")])


def test_floor_is_logged_once_per_second() -> None:
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability="memory", ttl_ms=TTL_MS))
    for i in range(500):
        machine.engine.write("t", numbers(i, i))
        machine.clock.advance(10)
    machine.clock.advance(TTL_MS - 5000)
    machine.run_until_idle()
    before = machine.store.last_lsn
    for _ in range(500):
        machine.clock.advance(10)
        machine.read("t")
        machine.run_until_idle()
    assert machine.read("t")[0] == []
    assert 5 <= machine.store.last_lsn - before <= 7
    machine.clock.advance(1000)
    machine.run_until_idle()
    machine.clock.set(machine.clock.now_ms() - HOUR_MS)
    machine.crash()
    assert machine.read("t") == ([], [(1, 500, "ttl")])


def test_what_the_round_has_expired_is_logged_with_it() -> None:
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(durability="memory", ttl_ms=TTL_MS))
    machine.engine.write("t", numbers(1, 5))
    machine.run_until_idle()
    machine.clock.advance(HOUR_MS)
    machine.run_until_idle()
    assert _floors(machine) == (6, 6, 5), "nobody has read it"
    machine.clock.set(machine.clock.now_ms() - HOUR_MS)
    machine.crash()
    assert _floors(machine) == (6, 6, 5)


@pytest.mark.parametrize("shards", [1, 3])
def test_copies_of_what_has_expired_keep_their_seqs(shards: int) -> None:
    """ROUTER-15: at a restart, what expired in the source after it was copied can still be copied."""
    machine = Machine(shards=shards)
    engine = machine.engine
    engine.put_topic("t", ConfigPatch(durability="memory", ttl_ms=TTL_MS))
    engine.put_topic("copy", ConfigPatch(durability="memory"))
    engine.routers.put("t->copy", PutRouter("t", "copy"))
    for i in range(3):
        engine.write("t", numbers(i, i))
        machine.run_until_idle()
        machine.clock.advance(HOUR_MS)
        machine.read("t")
        machine.run_until_idle()
    shown = machine.visible("copy")
    assert len(shown) == 3
    machine.clock.set(machine.clock.now_ms() - 5 * HOUR_MS)
    machine.crash()
    assert machine.visible("copy") == shown
    assert machine.read("t") == ([], [(1, 3, "ttl")])


class ClockStory(Story):
    """Topics with TTLs and caps that come and go, a router, and a clock that steps to and fro."""

    topics = ("a", "b", "q")

    def __init__(self, seed: int) -> None:
        super().__init__(seed, shards=1 + seed % 3)
        rng, engine = self.rng, self.engine
        for name in self.topics:
            fields: dict[str, Any] = {"type": "queue" if name == "q" else "log", "cap_records": rng.choice((0, 0, 7))}
            fields |= {"durability": rng.choice(("memory", "disk", "fsync")), "ttl_ms": self.any_ttl()}
            engine.put_topic(name, ConfigPatch(**fields))
        if rng.random() < 0.6:
            engine.routers.put("r", PutRouter("a", rng.choice("bq")))
        self.machine.run_until_idle()

    def any_ttl(self) -> int:
        return self.rng.choice((0, 1000, TTL_MS))

    def step(self) -> None:
        engine, rng, clock = self.engine, self.rng, self.machine.clock
        topic = rng.choice(self.topics)
        kind = self.choose(write=40, time=15, set=10, ttl=5, delete=5, checkpoint=5, read=10, idle=10)
        with suppress(TopicsError):
            if kind == "write":
                engine.write(topic, Write(self.numbered((1, 1, 3))), on_done=ignore)
            elif kind == "time":
                clock.advance(rng.choice((1, 300, 1100, 30_000)))
            elif kind == "set":
                clock.set(clock.now_ms() + rng.choice((-100_000, -50_000, -1500, -10, 40_000)))
            elif kind == "ttl":
                patch = ConfigPatch(ttl_ms=self.any_ttl())
                resolve(lambda: engine.put_topic(topic, patch, ignore))
            elif kind == "delete":
                before = rng.randrange(1, engine.topics[topic].log.head + 2)
                resolve(lambda: engine.delete(topic, Delete(before_seq=before), ignore))
            elif kind == "read":
                self.machine.read(topic)
            else:
                self.happen(kind, ())
        if rng.random() < 0.6:
            engine.prepare()
            engine.turn()

    def look(self) -> dict[str, Any]:
        """What readers see, and the floors."""
        machine, seen = self.machine, {}
        for name in self.topics:
            gaps, log = machine.read(name)[1], machine.engine.topics[name].log
            seen[name] = machine.visible(name), gaps, log.start, log.evict_floor, log.head
        return seen


@pytest.mark.parametrize("seed", range(20))
def test_a_kill_changes_nothing_wherever_the_clock_steps(seed: int) -> None:
    with small():
        story = ClockStory(seed)
        for _ in range(3):
            for _ in range(story.rng.randrange(5, 60)):
                story.step()
            machine = story.machine
            for _ in range(2):
                story.look()
                machine.run_until_idle()
                # The floors that have moved since they were last logged are logged now.
                machine.clock.advance(1100)
            machine.run_until_idle()
            machine.clock.set(machine.clock.now_ms() + story.rng.choice((0, -1000, -100_000, -10_000_000)))
            seen = story.look()
            machine.crash()
            assert story.look() == seen
