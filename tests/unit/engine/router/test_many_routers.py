"""Many routers, long chains and large backlogs: what is done at once is bounded, and the rest is not forgotten.

The clock is one by which every look at it takes a millisecond, so that every piece of work takes a turn of its own.
"""

from __future__ import annotations

import pytest

from tests.harness.machine import HastyClock
from tests.harness.memory import ManyTopics
from topics.engine import ConfigPatch, Delete, Diff, Engine, Write
from topics.engine.router import routers
from topics.engine.router.backlog import SLICE_RECORDS
from topics.engine.router.forward import BACKOFF_MS_MAX
from topics.engine.router.router import PutRouter

ROUTERS = 40


def fan_out() -> Engine:
    """A source `s` with many destinations, none of which has its 3 records yet."""
    engine = Engine(HastyClock())
    for i in range(ROUTERS):
        engine.routers.put(f"r{i:02}", PutRouter("s", f"d{i:02}"))
    engine.write("s", Write.of([1, 2, 3]), id)
    engine.store.write()
    return engine


def test_chain_of_a_thousand_routers_is_read_through() -> None:
    """ROUTER-17: no chain is too long."""
    topics = ManyTopics()
    for i in range(1200):
        topics.route(f"t{i}", f"t{i + 1}")
    topics.engine.write("t0", Write.of([1, 2]), on_done=id)
    topics.engine.store.write()
    assert topics.datas("t1200") == [1, 2]


def test_read_of_a_destination_that_is_far_behind_is_short() -> None:
    """ROUTER-17: it reads what can be copied in a few milliseconds; the rest comes by itself."""
    engine = Engine(HastyClock())
    engine.routers.put("r", PutRouter("s", "d"))
    for _ in range(20):
        engine.write("s", Write.of([1] * SLICE_RECORDS), id)
    engine.store.write()
    head = engine.diff("d", Diff()).head_seq
    assert 0 < head < 20 * SLICE_RECORDS
    engine.run_until_idle()
    assert engine.diff("d", Diff()).head_seq == 20 * SLICE_RECORDS


def test_topic_with_many_routers_is_deleted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROUTER-12: all copies are made first, a few at a time; then the routers go, some at a time, then the topic."""
    monkeypatch.setattr(routers, "CASCADE_FORWARDS", ROUTERS // 8)
    engine = fan_out()
    receipt = engine.delete_topic("s", on_done=id)
    turns, left = 0, []
    while receipt.result is None:
        assert "s" in engine.topics
        left.append(len(engine.routers))
        if left[-1] < ROUTERS:
            assert all(engine.topics[f"d{i:02}"].log.head >= 3 for i in range(ROUTERS))
        engine.turn()
        turns += 1
    assert turns > ROUTERS // 2
    assert len(set(left)) == 8 + (0 in left)
    assert "s" not in engine.topics
    assert not len(engine.routers)
    assert receipt.result.routers_removed == [f"r{i:02}" for i in range(ROUTERS)]
    engine.run_until_idle()
    assert {engine.state(f"d{i:02}").count for i in range(ROUTERS)} == {3}


def test_topic_is_deleted_twice_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROUTER-12, TOPIC-20: one of them deletes it and names every router, and both wait until that is safe."""
    monkeypatch.setattr(routers, "CASCADE_FORWARDS", ROUTERS // 8)
    engine = fan_out()
    receipts = [engine.delete_topic("s", on_done=id) for _ in range(2)]
    engine.run_until_idle()
    assert sorted(receipt.result.deleted for receipt in receipts) == [False, True]
    assert sorted(len(receipt.result.routers_removed) for receipt in receipts) == [0, ROUTERS]
    assert all(receipt.done and receipt.error is None for receipt in receipts)


def test_router_that_comes_while_its_source_goes_goes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROUTER-12: whatever has the topic for an end when it goes, goes with it and is named once."""
    monkeypatch.setattr(routers, "CASCADE_FORWARDS", ROUTERS // 8)
    engine = fan_out()
    receipt = engine.delete_topic("s", on_done=id)
    while len(engine.routers) == ROUTERS:
        engine.turn()
    engine.routers.put("r00", PutRouter("s", "d00"), on_done=id)
    engine.routers.put("new", PutRouter("s", "elsewhere"), on_done=id)
    engine.run_until_idle()
    assert receipt.result.routers_removed == ["new", *(f"r{i:02}" for i in range(ROUTERS))]
    assert not len(engine.routers)


def test_topic_that_has_to_be_empty_takes_its_routers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROUTER-12, TOPIC-20: nothing can be written between the look whether it is empty and its end."""
    monkeypatch.setattr(routers, "CASCADE_FORWARDS", ROUTERS // 8)
    engine = fan_out()
    engine.run_until_idle()
    engine.delete("s", Delete(before_seq=4))
    receipt = engine.delete_topic("s", if_empty=True, on_done=id)
    while receipt.result is None:
        assert len(engine.routers) == ROUTERS
        engine.turn()
    assert not len(engine.routers)
    assert receipt.result.deleted
    assert len(receipt.result.routers_removed) == ROUTERS


def test_delete_in_a_source_waits_for_its_copies_in_slices() -> None:
    """DELETE-10, ROUTER-29: what is deleted was forwarded before, to every destination."""
    engine = fan_out()
    receipt = engine.delete("s", Delete(before_seq=3), id)
    assert receipt.result is None
    engine.write("s", Write.of([4]), id)
    while receipt.result is None:
        assert engine.topics["s"].log.start == 1
        engine.turn()
    assert receipt.result.deleted == 2
    engine.run_until_idle()
    assert {engine.state(f"d{i:02}").count for i in range(ROUTERS)} == {4}


def test_router_that_leaves_takes_nobody_elses_turn() -> None:
    """ROUTER-14: the destinations after one that goes away are served all the same."""
    engine = fan_out()
    for _ in range(3):
        engine.turn()
    for i in range(4):
        engine.routers.delete(f"r{i:02}", on_done=id)
    engine.run_until_idle()
    assert {engine.topics[f"d{i:02}"].log.head for i in range(ROUTERS)} == {3}


def test_blocked_destinations_cost_a_turn_nothing() -> None:
    """ROUTER-20: what waits for room is looked at when it is due, and not in every turn."""
    topics = ManyTopics()
    for i in range(ROUTERS):
        topics.engine.put_topic(f"d{i}", ConfigPatch(cap_records=1, discard="reject"))
        topics.route("s", f"d{i}")
    topics.write("s", 1, 2)
    schedule = topics.engine.routers.schedule
    assert len(schedule.blocked) == ROUTERS
    due_ms = schedule.next_due_ms()
    assert due_ms is not None
    assert topics.clock.now_ms() < due_ms <= topics.clock.now_ms() + BACKOFF_MS_MAX
    for i in range(ROUTERS):
        topics.engine.delete(f"d{i}", Delete(before_seq=2))
    topics.engine.pass_time(BACKOFF_MS_MAX)
    assert [topics.datas(f"d{i}") for i in range(ROUTERS)] == [[2]] * ROUTERS
    topics.engine.pass_time(BACKOFF_MS_MAX)
    assert not schedule.blocked
    assert schedule.next_due_ms() is None
