"""Who is looked at when, without a timer for each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.server.delivery.wheel import SLOT_MS, Wheel


@given(st.lists(st.tuples(st.integers(0, 70_000), st.booleans()), max_size=50), st.integers(1, 5_000))
def test_everything_comes_up_once_not_early_and_at_most_a_slot_late(due: list[tuple[int, bool]], step: int) -> None:
    """A heartbeat may be a slot late, never early; what was removed does not come up."""
    wheel: Wheel[int] = Wheel(0)
    handles = [wheel.add(i, ms) for i, (ms, _) in enumerate(due)]
    for i, (_, keep) in enumerate(due):
        if not keep:
            wheel.remove(i, handles[i])
    came: dict[int, int] = {}
    now = 0
    while now < 80_000:
        now += step
        for entry in wheel.turn(now):
            assert entry not in came
            came[entry] = now
    assert set(came) == {i for i, (_, keep) in enumerate(due) if keep}
    for i, at in came.items():
        assert due[i][0] <= at < due[i][0] + 2 * SLOT_MS + step
    assert len(wheel) == 0
