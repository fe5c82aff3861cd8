"""World: a machine, its clients, and every request and answer of theirs.

A World is a Machine with an `Oracle`: commands go through it, so that after a crash every promise can be checked. It is
driven as the server drives an engine, but in any order: commands, turns of the loop, the two halves of each disk job,
upkeep and time come as a seed chooses (`step`), or as a test writes them down.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw

from tests.harness.machine import Machine
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
    difference,
    state,
    text,
)
from tests.harness.storage import resolve
from topics.engine import ConfigPatch, Delete, Write
from topics.engine.requests import RecordIn
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.errors import TopicsError
from topics.storage.job import Job
from topics.testing.fake_disk import DAMAGES, Damage, FakeDisk
from topics.testing.fault_disk import FaultDisk

TINY: Final = UpkeepSettings(
    segment_max_events=12, checkpoint_wal_bytes=1 << 40, hot_retain_segments=1, erase_after_ms=10_000
)
COLD: Final = "cold"
IDLE_STEPS_MAX: Final = 10_000
WORD_BYTES: Final = 8


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


class World(Machine):
    """A machine with an oracle, on a disk that may fail; keyword arguments are options of the store."""

    def __init__(
        self, seed: int = 0, settings: UpkeepSettings = TINY, *, monitored: bool = True, **options: Any
    ) -> None:
        self.rng = random.Random(seed)
        self.oracle = Oracle()
        self.monitored = monitored
        self.done: Counter[str] = Counter()
        self._jobs: list[tuple[Job, BaseException | None, bool]] = []
        self._written = 0
        # Deletes that are under way: what to do once they have taken effect.
        self._deleting: list[Callable[[], bool]] = []
        options = {"wal_file_bytes": 4096, "cold_directory": COLD, **options}
        super().__init__(settings, disk=SplitDisk(random.Random(seed)), **options)

    def start(self) -> None:
        """Start the next engine on the disk, through a FaultDisk of its own."""
        self.fault = FaultDisk(self.disk)
        self.store, self.engine, self.upkeep = self.boot(self.fault)
        self._jobs = []
        self._deleting = []
        if self.monitored:
            self.disk.monitor.attach(self.store)

    def how(self, damage: Damage) -> Crash:
        """What a crash right now may take."""
        return Crash(damage == "kill", {shard.index: shard.synced_lsn for shard in self.store.shards})

    def crash(self, damage: Damage = "kill") -> None:
        """End this engine and go on with the next, which must keep every promise."""
        how, died = self.how(damage), self.engine
        self.disk.crash(damage, self.rng)
        self.start()
        self.oracle.check(self.engine, how, died)
        self.oracle.rebase(self.engine)
        self.done[damage] += 1

    def stop(self) -> None:
        """An orderly stop and the next start, perhaps after a new boot: nothing may change."""
        self.run_until_idle()
        shown = state(self.engine)
        self.close()
        self.disk.crash(self.rng.choice(DAMAGES), self.rng)
        self.start()
        durable = [name for name, topic in self.engine.topics.items() if topic.config.durability != "ephemeral"]
        before, after = {name: shown[name] for name in durable}, state(self.engine, durable)
        if after != before:
            raise Broken(difference("an orderly stop changed something", before, after))
        self.oracle.rebase(self.engine)
        self.done["stop"] += 1

    # The driver

    def turn(self) -> None:
        """A turn of the loop: write what was submitted, do a slice of upkeep, take up the jobs that are due."""
        self.engine.prepare()
        self.engine.turn()
        self._note_deletes()
        self.upkeep.step()
        self._take_jobs()

    def _note_deletes(self) -> None:
        self._deleting = [applied for applied in self._deleting if not applied()]

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
                # What an instrument reports is no failure of the disk.
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

    def run_until_idle(self) -> None:
        """Run everything that is due until nothing is left."""
        for _ in range(IDLE_STEPS_MAX):
            while self._jobs:
                self.run_job()
                self.finish_job()
            self.turn()
            more = self.upkeep.step()
            self._take_jobs()
            if not (more or self._jobs or self.store.pending or self.engine.slices.active):
                return
        raise AssertionError("the engine is never idle")

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
        """Append records with data of their own; the write, or None where it was refused or a repeat."""
        datas = [self._data(size) for _ in range(n)]
        write = Write([RecordIn(Raw(text(data)), tag=tag) for data in datas], idempotency_key=key)
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

        try:
            receipt = resolve(lambda: self.engine.delete(name, Delete(before_seq=before_seq, match=match), acked))
        except TopicsError:
            return
        instance.deletes.append(asked)

        def applied() -> bool:
            if receipt.result is None:
                return receipt.error is not None
            # One that found nothing left to delete is as safe as what came before it.
            asked.lsn = self.store.last_lsn
            instance.model.expire(self.clock.now_ms())
            instance.model.delete(head + 1 if before_seq is None else min(before_seq, head + 1), tag, glob)
            return True

        self._deleting.append(applied)
        self._note_deletes()
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
            self.run_until_idle()


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
