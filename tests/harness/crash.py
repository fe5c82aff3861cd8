"""Crash sweep: a world in which an engine lives on a fake disk, and ends after every single call that changes the disk.

`World` is one engine after the other on one disk, driven as the server drives it but by dice: commands, turns of the
loop, the two halves of each disk job, upkeep and time come in any order that a seed gives, or in the order a test
writes down. Clients' wishes and answers go to an `Oracle`.

`Sweep` watches the disk of a world. After every mutating call, and in the middle of every write, the disk is copied;
each copy suffers each kind of damage, is recovered and held to the oracle, then is killed and recovered a second time,
which must show the same and change no byte. Where asked, recovery itself is swept too: a crash after each of its calls,
in every kind of damage, then a recovery that must hold. Nothing is run again from the start, so a crash point costs
only its own recovery.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.harness.model import ModelRecord
from tests.harness.oracle import (
    Asked,
    AskedConfig,
    AskedDelete,
    AskedWrite,
    Broken,
    Crash,
    Instance,
    Oracle,
    state,
    text,
)
from topics.engine import ConfigPatch, Delete, Engine, Write
from topics.engine.log.archive import Shelf
from topics.engine.requests import RecordIn
from topics.engine.upkeep.upkeep import Upkeep, UpkeepSettings
from topics.engine.write import ceiling
from topics.errors import TopicsError
from topics.storage.disk import Disk
from topics.storage.job import Job, run_inline
from topics.storage.recovery import Unusable
from topics.storage.segment.segment import Miss
from topics.storage.store import Store
from topics.storage.wal import file as walfile
from topics.testing.clock import ManualClock
from topics.testing.disk import DAMAGES, Damage, FakeDisk, FaultDisk

SMALL: Final = UpkeepSettings(segment_max_events=12, checkpoint_wal_bytes=1 << 40, hot_retain_segments=1)
DIRECTORY: Final = "data"
COLD: Final = "cold"
SETTLE_STEPS_MAX: Final = 10_000
CEILING_STEP: Final = 8
WORD_BYTES: Final = 8

StoreFactory = Callable[..., Store]


class SplitDisk(FakeDisk):
    """A disk on which a write to the WAL is seen half done as well: a process may die in the middle of one.

    A kernel that gives up a write has taken whole pages of it; here it may be any number of words of 8 bytes.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def write(self, handle: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write the first part, then all of it."""
        if len(data) > WORD_BYTES and self.after_call is not None and ".wal" in self._handles[handle][0]:
            cut = self._rng.randrange(WORD_BYTES, len(data), WORD_BYTES)
            super().write(handle, offset, bytes(data)[:cut])
        super().write(handle, offset, data)


@contextmanager
def small() -> Iterator[None]:
    """Everything of a size that a sweep can live with.

    No log lines, since it recovers thousands of times from what it did on purpose; and `disk` topics reserve a few seqs
    at a time, so that the edge of what is reserved is met often.
    """
    level, step = logging.root.manager.disable, ceiling.STEP_MIN
    logging.disable(logging.CRITICAL)
    ceiling.STEP_MIN = CEILING_STEP  # type: ignore[misc]
    try:
        yield
    finally:
        logging.disable(level)
        ceiling.STEP_MIN = step  # type: ignore[misc]


class World:
    """One disk, one clock, and one engine after the other on them, with everything that clients asked of them."""

    def __init__(
        self,
        seed: int = 0,
        settings: UpkeepSettings = SMALL,
        *,
        store: StoreFactory = Store,
        monitored: bool = True,
        **options: Any,
    ) -> None:
        self.rng = random.Random(seed)
        self.disk: FakeDisk = SplitDisk(random.Random(seed))
        self.clock = ManualClock()
        self.settings = settings
        self.oracle = Oracle()
        self.monitored = monitored
        self.options: dict[str, Any] = {"wal_file_bytes": 4096, "min_free_bytes": 0, "cold_directory": COLD, **options}
        # What can be told to fail; a new one with each start.
        self.fault = FaultDisk(self.disk)
        self.done: Counter[str] = Counter()
        self._make_store = store
        self._jobs: list[tuple[Job, BaseException | None, bool]] = []
        self._written = 0
        self.start()

    # Life and death

    def start(self) -> None:
        """Start the next engine on the disk."""
        self.fault = FaultDisk(self.disk)
        self.store, self.engine, self.upkeep = self.boot(self.fault)
        self._jobs = []
        if self.monitored:
            self.disk.monitor.attach(self.store)

    def boot(self, disk: Disk) -> tuple[Store, Engine, Upkeep]:
        """An engine recovered from any disk; this world's own stays as it is."""
        store = self._make_store(DIRECTORY, disk=disk, clock=self.clock, **self.options)
        store.open()
        shelf = Shelf(store, self.settings.segment_max_events, self.settings.segment_max_bytes)
        engine = Engine(self.clock, store, shelf=shelf)
        upkeep = Upkeep(engine, store, self.settings)
        for _ in upkeep.recover():
            pass
        return store, engine, upkeep

    def how(self, damage: Damage) -> Crash:
        """What a crash right now may take."""
        return Crash(damage == "kill", {shard.index: shard.synced_lsn for shard in self.store.shards})

    def crash(self, damage: Damage) -> None:
        """End this engine and go on with the next, which must keep every promise."""
        how, died = self.how(damage), self.engine
        self.disk.crash(damage, self.rng)
        self.start()
        self.oracle.check(self.engine, how, died)
        self.oracle.rebase(self.engine)
        self.done[damage] += 1

    def stop(self) -> None:
        """An orderly stop and the next start, perhaps after a new boot."""
        self.settle()
        shown = state(self.engine)
        self.upkeep.close()
        self.store.close()
        self.disk.crash(self.rng.choice(DAMAGES), self.rng)
        self.start()
        durable = [name for name, topic in self.engine.topics.items() if topic.config.durability != "ephemeral"]
        before, after = {name: shown[name] for name in durable}, state(self.engine, durable)
        if after != before:
            raise Broken(_difference("an orderly stop changed something", before, after))
        self.oracle.rebase(self.engine)
        self.done["stop"] += 1

    # The driver

    def turn(self) -> None:
        """A turn of the loop: write what was submitted, do a slice of upkeep, take up the jobs that are due."""
        self.engine.prepare()
        self.engine.turn()
        self.upkeep.step()
        self._take_jobs()

    def _take_jobs(self) -> None:
        self._jobs += [(job, None, False) for job in self.store.jobs()]

    def run_job(self, index: int = 0) -> None:
        """Let the disk do a job that waits; its outcome comes back later."""
        waiting = [i for i, (_, _, ran) in enumerate(self._jobs) if not ran]
        if waiting:
            i = waiting[index % len(waiting)]
            job = self._jobs[i][0]
            error: BaseException | None = None
            try:
                job.run()
            except AssertionError:
                # What an instrument has to say is no failure of the disk.
                raise
            except Exception as exception:
                error = exception
            self._jobs[i] = (job, error, True)
            self.done[job.name] += error is None

    def finish_job(self, index: int = 0) -> None:
        """Bring the outcome of a job back to the engine."""
        ran = [i for i, (_, _, ran) in enumerate(self._jobs) if ran]
        if ran:
            job, error, _ = self._jobs.pop(ran[index % len(ran)])
            job.done(error)

    def settle(self) -> None:
        """Run everything that is due until nothing is left."""
        for _ in range(SETTLE_STEPS_MAX):
            while self._jobs:
                self.run_job()
                self.finish_job()
            self.turn()
            more = self.upkeep.step()
            self._take_jobs()
            if not more and not self._jobs and not self.store.pending:
                return
        raise AssertionError("the world does not settle")

    def checkpoint(self) -> None:
        """A whole checkpoint."""
        self.settle()
        self.upkeep.checkpoint()
        self.clock.advance(100)
        self.settle()

    # What clients do

    def put(self, name: str, **patch: Any) -> None:
        """Create a topic or change its config."""
        topic = self.engine.topics.get(name)
        class_before = None if topic is None else topic.config.durability
        asked: list[AskedConfig] = []

        def acked(receipt: Any) -> None:
            for config in asked:
                config.acked, config.failed = receipt.error is None, receipt.error is not None

        lsn = self.store.last_lsn
        try:
            receipt = self.engine.put_topic(name, ConfigPatch(**patch), acked)
        except TopicsError:
            return
        topic = self.engine.topics[name]
        instance = self.oracle.instance(topic)
        if self.store.last_lsn > lsn:
            asked.append(self._config(instance, class_before or topic.config.durability))
            asked[0].acked = receipt.done and receipt.error is None
        self.done["config"] += 1

    def _config(self, instance: Instance, durability: str) -> AskedConfig:
        topic = self.engine.topics[instance.name]
        shard = self.store.shard_of(topic.id).index
        asked = AskedConfig("fsync", self.store.last_lsn, shard, config=topic.config)
        instance.configs.append(asked)
        instance.set_config(topic.config, self.clock.now_ms())
        return asked

    def write(
        self, name: str, n: int = 1, *, tag: str | None = None, size: int = 0, key: str | None = None, **patch: Any
    ) -> AskedWrite | None:
        """Append records whose data nobody else ever writes; the write, or None where it was refused or a repeat."""
        datas = [self._data(size) for _ in range(n)]
        write = Write([RecordIn(_raw(data), tag=tag) for data in datas], idempotency_key=key)
        if patch:
            write.config = ConfigPatch(**patch)
        known = self.engine.topics.get(name)
        asked: list[AskedWrite] = []
        early: list[Any] = []

        def acked(ticket: Any) -> None:
            early.append(ticket)
            if asked:
                self._acked(name, asked[0], ticket)

        try:
            ticket = self.engine.write(name, write, acked)
        except TopicsError:
            if known is None and name in self.engine.topics:
                self._config(self.oracle.instance(self.engine.topics[name]), "fsync")
            return None
        topic = self.engine.topics[name]
        instance = self.oracle.instance(topic)
        if known is None:
            self._config(instance, topic.config.durability)
        if ticket.deduped:
            return None
        records = [ModelRecord(topic.last_ts, text(data), tag) for data in datas]
        made = AskedWrite(
            topic.config.durability,
            self.store.last_lsn,
            self.store.shard_of(topic.id).index,
            first_seq=ticket.first_seq,
            records=records,
            key=key,
        )
        instance.asked_write(made)
        asked.append(made)
        if early:
            self._acked(name, made, early[0])
        self.done["write"] += 1
        return made

    def _acked(self, name: str, write: AskedWrite, ticket: Any) -> None:
        write.acked, write.failed = ticket.error is None, ticket.error is not None
        instance = self.oracle.instances.get(ticket.topic.id)
        if instance is None or not write.acked:
            return
        if instance.configs and write.first_seq == instance.writes[0].first_seq and ticket.created:
            instance.configs[0].acked = True
        instance.visible(write)

    def _data(self, size: int) -> Any:
        self._written += 1
        return [self._written, "x" * size] if size else self._written

    def delete(self, name: str, before_seq: int | None = None, tag: str | None = None, *, glob: bool = False) -> None:
        """Delete records by seq, by tag, or both."""
        topic = self.engine.topics.get(name)
        if topic is None:
            return
        match = None if tag is None else ["tag", "Glob", f"{tag}*"] if glob else ["tag", "Eq", tag]
        instance = self.oracle.instance(topic)
        head = topic.log.head
        covered = frozenset(
            seq
            for seq, (_, record) in instance.records.items()
            if seq <= head
            and (before_seq is None or seq < before_seq)
            and (
                tag is None or (record.tag is not None and (record.tag.startswith(tag) if glob else record.tag == tag))
            )
        )
        asked = AskedDelete(topic.config.durability, 0, self.store.shard_of(topic.id).index, seqs=covered)

        def acked(receipt: Any) -> None:
            asked.acked, asked.failed = receipt.error is None, receipt.error is not None

        while True:
            try:
                self.engine.delete(name, Delete(before_seq=before_seq, match=match), acked)
                break
            except Miss as miss:
                run_inline([miss.job])
            except TopicsError:
                return
        # One that found nothing left to delete is as safe as what came before it.
        asked.lsn = self.store.last_lsn
        instance.deletes.append(asked)
        instance.model.expire(self.clock.now_ms())
        instance.model.delete(before_seq, tag, glob)
        self.done["delete"] += 1

    def drop(self, name: str) -> None:
        """Delete a topic."""
        topic = self.engine.topics.get(name)
        if topic is None:
            return
        instance = self.oracle.instance(topic)
        asked = Asked("fsync", 0, 0)

        def acked(receipt: Any) -> None:
            asked.acked, asked.failed = receipt.error is None, receipt.error is not None

        try:
            self.engine.delete_topic(name, on_done=acked)
        except TopicsError:
            return
        instance.drop = asked
        self.done["drop"] += 1

    # Chance

    def step(self) -> None:
        """Something happens."""
        rng = self.rng
        dice = rng.random()
        if dice < 0.30:
            self.turn()
        elif dice < 0.48:
            self.run_job(rng.randrange(8))
        elif dice < 0.64:
            self.finish_job(rng.randrange(8))
        elif dice < 0.67:
            self.upkeep.checkpoint()
        elif dice < 0.71:
            self.clock.advance(rng.choice((1, 60, 60, 5000)))
        else:
            self.command()

    def command(self) -> None:
        """A client does something."""
        rng = self.rng
        dice = rng.random()
        name = rng.choice(tuple(CLASSES))
        if dice < 0.72:
            n = rng.choice((1, 1, 2, 5, 13))
            size = rng.choice((0, 0, 0, 300, 2000, 6000))
            key = f"k{rng.randrange(5)}" if rng.random() < 0.2 else None
            self.write(name, n, tag=rng.choice((None, "a", "ab", "b")), size=size // n, key=key, **CLASSES[name])
        elif dice < 0.86:
            head = self.engine.topics[name].log.head if name in self.engine.topics else 0
            if rng.random() < 0.5:
                self.delete(name, max(0, head - rng.randrange(12)))
            else:
                self.delete(name, tag=rng.choice(("a", "ab", "b")), glob=rng.random() < 0.3)
        elif dice < 0.92:
            self.put(name, **rng.choice(PATCHES))
        elif dice < 0.95:
            self.put("mixed", durability=rng.choice(("memory", "disk", "fsync")))
        elif dice < 0.98:
            self.drop(name)
        else:
            self.settle()


CLASSES: Final[dict[str, dict[str, Any]]] = {
    "kept": {"durability": "fsync"},
    "common": {"durability": "disk"},
    "scratch": {"durability": "memory"},
    "passing": {"durability": "ephemeral"},
    "capped": {"durability": "fsync", "cap_records": 20},
    "mixed": {"durability": "disk"},
}
PATCHES: Final[tuple[dict[str, Any], ...]] = (
    {"ttl_ms": 9000},
    {"ttl_ms": 0},
    {"cap_records": 20},
    {"cap_records": 40},
    {"cap_bytes": 5000},
    {"priority": 7},
)


def _raw(data: Any) -> Any:
    from msgspec import Raw

    return Raw(text(data))


@dataclass
class Sweep:
    """Ends a world after every call, and counts how often it has."""

    world: World
    damages: Sequence[Damage] = DAMAGES
    # Sweep recovery itself at every so manyth point; 0 never does.
    nested_every: int = 0
    points: int = 0
    calls: int = 0
    nested_points: int = 0
    # Which part of the calls is followed by an end, by dice: a long life has many that are alike.
    share: float = 1.0
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    # Whoever runs a job may take what is raised in it for a disk that failed, so it is raised again at the end.
    _failure: BaseException | None = None

    def __enter__(self) -> Sweep:
        self.world.disk.after_call = self._after_call
        return self

    def __exit__(self, *_: object) -> None:
        self.world.disk.after_call = None
        if self._failure is not None:
            raise self._failure

    def _after_call(self, number: int, operation: str, path: str) -> None:
        if self.dice.random() >= self.share:
            return
        self.calls += 1
        for damage in self.damages:
            self.points += 1
            nested = self.nested_every and self.points % self.nested_every == 0
            try:
                self._end(number, damage, nested=bool(nested))
            except BaseException as error:
                error.add_note(f"crash point: call {number} ({operation} {path}), {damage}")
                self._failure = self._failure or error
                raise

    def _end(self, number: int, damage: Damage, *, nested: bool) -> None:
        world = self.world
        how = world.how(damage)
        twin = world.disk.clone()
        twin.crash(damage, random.Random(number))
        if nested:
            twin.after_call = lambda inner, operation, path: self._end_recovery(twin, how, inner, operation, path)
        store, engine, _ = self._boot(twin)
        twin.after_call = None
        if self._failure is not None:
            raise self._failure
        world.oracle.check(engine, how, world.engine)
        shown, files = state(engine), _settled_files(twin, store)
        twin.crash("kill", random.Random(0))
        store, again, _ = self._boot(twin)
        if state(again) != shown:
            raise Broken(_difference("a second recovery shows something else", shown, state(again)))
        if _settled_files(twin, store) != files:
            raise Broken("a second recovery changed bytes")

    def _boot(self, disk: FakeDisk) -> tuple[Store, Engine, Upkeep]:
        try:
            return self.world.boot(disk)
        except Unusable as refusal:
            raise Broken(f"a crash is no reason to refuse a start: {refusal}") from refusal

    def _end_recovery(self, disk: FakeDisk, how: Crash, number: int, operation: str, path: str) -> None:
        for damage in self.damages:
            self.points += 1
            self.nested_points += 1
            twin = disk.clone()
            twin.crash(damage, random.Random(number))
            both = Crash(how.kill and damage == "kill", how.synced_lsns)
            try:
                _, engine, _ = self._boot(twin)
                self.world.oracle.check(engine, both, self.world.engine)
            except BaseException as error:
                error.add_note(f"crash in recovery: call {number} ({operation} {path}), {damage}")
                self._failure = self._failure or error
                raise


def live(seed: int, steps: int, share: float = 1.0, crash_share: float = 0.01, **options: Any) -> tuple[World, Sweep]:
    """A whole life by dice, swept, with crashes that it survives; what breaks a promise is raised with its seed."""
    world = World(seed, shards=1 + seed % 2, **options)
    sweep = Sweep(world, nested_every=101, share=share, dice=random.Random(seed))
    try:
        for _ in range(steps):
            with sweep:
                world.step()
            if world.rng.random() < crash_share:
                world.crash(world.rng.choice(DAMAGES))
            elif world.rng.random() < crash_share / 4:
                world.stop()
    except BaseException as error:
        error.add_note(f"life: seed {seed}, {steps} steps, share {share}")
        raise
    return world, sweep


def _settled_files(disk: FakeDisk, store: Store) -> dict[str, bytes]:
    """The bytes of all files but those of generations that have nothing in them yet: every start opens one."""
    files = disk.files()
    empty = []
    for path, content in files.items():
        name = walfile.parse_name(path.rpartition("/")[2])
        if name is not None and not any(content[walfile.HEADER_BYTES :]):
            empty.append(path)
    return {path: content for path, content in files.items() if path not in empty}


def _difference(what: str, one: dict[str, Any], other: dict[str, Any]) -> str:
    names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    shown = [f"{name}: {_brief(one.get(name))} then {_brief(other.get(name))}" for name in names]
    return f"{what}: {'; '.join(shown)}"


def _brief(shown: Any) -> str:
    return "nothing" if shown is None else f"{shown[2]} lost {shown[3]}"
