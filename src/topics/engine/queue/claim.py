"""Claim: a request for jobs, and how a pass divides the jobs that are ready (QUEUE-2, QUEUE-21).

A `Claimer` waits for jobs: it is a `Claim`, which is answered once, or the `Worker` of a /work stream, which is never
done. A pass serves a whole cohort of them at once: each gets a share in proportion to what it asked for, the remainder
goes to those that have waited longest, and the jobs go round in turns, so that no claimer gets only the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from topics.engine.queue.lease import Candidate, Lease
from topics.errors import TopicsError
from topics.storage.block import HAS_META, HAS_NODE, HAS_TAG, PLAIN, SINGLE_DATA_AT, Block

_encode = msgspec.json.Encoder().encode


class LeasedJobs:
    """What a pass gives to one claimer: leases, lowest seq first, and the text of each job as a client reads it."""

    __slots__ = ("leases", "texts")

    def __init__(self, leases: list[Lease], texts: list[bytes]) -> None:
        self.leases = leases
        self.texts = texts


NOTHING: Final = LeasedJobs([], [])


class Claim:
    """One `POST /v0/topics/:q/claim`; `on_done` is called once with it, when the jobs or `error` are there."""

    __slots__ = ("context", "demand", "done", "error", "lease_ms", "leased", "node", "on_done", "ready", "until_ms")

    def __init__(
        self,
        node: str,
        max: int,
        lease_ms: int | None,
        until_ms: int,
        on_done: Callable[[Claim], None] | None,
        context: Any = None,
    ) -> None:
        self.node = node
        # None: that of the topic's config at the time of the claim.
        self.lease_ms = lease_ms
        # All of it, until it is served or given up.
        self.demand = max
        # How long to wait where the queue is empty.
        self.until_ms = until_ms
        self.on_done = on_done
        self.context = context
        self.leased = NOTHING
        self.ready = 0
        self.done = False
        self.error: TopicsError | None = None

    def took(self, leases: list[Lease]) -> None:
        """Jobs were leased to this claim; `deliver` follows, at once or when the lease is durable."""
        self.demand = 0

    def deliver(self, leased: LeasedJobs, ready: int) -> None:
        """Answer with these jobs; `ready` more are waiting. There may be none where the wait has ended."""
        self.leased = leased
        self.ready = ready
        self.give_up()
        if self.on_done is not None:
            self.on_done(self)

    def fail(self, error: TopicsError) -> None:
        """Answer with an error: the queue is gone, or the storage does not take the leases."""
        self.error = error
        self.give_up()
        if self.on_done is not None:
            self.on_done(self)

    def give_up(self) -> None:
        """Want nothing more, and wait for nothing."""
        self.demand = 0
        self.done = True

    @property
    def text(self) -> bytes:
        """The jobs as JSON objects separated by commas."""
        return b",".join(self.leased.texts)

    @property
    def claimed(self) -> list[dict[str, Any]]:
        """The jobs decoded: for embedded use and tests; the server sends `text` as it is."""
        decoded: list[dict[str, Any]] = msgspec.json.decode(b"[" + self.text + b"]")
        return decoded


class Worker:
    """A /work stream that is kept filled with jobs (the WORK rules).

    It is never done: it holds at most `max` jobs at a time, and wants the next one as soon as one of them is acked,
    given back, or lost to a deadline. Only leases that were delivered on this stream count, and only those are released
    when it ends; what the same node claimed elsewhere is not affected.
    """

    __slots__ = ("closed", "held", "lease_ms", "max", "node", "on_end", "on_jobs", "paused")

    def __init__(
        self,
        node: str,
        max: int,
        lease_ms: int | None,
        on_jobs: Callable[[LeasedJobs], None],
        on_end: Callable[[TopicsError], None],
    ) -> None:
        self.node = node
        self.lease_ms = lease_ms
        self.max = max
        self.on_jobs = on_jobs
        self.on_end = on_end
        self.held: dict[int, Lease] = {}
        # Set while the client does not read: more jobs would only age in a buffer.
        self.paused = False
        self.closed = False

    @property
    def demand(self) -> int:
        """How many more jobs it may hold."""
        return 0 if self.closed or self.paused else self.max - len(self.held)

    def took(self, leases: list[Lease]) -> None:
        """Hold jobs from the moment they are leased."""
        for lease in leases:
            self.held[lease.seq] = lease
            lease.worker = self

    def deliver(self, leased: LeasedJobs, ready: int) -> None:
        """Push these jobs."""
        if leased.leases and not self.closed:
            self.on_jobs(leased)

    def lost(self, lease: Lease) -> None:
        """A job of this stream is no longer leased to it; the Queue calls this."""
        lease.worker = None
        self.held.pop(lease.seq, None)

    def fail(self, error: TopicsError) -> None:
        """There will be no more jobs."""
        if not self.closed:
            self.closed = True
            self.on_end(error)


Claimer = Claim | Worker


def shares(available: int, demands: Sequence[int]) -> list[int]:
    """How many of `available` jobs each of the claimers gets, in the order of their arrival (QUEUE-21)."""
    wanted = sum(demands)
    if available >= wanted:
        return list(demands)
    given = [available * demand // wanted for demand in demands]
    left = available - sum(given)
    for i, demand in enumerate(demands):
        # A claimer that had its share rounded down comes before those that got theirs in full.
        if left and available * demand % wanted:
            given[i] += 1
            left -= 1
    assert left == 0
    return given


def divide(jobs: Sequence[Candidate], quotas: Sequence[int]) -> list[list[Candidate]]:
    """The jobs in turns, one for each claimer and turn, until each has its quota."""
    parts: list[list[Candidate]] = [[] for _ in quotas]
    at = 0
    turn = 0
    while at < len(jobs) and at < sum(quotas):
        for part, quota in zip(parts, quotas, strict=True):
            if turn < quota and at < len(jobs):
                part.append(jobs[at])
                at += 1
        turn += 1
    return parts


_LARGE_BYTES: Final = 4096
_LABELS: Final = HAS_NODE | HAS_TAG | HAS_META


def job_texts(jobs: Sequence[Candidate], leases: Sequence[Lease], deadline_ms: int) -> list[bytes]:
    """The jobs as workers read them, lowest seq first; `data` and `meta` are the bytes that were sent.

    All were leased at once.
    """
    _, first, lease_before = jobs[0]
    if first is jobs[-1][1] and first.n > 1 and not first.bits & _LABELS:
        # All in one Block, as most are; and where the first has no Lease, none of them has (Ready.choose).
        return _plain_texts(first, leases, lease_before is None, deadline_ms)
    plain = _PLAIN % deadline_ms
    texts = []
    block: Block | None = None
    for (seq, held_in, _), lease in zip(jobs, leases, strict=True):
        if held_in is not block:
            block = held_in
            raw, first_seq = _source(block), block.first_seq
            whole = bool(block.bits & _LABELS)
            if block.n == 1:
                # A job that was written alone is read without its columns.
                stamps: Sequence[int] = (block.first_ts,)
                at: Sequence[int] = SINGLE_DATA_AT
            else:
                columns = block.columns
                stamps, at = columns.ts, columns.data_at
        i = seq - first_seq
        if whole:
            text = _job_text(block, i, lease, deadline_ms)
        else:
            text = plain % (seq, lease.id, stamps[i], lease.deliveries, raw[at[i] : at[i + 1]])
        texts.append(text)
    return texts


def _source(block: Block) -> bytes | memoryview:
    """What to take texts out of: small ones are copied out of it faster than a view of them is made."""
    return block.raw if len(block.raw) < block.n * _LARGE_BYTES else memoryview(block.raw)


def _plain_texts(block: Block, leases: Sequence[Lease], fresh: bool, deadline_ms: int) -> list[bytes]:
    """The texts of jobs of one Block that has no labels; `fresh` ones are delivered for the first time."""
    columns = block.columns
    raw: Any = _source(block)
    stamps, at, first_seq = columns.ts, columns.data_at, block.first_seq
    ts = stamps[leases[0].seq - first_seq]
    if fresh and stamps[leases[-1].seq - first_seq] == ts:
        # Written in one batch, as most are: all that they have in common is rendered once.
        common = _COMMON % (deadline_ms, ts)
        return [
            b'{"$seq":%d,"lease_id":"lease_%x%b%b}' % (first_seq + i, lease.id, common, raw[at[i] : at[i + 1]])
            for lease in leases
            for i in (lease.seq - first_seq,)
        ]
    plain = _PLAIN % deadline_ms
    return [
        plain % (first_seq + i, lease.id, stamps[i], lease.deliveries, raw[at[i] : at[i + 1]])
        for lease in leases
        for i in (lease.seq - first_seq,)
    ]


_COMMON: Final = b'","deadline":%d,"$ts":%d,"deliveries":1,"data":'
_PLAIN: Final = b'{"$seq":%%d,"lease_id":"lease_%%x","deadline":%d,"$ts":%%d,"deliveries":%%d,"data":%%b}'


def _job_text(block: Block, i: int, lease: Lease, deadline_ms: int) -> bytes:
    bits = block.bits
    tag = block.tag(i) if bits & HAS_TAG else None
    meta = block.meta(i) if bits & HAS_META else None
    tagged = b"" if tag is None else b',"$tag":"%b"' % tag if bits & PLAIN else b',"$tag":' + _encode(tag.decode())
    return b'{"$seq":%d,"lease_id":"lease_%x","deadline":%d,"$ts":%d%b,"deliveries":%d,"data":%b%b}' % (
        lease.seq,
        lease.id,
        deadline_ms,
        block.columns.ts[i],
        tagged,
        lease.deliveries,
        block.data(i),
        b"" if meta is None else b',"meta":' + meta,
    )
