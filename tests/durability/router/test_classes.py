"""Routers and dead letters between topics of every durability class, through crashes of every kind.

What a reader has seen under a seq is never shown as something else (ROUTER-22), nothing
disappears in silence (LOSS-1), and `fsync` keeps what it has shown (DURABLE-4), copies and dead letters included.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.machine import Machine, Record, small
from tests.harness.storage import resolve
from tests.harness.story import Story, ignore
from topics.engine import ConfigPatch, Delete, Write
from topics.engine.queue.queue import queue_of
from topics.engine.queue.requests import ClaimJobs
from topics.engine.router.router import PutRouter
from topics.errors import TopicsError
from topics.testing.fake_disk import DAMAGES

CLASSES = ("ephemeral", "memory", "disk", "fsync")
TOPICS = ("a", "b", "c", "q", "dlq")
EDGES = (("a", "b"), ("b", "c"), ("a", "q"), ("c", "q"), ("dlq", "c"))
STEPS = {
    "write": 40,
    "delete": 5,
    "claim": 12,
    "put": 8,
    "move": 3,
    "drop": 2,
    "config": 3,
    "checkpoint": 3,
    "job": 12,
    "idle": 4,
    "time": 6,
}


class ClassStory(Story):
    """Topics of every class, and a reader that remembers everything that it was shown."""

    choices: tuple[str, ...] = CLASSES
    edges: tuple[tuple[str, str], ...] = EDGES
    steps: dict[str, float] = STEPS

    def __init__(self, seed: int, shards: int) -> None:
        super().__init__(seed, shards=shards)
        self.seen: dict[str, dict[int, Record]] = {name: {} for name in TOPICS}
        # Deleted or moved to the dead letters; and those of them whose delete was acked.
        self.deleted: dict[str, set[int]] = {name: set() for name in TOPICS}
        self.gone: dict[str, set[int]] = {name: set() for name in TOPICS}
        self.since = dict.fromkeys(TOPICS, 1)
        # Topics that hold, or held, copies of what only memory had.
        self.forgetful: set[str] = set()
        self.classes: dict[str, set[str]] = {name: set() for name in TOPICS}
        for name in TOPICS:
            fields: dict[str, Any] = {"durability": self.rng.choice(self.choices)}
            if name == "q":
                fields |= {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq", "lease_ms": 100}
            self.engine.put_topic(name, ConfigPatch(**fields))

    def step(self) -> None:
        queue = queue_of(self.engine.topics["q"])
        assert queue is not None
        before, dead = set(self.machine.visible("q")), queue.dead_lettered
        self._act()
        # A job whose last lease has run out goes to the dead letters in any turn.
        log = self.engine.topics["q"].log
        missing = {
            seq
            for seq in before - set(self.machine.visible("q")) - self.deleted["q"]
            if seq >= log.evict_floor and log.lost_at(seq) is None
        }
        assert len(missing) <= queue.dead_lettered - dead
        self.deleted["q"] |= missing
        self.look()

    def _act(self) -> None:
        engine, rng = self.engine, self.rng
        topic = rng.choice(TOPICS)
        kind = self.choose(**self.steps)
        try:
            if kind == "write":
                engine.write(topic, Write(self.numbered((1, 1, 2, 5))), on_done=ignore)
            elif kind == "delete":
                self._delete(topic, rng.choice("xy"))
            elif kind == "claim":
                self._claim()
            elif kind == "put":
                source, dest = rng.choice(self.edges)
                self.put_router(f"{source}->{dest}", source, dest, filter=rng.choice((None, None, "x")))
            elif kind == "config":
                patch = rng.choice(
                    (
                        ConfigPatch(durability=rng.choice(self.choices)),  # type: ignore[arg-type]
                        ConfigPatch(cap_records=rng.choice((0, 5, 20)), discard=rng.choice(("old", "reject"))),
                    )
                )
                resolve(lambda: engine.put_topic(topic, patch, ignore))
            else:
                self.happen(kind, self.edges)
        except TopicsError:
            pass
        if rng.random() < 0.6:
            engine.prepare()
            engine.turn()

    def _delete(self, topic: str, match: str) -> None:
        engine, visible = self.engine, self.machine.visible
        resolve(lambda: engine.topics[topic].catch_up())
        before = set(visible(topic))
        taken: set[int] = set()
        acked: list[Any] = []

        def deleted(receipt: Any) -> None:
            acked.append(receipt)
            self.gone[topic] |= taken

        resolve(lambda: engine.delete(topic, Delete(match=match), deleted))
        taken |= before - set(visible(topic))
        self.deleted[topic] |= taken
        if acked:
            self.gone[topic] |= taken

    def _claim(self) -> None:
        engine, visible = self.engine, self.machine.visible
        resolve(lambda: engine.topics["q"].catch_up())
        before = set(visible("q"))
        resolve(lambda: engine.queues.claim("q", ClaimJobs("w", 3), on_done=ignore))
        self.deleted["q"] |= before - set(visible("q"))

    def look(self) -> None:
        """Read everything: nothing has another content than before, and nothing has gone without a word."""
        for name in TOPICS:
            self.classes[name].add(self.engine.topics[name].config.durability)
            if self.forgets(name):
                self.forgetful.add(name)
            log, seen, now = self.engine.topics[name].log, self.seen[name], self.machine.visible(name)
            for seq, record in now.items():
                assert seen.setdefault(seq, record) == record, f"{name} {seq} was {seen[seq]}"
                assert seq not in self.deleted[name], f"{name} {seq} was deleted"
            silent = [
                seq
                for seq in range(max(self.since[name], log.evict_floor), log.head + 1)
                if seq not in now and seq not in self.deleted[name] and log.lost_at(seq) is None
            ]
            assert not silent, f"{name} lost {silent} without a word"

    def crash(self, damage: str) -> None:
        """End, and hold the next start to what each class promises."""
        machine = self.machine
        before = {name: machine.visible(name) for name in TOPICS}
        machine.crash(damage)
        for name in TOPICS:
            classes = self.classes[name]
            forgetful = "ephemeral" in classes or ("memory" in classes and (damage != "kill" or name in self.forgetful))
            now = machine.visible(name)
            if forgetful:
                # Its head may have gone back: what comes now is a log of its own.
                self.seen[name], self.deleted[name], self.gone[name] = {}, set(), set()
                self.since[name] = machine.engine.topics[name].log.head + 1
                continue
            if damage == "kill" or classes == {"fsync"}:
                assert not self.gone[name] & now.keys(), f"{name}: deleted records came back"
                floor = machine.engine.topics[name].log.evict_floor
                missing = [seq for seq in before[name] if seq not in now and seq >= floor]
                assert not missing or name in self.forgetful, f"{name} has lost {missing}"
            # A delete that was not acked may be lost.
            self.deleted[name] -= now.keys()
            self.gone[name] -= now.keys()
        self.look()

    def forgets(self, name: str) -> bool:
        """Whether some of a topic's records follow from what only memory held."""
        topics, found = self.engine.topics, [name]
        for each in found:
            inbound = topics[each].inbound
            if inbound is not None and inbound.source.name not in found:
                found.append(inbound.source.name)
        sources = found[1:]
        return any(topics[each].config.durability == "ephemeral" or each in self.forgetful for each in sources)


