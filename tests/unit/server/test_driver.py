"""The driver at a stop: what goes on by itself does not hold it up."""

from __future__ import annotations

import asyncio

import pytest

from topics.engine import Engine, Write
from topics.engine.router.router import PutRouter
from topics.server import driver as drivers
from topics.server.driver import Driver, Wakeup
from topics.testing import ManualClock


def test_stop_does_not_wait_until_everything_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROUTER-33: the next start goes on where the copies ended."""
    monkeypatch.setattr(drivers, "SETTLE_S", 0.0)

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
