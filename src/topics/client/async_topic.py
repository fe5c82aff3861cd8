"""AsyncTopic: one topic of a server, for asyncio. `Topic` has the same methods for threads."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

from topics.client.answers import Configured, Deleted, DeletedTopic, LeaseState, Redriven, Settled, TopicState, Written
from topics.client.job import Job
from topics.client.operations.operation import Operation, arun
from topics.client.operations.read import FollowOptions, OnLoss, ReadOptions
from topics.client.operations.topic_calls import ConfigOptions, TopicCalls, as_list
from topics.client.operations.write import WriteOptions
from topics.client.reader import AsyncReader
from topics.client.record import Draft, Record, Tombstone
from topics.client.topic import follow_options, labels_of
from topics.client.transport import waiting

T = TypeVar("T")
R = TypeVar("R")


class AsyncTopic(Generic[T]):
    """One topic, which need not exist yet: the first write creates it. Any number of tasks may use it."""

    def __init__(self, calls: TopicCalls[T], pool: waiting.Pool) -> None:
        self._calls = calls
        self._pool = pool
        self._courier = waiting.SharedCourier(pool)

    def __repr__(self) -> str:
        return f"AsyncTopic({self.name!r})"

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self._calls.name

    async def write(
        self,
        data: T,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        delay_ms: int | None = None,
        deliver_at: int | datetime | None = None,
        **options: Unpack[WriteOptions],
    ) -> Written:
        """Append one record; returns once it is as safe as the topic's class promises."""
        labels = labels_of(tag, node, meta, delay_ms, deliver_at)
        return await self._run(self._calls.write(data, labels, options))

    async def write_many(self, items: Iterable[T | Draft[T]], **options: Unpack[WriteOptions]) -> Written:
        """Append records, each given as its data or as a Draft, in one write: all of them, or none."""
        return await self._run(self._calls.write_many(items, options))

    @overload
    def read(
        self, *, on_loss: Literal["yield"], **options: Unpack[ReadOptions]
    ) -> AsyncReader[Record[T] | Tombstone]: ...
    @overload
    def read(
        self, *, on_loss: Literal["raise"] = "raise", **options: Unpack[ReadOptions]
    ) -> AsyncReader[Record[T]]: ...
    def read(self, *, on_loss: OnLoss = "raise", **options: Unpack[ReadOptions]) -> AsyncReader[Any]:
        """The records after a cursor (by default all) up to the head, as an asynchronous iterator.

        What was lost is raised as RecordsLost, or with `on_loss="yield"` delivered as a Tombstone in its place.
        """
        read = self._calls.read(follow_options(options), follow=False)
        return AsyncReader(read, waiting.Courier(self._pool), on_loss)

    @overload
    def follow(
        self, *, on_loss: Literal["yield"], **options: Unpack[FollowOptions]
    ) -> AsyncReader[Record[T] | Tombstone]: ...
    @overload
    def follow(
        self, *, on_loss: Literal["raise"] = "raise", **options: Unpack[FollowOptions]
    ) -> AsyncReader[Record[T]]: ...
    def follow(self, *, on_loss: OnLoss = "raise", **options: Unpack[FollowOptions]) -> AsyncReader[Any]:
        """The records after a cursor, and those to come, as an asynchronous iterator that does not end by itself."""
        return AsyncReader(self._calls.read(options, follow=True), waiting.Courier(self._pool), on_loss)

    async def delete(self, *, before_seq: int | None = None, match: str | Sequence[str] | None = None) -> Deleted:
        """Delete records for good: those below a seq, those with certain tags, or those that are both."""
        return await self._run(self._calls.delete(before_seq, match))

    async def delete_topic(self, *, if_empty: bool = False) -> DeletedTopic:
        """Delete the topic with its records and routers; with `if_empty` only if it holds no records."""
        return await self._run(self._calls.delete_topic(if_empty))

    async def state(self) -> TopicState:
        """What the topic holds: seqs, counts, config, and the jobs of a queue."""
        return await self._run(self._calls.state())

    async def configure(self, **config: Unpack[ConfigOptions]) -> Configured:
        """Create the topic, or change the config fields that are named."""
        return await self._run(self._calls.configure(config))

    async def claim(self, max: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None) -> list[Job[T]]:
        """Lease up to `max` jobs of this queue, waiting up to `wait_ms` (at most 30000) for the first."""
        return await self._run(self._calls.claim(max, wait_ms, lease_ms))

    async def leases(self, limit: int = 100) -> list[LeaseState]:
        """Which jobs of this queue are leased or delayed, by which node and until when; a limit of at most 1000."""
        return await self._run(self._calls.leases(limit))

    async def ack(self, jobs: Job[T] | int | Iterable[Job[T] | int]) -> Settled:
        """Complete jobs, which deletes them; a job may be named by its seq, if this node holds it."""
        return await self._run(self._calls.ack(as_list(jobs)))

    async def nack(
        self, jobs: Job[T] | int | Iterable[Job[T] | int], *, delay_ms: int | None = None, reason: str | None = None
    ) -> Settled:
        """Give jobs back, to be delivered again after `delay_ms`, or after the queue's own backoff."""
        return await self._run(self._calls.nack(as_list(jobs), delay_ms, reason))

    async def extend(self, jobs: Job[T] | int | Iterable[Job[T] | int], lease_ms: int) -> Settled:
        """Keep jobs for longer: their leases end `lease_ms` from now."""
        return await self._run(self._calls.extend(as_list(jobs), lease_ms))

    async def redrive(
        self,
        *,
        seqs: Sequence[int] | None = None,
        match: str | Sequence[str] | None = None,
        limit: int = 0,
        dry_run: bool = False,
    ) -> Redriven:
        """Turn dead letters of this queue into jobs again: all, or those that are named."""
        return await self._run(self._calls.redrive(seqs, match, limit, dry_run))

    def _run(self, operation: Operation[R]) -> Coroutine[Any, Any, R]:
        return arun(operation, self._courier)