class MovingStory(ClassStory):
    """Routers that change their source again and again, into a topic that takes writes and dead letters as well."""

    choices = ("disk", "disk", "disk", "fsync")
    edges = (("a", "dlq"), ("b", "dlq"), ("c", "dlq"))
    steps = STEPS | {"put": 12, "move": 12, "drop": 6, "checkpoint": 2}


class LettersStory(ClassStory):
    """Routers that come, move and go, also into the topic of the dead letters."""

    edges = (("a", "b"), ("b", "c"), ("a", "q"), ("c", "q"), ("a", "dlq"), ("b", "dlq"))
    steps = MovingStory.steps


class CircleStory(ClassStory):
    """Copies that become jobs, jobs that become dead letters, and dead letters that are copied, all on the disk."""

    choices = ("disk", "disk", "disk", "fsync")


class KeptStory(ClassStory):
    """As CircleStory, with topics of which a loss of power takes the end."""

    choices = ("disk", "memory")


def tell(seed: int, shards: int, damage: str, kind: type[ClassStory] = ClassStory) -> None:
    with small():
        story = kind(seed, shards)
        for _ in range(3):
            for _ in range(story.rng.randrange(5, 40)):
                story.step()
            story.crash(damage)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_no_seq_is_used_again_for_what_a_reader_has_seen(seed: int, shards: int, damage: str) -> None:
    """ROUTER-22: seqs are never reused across restarts, those of copies and letters included."""
    tell(seed, shards, damage)


