"""The shapes of answers that are no result of the engine: what handlers encode, and what the reference describes.

Every one of them is a JSON object, to which `performance` is added on the way out (answers.py).
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from topics.engine.queue.requests import JobState, LeaseState
from topics.engine.router.router import RouterSummary
from topics.engine.state import TopicSummary


class Health(Struct, frozen=True):
    """The process can serve."""

    status: Literal["ok"]
    version: str
    uptime_ms: int


class Ready(Struct, frozen=True):
    """The log is replayed."""

    status: Literal["ready"]
    wal_replay_complete: bool
    topics: int


class WhoAmI(Struct, frozen=True):
    """What the key of a request may do."""

    key: str | None
    scopes: list[str]
    prefixes: list[str]


class KeyState(Struct, frozen=True):
    """A key as others may know it."""

    key: str | None
    scopes: list[str]
    prefixes: list[str]
    yours: bool


class KeyList(Struct, frozen=True):
    """The keys of the server, as far as the one that asks may know them."""

    keys: list[KeyState]


class TopicPage(Struct, frozen=True):
    """One page of the list of topics."""

    topics: list[TopicSummary]
    next_cursor: str | UnsetType = UNSET


class RouterPage(Struct, frozen=True):
    """One page of the list of routers."""

    routers: list[RouterSummary]
    next_cursor: str | UnsetType = UNSET


class Leases(Struct, frozen=True):
    """Jobs that are leased or delayed."""

    topic: str
    leases: list[LeaseState]


class JobHistory(Struct, frozen=True):
    """Jobs, and what has happened to them."""

    topic: str
    jobs: list[JobState]


class Lost(Struct, frozen=True):
    """A range that cannot be read any more, both ends included."""

    gap_from: int
    gap_to: int
    reason: str


class Gap(Struct, frozen=True):
    """What a cursor would get a tombstone for on its way, both ends included."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int


class SealedSegment(Struct, frozen=True):
    """A sealed segment: where it is, and which of its seqs were deleted."""

    first_seq: int
    last_seq: int
    file: str
    cold: bool
    bytes: int
    deleted: list[tuple[int, int]]


class Plan(Struct, frozen=True, kw_only=True):
    """What a scan has to know before it starts."""

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    evict_floor: int
    count: int
    bytes: int
    lost: list[Lost]
    from_ts_seq: int | UnsetType = UNSET
    to_ts_seq: int | UnsetType = UNSET
    gaps: list[Gap] | UnsetType = UNSET
    segments: list[SealedSegment] | UnsetType = UNSET
    deleted: list[tuple[int, int]] | UnsetType = UNSET
    deleted_to_seq: int | UnsetType = UNSET


class BlocksHeader(Struct, frozen=True, kw_only=True):
    """What precedes the Blocks of an answer."""

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    evict_floor: int
    from_seq: int
    next_from_seq: int
    caught_up: bool
    tombstone: Gap | None
    blocks: int


class BackupFile(Struct, frozen=True):
    """A file of a backup, and how much of it belongs to the backup."""

    file: str
    bytes: int


class BackupBegun(Struct, frozen=True):
    """A backup that is under way."""

    backup: str
    lease_ms: int
    snapshot: BackupFile


class BackupSegment(Struct, frozen=True):
    """The files of one segment."""

    segment: str
    data_bytes: int
    index_bytes: int
    mark: str
    flags_bytes: int
    flags: str | None


class BackupSegments(Struct, frozen=True):
    """Segments of a backup."""

    segments: list[BackupSegment]


class BackupMoment(Struct, frozen=True):
    """The moment of a backup."""

    ts: int
    lsn: int
    boot_id: str
    wal: list[BackupFile]


class BackupEnded(Struct, frozen=True):
    """A backup that has ended."""

    backup: str
    ended: bool
