"""Vandal: does to a data directory what disks and people do to files, and holds the next start to its promises.

`House.furnish` makes a directory with something of everything: topics of every class, sealed segments in both tiers, a
checkpoint, a log behind it, a queue with acked jobs and dead letters, a router. `House.visit` takes a copy of it, does
one of ACTS to its files, by dice, and starts an engine on what is left. Then (DURABLE-18):

1. The start succeeds, or refuses with one line that says why and what to do (only where an act says so).
2. Nothing is delivered that was not written, or with other content, or of another topic.
3. What is missing is inside a tombstone, and damage that cost something is counted.
4. No seq is handed out again.
5. The same is shown after a kill, and after an orderly stop: what was told once is told again.

What no format without a witness elsewhere can know is excepted, and only that: an act that takes the end of the log
leaves a directory that looks like an earlier one. Then the log is short, but in order (`Act.takes_end`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.harness.crash import COLD, DIRECTORY, World
from tests.harness.model import ModelRecord
from tests.harness.oracle import Broken, read_all
from topics.engine import ConfigPatch, Engine
from topics.engine.queue.requests import AckJobs, ClaimJobs, NackJobs
from topics.engine.router.router import PutRouter
from topics.errors import ColdUnavailable
from topics.storage.recovery import Unusable
from topics.storage.segment import format as segment
from topics.storage.snapshot import snapshot
from topics.storage.wal import file as walfile
from topics.storage.wal import frame, scan
from topics.storage.wal.file import UnknownFormat
from topics.storage.wal.used import read_used
from topics.testing.disk import FakeDisk

SECTOR_BYTES: Final = 512
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


@dataclass
class Act:
    """What was done, for the judge."""

    what: str
    # The end of the log is gone, and nothing is left that could say so.
    takes_end: bool = False
    # The start may refuse, if it says what to do.
    may_refuse: bool = False
    # The cold store is out of reach: reads may say so, and nothing is lost.
    takes_cold: bool = False
    # Deleted records may be back: their flags, or the frame that said so, were hit.
    hits_deletes: bool = True


class House:
    """A data directory at rest, and what its clients know."""

    def __init__(self, world: World, known: dict[str, Known]) -> None:
        self.world = world
        self.known = known
        self.outcomes: Counter[str] = Counter()

    @classmethod
    def furnish(cls, seed: int) -> House:
        """A life by dice, killed at the end."""
        world = World(seed, shards=1 + seed % 2, monitored=False)
        house = cls(world, {})
        rng, engine = world.rng, world.engine
        generations = rng.sample(range(2, ROUNDS), 2)
        for name, config in PLAIN.items():
            world.put(name, **config)
        engine.put_topic("copy", ConfigPatch(durability="fsync"))
        engine.put_topic("dead", ConfigPatch(durability="fsync"))
        engine.put_topic("jobs", ConfigPatch(**QUEUE))
        engine.routers.put("source->copy", PutRouter("source", "copy"))
        world.settle()
        for i in range(ROUNDS):
            for name in PLAIN:
                world.write(name, rng.choice((1, 1, 3, 7)), tag=rng.choice((None, "a", "b")), size=rng.choice((0, 90)))
                if rng.random() < 0.3:
                    world.settle()
            house._work()
            house._look()
            if i % 5 == 3:
                name = rng.choice(tuple(PLAIN))
                world.delete(name, tag=rng.choice("ab"))
                world.delete("kept", before_seq=rng.randrange(1, 6))
                world.settle()
            if rng.random() < 0.3:
                world.checkpoint()
            if i in generations:
                world.disk.crash("kill", rng)
                world.start()
        world.clock.advance(60)
        world.settle()
        house._look()
        return house

    def _work(self) -> None:
        """Jobs come, are done, and fail."""
        world = self.world
        queues = world.engine.queues
        world.write("jobs", 3)
        world.settle()
        claimed: list[int] = []
        queues.claim("jobs", ClaimJobs("w", 2), on_done=lambda claim: claimed.extend(j["$seq"] for j in claim.claimed))
        world.settle()
        if len(claimed) == 2:
            queues.ack("jobs", AckJobs("w", claimed[:1]), on_done=lambda receipt: None)
            queues.nack("jobs", NackJobs("w", claimed[1:]), on_done=lambda receipt: None)
        world.settle()

    def _look(self) -> None:
        self.world.settle()
        engine = self.world.engine
        for name, topic in engine.topics.items():
            if topic.config.durability == "ephemeral":
                continue
            known = self.known.setdefault(name, Known(topic.id))
            known.shown, _ = read_all(engine, name)
            known.written |= known.shown
            known.head = topic.log.head

    def visit(self, rng: random.Random, act: Callable[[FakeDisk, random.Random], Act | None]) -> Act | None:
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
            raise Broken(_difference("after a kill", shown, _visible(again)))
        again.settle()
        upkeep.close()
        store.close()
        _, last, _ = self.world.boot(disk)
        if _visible(last) != shown:
            raise Broken(_difference("after an orderly stop", shown, _visible(last)))

    def _judge_topic(self, engine: Engine, name: str, known: Known, act: Act) -> int:
        """How many records are missing, each of them told."""
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
        told = {seq for first, last, _ in gaps for seq in range(first, last + 1)}
        missing = known.shown.keys() - records.keys()
        head = topic.log.head
        untold = {seq for seq in missing - told if not (act.takes_end and seq > head)}
        if untold:
            raise Broken(f"topic {name} lacks {sorted(untold)} and says nothing; head {head}, gaps {gaps}")
        if head < known.head and not act.takes_end:
            raise Broken(f"topic {name} goes on behind {head}, and {known.head} was acked")
        # Of a `disk` topic it is known how many seqs may have been handed out; what may be lost is said to be.
        if max(told, default=0) > known.head and topic.config.durability != "disk":
            raise Broken(f"topic {name} says that it lost {gaps}, and its head was {known.head}")
        return len(missing)


def _visible(engine: Engine) -> dict[str, Any]:
    """What readers see: records, gaps, and where seqs go on."""
    shown: dict[str, Any] = {}
    for name, topic in sorted(engine.topics.items()):
        if topic.config.durability != "ephemeral":
            try:
                read = read_all(engine, name)
            except ColdUnavailable:
                read = {}, []
            shown[name] = (read, topic.next_seq, topic.config)
    return shown


def _difference(when: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    brief = [f"{name}: {_brief(before.get(name))} then {_brief(after.get(name))}" for name in names]
    return f"{when} something else is shown: {'; '.join(brief)}"


def _brief(shown: Any) -> str:
    if shown is None:
        return "nothing"
    (records, gaps), next_seq, _ = shown
    return f"{len(records)} records {sorted(records)}, gaps {gaps}, next {next_seq}"


# The files, by what they are.


def _used(content: bytes) -> int:
    return len(content.rstrip(b"\0"))


def _files(disk: FakeDisk, *kinds: str) -> list[str]:
    """The files that hold something, by their endings."""
    ends = kinds or (".wal", ".snap", ".data", ".idx", ".flags")
    return sorted(path for path, content in disk.files().items() if path.endswith(ends) and _used(content) > 64)


def _last_wals(disk: FakeDisk) -> set[str]:
    """The files of the last generation: only the start after it would have said how far the log went in them."""
    names = {path: walfile.parse_name(path.rpartition("/")[2]) for path in _files(disk, ".wal")}
    last = max((name.generation for name in names.values() if name is not None), default=0)
    return {path for path, name in names.items() if name is not None and name.generation == last}


def _put(disk: FakeDisk, path: str, content: bytes) -> None:
    """Have a file hold this, durably."""
    if disk.exists(path):
        disk.unlink(path)
    handle = disk.create(path)
    disk.write(handle, 0, content)
    disk.sync(handle)
    disk.close(handle)
    disk.sync_dir(path.rpartition("/")[0])


def _remove(disk: FakeDisk, path: str) -> None:
    disk.unlink(path)
    disk.sync_dir(path.rpartition("/")[0])


def _frames(disk: FakeDisk, path: str) -> list[scan.Entry]:
    handle = disk.open(path)
    data, used, _ = read_used(disk, handle)
    disk.close(handle)
    return [found for found in scan.walk(data, 64, used, torn_allowed=False) if isinstance(found, scan.Entry)]


# The acts.


def flip_one(disk: FakeDisk, rng: random.Random) -> Act | None:
    """One byte, anywhere."""
    path = rng.choice(_files(disk))
    content = disk.files()[path]
    at = rng.randrange(_used(content))
    disk.damage(path, at, bytes([content[at] ^ (1 << rng.randrange(8))]))
    return Act(f"flipped {path} at {at}")


def flip_two(disk: FakeDisk, rng: random.Random) -> Act | None:
    """Two bytes, anywhere, near each other or not. Both may be in the last frame, and name and content of it gone."""
    first = flip_one(disk, rng)
    assert first is not None
    if rng.random() < 0.5:
        second = flip_one(disk, rng)
        assert second is not None
        return Act(f"{first.what}, {second.what}", takes_end=_end_hit(disk, first.what, second.what))
    path, _, at = first.what.removeprefix("flipped ").rpartition(" at ")
    content = disk.files()[path]
    near = min(_used(content) - 1, int(at) + rng.randrange(1, 200))
    disk.damage(path, near, bytes([content[near] ^ 0x40]))
    return Act(f"{first.what} and {near}", takes_end=path in _last_wals(disk) or path.endswith(".snap"))


def _end_hit(disk: FakeDisk, *whats: str) -> bool:
    paths = [what.removeprefix("flipped ").rpartition(" at ")[0] for what in whats]
    return paths[0] == paths[1] and (paths[0] in _last_wals(disk) or paths[0].endswith(".snap"))


def garble_sector(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A sector of noise."""
    # The one value that means deleted is not left to chance: flags stand outside the checksums.
    return _sector(disk, rng, rng.randbytes(SECTOR_BYTES).replace(b"\xd5", b"\xd4"), "garbled")


