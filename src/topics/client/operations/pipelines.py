"""Pipelines: what flows on Spark report of themselves into a topic of the server.

Each report is a record, tagged with the name of its flow; the last one of a name is the state of that flow. The topic
is bounded: whichever report creates it gives it a cap and a TTL, so that flows that are gone are forgotten after a
while. Any client may write to the topic, so what is no report is passed over.
"""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from topics.client.answers import decode
from topics.client.errors import BadData
from topics.client.operations.call import Patience, call
from topics.client.operations.operation import Operation
from topics.client.operations.read import FollowOptions, TopicRead
from topics.client.record import Tombstone
from topics.client.transport.request import Request, path
from topics.errors import TopicNotFound

PIPELINES_TOPIC: Final = "topics.pipelines"
REPORTS_MAX: Final = 5_000
"""How many reports the topic holds, and how many are looked at."""
REPORTS_CONFIG: Final = {"cap_records": REPORTS_MAX, "ttl_ms": 7 * 86_400_000}
ENDED: Final = frozenset(("stopped", "done", "failed"))
"""The states of a flow that will not report again."""


class PipelineState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One flow as it was at its last report, at `ts` by the clock of the server.

    `state` is `starting`, `running`, `waiting` (for its next start, after a failure), `stopping`, `stopped`, `done` or
    `failed`; `since` is when that began. `seq` is where it has got to in a single topic, `lag` and `lag_s` by how many
    records and seconds it is late, None where that is not known. `rows` is what it has done since its application
    began, `rate` is that of its last batch.
    """

    name: str
    kind: str
    topic: str = ""
    state: str
    seq: int | None = None
    rows: int = 0
    rate: float = 0.0
    lag: int | None = None
    lag_s: float | None = None
    error: str | None = None
    since: int = 0
    restarts: int = 0
    ts: int = 0

    @property
    def ended(self) -> bool:
        """Whether it has ended for good, and no report is to be expected."""
        return self.state in ENDED


class _Head(msgspec.Struct):
    head_seq: int


def reported(topic: str, patience: Patience) -> Operation[list[PipelineState]]:
    """The last report of every flow, by name."""
    target = path("v0", "topics", topic)
    found: dict[str, PipelineState] = {}
    try:
        answer = yield from call(Request(b"GET", target + b"?touch=false"), patience)
        options = FollowOptions(from_seq=max(0, decode(answer, _Head).head_seq - REPORTS_MAX))
        read: TopicRead[PipelineState] = TopicRead(topic, target, PipelineState, patience, options, follow=False)
        while (batch := (yield from read.batch())) is not None:
            for item in batch.items:
                if isinstance(item, Tombstone):
                    continue
                with contextlib.suppress(BadData):
                    state = item.data
                    state.ts = item.ts
                    found[state.name] = state
    except TopicNotFound:
        return []
    return [found[name] for name in sorted(found)]
