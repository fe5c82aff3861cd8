"""TopicCalls: everything that can be asked of one topic, as operations for both kinds of client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar

import msgspec

from topics.client.answers import (
    Configured,
    Deleted,
    DeletedTopic,
    LeaseState,
    Redriven,
    Settled,
    TopicState,
    Written,
    decode,
)  # fmt: skip
from topics.client.job import Job
from topics.client.operations.call import Patience, call
from topics.client.operations.identity import Lanes
from topics.client.operations.operation import Operation
from topics.client.operations.read import FollowOptions, ReadOptions, TopicRead
from topics.client.operations.write import WriteOptions, item_text, record_text, write
from topics.client.options import check_options
from topics.client.record import Draft, typed
from topics.client.transport.request import Request, path
from topics.names import check_topic_name

T = TypeVar("T")

REASON_CHARS_MAX: Final = 500
_encode: Final = msgspec.json.Encoder().encode


class ConfigOptions(TypedDict, total=False):
    """The fields of a topic's config (docs/api.md#config). What is left out stays as it is."""

    type: Literal["log", "queue"]
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Literal["old", "reject"]
    durable: bool
    durability: Literal["ephemeral", "memory", "disk", "fsync"]
    priority: int | None
    auto_priority: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool
    backoff_ms: int
    backoff_max_ms: int


class _Leases(msgspec.Struct):
    leases: list[LeaseState]


