"""Throttling never costs correctness: latency gives way, never a record (PRESSURE-7)."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.delivery import Listener, ManualDelivery, plain_view
from topics.engine import ConfigPatch, Delete, Write
from topics.engine.priority import effective_priority
from topics.server.delivery.subscriber import Feed
from topics.server.flow.bands import AGE_TICK_MS, Bands

TOPICS = {"top": 1000, "high": 300, "auto": None, "low": -400, "lowest": -1000}
NAMES = st.sampled_from(sorted(TOPICS))

steps = st.one_of(
    st.tuples(st.just("write"), NAMES, st.integers(1, 5)),
    st.tuples(st.just("level"), st.integers(0, 4)),
    st.tuples(st.just("turn"), st.integers(1, 3)),
    st.tuples(st.just("pass"), st.integers(1, 3_000)),
    st.tuples(st.just("pause"), st.integers(0, 3)),
    st.tuples(st.just("resume"), st.integers(0, 3)),
    st.tuples(st.just("delete"), NAMES, st.integers(1, 40)),
    st.tuples(st.just("join"), NAMES),
)


def feed_name(feed: Feed) -> str:
    assert feed.channel is not None
    return feed.channel.topic.name


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=60))
def test_every_record_reaches_every_stream_once_and_in_order(script: list[tuple[Any, ...]]) -> None:
    """Whatever the pressure, the pauses and the joins: each stream sees each live record exactly once, in order."""
    manual = ManualDelivery(slow_consumer_timeout_ms=10**9)
    engine, loop, delivery = manual.engine, manual.loop, manual.delivery
    for name, priority in TOPICS.items():
        engine.put_topic(name, ConfigPatch(priority=priority))
    listeners = []
    for limit in (1, 3, 0, 0):
        listener = Listener(delivery)
        for name in TOPICS:
            listener.follow(engine, name, 0, plain_view(limit=limit))
        listeners.append(listener)
    deleted: dict[str, int] = dict.fromkeys(TOPICS, 0)
    for action, *args in script:
        if action == "write":
            engine.write(args[0], Write.of(range(args[1])))
        elif action == "level":
            delivery.set_level(args[0])
        elif action == "turn":
            for _ in range(args[0]):
                loop.turn()
        elif action == "pass":
            loop.advance(args[0], step_ms=50)
            delivery.pulse()
        elif action == "pause":
            listeners[args[0]].pause()
        elif action == "resume":
            listeners[args[0]].resume()
        elif action == "delete":
            engine.delete(args[0], Delete(before_seq=args[1]))
            deleted[args[0]] = max(deleted[args[0]], min(args[1], engine.topic(args[0]).log.head + 1))
        else:
            joined = Listener(delivery)
            joined.follow(engine, args[0], 0, plain_view())
            listeners.append(joined)
    for listener in listeners:
        listener.resume()
    # One batch per turn of a paused topic: within 10 s each topic has had one, then the pressure is gone.
    heads = {name: engine.topic(name).log.head for name in TOPICS}
    loop.advance(10_000, step_ms=50)
    for listener in listeners:
        assert all(feed.cursor > 0 or not heads[feed_name(feed)] for feed in listener.followed)
    delivery.set_level(0)
    loop.advance(200, step_ms=50)
    for listener in listeners:
        for feed in listener.followed:
            assert feed.channel is not None
            log = feed.channel.topic.log
            seqs = listener.seqs(feed.channel.topic.name)
            assert all(a < b for a, b in itertools.pairwise(seqs)), "in order, without repeats"
            missed = set(range(1, log.head + 1)) - set(seqs)
            assert all(seq < deleted[feed.channel.topic.name] for seq in missed), "only what was deleted may be missing"
            assert feed.cursor == log.head
        assert "tombstone" not in listener.kinds(), "deletes and throttling are no loss"


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 4), st.integers(1, 3), st.lists(st.integers(-1000, 1000), min_size=5, max_size=40))
def test_no_topic_waits_longer_than_ten_seconds(level: int, per_tick: int, priorities: list[int]) -> None:
    """PRIORITY-9: no starvation under sustained load, at any level of the ladder.

    Every topic publishes all the time, and the scheduler may serve only a few per tick, less than what is asked.
    """

    def priority(item: int, waited_ms: int) -> int:
        return effective_priority(priorities[item], False, None, 0, waited_ms)

    bands: Bands[int] = Bands(priority)
    since = dict.fromkeys(range(len(priorities)), 0)
    floor = 0 if level >= 3 else None
    longest = 0
    for now_ms in range(0, 40_000, AGE_TICK_MS):
        for item in since:
            if item not in bands:
                bands.put(item, now_ms)
                since[item] = now_ms
        bands.age(now_ms)
        for _ in range(per_tick):
            item = bands.take(now_ms, floor)
            if item is not None:
                longest = max(longest, now_ms - since[item])
    longest = max(longest, *(40_000 - at for at in since.values()))
    assert longest < 10_000
