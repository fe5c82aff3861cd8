"""The PRIORITY rules: effective priority as clients see it."""

from __future__ import annotations

import pytest

from tests.harness.api import Api

FRESH = range(400, 501)
"""The recency term right after a read: 500, less what has decayed since (half of it in 30 s)."""


def test_never_consumed_topic_has_no_recency(api: Api, topic_name: str) -> None:
    """PRIORITY-2: a write does not consume."""
    api.fill(topic_name, 3)
    priority = api.state(topic_name)["effective_priority"]
    assert priority == 0
    assert isinstance(priority, int)


@pytest.mark.parametrize("how", ["state", "diff", "empty diff", "long-poll"])
def test_consuming_makes_a_topic_hot(api: Api, topic_name: str, how: str) -> None:
    """PRIORITY-1, PRIORITY-2: a state read and a diff consume, which is worth 500."""
    api.fill(topic_name, 1)
    if how == "state":
        api.state(topic_name, touch=True)
    elif how == "diff":
        api.read(topic_name)
    elif how == "empty diff":
        api.read(topic_name, 1)
    else:
        api.read(topic_name, 1, wait_ms=10)
    state = api.state(topic_name)
    assert state["effective_priority"] in FRESH
    assert state["last_read_ts"] is not None


def test_touch_false_does_not_heat(api: Api, topic_name: str) -> None:
    """PRIORITY-2: a monitor must not make a topic look hot."""
    api.put(topic_name).ok(201)
    for _ in range(3):
        assert api.state(topic_name, touch=False)["effective_priority"] == 0


def test_refused_read_does_not_heat(api: Api, topic_name: str) -> None:
    """PRIORITY-2: a refused read has read nothing."""
    api.put(topic_name).ok(201)
    api.diff(topic_name, limit="x").refused(400, "invalid_request")
    assert api.state(topic_name)["effective_priority"] == 0


@pytest.mark.parametrize("priority", [-1000, -7, 0, 10, 1000])
def test_manual_priority_overrides_recency(api: Api, topic_name: str, priority: int) -> None:
    """PRIORITY-3."""
    api.put(topic_name, priority=priority).ok(201)
    assert api.state(topic_name)["effective_priority"] == priority
    api.read(topic_name)
    assert api.state(topic_name)["effective_priority"] == priority
    (item,) = api.topics(prefix=topic_name).ok(200)["topics"]
    assert item["effective_priority"] == priority


@pytest.mark.parametrize(("given", "used"), [(5000, 1000), (-5000, -1000)])
def test_manual_priority_is_clamped(api: Api, topic_name: str, given: int, used: int) -> None:
    """PRIORITY-3, TOPIC-10."""
    api.put(topic_name, priority=given).ok(201)
    assert api.state(topic_name)["effective_priority"] == used


def test_auto_priority_off_gives_zero(api: Api, topic_name: str) -> None:
    """PRIORITY-3."""
    api.put(topic_name, auto_priority=False).ok(201)
    api.read(topic_name)
    assert api.state(topic_name)["effective_priority"] == 0
    api.put(topic_name, auto_priority=True).ok(200)
    assert api.state(topic_name)["effective_priority"] in FRESH


def test_priority_never_changes_order_or_visibility(api: Api, topic_name: str) -> None:
    """PRIORITY-5."""
    api.fill(topic_name, 5)
    before = api.read(topic_name)["records"]
    for priority in (-1000, 1000, None):
        api.put(topic_name, priority=priority).ok(200)
        assert api.read(topic_name)["records"] == before
        assert (api.state(topic_name)["count"], api.state(topic_name)["earliest_seq"]) == (5, 1)