class TopicCalls(Generic[T]):
    """The calls of one topic; `node` is the holder of its leases, and `data` the type of its records."""

    def __init__(self, name: str, data: Any, patience: Patience, node: str, lanes: Lanes | None = None) -> None:
        check_topic_name(name)
        self.name = name
        self.data = data
        self.node = node
        self.patience = patience
        self.target = path("v0", "topics", name)
        self._lanes = lanes
        self._append = self.target + b"?return_seqs=false"
        self._claimed = _claimed(typed(Job, data))

    def write(self, data: Any, labels: Mapping[str, Any], options: WriteOptions) -> Operation[Written]:
        """Append one record."""
        if options:
            check_options("write", options, WriteOptions)
        text = record_text(data, **labels) if labels else b'{"data":%b}' % _encode(data)
        return write(self._append, (text,), self.patience, options, self._lanes)

    def write_many(self, items: Iterable[Draft[Any] | Any], options: WriteOptions) -> Operation[Written]:
        """Append records in one write: all of them, or none."""
        check_options("write_many", options, WriteOptions)
        if isinstance(items, str | bytes | Mapping | Draft):
            raise TypeError(
                f"write_many() takes a list of records, and this is one {type(items).__name__}: use write()"
            )
        return write(self._append, [item_text(item) for item in items], self.patience, options, self._lanes)

    def read(self, options: FollowOptions, *, follow: bool) -> TopicRead[T]:
        """A read that ends at the head, or goes on for ever."""
        check_options("follow" if follow else "read", options, FollowOptions if follow else ReadOptions)
        return TopicRead(self.name, self.target, self.data, self.patience, options, follow=follow)

    def delete(self, before_seq: int | None, match: str | Sequence[str] | None) -> Operation[Deleted]:
        """Delete records for good."""
        given = {"before_seq": before_seq, "match": match}
        fields = {name: value for name, value in given.items() if value is not None}
        if not fields:
            raise ValueError("delete() needs before_seq, match, or both: to delete everything, use delete_topic()")
        return self._post(b"/delete", fields, Deleted)

    def delete_topic(self, if_empty: bool) -> Operation[DeletedTopic]:
        """Delete the topic with its records and routers."""
        target = self.target + (b"?if_empty=true" if if_empty else b"")
        answer = yield from call(Request(b"DELETE", target), self.patience)
        return decode(answer, DeletedTopic)

    def state(self) -> Operation[TopicState]:
        """What the topic holds, without looking like a reader."""
        answer = yield from call(Request(b"GET", self.target + b"?touch=false"), self.patience)
        return decode(answer, TopicState)

    def configure(self, config: ConfigOptions) -> Operation[Configured]:
        """Create the topic, or change the fields that are named."""
        check_options("configure", config, ConfigOptions)
        answer = yield from call(Request(b"PUT", self.target, _encode(config)), self.patience)
        return decode(answer, Configured)

    def claim(self, max: int, wait_ms: int, lease_ms: int | None) -> Operation[list[Job[T]]]:
        """Lease jobs. An answer that is lost on its way costs the time of its leases, and no job."""
        fields: dict[str, Any] = {"node": self.node, "max": max, "wait_ms": wait_ms}
        if lease_ms is not None:
            fields["lease_ms"] = lease_ms
        request = Request(b"POST", self.target + b"/claim", _encode(fields))
        patience = self.patience
        if wait_ms:
            request.timeout_s = wait_ms / 1000 + patience.timeout_s
            patience = patience._replace(deadline_s=wait_ms / 1000 + patience.deadline_s)
        answer = yield from call(request, patience)
        jobs: list[Job[T]] = decode(answer, self._claimed).claimed
        for job in jobs:
            job.topic = self.name
        return jobs

    def leases(self, limit: int) -> Operation[list[LeaseState]]:
        """The jobs that are leased or delayed, those first that were so first."""
        target = self.target + b"/leases?limit=%d" % limit
        answer = yield from call(Request(b"GET", target), self.patience)
        return decode(answer, _Leases).leases

    def ack(self, jobs: Sequence[Job[T] | int]) -> Operation[Settled]:
        """Complete jobs, which deletes them."""
        return self._post(b"/ack", self._leases(jobs), Settled)

    def nack(self, jobs: Sequence[Job[T] | int], delay_ms: int | None, reason: str | None) -> Operation[Settled]:
        """Give jobs back."""
        fields = self._leases(jobs)
        if delay_ms is not None:
            fields["delay_ms"] = delay_ms
        if reason is not None:
            fields["reason"] = reason[:REASON_CHARS_MAX]
        return self._post(b"/nack", fields, Settled)

    def extend(self, jobs: Sequence[Job[T] | int], lease_ms: int) -> Operation[Settled]:
        """Keep jobs for longer: their leases end this long from now."""
        settled = yield from self._post(b"/extend", self._leases(jobs) | {"lease_ms": lease_ms}, Settled)
        for job in jobs:
            if isinstance(job, int):
                continue
            job.deadline = settled.deadlines.get(str(job.seq), job.deadline)
        return settled

    def redrive(
        self, seqs: Sequence[int] | None, match: str | Sequence[str] | None, limit: int, dry_run: bool
    ) -> Operation[Redriven]:
        """Turn dead letters into jobs again."""
        fields: dict[str, Any] = {"limit": limit, "dry_run": dry_run}
        if seqs is not None:
            fields["seqs"] = list(seqs)
        if match is not None:
            fields["match"] = match
        return self._post(b"/redrive", fields, Redriven)

    def _leases(self, jobs: Sequence[Job[T] | int]) -> dict[str, Any]:
        seqs = [job if isinstance(job, int) else job.seq for job in jobs]
        lease_ids = [job.lease_id for job in jobs if not isinstance(job, int)]
        # A seq alone names whatever lease this node holds on it, a job the very lease that it came with.
        return {"node": self.node, "seqs": seqs} | ({"lease_ids": lease_ids} if len(lease_ids) == len(seqs) else {})

    def _post(self, action: bytes, fields: Mapping[str, Any], shape: type[T2]) -> Operation[T2]:
        answer = yield from call(Request(b"POST", self.target + action, _encode(fields)), self.patience)
        return decode(answer, shape)


T2 = TypeVar("T2")
_claims: Final[dict[Any, Any]] = {}


def _claimed(job: Any) -> Any:
    found = _claims.get(job)
    if found is None:
        found = _claims[job] = msgspec.defstruct("Claimed", [("claimed", list[job])])
    return found


def as_list(jobs: Job[T] | int | Iterable[Job[T] | int]) -> list[Job[T] | int]:
    """One job, or several, each as a Job or as its seq."""
    return [jobs] if isinstance(jobs, Job | int) else list(jobs)
