"""The driver's threads: nobody waits behind work that may take its time, and the end of each job leads to a turn."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import Any, cast

import pytest

from tests.harness.loop import ManualLoop
from topics.engine import Engine, Write
from topics.engine.router.router import PutRouter
from topics.server import driver as drivers
from topics.server.driver import AWAITED, BULK_NICE, BULK_THREADS, Driver, Wakeup
from topics.storage.job import Task
from topics.testing import ManualClock

DEADLINE_S = 30.0


class Turns(Driver):
    """Counts its turns."""

    turns = 0

    def _turn(self) -> None:
        self.turns += 1
        super()._turn()


def driven(loop: asyncio.AbstractEventLoop) -> Turns:
    wakeup = Wakeup(loop)
    return Turns(loop, wakeup, Engine(ManualClock(), wake=wakeup.wake), lambda: None)


@pytest.mark.parametrize("name", sorted(AWAITED | {"sync"}))
def test_what_requests_wait_for_does_not_wait_behind_seals(name: str) -> None:
    """STORE-17: more seals, snapshots and moves than there are threads for them."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        driver = driven(loop)
        release, served = threading.Event(), asyncio.Event()
        for i in range(BULK_THREADS + 2):
            driver.start(Task(("seal", "snapshot", "relocate")[i % 3], release.wait, lambda error: None))
        driver.start(Task(name, lambda: None, lambda error: served.set()))
        try:
            await asyncio.wait_for(served.wait(), DEADLINE_S)
            assert not release.is_set()
        finally:
            release.set()
            await driver.run_until_idle()
            driver.stop()

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a nice value is that of the whole process")
@pytest.mark.parametrize(("name", "nice"), [("seal", BULK_NICE), ("read", 0), ("sync", 0)])
def test_what_may_take_its_time_gives_way_where_cores_are_short(name: str, nice: int) -> None:
    """STORE-17: the loop, and what requests wait for, come before it."""
    found: list[int] = []

    async def main() -> None:
        driver = driven(asyncio.get_running_loop())
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        driver.start(Task(name, lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0) - mine), lambda error: None))
        await driver.run_until_idle()
        driver.stop()
        assert os.getpriority(os.PRIO_PROCESS, 0) == mine

    asyncio.run(main())
    assert found == [nice]


@pytest.mark.parametrize("name", ["seal", "checkpoint", "snapshot"])
def test_end_of_a_job_leads_to_a_turn(name: str) -> None:
    """STORE-17: upkeep goes on with the next segments, also on a server that is idle otherwise."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        driver = driven(loop)
        ended = asyncio.Event()
        driver.start(Task(name, lambda: None, lambda error: ended.set()))
        await asyncio.wait_for(ended.wait(), DEADLINE_S)
        for _ in range(3):
            await asyncio.sleep(0)
        assert driver.turns == 1
        driver.stop()

    asyncio.run(main())


def test_stop_does_not_wait_until_everything_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROUTER-33: the next start goes on where the copies ended."""
    monkeypatch.setattr(drivers, "ENDING_S", 0.0)

    async def stop() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        wakeup = Wakeup(loop)
        engine = Engine(ManualClock(), wake=wakeup.wake)
        engine.routers.put("r", PutRouter("source", "dest"), lambda _: None)
        engine.run_until_idle()
        driver = Driver(loop, wakeup, engine, lambda: None)
        await driver.run_until_idle()
        await asyncio.sleep(0.01)
        for _ in range(3):
            engine.write("source", Write.of(range(1000)), lambda _: None)
        await driver.run_until_idle()
        driver.stop()
        return engine.topics["source"].log.head, engine.topics["dest"].log.head

    assert asyncio.run(stop()) == (3000, 0)


class Busy(Engine):
    """Has more to do after each turn, and something that is due by time as well."""

    def turn(self) -> None:
        super().turn()
        self.journal.wake()

    def next_due_ns(self) -> int | None:
        return self.clock.elapsed_ns()


