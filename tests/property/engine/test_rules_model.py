"""The engine against a model that is too simple to be wrong: floors, tombstones, filters and counts after any history.

The model keeps every record it was ever given and asks each question by walking over all of them. The LOSS,
RETAIN, DELETE and NODE rules are its text; the engine must agree after every step, for every cursor (LOSS-16).
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.harness.model import ModelRecord, ModelTopic
from topics.engine import ConfigPatch, Delete, Diff, Engine, RecordIn, Write
from topics.testing import ManualClock

NODES = [None, "a", "b"]
TAGS = [None, "x", "x:1", "x:2", "y"]
MATCHES: list[Any] = ["x", ["tag", "Eq", "y"], ["tag", "Glob", "x:*"], ["tag", "Glob", "x*"], ["tag", "Glob", "*"]]


def matches(match: Any, tag: str | None) -> bool:
    """DELETE-3: what a predicate says about a tag."""
    if tag is None:
        return False
    if isinstance(match, str):
        return tag == match
    _, op, value = match
    return tag == value if op == "Eq" else tag.startswith(value[:-1])


class Model(ModelTopic):
    """One topic instance by the book, with the match language of deletes."""

    def append(self, now: int, records: list[tuple[str | None, str | None]]) -> list[int]:
        self.expire(now)
        ts = max(now, self.last_ts)
        self.write([ModelRecord(ts, b"0", tag, node) for node, tag in records])
        return list(range(self.head - len(records) + 1, self.head + 1))

    def remove(self, now: int, before_seq: int | None, match: Any) -> int:
        self.expire(now)
        gone = [
            seq
            for seq, record in self.live.items()
            if (before_seq is None or seq < before_seq) and (match is None or matches(match, record.tag))
        ]
        for seq in gone:
            del self.live[seq]
        return len(gone)


class History(RuleBasedStateMachine):
    """Any order of writes, deletes, waits and changes of config on one topic."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.engine = Engine(self.clock)
        self.model = Model()

    @initialize(durability=st.sampled_from(["ephemeral", "memory", "disk", "fsync"]))
    def create(self, durability: Any) -> None:
        self.engine.put_topic("t", ConfigPatch(durability=durability))

    @rule(
        records=st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(TAGS)), min_size=1, max_size=25),
    )
    def write(self, records: list[tuple[str | None, str | None]]) -> None:
        given = [RecordIn(msgspec.Raw(b"0"), node=node, tag=tag) for node, tag in records]
        ticket = self.engine.write("t", Write(given))
        expected = self.model.append(self.clock.now_ms(), records)
        assert list(range(ticket.first_seq, ticket.last_seq + 1)) == expected

    @rule(before=st.none() | st.integers(-3, 30), match=st.none() | st.sampled_from(MATCHES))
    def delete(self, before: int | None, match: Any) -> None:
        if before is None and match is None:
            return
        before_seq = None if before is None else max(0, self.model.earliest_seq + before)
        result = self.engine.delete("t", Delete(before_seq=before_seq, match=match)).result
        assert result.deleted == self.model.remove(self.clock.now_ms(), before_seq, match)
        assert (result.count, result.earliest_seq) == (len(self.model.live), self.model.earliest_seq)

    @rule(ms=st.integers(1, 120))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.integers(1, 50))
    def step_the_clock_back(self, ms: int) -> None:
        self.model.expire(self.clock.now_ms())
        self.engine.state("t")
        self.clock.set(self.clock.now_ms() - ms)

    @rule(ttl_ms=st.sampled_from([0, 50, 100, 300]))
    def change_ttl(self, ttl_ms: int) -> None:
        self.model.expire(self.clock.now_ms())
        self.engine.put_topic("t", ConfigPatch(ttl_ms=ttl_ms))
        self.model.ttl_ms = ttl_ms

    @rule(cap_records=st.sampled_from([0, 1, 5, 20, 60]))
    def change_cap(self, cap_records: int) -> None:
        self.engine.put_topic("t", ConfigPatch(cap_records=cap_records))
        self.model.expire(self.clock.now_ms())
        self.model.cap_records = cap_records
        self.model.evict()

    @precondition(lambda self: self.model.head > 20)
    @rule()
    def recreate(self) -> None:
        self.engine.delete_topic("t")
        self.engine.put_topic("t", ConfigPatch(ttl_ms=self.model.ttl_ms, cap_records=self.model.cap_records))
        self.model = Model(ttl_ms=self.model.ttl_ms, cap_records=self.model.cap_records)

    @rule(
        cursor=st.integers(-40, 3),
        limit=st.sampled_from([1, 2, 7, 256]),
        node=st.sampled_from([None, "a", ["a", "b"]]),
        match=st.none() | st.sampled_from(MATCHES),
    )
    def read(self, cursor: int, limit: int, node: Any, match: Any) -> None:
        check_read(self.engine, self.model, self.clock.now_ms(), max(0, self.model.head + cursor), limit, node, match)

    @invariant()
    def state_agrees(self) -> None:
        if "t" not in self.engine.topics:
            return
        self.model.expire(self.clock.now_ms())
        state = self.engine.state("t")
        model = self.model
        assert (state.head_seq, state.earliest_seq, state.count) == (model.head, model.earliest_seq, len(model.live))
        assert model.evict_floor <= state.earliest_seq
        for cursor in {0, model.evict_floor - 2, model.evict_floor - 1, state.earliest_seq - 1, model.head}:
            if cursor >= 0:
                check_read(self.engine, model, self.clock.now_ms(), cursor, 256, None, None)


