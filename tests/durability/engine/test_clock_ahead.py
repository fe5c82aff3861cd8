"""PROBE-18: a start on a clock that is far behind the records says so."""

from __future__ import annotations

import pytest

from tests.harness.machine import Machine
from topics.engine import Write
from topics.server.server import warn_of_clock

HOUR_MS = 3_600_000


@pytest.mark.parametrize("captured", [False, True], ids=["log", "checkpoint"])
@pytest.mark.parametrize(("step_ms", "said"), [(-HOUR_MS, True), (-30_000, False), (HOUR_MS, False)])
def test_records_from_the_future_are_named_at_the_start(
    captured: bool, step_ms: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    machine.engine.write("t", Write.of([1]))
    if captured:
        machine.checkpoint()
    machine.run_until_idle()
    machine.clock.set(machine.clock.now_ms() + step_ms)
    machine.crash()
    warn_of_clock(machine.engine)
    assert ("s ahead of this machine's clock" in caplog.text) is said


def test_an_empty_server_has_nothing_to_compare(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_clock(Machine().engine)
    assert caplog.text == ""