@pytest.mark.parametrize(
    ("seed", "shards", "damage"),
    [
        (1001, 3, "kill"),  # dead letters whose own frames wait for copies that are gone
        (1108, 3, "dropped"),  # copies into `fsync` of copies whose place was not on the disk yet
        (1108, 3, "torn"),
        (1108, 3, "garbled"),
        (2020, 3, "garbled"),
        (4024, 1, "torn"),  # the frame is lost that took a router away
        (10110, 1, "dropped"),  # the delete is lost that made room for a copy
        (10040, 3, "torn"),  # the frame is lost that gave a router another source, and direct writes around it
    ],
)
def test_nothing_is_lost_in_the_stories_that_a_search_found(seed: int, shards: int, damage: str) -> None:
    """ROUTER-32: what a copy or a letter follows from is on the disk, so it is there under its seq."""
    tell(seed, shards, damage)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("seed", [*range(5), 600_019])
def test_no_copy_takes_the_seq_of_a_write_where_routers_change_their_source(seed: int, damage: str) -> None:
    """ROUTER-22: a frame that names another source than the last one known places no copies before it."""
    tell(seed, 1, damage, MovingStory)


@pytest.mark.parametrize(
    ("kind", "seed", "shards", "damage"),
    [
        (CircleStory, 700_002, 3, "kill"),  # what a queue waits for leads back to the queue
        (KeptStory, 700_002, 3, "dropped"),
        (LettersStory, 810_019, 3, "kill"),  # a letter is read before a write that came before it, in another shard
        (LettersStory, 810_024, 1, "torn"),  # a router moved twice, and the first of these frames is lost
    ],
)
def test_nothing_is_lost_where_writes_copies_and_letters_come_together(
    kind: type[ClassStory], seed: int, shards: int, damage: str
) -> None:
    """ROUTER-32, for topics that wait for each other, and for topics that take all three."""
    tell(seed, shards, damage, kind)


@pytest.mark.parametrize("change", ["delete", "move"])
def test_copies_wait_until_it_is_durable_that_another_router_is_gone(change: str) -> None:
    """ROUTER-32: with the frame lost, a restart would make two copies of each record, and number them otherwise."""
    machine = Machine()
    engine = machine.engine
    for name in ("s", "d", "other"):
        engine.put_topic(name, ConfigPatch(durability="disk"))
    for name in ("stays", "goes"):
        engine.routers.put(name, PutRouter("s", "d"))
    engine.write("s", Write.of([0]))
    machine.run_until_idle()
    if change == "delete":
        engine.routers.delete("goes", ignore)
    else:
        engine.routers.put("goes", PutRouter("s", "other"), ignore)
    engine.write("s", Write.of([1]), on_done=ignore)
    engine.turn()
    engine.topics["d"].catch_up()
    assert len(machine.visible("s")) == 2
    assert len(machine.visible("d")) == 2, "no job has synced the log yet"
    machine.run_until_idle()
    assert len(machine.visible("d")) == 3
