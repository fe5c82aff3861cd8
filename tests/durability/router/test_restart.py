"""Routers across restarts: after any sequence of operations and a kill, every topic reads as it did before.

ROUTER-15: seqs and content of the copies are the same, also with direct writes and deletes in between, with
checkpoints, chains, filters, caps and backpressure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.harness.machine import Record
from tests.harness.storage import resolve
from tests.harness.story import Story, ignore
from topics.engine import ConfigPatch, Delete, Write
from topics.errors import TopicsError
from topics.storage.job import run_inline

TOPICS = ("a", "b", "c", "d")
EDGES = (("a", "b"), ("b", "c"), ("a", "d"), ("c", "d"))


class Image(NamedTuple):
    """A topic at one moment: visible records and lost seqs by seq, the floors, and how far its router was."""

    records: dict[int, Record]
    lost: dict[int, str]
    head: int
    start: int
    evict_floor: int
    cursor: int


class RouterStory(Story):
    """Four topics, and routers between them that come and go."""

    def __init__(self, seed: int, shards: int) -> None:
        super().__init__(seed, shards=shards)
        for name in TOPICS:
            self.engine.put_topic(name, ConfigPatch())

    def step(self) -> None:
        engine, rng = self.engine, self.rng
        topic = rng.choice(TOPICS)
        kind = self.choose(
            write=40, delete=6, trim=4, put=8, move=4, drop=3, config=4, vanish=1, checkpoint=3, idle=15, time=6
        )
        try:
            if kind == "write":
                engine.write(topic, Write(self.numbered((1, 1, 2, 5))), on_done=ignore)
            elif kind == "delete":
                resolve(lambda: engine.delete(topic, Delete(match=rng.choice("xy")), ignore))
            elif kind == "trim":
                before = max(1, engine.topics[topic].log.head - rng.randrange(6))
                resolve(lambda: engine.delete(topic, Delete(before_seq=before), ignore))
            elif kind == "put":
                source, dest = rng.choice(EDGES)
                rule: dict[str, Any] = {"filter": rng.choice((None, None, "x"))}
                rule["guarantee"] = rng.choice(("at_least_once", "exactly_once"))
                self.put_router(f"{source}->{dest}{rng.choice(('', '2'))}", source, dest, **rule)
            elif kind == "config":
                patch = rng.choice(
                    (
                        ConfigPatch(cap_records=0),
                        ConfigPatch(cap_records=rng.randrange(3, 30)),
                        ConfigPatch(cap_records=rng.randrange(3, 30), discard="reject"),
                        ConfigPatch(cap_bytes=rng.choice((0, 100, 400)), discard=rng.choice(("old", "reject"))),
                        ConfigPatch(ttl_ms=rng.choice((0, 0, 1000))),
                        ConfigPatch(discard="old"),
                    )
                )
                resolve(lambda: engine.put_topic(topic, patch, ignore))
            elif kind == "vanish":
                resolve(lambda: engine.delete_topic(topic, on_done=ignore))
                engine.put_topic(topic, ConfigPatch(), ignore)
            else:
                self.happen(kind, EDGES)
        except TopicsError:
            pass
        if rng.random() < 0.5:
            engine.prepare()
            engine.turn()

    def image(self, name: str) -> Image:
        """What a reader of a topic may see. Nothing is caught up by looking."""
        log, inbound = self.engine.topics[name].log, self.engine.topics[name].inbound
        lost = {seq: each.reason for each in log.lost for seq in range(each.first, each.last + 1)}
        cursor = inbound.cursor if inbound else 0
        return Image(self.machine.visible(name), lost, log.head, log.start, log.evict_floor, cursor)

    def restart(self) -> None:
        machine = self.machine
        machine.engine.prepare()
        machine.engine.turn()
        run_inline(machine.store.jobs())
        machine.engine.store.write()
        for topic in machine.engine.topics.values():
            topic.expire(machine.clock.now_ms())
        before = {name: self.image(name) for name in TOPICS}
        machine.crash("kill")
        for name in TOPICS:
            self.compare(name, before[name], self.image(name))

    def compare(self, name: str, then: Image, now: Image) -> None:
        """After a kill a topic is what it was; copies that were due may have come, and what a cap took for them."""
        assert now.head >= then.head, name
        due = now.head > then.head
        assert now.start == then.start or (due and now.start > then.start), name
        assert now.evict_floor == then.evict_floor or (due and now.evict_floor > then.evict_floor), name
        visible = {seq: record for seq, record in now.records.items() if seq <= then.head}
        assert visible == {seq: record for seq, record in then.records.items() if seq >= now.start}, name
        reported = {seq: reason for seq, reason in now.lost.items() if seq <= then.head}
        assert reported == {
            seq: reason for seq, reason in then.lost.items() if seq in reported or seq >= now.evict_floor
        }, name
        trimmed = [seq for seq in now.lost if seq > then.head]
        if trimmed:
            inbound = self.engine.topics[name].inbound
            assert inbound is not None, name
            source = inbound.source.log
            gone = max(0, source.evict_floor - 1 - then.cursor)
            gone += sum(max(0, lost.last - max(lost.first - 1, then.cursor)) for lost in source.lost)
            assert len(trimmed) <= gone * len(inbound.routers), f"{name}: the source has not lost {trimmed}"


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("seed", [*range(40), 93, 235, 491, 508])
def test_topics_read_the_same_after_a_kill(seed: int, shards: int) -> None:
    """ROUTER-15: after a restart copies and direct writes interleave exactly as readers saw them."""
    story = RouterStory(seed, shards)
    for _ in range(4):
        for _ in range(story.rng.randrange(5, 40)):
            story.step()
        story.restart()
    story.machine.run_until_idle()
    for name in TOPICS:
        story.machine.read(name)