def zero_sector(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A sector of zeros."""
    return _sector(disk, rng, bytes(SECTOR_BYTES), "zeroed")


def _sector(disk: FakeDisk, rng: random.Random, noise: bytes, what: str) -> Act:
    path = rng.choice(_files(disk))
    content = disk.files()[path]
    at = rng.randrange(_used(content)) // SECTOR_BYTES * SECTOR_BYTES
    length = min(SECTOR_BYTES, len(content) - at)
    # A sector holds whole frames, and which topics had their last one there nobody can say. It may be all that a file
    # holds: then the file looks like one that was never used.
    takes_end = path in _last_wals(disk) or path.endswith(".snap")
    disk.damage(path, at, noise[:length])
    return Act(f"{what} {path} at {at}", takes_end=takes_end, may_refuse=path.endswith(".snap"))


def cut(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A file cut short."""
    path = rng.choice(_files(disk))
    content = disk.files()[path]
    # With the routers in a snapshot goes what only they can derive.
    ends = path in _last_wals(disk) or path.endswith(".snap")
    _put(disk, path, content[: rng.randrange(_used(content))])
    return Act(f"cut {path}", takes_end=ends, may_refuse=path.endswith(".snap"))


def empty(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A file with nothing in it."""
    path = rng.choice(_files(disk))
    ends = path in _last_wals(disk)
    _put(disk, path, b"")
    return Act(f"emptied {path}", takes_end=ends, may_refuse=path.endswith(".snap"))


def remove(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A file gone."""
    path = rng.choice(_files(disk))
    ends = path in _last_wals(disk)
    _remove(disk, path)
    # A cold store without a single file is taken for one that is not mounted.
    away = path.startswith(f"{COLD}/") and not any(other.startswith(f"{COLD}/") for other in disk.files())
    return Act(f"removed {path}", takes_end=ends, may_refuse=path.endswith(".snap") or ends, takes_cold=away)


def remove_first_wal(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A file of the log gone, with others behind it."""
    older = [path for path in _files(disk, ".wal") if path not in _last_wals(disk)]
    if not older:
        return None
    path = rng.choice(older)
    _remove(disk, path)
    return Act(f"removed {path}", may_refuse=not _files(disk, ".snap"))


def swap(disk: FakeDisk, rng: random.Random) -> Act | None:
    """The file of another: of another topic, of another place in the log."""
    kind = rng.choice((".wal", ".data", ".idx", ".flags"))
    paths = _files(disk, kind)
    if len(paths) < 2:
        return None
    source, target = rng.sample(paths, 2)
    ends = target in _last_wals(disk)
    _put(disk, target, disk.files()[source])
    return Act(f"copied {source} over {target}", takes_end=ends)


def duplicate(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A file there twice, under a name that is free."""
    path = rng.choice(_files(disk))
    directory, _, name = path.rpartition("/")
    wal, sealed, number = walfile.parse_name(name), segment.parse_name(name), snapshot.parse_name(name)
    if wal is not None:
        other = str(wal._replace(number=wal.number + rng.randrange(1, 4)))
    elif sealed is not None:
        other = f"{sealed[0].topic_id + rng.randrange(2):016x}-{sealed[0].first_seq + 3:016x}.{sealed[1]}"
    else:
        assert number is not None
        other = f"snapshot-{number + 1:016x}.snap"
    if disk.exists(f"{directory}/{other}"):
        return None
    _put(disk, f"{directory}/{other}", disk.files()[path])
    return Act(f"copied {path} to {other}", hits_deletes=False)


def flip_both_copies(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A byte in each copy of something that is there twice."""
    twice: list[tuple[str, list[scan.Entry]]] = []
    for path in _files(disk, ".wal", ".snap"):
        copies: dict[tuple[int, int, int], list[scan.Entry]] = {}
        for entry in _frames(disk, path):
            if entry.kind in (frame.CREATE, frame.LOST) or entry.kind >= snapshot.TOPIC:
                copies.setdefault((entry.kind, entry.topic_id, entry.first_seq), []).append(entry)
        twice += [(path, found) for found in copies.values() if len(found) == 2 and found[0].kind != frame.VOID]
    if not twice:
        return None
    path, found = rng.choice(twice)
    content = disk.files()[path]
    for entry in found:
        at = entry.at - 48 + rng.randrange(48 + entry.length)
        disk.damage(path, at, bytes([content[at] ^ 0x04]))
    kind, topic_id = found[0].kind, found[0].topic_id
    # How far a router had come, and what it would have copied, is lost with the state of either end.
    routed = kind not in (frame.CREATE, snapshot.TOPIC) or topic_id > list(PLAIN).index("capped") + 1
    return Act(f"flipped both copies of kind {kind}, topic {topic_id} in {path}", takes_end=routed)


def unmount_cold(disk: FakeDisk, rng: random.Random) -> Act | None:
    """The cold store is not there."""
    gone = [path for path in disk.files() if path.startswith(f"{COLD}/")]
    for path in gone:
        _remove(disk, path)
    return Act("removed the cold store", takes_cold=True) if gone else None


def remove_quarantine(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A flipped byte, and something in the place where its copy is to go."""
    done = flip_one(disk, rng)
    assert done is not None
    path = done.what.removeprefix("flipped ").partition(" at ")[0].rpartition("/")[2]
    _put(disk, f"{DIRECTORY}/quarantine/{path}-0-40.bin", b"")
    return done


ACTS: Final = (
    flip_one,
    flip_two,
    garble_sector,
    zero_sector,
    cut,
    empty,
    remove,
    remove_first_wal,
    swap,
    duplicate,
    flip_both_copies,
    remove_quarantine,
    unmount_cold,
)


def visit_all(seed: int, visits: int) -> Counter[str]:
    """So many visits to the house of a seed, and their outcomes; what breaks a promise is raised with the way to it."""
    house = House.furnish(seed)
    for number in range(visits):
        act = ACTS[number % len(ACTS)]
        try:
            house.visit(random.Random(f"{seed} {number}"), act)
        except BaseException as error:
            error.add_note(f"house {seed}, visit {number} ({act.__name__})")
            raise
    return house.outcomes