def test_between_two_looks_at_the_sockets_there_is_one_turn() -> None:
    """PRESSURE-9: a timer that fires while a turn is asked for adds none."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wakeup = Wakeup(loop)
        driver = Turns(loop, wakeup, Busy(ManualClock(), wake=wakeup.wake), lambda: None)
        wakeup.wake()
        for looks in range(1, 51):
            await asyncio.sleep(0)
            assert driver.turns <= looks
        assert driver.turns >= 49
        driver.stop()

    asyncio.run(main())


class Chores:
    """Stands in for upkeep: does `slices` of work, one per step."""

    def __init__(self, slices: int) -> None:
        self.slices = slices
        self.steps = 0

    def step(self) -> bool:
        self.steps += 1
        self.slices -= 1
        return self.slices > 0


def kept_up(loop: ManualLoop, chores: Chores) -> tuple[Driver, Wakeup]:
    wakeup = Wakeup(cast("Any", loop))
    engine = Engine(loop.clock, wake=wakeup.wake)
    return Driver(cast("Any", loop), wakeup, engine, lambda: None, cast("Any", chores)), wakeup


def test_upkeep_comes_after_the_answers_of_a_turn() -> None:
    """STORE-17: nobody waits for it, so no answer does: it comes with the next turn of the loop."""
    loop, chores = ManualLoop(ManualClock()), Chores(1)
    _, wakeup = kept_up(loop, chores)
    wakeup.wake()
    loop.turn()
    assert chores.steps == 0
    loop.turn()
    assert chores.steps == 1
    loop.advance(1000)
    assert chores.steps == 1, "nothing has happened since"


def test_upkeep_with_more_to_do_goes_on_at_once() -> None:
    """STORE-17: slice after slice, with a look at the sockets between two of them."""
    loop, chores = ManualLoop(ManualClock()), Chores(5)
    _, wakeup = kept_up(loop, chores)
    wakeup.wake()
    loop.turn()
    for steps in range(1, 6):
        loop.turn()
        assert chores.steps == steps
    loop.advance(100)
    assert chores.steps == 5


@pytest.mark.parametrize(("name", "turns", "steps"), [("seal", 1, 2), ("sync", 0, 2), ("read", 0, 1)])
def test_upkeep_follows_what_it_may_have_waited_for(name: str, turns: int, steps: int) -> None:
    """STORE-17: the end of a seal at once, with a turn; that of a sync, of which there are many, after its rest."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wakeup, chores, ended = Wakeup(loop), Chores(1), asyncio.Event()
        engine = Engine(ManualClock(), wake=wakeup.wake)
        driver = Turns(loop, wakeup, engine, lambda: None, cast("Any", chores))
        driver._keep_up()
        driver.start(Task(name, lambda: None, lambda error: ended.set()))
        await asyncio.wait_for(ended.wait(), DEADLINE_S)
        await asyncio.sleep(5 * drivers.UPKEEP_S)
        assert (driver.turns, chores.steps) == (turns, steps)
        driver.stop()

    asyncio.run(main())


def test_upkeep_with_nothing_to_do_rests_for_some_milliseconds() -> None:
    """STORE-17: it costs a part of what a small write does, so it does not follow each of them, but the last."""
    loop, chores = ManualLoop(ManualClock()), Chores(1)
    _, wakeup = kept_up(loop, chores)
    for _ in range(20):
        wakeup.wake()
        loop.turn()
    assert chores.steps == 1
    loop.advance(4)
    assert chores.steps == 1
    loop.advance(1)
    assert chores.steps == 2
    wakeup.wake()
    loop.turn()
    loop.advance(5)
    assert chores.steps == 3
    loop.advance(6)
    wakeup.wake()
    loop.turn()
    loop.turn()
    assert chores.steps == 4, "it has rested long enough"


def test_no_upkeep_after_the_stop() -> None:
    """STORE-17: the last checkpoint belongs to whoever stops the driver."""
    loop, chores = ManualLoop(ManualClock()), Chores(1)
    driver, wakeup = kept_up(loop, chores)
    wakeup.wake()
    loop.turn()
    driver.stop()
    loop.advance(100)
    assert chores.steps == 0
