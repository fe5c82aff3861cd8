"""The shapes of the queue endpoints' bodies and answers (the QUEUE rules)."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from topics.engine.queue.history import Step
from topics.engine.requests import U32, U64

WAIT_MS_MAX = 30_000
DELAY_MS_MAX = 86_400_000

Seq = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class ClaimJobs(Struct, frozen=True):
    """The body of `POST /v0/topics/:q/claim` (QUEUE-2)."""

    node: str
    max: U32 = 1
    lease_ms: U64 | None = None
    wait_ms: U32 = 0


class AckJobs(Struct):
    """The body of `POST /v0/topics/:q/ack` (QUEUE-7)."""

    node: str
    seqs: list[Seq]
    lease_ids: list[str] | None = None


class NackJobs(Struct):
    """The body of `POST /v0/topics/:q/nack` (QUEUE-12)."""

    node: str
    seqs: list[Seq]
    delay_ms: U64 | None = None
    lease_ids: list[str] | None = None
    reason: str = ""


class ExtendJobs(Struct):
    """The body of `POST /v0/topics/:q/extend` (QUEUE-13)."""

    node: str
    seqs: list[Seq]
    lease_ms: U64
    lease_ids: list[str] | None = None


class RedriveJobs(Struct):
    """The body of `POST /v0/topics/:q/redrive`: which dead letters to put back; none named means all."""

    seqs: list[Seq] | None = None
    match: Any = None
    limit: U32 = 0
    dry_run: bool = False


class QueueState(Struct, frozen=True):
    """The `queue` part of a topic's state (QUEUE-19)."""

    ready: int
    in_flight: int
    dead_lettered: int


class LeaseState(Struct, frozen=True):
    """One job that was delivered or delayed, for somebody who looks (QUEUE-40)."""

    seq: int
    state: str
    node: str
    lease_id: str | None
    deadline: int
    """When the lease runs out or ran out, or the delay ends."""
    deliveries: int


class JobState(Struct, frozen=True):
    """One job and what has happened to it, for somebody who looks (QUEUE-41)."""

    seq: int
    state: str
    """`ready`, `leased`, `lapsed` or `delayed`; for one that has left the queue `acked`, `dead` or `gone`."""
    node: str | None
    """Which worker holds it."""
    until: int | None
    """When its lease or its delay ends, or has ended."""
    deliveries: int
    reason: str
    """Why it was given back last."""
    steps: list[Step]


class AckedJobs(Struct, frozen=True):
    """Jobs were completed."""

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int


class NackedJobs(Struct, frozen=True):
    """Jobs were given back."""

    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int


class ExtendedJobs(Struct, frozen=True):
    """Leases run longer; `deadlines` has the new deadline of each seq."""

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[str, int]


class RedrivenJobs(Struct, frozen=True):
    """Dead letters, by their seqs in the dead-letter topic, were put back into their queue, or would be."""

    topic: str
    dead_letter: str
    redriven: int
    seqs: list[int]
    dry_run: bool
