"""The engine against the model: any sequence of writes, deletes, config changes and passing time reads the same."""

from __future__ import annotations

import os

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Raw

from tests.harness.model import ModelRecord, ModelTopic
from topics.engine import ConfigPatch, Delete, Diff, Engine, Limits, RecordIn, Write
from topics.engine.requests import NO_RAW
from topics.errors import RecordTooLarge, TopicFull
from topics.testing import ManualClock

TAGS = st.one_of(st.none(), st.sampled_from(["a", "a:1", "a:2", "b", 'q"', ""]))
NODES = st.one_of(st.none(), st.sampled_from(["n1", "n2", "n\\3"]))
METAS = st.one_of(st.none(), st.sampled_from([b'{"k":"v"}', b'{ "x" : "y" }']))
DATAS = st.integers(0, 60).map(lambda n: b'{"n":%d,"pad":"%s"}' % (n, b"x" * n))


class EngineAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.engine = Engine(self.clock, limits=Limits(max_limit=50))
        self.model = ModelTopic()
        self.engine.put_topic("t", ConfigPatch(durability="disk"))

    @rule(records=st.lists(st.tuples(DATAS, TAGS, NODES, METAS), min_size=1, max_size=40))
    def write(self, records: list[tuple[bytes, str | None, str | None, bytes | None]]) -> None:
        ts = max(self.clock.now_ms(), self.model.last_ts)
        modelled = [ModelRecord(ts, data, tag, node, meta) for data, tag, node, meta in records]
        write = Write([RecordIn(Raw(d), t, n, NO_RAW if m is None else Raw(m)) for d, t, n, m in records])
        size = sum(record.size_bytes for record in modelled)
        caps = self.model.cap_records, self.model.cap_bytes
        if self.model.discard == "reject":
            try:
                self.engine.write("t", write)
            except RecordTooLarge:
                assert (caps[0] and len(records) > caps[0]) or (caps[1] and size > caps[1])
                return
            except TopicFull:
                assert not self.model.fits(modelled, self.clock.now_ms())
                return
            assert self.model.fits(modelled, self.clock.now_ms())
        else:
            self.engine.write("t", write)
        self.model.write(modelled)

    @rule(data=DATAS, times=st.integers(1, 700))
    def write_singles(self, data: bytes, times: int) -> None:
        if self.model.discard == "reject" and (self.model.cap_records or self.model.cap_bytes):
            return
        ts = max(self.clock.now_ms(), self.model.last_ts)
        for _ in range(times):
            self.engine.write("t", Write([RecordIn(Raw(data))]), id)
        self.engine.run_until_idle()
        for _ in range(times):
            self.model.write([ModelRecord(ts, data)])

    @rule(ms=st.integers(0, 5000))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.integers(0, 5000))
    def step_back(self, ms: int) -> None:
        self.model.expire(self.clock.now_ms())
        self.engine.state("t")
        self.clock.set(self.clock.now_ms() - ms)

    @rule(
        ttl_ms=st.sampled_from([0, 1, 1000, 4000]),
        cap_records=st.sampled_from([0, 1, 7, 100, 600]),
        cap_bytes=st.sampled_from([0, 60, 1000, 20_000]),
        discard=st.sampled_from(["old", "reject"]),
    )
    def configure(self, ttl_ms: int, cap_records: int, cap_bytes: int, discard: str) -> None:
        self.model.expire(self.clock.now_ms())
        self.model.ttl_ms, self.model.cap_records, self.model.cap_bytes = ttl_ms, cap_records, cap_bytes
        self.model.discard = discard
        self.model.expire(self.clock.now_ms())
        self.model.evict()
        patch = ConfigPatch(ttl_ms=ttl_ms, cap_records=cap_records, cap_bytes=cap_bytes, discard=discard)  # type: ignore[arg-type]
        self.engine.put_topic("t", patch)

    @precondition(lambda self: self.model.head > 0)
    @rule(fraction=st.floats(0, 1.1))
    def delete_below(self, fraction: float) -> None:
        before = int(self.model.head * fraction) + 1
        self.model.expire(self.clock.now_ms())
        result = self.engine.delete("t", Delete(before_seq=before)).result
        assert result.deleted == self.model.delete(before, None, False)

    @rule(tag=st.sampled_from(["a", "a:1", "b", ""]), prefix=st.booleans(), bound=st.one_of(st.none(), st.floats(0, 1)))
    def delete_tag(self, tag: str, prefix: bool, bound: float | None) -> None:
        before = None if bound is None else int(self.model.head * bound) + 1
        self.model.expire(self.clock.now_ms())
        match = ["tag", "Glob", tag + "*"] if prefix else ["tag", "Eq", tag]
        result = self.engine.delete("t", Delete(before_seq=before, match=match)).result
        assert result.deleted == self.model.delete(before, tag, prefix)

    @rule(
        fraction=st.floats(0, 1.2),
        limit=st.integers(1, 60),
        nodes=st.sets(st.sampled_from(["n1", "n2", "n\\3"])),
        ahead=st.integers(0, 2),
    )
    def read(self, fraction: float, limit: int, nodes: set[str], ahead: int) -> None:
        from_seq = int(self.model.head * fraction) + ahead
        self.model.expire(self.clock.now_ms())
        seqs, cursor, gap = self.model.diff(from_seq, min(limit, 50), nodes)
        got = self.engine.diff(
            "t", Diff(from_seq=from_seq, limit=limit, node=sorted(nodes), include_tags=True, max_batch_bytes=8 << 20)
        )
        assert [record["$seq"] for record in got.records] == seqs
        assert got.count == len(seqs)
        assert got.next_from_seq == cursor
        if gap is None:
            assert got.tombstone is None
        else:
            assert got.tombstone is not None
            assert (got.tombstone.gap_from, got.tombstone.gap_to) == (gap.gap_from, gap.gap_to)
            assert got.tombstone.reason in (gap.reason, "cap", "mixed")
        for record in got.records:
            expected = self.model.live[record["$seq"]]
            assert record["$ts"] == expected.ts
            assert record["data"] == msgspec.json.decode(expected.data)
            assert record.get("$tag") == expected.tag
            assert record.get("$node") == expected.node
            assert record.get("meta") == (None if expected.meta is None else msgspec.json.decode(expected.meta))

    @invariant()
    def state_agrees(self) -> None:
        self.model.expire(self.clock.now_ms())
        state = self.engine.state("t")
        log = self.engine.topics["t"].log
        assert state.head_seq == self.model.head
        assert state.count == len(self.model.live)
        assert state.bytes == self.model.bytes
        assert state.earliest_seq == self.model.earliest_seq
        assert log.evict_floor == self.model.evict_floor
        assert log.evict_floor <= state.earliest_seq
        assert (self.engine.totals.count, self.engine.totals.bytes) == (state.count, state.bytes)


EngineAgainstModel.TestCase.settings = settings(
    max_examples=int(os.environ.get("MODEL_EXAMPLES", "60")), stateful_step_count=30, deadline=None
)
TestEngineAgainstModel = EngineAgainstModel.TestCase