def check_read(engine: Engine, model: Model, now: int, from_seq: int, limit: int, node: Any, match: Any) -> None:
    """One diff, against what the model says that it must be."""
    model.expire(now)
    found = engine.diff("t", Diff(from_seq=from_seq, limit=limit, node=node, match=match, include_tags=True))
    tombstone = found.tombstone and (found.tombstone.gap_from, found.tombstone.gap_to)
    cursor = from_seq
    if from_seq > model.head:
        assert tombstone == (1, model.head)
        cursor = model.earliest_seq - 1
    elif from_seq + 1 < model.evict_floor:
        assert tombstone == (from_seq + 1, model.earliest_seq - 1)
        cursor = model.earliest_seq - 1
    else:
        assert tombstone is None
    ahead = sorted(seq for seq in model.live if seq > cursor)
    window = ahead[:limit]
    nodes = {node} if isinstance(node, str) else set(node or ())
    expected = [
        seq
        for seq in window
        if model.live[seq].node not in nodes and (match is None or matches(match, model.live[seq].tag))
    ]
    assert [record["$seq"] for record in found.records] == expected
    for record in found.records:
        held = model.live[record["$seq"]]
        assert (record["$ts"], record.get("$node"), record.get("$tag")) == (held.ts, held.node, held.tag)
    if len(ahead) > len(window):
        assert found.next_from_seq == window[-1]
    elif len(window) == limit:
        assert found.next_from_seq in (window[-1], model.head)
    else:
        assert found.next_from_seq == model.head
    assert (found.head_seq, found.earliest_seq) == (model.head, model.earliest_seq)
    assert found.caught_up is (found.next_from_seq == model.head)
    assert found.lag == model.head - found.next_from_seq


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


@pytest.mark.parametrize("seed", range(4))
def test_long_history_of_small_writes_agrees_with_the_model(seed: int) -> None:
    """LOSS-16: thousands of small writes with deletes between them, where logs merge what they hold."""
    dice = random.Random(seed)
    clock = ManualClock()
    engine = Engine(clock)
    model = Model(ttl_ms=dice.choice([0, 4000]), cap_records=dice.choice([0, 900]))
    engine.put_topic("t", ConfigPatch(ttl_ms=model.ttl_ms, cap_records=model.cap_records))
    for step in range(2500):
        clock.advance(dice.choice([0, 0, 1, 5]))
        now = clock.now_ms()
        records = [(dice.choice(NODES), dice.choice(TAGS)) for _ in range(dice.choice([1, 1, 1, 2, 30]))]
        given = [RecordIn(msgspec.Raw(b'{"n":1}'), node=node, tag=tag) for node, tag in records]
        assert engine.write("t", Write(given)).first_seq == model.append(now, records)[0]
        if step % 97 == 0:
            match = dice.choice(MATCHES)
            before = dice.randint(model.earliest_seq, model.head + 1)
            deleted = engine.delete("t", Delete(before_seq=before, match=match)).result.deleted
            assert deleted == model.remove(now, before, match)
        if step % 211 == 0:
            before = model.earliest_seq + dice.randint(0, 40)
            assert engine.delete("t", Delete(before_seq=before)).result.deleted == model.remove(now, before, None)
        if step % 50 == 0:
            for _ in range(5):
                cursor = dice.randint(0, model.head)
                check_read(engine, model, now, cursor, dice.choice([1, 50, 1000]), dice.choice([None, "a"]), None)
            state = engine.state("t")
            assert (state.count, state.earliest_seq) == (len(model.live), model.earliest_seq)
