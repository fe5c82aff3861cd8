"""Oracle: what clients asked for and were answered, as the judge of a recovered engine.

It shares no code with the product's storage. Everything a client did is noted when it is asked for and again when it is
acknowledged; after a crash, `check` reads everything there is and checks the promises (the DURABLE rules,
LOSS-12, RETAIN-9):

1. An acknowledged record of class `fsync` is there, unless a client asked to delete it or a cap or TTL took it.
2. So is, after a kill, every acknowledged record of `disk` and `memory`; after a loss of power, every one that a sync
   has covered.
3. Whatever else is missing below the head is inside a tombstone; above it nothing of `fsync` or `disk` is missing.
4. Nothing is there that was not asked for, with other content, or twice.
5. A seq that was acknowledged under `fsync` or `disk` is never handed out again.
6. An acknowledged delete holds as a record of its class does. What was gone, and what was reported lost, stays so.
7. A topic and its config are there once acknowledged, and gone once its deletion was; no id serves two names.
8. A kill adds no lost range, and no crash is taken for corruption.
9. A remembered idempotency key answers with what its write was given; a surviving write is remembered.

The floors are held to a model (model.py): a cap or TTL may not take more than it would have, had the process lived on
and committed what was in flight.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from tests.harness.model import ModelRecord, ModelTopic
from tests.harness.storage import resolve
from topics.engine import Diff, Engine
from topics.engine.config import TopicConfig
from topics.engine.topic import Topic

READS_MAX: Final = 100_000
PROMISED: Final = ("disk", "fsync")


class Broken(AssertionError):
    """A promise was not kept."""


@dataclass
class Asked:
    """One change that a client asked for: its class then, its place in the WAL, and whether it was acked."""

    durability: str
    lsn: int
    shard: int
    acked: bool = False
    failed: bool = False


@dataclass
class AskedWrite(Asked):
    """A write of consecutive records."""

    first_seq: int = 0
    records: list[ModelRecord] = field(default_factory=list)
    key: str | None = None


@dataclass
class AskedDelete(Asked):
    """A delete, as the seqs that it covered when it was asked for."""

    seqs: frozenset[int] = frozenset()


@dataclass
class AskedConfig(Asked):
    """A config, the first one being that of the creation."""

    config: TopicConfig = field(default_factory=TopicConfig)


@dataclass
class Crash:
    """How the world ended: by a kill, or by a loss of power after syncs up to an lsn per shard."""

    kill: bool
    synced_lsns: dict[int, int]

    def keeps(self, asked: Asked) -> bool:
        """Whether what was asked must still be there."""
        if not asked.acked or asked.durability == "ephemeral":
            return False
        return self.kill or asked.durability == "fsync" or asked.lsn <= self.synced_lsns.get(asked.shard, -1)


class Instance:
    """One topic from its creation to its deletion, as clients know it."""

    def __init__(self, name: str, id: int) -> None:
        self.name = name
        self.id = id
        self.configs: list[AskedConfig] = []
        self.writes: list[AskedWrite] = []
        self.deletes: list[AskedDelete] = []
        self.drop: Asked | None = None
        self.records: dict[int, tuple[AskedWrite, ModelRecord]] = {}
        self.model = ModelTopic()
        # From earlier crashes: ranges that were reported lost, seqs that are gone for good, where the seqs went on.
        self.lost: list[tuple[int, int]] = []
        self.gone: set[int] = set()
        self.next_seq = 1

    def asked_write(self, write: AskedWrite) -> None:
        """Note a write that has its seqs."""
        for seq, record in enumerate(write.records, write.first_seq):
            known = self.records.get(seq)
            if known is not None and known[0].acked and known[0].durability in PROMISED:
                raise Broken(f"topic {self.name}: seq {seq} was acked and is handed out again")
            self.records[seq] = (write, record)
        self.writes.append(write)

    def visible(self, write: AskedWrite) -> None:
        """A write was committed: readers see it."""
        model = self.model
        model.expire(write.records[-1].ts)
        model.write(write.records)

    def set_config(self, config: TopicConfig, now_ms: int) -> None:
        """Retention acts by another config from now on."""
        model = self.model
        model.expire(now_ms)
        model.ttl_ms, model.cap_records, model.cap_bytes = config.ttl_ms, config.cap_records, config.cap_bytes
        model.discard = config.discard
        model.expire(now_ms)
        model.evict()

    def floor_at_most(self, now_ms: int) -> int:
        """How far cap and TTL would have come, had everything in flight been committed."""
        model = copy.deepcopy(self.model)
        for write in self.writes:
            if not write.acked and not write.failed and write.first_seq > model.head:
                model.expire(write.records[-1].ts)
                model.write(write.records)
        model.expire(now_ms)
        return model.evict_floor


class Oracle:
    """All that was asked for and acknowledged, over all topics and processes."""

    def __init__(self) -> None:
        self.instances: dict[int, Instance] = {}
        self.checks = 0
        # Topics that are not checked here: what is in them follows from others.
        self.derived: set[str] = set()

    def instance(self, topic: Topic) -> Instance:
        """The instance that a topic of the engine is."""
        found = self.instances.get(topic.id)
        if found is None:
            found = self.instances[topic.id] = Instance(topic.name, topic.id)
        elif found.name != topic.name:
            raise Broken(f"topic id {topic.id} of {found.name} is used again for {topic.name}")
        return found

    def check(self, engine: Engine, crash: Crash, before: Engine | None = None) -> None:
        """Hold a recovered engine to everything; `before` is the engine that died, for what it showed of its floors."""
        self.checks += 1
        if engine.totals.corruption_total:
            raise Broken("a crash was taken for corruption")
        by_id = {topic.id: topic for topic in engine.topics.values() if topic.name not in self.derived}
        for id, topic in by_id.items():
            if id not in self.instances or self.instances[id].name != topic.name:
                raise Broken(f"topic {topic.name} with id {id} was never asked for")
        for instance in self.instances.values():
            found = by_id.get(instance.id)
            if found is None:
                _check_absent(instance, crash)
            else:
                died = None if before is None else before.topics.get(instance.name)
                _Check(self, instance, found, crash, engine).run(died)

    def rebase(self, engine: Engine) -> None:
        """Take a checked engine for the start of the next life: what it shows is what has survived, and is synced."""
        survivors: dict[int, Instance] = {}
        for topic in engine.topics.values():
            if topic.name in self.derived:
                continue
            old = self.instances[topic.id]
            fresh = survivors[topic.id] = Instance(topic.name, topic.id)
            fresh.next_seq = topic.next_seq
            records, gaps = read_all(engine, topic.name)
            class_now = topic.config.durability
            fresh.configs = [AskedConfig(class_now, 0, 0, acked=True, config=topic.config)]
            for seq in records:
                write, record = old.records[seq]
                survived = AskedWrite(write.durability, 0, 0, True, first_seq=seq, records=[record])
                fresh.records[seq] = (survived, record)
            fresh.writes = [
                AskedWrite(
                    write.durability, 0, 0, True, first_seq=write.first_seq, records=write.records, key=write.key
                )
                for write in old.writes
                if write.key is not None and write.first_seq in records
            ]
            fresh.lost = [(first, last) for first, last, _ in gaps]
            fresh.gone = {seq for seq in (*old.records, *old.gone) if seq <= topic.log.head and seq not in records}
            fresh.model = _model_of(topic, fresh)
        self.instances = survivors


def _model_of(topic: Topic, instance: Instance) -> ModelTopic:
    config, log = topic.config, topic.log
    model = ModelTopic(config.ttl_ms, config.cap_records, config.cap_bytes, config.discard)
    model.live = {seq: record for seq, (_, record) in instance.records.items()}
    model.head = log.head
    model.last_ts = topic.last_ts
    model.cap_evicted, model.ttl_expired = log.cap_evicted, log.ttl_expired
    return model


def _check_absent(instance: Instance, crash: Crash) -> None:
    created = instance.configs[0] if instance.configs else None
    if created is not None and created.acked and instance.drop is None:
        raise Broken(f"topic {instance.name} was created, and is gone")


class _Check:
    """One topic of a recovered engine against its instance."""

    def __init__(self, oracle: Oracle, instance: Instance, topic: Topic, crash: Crash, engine: Engine) -> None:
        self.oracle = oracle
        self.instance = instance
        self.topic = topic
        self.crash = crash
        self.engine = engine
        self.records, self.gaps = read_all(engine, topic.name)

    def broken(self, text: str) -> Broken:
        log = self.topic.log
        return Broken(
            f"topic {self.topic.name} ({self.topic.config.durability}): {text}; head {log.head}, start {log.start},"
            f" floor {log.evict_floor}, gaps {self.gaps}, {'kill' if self.crash.kill else 'power'}"
        )

    def run(self, died: Topic | None) -> None:
        instance = self.instance
        if instance.drop is not None and instance.drop.acked:
            raise self.broken("was deleted, and is there")
        self._check_config()
        self._check_content()
        self._check_missing()
        self._check_seqs()
        self._check_lost()
        self._check_floors(died)
        self._check_keys()

    def _check_config(self) -> None:
        configs = self.instance.configs
        since = max((i for i, asked in enumerate(configs) if asked.acked), default=0)
        if all(asked.config != self.topic.config for asked in configs[since:]):
            raise self.broken(f"has a config that is none of the last ones: {self.topic.config}")

    def _check_content(self) -> None:
        instance = self.instance
        held = frozenset().union(*(d.seqs for d in instance.deletes if self.crash.keeps(d)))
        size = 0
        for seq, record in self.records.items():
            known = instance.records.get(seq)
            if known is None:
                raise self.broken(f"delivers {seq}, which was never written")
            if known[1] != record:
                raise self.broken(f"delivers {seq} with other content: {record}, not {known[1]}")
            if seq in held:
                raise self.broken(f"delivers {seq}, which was deleted")
            if seq in instance.gone:
                raise self.broken(f"delivers {seq}, which was gone after an earlier crash")
            size += record.size_bytes
        log = self.topic.log
        if (log.count, log.bytes) != (len(self.records), size):
            raise self.broken(f"counts {log.count} records, {log.bytes} bytes; {len(self.records)}, {size} are there")

    def _check_missing(self) -> None:
        instance, topic, crash = self.instance, self.topic, self.crash
        head = topic.log.head
        asked_away = frozenset().union(instance.gone, *(d.seqs for d in instance.deletes))
        config = topic.config
        bounded = config.ttl_ms or config.cap_records or config.cap_bytes or instance.model.evict_floor > 1
        floor = instance.floor_at_most(self.engine.clock.now_ms()) if bounded or len(instance.configs) > 1 else 1
        if not all(map(crash.keeps, (*instance.deletes, *instance.configs))):
            # What a lost delete or a lost cap had made room for counts again.
            floor = head + 1
        for seq, (write, _) in instance.records.items():
            if seq in self.records or seq in asked_away:
                continue
            if seq > head:
                if write.acked and (write.durability in PROMISED or crash.keeps(write)):
                    raise self.broken(f"lost {seq} above its head, which was acked as {write.durability}")
            elif crash.keeps(write) and not (seq < topic.log.evict_floor and seq < floor):
                raise self.broken(f"lost {seq}, which was acked as {write.durability}; floor at most {floor}")
            elif not self._reported(seq, seq):
                raise self.broken(f"lacks {seq} without a tombstone")
        known = sorted({0, head + 1, *(seq for seq in (*instance.records, *instance.gone) if seq <= head)})
        for before, after in itertools.pairwise(known):
            if after > before + 1 and not self._reported(before + 1, after - 1):
                raise self.broken(f"lacks {before + 1} to {after - 1} without a tombstone")

    def _reported(self, first: int, last: int) -> bool:
        """Whether tombstones cover all of a range."""
        for gap_from, gap_to, _ in self.gaps:
            if gap_from <= first <= gap_to:
                first = gap_to + 1
        return first > last

    def _check_seqs(self) -> None:
        instance, topic = self.instance, self.topic
        promised = [seq for seq, (write, _) in instance.records.items() if write.acked and write.durability in PROMISED]
        if promised and topic.next_seq <= max(promised):
            raise self.broken(f"goes on at {topic.next_seq}, though {max(promised)} was acked")
        classes: set[str] = {asked.config.durability for asked in instance.configs}
        classes |= {write.durability for write, _ in instance.records.values()}
        if not classes & {"memory", "ephemeral"} and topic.next_seq < instance.next_seq:
            raise self.broken(f"goes on at {topic.next_seq}, and went on at {instance.next_seq} before")
        asked = max([instance.next_seq - 1, *instance.records])
        if topic.log.head > asked and (self.crash.kill or "disk" not in classes):
            raise self.broken(f"has a head above {asked}, the last seq that was asked for")
        if topic.next_seq != topic.log.head + 1:
            raise self.broken(f"goes on at {topic.next_seq}")

    def _check_lost(self) -> None:
        head = self.topic.log.head
        for first, last in self.instance.lost:
            if not self._reported(first, min(last, head)):
                raise self.broken(f"reported {first} to {last} as lost and no longer does")
        if not self.crash.kill:
            return
        for lost in self.topic.log.lost:
            for seq, (write, _) in self.instance.records.items():
                if lost.first <= seq <= lost.last and write.durability != "ephemeral":
                    raise self.broken(f"lost {seq} in a kill")

    def _check_floors(self, died: Topic | None) -> None:
        instance, log = self.instance, self.topic.log
        if log.evict_floor > log.start:
            raise self.broken("has an evict_floor above its start")
        if died is None or died.id != instance.id or any(not asked.acked for asked in instance.configs):
            return
        classes = {write.durability for write, _ in instance.records.values()}
        holds = classes <= {"fsync"} or (self.crash.kill and "ephemeral" not in classes)
        if holds and log.evict_floor < died.log.evict_floor:
            raise self.broken(f"had a floor of {died.log.evict_floor} before")

    def _check_keys(self) -> None:
        keys = self.topic.dedupe.keys if self.topic.dedupe is not None else {}
        asked: dict[str, list[AskedWrite]] = {}
        for write in self.instance.writes:
            if write.key is not None:
                asked.setdefault(write.key, []).append(write)
        now, window = self.engine.clock.now_ms(), self.topic.config.idempotency_window_ms
        for key, writes in asked.items():
            found = keys.get(key)
            if found is not None and found.first_seq not in [write.first_seq for write in writes]:
                raise self.broken(f"remembers {key} for {found.first_seq}, which was not its write")
            last = writes[-1]
            if found is None and self.crash.keeps(last) and now - last.records[0].ts <= window:
                raise self.broken(f"has forgotten the key {key} of the write at {last.first_seq}")
            if found is not None and self.topic.config.durability == "fsync" and found.first_seq > self.topic.log.head:
                raise self.broken(f"remembers {key}, and its records are not there")


def read_all(engine: Engine, name: str, from_seq: int = 0) -> tuple[dict[int, ModelRecord], list[tuple[int, int, str]]]:
    """Every record after a cursor by its seq, and every tombstone, as a reader gets them."""
    records: dict[int, ModelRecord] = {}
    gaps: list[tuple[int, int, str]] = []
    last = from_seq
    for _ in range(READS_MAX):
        read = Diff(from_seq=from_seq, limit=1000, include_tags=True)
        got = resolve(partial(engine.diff, name, read))
        if got.tombstone is not None:
            gaps.append((got.tombstone.gap_from, got.tombstone.gap_to, got.tombstone.reason))
        for raw in got.records:
            if raw["$seq"] <= last:
                raise Broken(f"topic {name}: {raw['$seq']} comes after {last}")
            last = raw["$seq"]
            records[last] = record(raw)
        if got.next_from_seq < from_seq:
            raise Broken(f"topic {name}: the cursor goes from {from_seq} back to {got.next_from_seq}")
        from_seq = got.next_from_seq
        if got.caught_up:
            return records, gaps
    raise Broken(f"topic {name}: a reader never catches up")


def record(raw: dict[str, Any]) -> ModelRecord:
    """A record as a reader got it, in the shape of the model; `data` as JSON text."""
    meta = raw.get("meta")
    return ModelRecord(
        raw["$ts"],
        text(raw["data"]),
        raw.get("$tag"),
        raw.get("$node"),
        None if meta is None else text(meta),
    )


def text(value: Any) -> bytes:
    """The JSON text of a value as the tests write it."""
    return msgspec.json.encode(value)


def state(engine: Engine, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Everything that clients can see of an engine, for comparing two."""
    shown: dict[str, Any] = {}
    for name in sorted(engine.topics if names is None else names):
        # First of all, since reading applies the TTL.
        records = read_all(engine, name)
        topic = engine.topics[name]
        log = topic.log
        dedupe = topic.dedupe
        shown[name] = (
            topic.id,
            topic.config,
            (log.head, log.start, log.evict_floor, log.count, log.bytes, topic.next_seq, topic.last_ts),
            list(log.lost),
            {} if dedupe is None else {key: (w.first_seq, w.count, w.ts) for key, w in sorted(dedupe.keys.items())},
            {} if dedupe is None else {producer: last[0] for producer, last in sorted(dedupe.producers.items())},
            records,
        )
    return shown


def _brief(shown: Any) -> str:
    return "nothing" if shown is None else f"{shown[2]} lost {shown[3]}"


def difference(what: str, one: dict[str, Any], other: dict[str, Any], brief: Callable[[Any], str] = _brief) -> str:
    """What differs between two states, topic by topic, in one line."""
    names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    shown = [f"{name}: {brief(one.get(name))} then {brief(other.get(name))}" for name in names]
    return f"{what}: {'; '.join(shown)}"
