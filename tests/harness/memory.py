"""An engine in memory as its clients use it, in short commands with plain answers.

`OneTopic` has a topic `t`, `OneQueue` a queue `q`, and `ManyTopics` whatever a test writes to or routes. Each has its
`engine` and `clock` for everything else.
"""

from __future__ import annotations

from typing import Any

import msgspec

from topics.engine import ConfigPatch, Diff, Limits, RecordIn, Write
from topics.engine.log.difference import Difference
from topics.engine.queue.claim import Claim
from topics.engine.queue.requests import AckJobs, ClaimJobs, ExtendJobs, NackJobs
from topics.engine.router.router import PutRouter
from topics.testing import MemoryEngine

Gap = tuple[int, int, str]


class OneTopic:
    """A topic `t`; keyword arguments are its config."""

    def __init__(self, **config: Any) -> None:
        self.engine = MemoryEngine()
        self.clock = self.engine.clock
        self.put(**config)

    def put(self, **config: Any) -> None:
        """Change the config."""
        self.engine.put_topic("t", ConfigPatch(**config))

    def write(self, count: int = 1, tag: str | None = None, node: str | None = None) -> int:
        """Append `count` records; the seq of the last one."""
        records = [RecordIn(msgspec.Raw(b"1"), tag=tag, node=node) for _ in range(count)]
        return self.engine.write("t", Write(records)).last_seq

    def diff(self, from_seq: int = 0, **fields: Any) -> Difference:
        """One read."""
        return self.engine.diff("t", Diff(from_seq=from_seq, **fields))

    def read(self, from_seq: int = 0, **fields: Any) -> tuple[Gap | None, list[int], int, bool]:
        """The gap, the seqs, next_from_seq and caught_up of one read."""
        found = self.diff(from_seq, **fields)
        gone = found.tombstone
        gap = None if gone is None else (gone.gap_from, gone.gap_to, gone.reason)
        return gap, [record["$seq"] for record in found.records], found.next_from_seq, found.caught_up

    def seqs(self, from_seq: int = 0, **fields: Any) -> list[int]:
        """The seqs of one read."""
        return self.read(from_seq, **fields)[1]

    def gap(self, from_seq: int = 0) -> Gap | None:
        """The gap of one read."""
        return self.read(from_seq)[0]

    def floors(self) -> tuple[int, int, int]:
        """head_seq, earliest_seq, count."""
        state = self.engine.state("t", touch=False)
        return state.head_seq, state.earliest_seq, state.count


class ManyTopics:
    """Topics and the routers between them; keyword arguments are limits of the engine."""

    def __init__(self, **limits: Any) -> None:
        self.engine = MemoryEngine(limits=Limits(**limits))
        self.clock = self.engine.clock

    def route(self, source: str, dest: str, name: str | None = None, **fields: Any) -> Any:
        """Create or change a router, called `source->dest` unless it has a name."""
        put = PutRouter(source, dest, **fields)
        return self.engine.routers.put(name or f"{source}->{dest}", put).result

    def write(self, topic: str, *datas: Any, tag: str | None = None, node: str | None = None, meta: Any = None) -> int:
        """Append a record for each of `datas`; the seq of the last one."""
        raw = msgspec.Raw(b"" if meta is None else msgspec.json.encode(meta))
        records = [RecordIn(msgspec.Raw(msgspec.json.encode(data)), tag=tag, node=node, meta=raw) for data in datas]
        return self.engine.write(topic, Write(records)).last_seq

    def read(self, topic: str, from_seq: int = 0) -> list[dict[str, Any]]:
        """The records after a cursor."""
        return self.engine.diff(topic, Diff(from_seq=from_seq, limit=1000, include_tags=True)).records

    def datas(self, topic: str) -> list[Any]:
        """The data of all records."""
        return [record["data"] for record in self.read(topic)]

    def total(self, name: str) -> int:
        """How many records a router has forwarded."""
        return self.engine.routers.get(name).forwarded_total


class OneQueue:
    """A queue `q` and its workers, of which `w` is the usual one; keyword arguments are its config."""

    def __init__(self, limits: Limits | None = None, **config: Any) -> None:
        self.engine = MemoryEngine(limits=limits)
        self.clock = self.engine.clock
        self.pass_time = self.engine.pass_time
        self.queues = self.engine.queues
        self.engine.put_topic("q", ConfigPatch(type="queue", **config))

    def produce(self, count: int = 1, **fields: Any) -> None:
        """Append jobs numbered from 0."""
        self.engine.write("q", Write([RecordIn(msgspec.Raw(b"%d" % i), **fields) for i in range(count)]))

    def claim(self, node: str = "w", max: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """Claim jobs, without waiting."""
        return self.queues.claim("q", ClaimJobs(node, max, **fields)).claimed

    def seqs(self, node: str = "w", max: int = 100, **fields: Any) -> list[int]:
        """Claim jobs; their seqs."""
        return [job["$seq"] for job in self.claim(node, max, **fields)]

    def start(self, node: str, max: int, wait_ms: int = 0) -> Claim:
        """A claim that may wait."""
        return self.queues.claim("q", ClaimJobs(node, max, None, wait_ms), on_done=lambda claim: None)

    def ack(self, *seqs: int, node: str = "w", ids: list[str] | None = None) -> Any:
        """Ack jobs."""
        return self.queues.ack("q", AckJobs(node, list(seqs), ids)).result

    def nack(self, *seqs: int, node: str = "w", delay_ms: int = 0, ids: list[str] | None = None) -> Any:
        """Give jobs back."""
        return self.queues.nack("q", NackJobs(node, list(seqs), delay_ms, ids)).result

    def extend(self, *seqs: int, lease_ms: int, node: str = "w", ids: list[str] | None = None) -> Any:
        """Extend leases."""
        return self.queues.extend("q", ExtendJobs(node, list(seqs), lease_ms, ids)).result

    def counters(self) -> tuple[int, int, int]:
        """ready, in_flight, dead_lettered."""
        state = self.engine.state("q").queue
        assert not isinstance(state, msgspec.UnsetType)
        return state.ready, state.in_flight, state.dead_lettered
