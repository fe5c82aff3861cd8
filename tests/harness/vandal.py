"""Vandal: does to a data directory what disks and people do to files, and checks what the next start makes of it.

`Victim.grow` makes a directory with something of everything: topics of every class, sealed segments in both tiers, a
checkpoint and a log after it, a queue with acked jobs and dead letters, a router. `Victim.suffer` takes a copy of it,
does one of the acts of tests.harness.damage to its files, and starts an engine on what is left. Then (DURABLE-18):

1. The start succeeds, or is refused with one line that says why and what to do (only where the act allows it).
2. Nothing is delivered that was not written, or with other content, or from another topic.
3. What is missing is inside a tombstone, and damage that cost something is counted.
4. No seq is handed out again.
5. The same is shown after a kill, and after an orderly stop: what was reported once is reported again.

The one exception is what no format can know without a witness elsewhere: an act that takes the end of the log leaves a
directory that looks like an earlier one. Then the log is short, but in order (`Act.takes_end`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.harness.damage import ACTS, Act
from tests.harness.model import ModelRecord
from tests.harness.oracle import Broken, difference, read_all
from tests.harness.world import World
from topics.engine import ConfigPatch, Engine
from topics.engine.queue.requests import AckJobs, ClaimJobs, NackJobs
from topics.engine.router.router import PutRouter
from topics.errors import ColdUnavailable
from topics.storage.damage import UnknownFormat, Unusable
from topics.testing.fake_disk import FakeDisk

ROUNDS: Final = 14
PLAIN: Final[dict[str, dict[str, Any]]] = {
    "kept": {"durability": "fsync"},
    "common": {"durability": "disk"},
    "scratch": {"durability": "memory"},
    "capped": {"durability": "fsync", "cap_records": 20},
    "source": {"durability": "fsync"},
    "passing": {"durability": "ephemeral"},
}
QUEUE: Final[dict[str, Any]] = {"type": "queue", "durability": "fsync", "max_deliveries": 1, "dead_letter": "dead"}


@dataclass
class Known:
    """One topic as clients know it when the directory is left alone."""

    id: int
    head: int = 0
    written: dict[int, ModelRecord] = field(default_factory=dict)
    shown: dict[int, ModelRecord] = field(default_factory=dict)


class Victim:
    """A data directory at rest, and what its clients know."""

    def __init__(self, world: World, known: dict[str, Known]) -> None:
        self.world = world
        self.known = known
        self.outcomes: Counter[str] = Counter()

    @classmethod
    def grow(cls, seed: int) -> Victim:
        """A life by dice, killed at the end."""
        world = World(seed, shards=1 + seed % 2, monitored=False)
        victim = cls(world, {})
        rng, engine = world.rng, world.engine
        generations = rng.sample(range(2, ROUNDS), 2)
        for name, config in PLAIN.items():
            world.put(name, **config)
        engine.put_topic("copy", ConfigPatch(durability="fsync"))
        engine.put_topic("dead", ConfigPatch(durability="fsync"))
        engine.put_topic("jobs", ConfigPatch(**QUEUE))
        engine.routers.put("source->copy", PutRouter("source", "copy"))
        world.run_until_idle()
        for i in range(ROUNDS):
            for name in PLAIN:
                world.write(name, rng.choice((1, 1, 3, 7)), tag=rng.choice((None, "a", "b")), size=rng.choice((0, 90)))
                if rng.random() < 0.3:
                    world.run_until_idle()
            victim._work()
            victim._look()
            if i % 5 == 3:
                name = rng.choice(tuple(PLAIN))
                world.delete(name, tag=rng.choice("ab"))
                world.delete("kept", before_seq=rng.randrange(1, 6))
                world.run_until_idle()
                # Long enough for segments to be merged, and for what was deleted to be erased.
                for _ in range(4):
                    world.clock.advance(2000)
                    world.run_until_idle()
            if rng.random() < 0.3:
                world.checkpoint()
            if i in generations:
                world.disk.crash("kill", rng)
                world.start()
        world.clock.advance(60)
        world.run_until_idle()
        victim._look()
        return victim

    def _work(self) -> None:
        """Jobs come, are done, and fail."""
        world = self.world
        queues = world.engine.queues
        world.write("jobs", 3)
        world.run_until_idle()
        claimed: list[int] = []
        queues.claim("jobs", ClaimJobs("w", 2), on_done=lambda claim: claimed.extend(j["$seq"] for j in claim.claimed))
        world.run_until_idle()
        if len(claimed) == 2:
            queues.ack("jobs", AckJobs("w", claimed[:1]), on_done=lambda receipt: None)
            queues.nack("jobs", NackJobs("w", claimed[1:]), on_done=lambda receipt: None)
        world.run_until_idle()

    def _look(self) -> None:
        self.world.run_until_idle()
        engine = self.world.engine
        for name, topic in engine.topics.items():
            if topic.config.durability == "ephemeral":
                continue
            known = self.known.setdefault(name, Known(topic.id))
            known.shown, _ = read_all(engine, name)
            known.written |= known.shown
            known.head = topic.log.head

    def suffer(self, rng: random.Random, act: Callable[[FakeDisk, random.Random], Act | None]) -> Act | None:
        """Do something to a copy and judge what becomes of it; None where there was nothing to do it to."""
        disk = self.world.disk.clone()
        disk.crash("kill", random.Random(0))
        done = act(disk, rng)
        if done is None:
            return None
        try:
            self._judge(disk, done)
        except BaseException as error:
            error.add_note(f"act: {done.what}")
            raise
        return done

    def _judge(self, disk: FakeDisk, act: Act) -> None:
        try:
            _, engine, _ = self.world.boot(disk)
        except (Unusable, UnknownFormat) as refusal:
            if not act.may_refuse or "\n" in str(refusal) or len(str(refusal)) < 40:
                raise Broken(f"the start was refused: {refusal}") from refusal
            self.outcomes["refused"] += 1
            return
        missing = 0
        for name, known in self.known.items():
            missing += self._judge_topic(engine, name, known, act)
        self.outcomes["costly" if missing else "harmless"] += 1
        if missing and not act.takes_end and not engine.totals.corruption_total:
            raise Broken(f"{missing} records are lost and nothing is counted")
        shown = _visible(engine)
        disk.crash("kill", random.Random(0))
        store, again, upkeep = self.world.boot(disk)
        if _visible(again) != shown:
            raise Broken(difference("after a kill something else is shown", shown, _visible(again), _brief))
        again.run_until_idle()
        upkeep.close()
        store.close()
        _, last, _ = self.world.boot(disk)
        if _visible(last) != shown:
            raise Broken(difference("after a stop something else is shown", shown, _visible(last), _brief))

    def _judge_topic(self, engine: Engine, name: str, known: Known, act: Act) -> int:
        """How many records are missing, each inside a tombstone."""
        topic = engine.topics.get(name)
        if topic is None:
            topic = next((found for found in engine.topics.values() if found.id == known.id), None)
            if topic is None and known.shown and not act.takes_end:
                raise Broken(f"topic {name} is gone, and its records with it")
            if topic is None:
                return len(known.shown)
            if not engine.totals.corruption_total:
                raise Broken(f"topic {name} has lost its name and nothing is counted")
        try:
            records, gaps = read_all(engine, topic.name)
        except ColdUnavailable:
            if not act.takes_cold:
                raise
            return 0
        for seq, record in records.items():
            if known.written.get(seq) != record:
                raise Broken(f"topic {name} delivers {seq} as {record}, not {known.written.get(seq)}")
            if seq not in known.shown and not act.hits_deletes:
                raise Broken(f"topic {name} delivers {seq}, which was gone")
        missing = known.shown.keys() - records.keys()
        head = topic.log.head
        unreported = {seq for seq in missing if not any(first <= seq <= last for first, last, _ in gaps)}
        silent = {seq for seq in unreported if not (act.takes_end and seq > head)}
        if silent:
            raise Broken(f"topic {name} lacks {sorted(silent)} without a tombstone; head {head}, gaps {gaps}")
        if head < known.head and not act.takes_end:
            raise Broken(f"topic {name} goes on after {head}, and {known.head} was acked")
        # Of a `disk` topic it is known how many seqs may have been handed out; all that may be lost is reported. How
        # far a topic went whose state is gone, nothing may be left to tell.
        is_exact = topic.config.durability != "disk" and topic.name == name
        if is_exact and max((last for _, last, _ in gaps), default=0) > known.head:
            raise Broken(f"topic {name} reports {gaps} as lost, and its head was {known.head}")
        return len(missing)


def _visible(engine: Engine) -> dict[str, Any]:
    """What readers see: records, gaps, and the next seq."""
    shown: dict[str, Any] = {}
    for name, topic in sorted(engine.topics.items()):
        if topic.config.durability != "ephemeral":
            try:
                read = read_all(engine, name)
            except ColdUnavailable:
                read = {}, []
            shown[name] = (read, topic.next_seq, topic.config)
    return shown


def _brief(shown: Any) -> str:
    if shown is None:
        return "nothing"
    (records, gaps), next_seq, _ = shown
    return f"{len(records)} records {sorted(records)}, gaps {gaps}, next {next_seq}"


def vandalise(seed: int, acts: int) -> Counter[str]:
    """The outcomes of `acts` acts on the directory of a seed; what breaks a promise is raised with the way to it."""
    victim = Victim.grow(seed)
    for number in range(acts):
        act = ACTS[number % len(ACTS)]
        try:
            victim.suffer(random.Random(f"{seed} {number}"), act)
        except BaseException as error:
            error.add_note(f"directory {seed}, act {number} ({act.__name__})")
            raise
    return victim.outcomes
