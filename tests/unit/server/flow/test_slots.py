"""Concurrency caps (the LIMIT rules)."""

from __future__ import annotations

import pytest

from topics.errors import Throttled
from topics.server.auth import Keys
from topics.server.flow.slots import Cap, CapPerKey, Slots
from topics.settings import Settings


def test_one_too_many_is_429_and_names_the_limit() -> None:
    """LIMIT-1: `Retry-After`, `detail.limit`, `detail.max`."""
    cap = Cap("max_watch_sessions", 2)
    held = [cap.take(), cap.take()]

    with pytest.raises(Throttled) as refused:
        cap.take()

    assert (refused.value.status, refused.value.code) == (429, "throttled")
    assert refused.value.detail == {"limit": "max_watch_sessions", "max": 2}
    assert refused.value.retry_after_ms is not None
    assert refused.value.retry_after_ms > 0
    assert cap.used == len(held)


def test_a_slot_of_several_counts_for_as_many() -> None:
    """LIMIT-17: bytes are taken and given back as such."""
    cap = Cap("max_subscription_bytes", 100)
    most = cap.take(70)
    with pytest.raises(Throttled):
        cap.take(31)
    rest = cap.take(30)
    most.free()
    assert cap.used == 30
    del rest
    assert cap.used == 0


def test_a_slot_is_given_back_exactly_once() -> None:
    """LIMIT-10."""
    cap = Cap("max_connections", 2)
    first, second = cap.take(), cap.take()

    first.free()
    first.free()
    del first

    assert cap.used == 1
    second.free()
    assert cap.used == 0


def test_a_slot_that_is_dropped_is_given_back() -> None:
    """LIMIT-10: a dropped stream or a failing handler never keeps its slot."""
    cap = Cap("max_connections", 1)

    def failing_handler() -> None:
        slot = cap.take()
        assert slot
        raise RuntimeError

    for _ in range(3):
        with pytest.raises(RuntimeError):
            failing_handler()

    assert cap.used == 0
    cap.take().free()


def test_a_cap_of_zero_is_off_and_still_counts() -> None:
    """LIMIT-2: disabled by setting it to 0."""
    cap = Cap("max_connections", 0)

    held = [cap.take() for _ in range(5000)]

    assert cap.used == len(held)


def test_each_key_has_a_count_of_its_own() -> None:
    """LIMIT-7."""
    keys = Keys("k1,k2")
    one, two = keys.authenticate("k1"), keys.authenticate("k2")
    caps = CapPerKey("max_inflight_per_key", 1)

    held = caps.of(one).take()
    with pytest.raises(Throttled):
        caps.of(one).take()
    caps.of(two).take().free()
    held.free()

    caps.of(one).take().free()


def test_per_key_caps_do_not_apply_in_dev_mode() -> None:
    """LIMIT-11."""
    anyone = Keys().authenticate(None)
    caps = CapPerKey("max_inflight_per_key", 1)

    held = [caps.of(anyone).take() for _ in range(10)]

    assert len(held) == 10


def test_the_caps_take_their_name_and_maximum_from_the_settings() -> None:
    """LIMIT-1."""
    settings = Settings(
        max_inflight_per_key=2,
        max_watch_sessions=3,
        max_sse_connections=4,
        max_sse_connections_per_key=5,
    )
    slots = Slots(settings)

    for name in Slots.__slots__:
        cap = getattr(slots, name)
        assert cap.name == f"max_{name}"
        assert cap.max == getattr(settings, cap.name)
