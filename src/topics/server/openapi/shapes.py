"""The shapes of what is formatted by hand for speed: answers, events of streams and messages of WebSockets.

Nothing encodes these structs. Tests hold them against what a server really sends, field by field (OPENAPI-4).
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from topics.engine.router.router import RouterPut, RouterState
from topics.engine.state import PutTopic
from topics.server.delivery.commands import RequestId
from topics.server.delivery.subscription import Watched

UnknownFields = list[str] | UnsetType


class Performance(Struct):
    """How long the server took for a request, in milliseconds."""

    server_total_ms: float
    wal_append_ms: float | UnsetType = UNSET
    fsync_ms: float | UnsetType = UNSET
    throttle_wait_ms: float | UnsetType = UNSET
    records_scanned: int | UnsetType = UNSET


class Problem(Struct):
    """What is wrong, and what to do."""

    code: str
    message: str
    detail: dict[str, Any] | UnsetType = UNSET
    request_id: str | UnsetType = UNSET


class Failure(Struct):
    """A request failed."""

    error: Problem


class TopicPut(PutTopic, frozen=True, kw_only=True):
    """A topic was created or configured."""

    unknown_fields: UnknownFields = UNSET


class RouterPutAnswer(RouterPut, frozen=True, kw_only=True):
    """A router was created or changed."""

    unknown_fields: UnknownFields = UNSET


class RouterSeen(RouterState, frozen=True, kw_only=True):
    """A router, and how many records it has forwarded."""

    source: str | UnsetType = UNSET  # type: ignore[assignment]
    dest: str | UnsetType = UNSET  # type: ignore[assignment]


class Written(Struct):
    """Records were appended."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    key_reused: bool | UnsetType = UNSET
    seqs: list[int] | UnsetType = UNSET
    unknown_fields: UnknownFields = UNSET


class Record(Struct):
    """A record as it is read."""

    seq: int = field(name="$seq")
    ts: int = field(name="$ts")
    data: Any
    node: str | UnsetType = field(name="$node", default=UNSET)
    tag: str | UnsetType = field(name="$tag", default=UNSET)
    meta: dict[str, str] | UnsetType = UNSET


class StreamedRecord(Record, kw_only=True):
    """A record as a stream delivers it."""

    data: Any = UNSET


class Tombstone(Struct):
    """An explicit gap: the seqs from `gap_from` to `gap_to` were lost, both included."""

    type: Literal["tombstone"] = field(name="$type")
    seq: int = field(name="$seq")
    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class Read(Struct):
    """The records after a cursor."""

    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int


class Job(Struct):
    """A job as its worker gets it."""

    seq: int = field(name="$seq")
    lease_id: str
    deadline: int
    ts: int = field(name="$ts")
    deliveries: int
    data: Any
    tag: str | UnsetType = field(name="$tag", default=UNSET)
    meta: dict[str, str] | UnsetType = UNSET


class Claimed(Struct):
    """Jobs were leased to the node; none where there were none in time."""

    topic: str
    claimed: list[Job]
    count: int
    ready: int


class JobEvent(Job, kw_only=True):
    """`job`: a job that is leased to the worker of this stream."""

    topic: str


class RecordEvent(Struct):
    """`record`: records of a topic, in order."""

    topic: str
    records: list[StreamedRecord]
    from_seq: int
    to_seq: int
    head_seq: int


class TombstoneEvent(Tombstone, kw_only=True):
    """`tombstone`: records of a topic were lost."""

    topic: str


class CaughtUpEvent(Struct):
    """`caught-up`: the backlog of a topic is delivered; from here on the stream is live."""

    topic: str
    head_seq: int


class TopicDeletedEvent(Struct):
    """`topic-deleted`: the topic is gone; the other topics of the stream continue."""

    topic: str
    head_seq: int
    reason: str


class ErrorEvent(Struct):
    """`error`: the stream is paced for a while (429), or this is its last event (any other code)."""

    code: int
    error: str
    retry_after_ms: int | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET


class RecordMessage(RecordEvent, tag_field="op", tag="record"):
    """Records of a topic, in order."""


class TombstoneMessage(TombstoneEvent, tag_field="op", tag="tombstone", kw_only=True):
    """Records of a topic were lost."""


class CaughtUpMessage(CaughtUpEvent, tag_field="op", tag="caught_up"):
    """The backlog of a topic is delivered."""


class TopicDeletedMessage(TopicDeletedEvent, tag_field="op", tag="topic_deleted"):
    """The topic is gone."""


class Subscribed(Struct, tag_field="op", tag="subscribed"):
    """The topics are followed from now on."""

    topics: dict[str, Watched]
    request_id: RequestId | UnsetType = UNSET


class Unsubscribed(Struct, tag_field="op", tag="unsubscribed"):
    """The topics are not followed any more."""

    topic: str | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET
    request_id: RequestId | UnsetType = UNSET


class Ack(Written, tag_field="op", tag="ack", kw_only=True):
    """A publish is done."""

    performance: Performance
    request_id: RequestId | UnsetType = UNSET


class Pong(Struct, tag_field="op", tag="pong"):
    """The answer to a ping."""

    request_id: RequestId | UnsetType = UNSET


class ErrorMessage(Problem, tag_field="op", tag="error"):
    """A command failed, a topic is paced for a while (`throttled`), or the connection ends (`slow_consumer`)."""

    request_id: RequestId | UnsetType = UNSET  # type: ignore[assignment]
