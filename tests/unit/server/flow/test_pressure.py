"""The ladder of elastic throttling (PRESSURE-1)."""

from __future__ import annotations

import pytest

from topics.server.flow.pressure import (
    CALM_OBSERVATIONS,
    LAG_RUNGS_MS,
    REFUSE_WRITES,
    RETRY_AFTER_MS_MAX,
    RETRY_AFTER_MS_MIN,
    Pressure,
)


def test_calm_loop_has_no_pressure() -> None:
    pressure = Pressure()
    assert [pressure.observe(1.0, 0.0) for _ in range(50)] == [0] * 50


@pytest.mark.parametrize("lag_ms", [1_500.0, 60_000.0, 3_600_000.0])
def test_one_long_step_refuses_no_write(lag_ms: float) -> None:
    """A single late timer is not an overload, also where the process was stopped or the machine slept."""
    pressure = Pressure()
    levels = [pressure.observe(lag_ms, 0.0)] + [pressure.observe(0.0, 0.0) for _ in range(60)]
    assert max(levels) < REFUSE_WRITES
    assert levels[-1] == 0


def test_sustained_lag_climbs_one_rung_at_a_time() -> None:
    pressure = Pressure()
    levels = [pressure.observe(3 * LAG_RUNGS_MS[-1], 0.0) for _ in range(10)]
    assert levels[-1] == REFUSE_WRITES
    assert all(b - a <= 1 for a, b in zip([0, *levels], levels, strict=False))


def test_full_queue_climbs_without_any_lag() -> None:
    pressure = Pressure()
    assert [pressure.observe(0.0, 0.95) for _ in range(4)] == [1, 2, 3, 4]


def test_rungs_are_left_slowly_and_do_not_flutter() -> None:
    pressure = Pressure()
    for _ in range(4):
        pressure.observe(0.0, 0.95)
    assert [pressure.observe(0.0, 0.8) for _ in range(20)] == [4] * 20, "still well above half of the rung"
    levels = [pressure.observe(0.0, 0.0) for _ in range(4 * CALM_OBSERVATIONS)]
    assert levels[CALM_OBSERVATIONS - 2] == 4
    assert levels[-1] == 0


def test_retry_after_grows_with_the_lag_within_bounds() -> None:
    pressure = Pressure()
    assert pressure.retry_after_ms == RETRY_AFTER_MS_MIN
    for _ in range(60):
        pressure.observe(60_000.0, 0.0)
    assert pressure.retry_after_ms == RETRY_AFTER_MS_MAX
