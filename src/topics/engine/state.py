"""What commands answer with, as the structs that a server encodes to JSON (TOPIC-15, DELETE-2)."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from topics.engine.config import TopicConfig
from topics.engine.queue.requests import QueueState


class PutTopic(Struct, frozen=True):
    """A topic was created or configured."""

    topic: str
    created: bool
    config: TopicConfig


class TopicState(Struct, frozen=True):
    """The state of a topic right now."""

    topic: str
    type: str
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    erased_before_ts: int
    queue: QueueState | UnsetType = UNSET


class TopicSummary(Struct, frozen=True):
    """One line of the list of topics."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    type: str


class DeletedTopic(Struct, frozen=True):
    """A topic was deleted, or did not exist."""

    topic: str
    deleted: bool
    routers_removed: list[str]


class Deleted(Struct, frozen=True):
    """Records were deleted, or would be."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
    dry_run: bool | UnsetType = UNSET
