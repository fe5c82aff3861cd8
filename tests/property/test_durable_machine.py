"""A state machine over everything that clients, time, upkeep and misfortune do to a durable engine, against a model.

Unlike the sweep, which ends the world at every point of one path, this looks for a path: Hypothesis chooses what
happens next, and shrinks what breaks to the shortest story. After each step the engine shows exactly what the plain
model of topics.testing.model says; after each crash the oracle judges.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import Phase, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from topics.engine.log import Log
from topics.engine.recovery import Recovery
from topics.testing.crash import CLASSES, PATCHES, World, small
from topics.testing.disk import DAMAGES, Damage
from topics.testing.oracle import Broken, read_all

NAMES = strategies.sampled_from(["capped", "capped", "common", "mixed", "kept", "scratch", "passing"])
TAGS = strategies.sampled_from([None, "a", "ab", "b"])


class DurableEngine(RuleBasedStateMachine):
    """One world; each rule is something that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._stack.enter_context(small())
        self.world = World()

    def teardown(self) -> None:
        """Let the next example begin as this one did."""
        self._stack.close()

    @rule(
        name=NAMES,
        n=strategies.sampled_from([1, 5, 13]),
        tag=TAGS,
        size=strategies.sampled_from([0, 0, 700]),
        waits=strategies.booleans(),
    )
    def write(self, name: str, n: int, tag: str | None, size: int, waits: bool) -> None:
        """A client writes, and may wait for the ack."""
        self.world.write(name, n, tag=tag, size=size, **CLASSES[name])
        if waits:
            self.world.settle()

    @rule(name=NAMES, n=strategies.sampled_from([5, 13]), tag=TAGS)
    def write_and_wait(self, name: str, n: int, tag: str | None) -> None:
        """What clients mostly do."""
        self.write(name, n, tag, 0, True)

    @rule(name=NAMES, key=strategies.sampled_from(["k1", "k2"]))
    def write_with_a_key(self, name: str, key: str) -> None:
        """A client writes, or repeats itself."""
        self.world.write(name, 1, key=key, **CLASSES[name])

    @rule(name=NAMES, back=strategies.integers(0, 20))
    def delete_below(self, name: str, back: int) -> None:
        """A client deletes by seq."""
        if name in self.world.engine.topics:
            self.world.delete(name, max(0, self.world.engine.topics[name].log.head - back))

    @rule(name=NAMES, tag=strategies.sampled_from(["a", "ab", "b"]), glob=strategies.booleans())
    def delete_by_tag(self, name: str, tag: str, glob: bool) -> None:
        """A client deletes by tag."""
        self.world.delete(name, tag=tag, glob=glob)

    @rule(name=NAMES, patch=strategies.sampled_from(PATCHES))
    def configure(self, name: str, patch: dict[str, Any]) -> None:
        """An operator changes retention."""
        self.world.put(name, **patch)

    @rule(durability=strategies.sampled_from(["memory", "disk", "fsync"]))
    def change_class(self, durability: str) -> None:
        """An operator changes the class of a topic."""
        self.world.put("mixed", durability=durability)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        """An operator deletes a topic."""
        self.world.drop(name)

    @rule(ms=strategies.sampled_from([1, 60, 6000]))
    def wait(self, ms: int) -> None:
        """Time passes."""
        self.world.clock.advance(ms)

    @rule()
    def turn(self) -> None:
        """The loop turns."""
        self.world.turn()

    @rule(index=strategies.integers(0, 5))
    def run_job(self, index: int) -> None:
        """The disk does something."""
        self.world.run_job(index)

    @rule(index=strategies.integers(0, 5))
    def finish_job(self, index: int) -> None:
        """The engine hears of it."""
        self.world.finish_job(index)

    @rule()
    def settle(self) -> None:
        """Everything that is due is done."""
        self.world.settle()

    @rule()
    def checkpoint(self) -> None:
        """A whole checkpoint."""
        self.world.checkpoint()

    @rule(damage=strategies.sampled_from(DAMAGES))
    def crash(self, damage: Damage) -> None:
        """The world ends, and begins again."""
        self.world.crash(damage)

    @rule()
    def stop(self) -> None:
        """An orderly stop and a start."""
        self.world.stop()

    @invariant()
    def shows_what_the_model_says(self) -> None:
        """The same records and floors as the model, at every step."""
        world = self.world
        for name, topic in world.engine.topics.items():
            model = world.oracle.instance(topic).model
            model.expire(world.clock.now_ms())
            records, gaps = read_all(world.engine, name)
            if records != model.live:
                raise Broken(f"topic {name} shows {sorted(records)}, the model {sorted(model.live)}")
            log = topic.log
            shown = (log.head, log.start, log.evict_floor, log.count, log.bytes)
            expected = (model.head, model.earliest_seq, model.evict_floor, len(model.live), model.bytes)
            if shown != expected:
                raise Broken(f"topic {name} has {shown}, the model {expected}, gaps {gaps}")


STEADY = settings(max_examples=150, stateful_step_count=50)
# What a planted bug must be found within; the shortest story is of no interest there.
BRIEF = settings(max_examples=300, stateful_step_count=50, phases=[Phase.generate], report_multiple_bugs=False)


def test_durable_engine_agrees_with_the_model_whatever_happens() -> None:
    """Issue 3: writes, deletes, TTL, caps, seals, restarts and crashes against the model (DESIGN §5, §7, §9)."""
    run_state_machine_as_test(DurableEngine, settings=STEADY)


def test_machine_finds_a_cap_that_takes_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 3: for each instrument a planted bug that it catches."""
    evict = Log.evict
    monkeypatch.setattr(Log, "evict", lambda self, records, size: evict(self, max(0, records - 1), size))
    with pytest.raises(Broken):
        run_state_machine_as_test(DurableEngine, settings=BRIEF)


def test_machine_finds_a_restart_that_forgets_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 3: for each instrument a planted bug that it catches."""
    control = Recovery._control

    def forgetful(self: Recovery, event: Any) -> None:
        if event.kind != 5:
            control(self, event)

    monkeypatch.setattr(Recovery, "_control", forgetful)
    with pytest.raises(Broken):
        run_state_machine_as_test(DurableEngine, settings=BRIEF)
