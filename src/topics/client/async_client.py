"""AsyncClient: a server, for programs on asyncio. `Client` is the same for threads."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from topics.client.answers import ConsumerState, Health, Identity, Ready, RouterState, TopicSummary
from topics.client.async_consumer import AsyncConsumer
from topics.client.async_producer import AsyncProducer
from topics.client.async_topic import AsyncTopic
from topics.client.async_worker import AsyncWorker, WorkerOptions
from topics.client.endpoint import ClientOptions, Endpoint
from topics.client.follower import AsyncFollower, FollowManyOptions, watch_of
from topics.client.operations.consumption import ConsumerOptions, Consumption
from topics.client.operations.cursors import CURSORS_TOPIC
from topics.client.operations.identity import Identities
from topics.client.operations.operation import Operation, arun
from topics.client.operations.outbox import DEADLINE_S, Outbox, ProducerOptions
from topics.client.operations.pipelines import PIPELINES_TOPIC, PipelineState
from topics.client.operations.read import OnLoss
from topics.client.operations.server_calls import RouterOptions, ServerCalls
from topics.client.operations.topic_calls import TopicCalls
from topics.client.record import Record, Tombstone
from topics.client.transport import waiting
from topics.client.transport.request import path
from topics.names import check_topic_name

T = TypeVar("T")


class AsyncClient:
    """A server. Any number of tasks of one event loop may use one client; `close` it, or use `async with`."""

    def __init__(self, url: str | None = None, **options: Unpack[ClientOptions]) -> None:
        """`url` is by default what `TOPICS_URL` holds, or else http://127.0.0.1:4000."""
        self._endpoint = Endpoint(url, options)
        self._pool = waiting.Pool(
            self._endpoint.address,
            size=self._endpoint.connections_max,
            connect_timeout_s=self._endpoint.connect_timeout_s,
        )
        self._calls = ServerCalls(self._endpoint.patience)
        self._identities = Identities()
        self._courier = waiting.SharedCourier(self._pool)

    def __repr__(self) -> str:
        return f"AsyncClient({self._endpoint.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()

    @overload
    def topic(self, name: str) -> AsyncTopic[Any]: ...
    @overload
    def topic(self, name: str, type: type[T]) -> AsyncTopic[T]: ...
    def topic(self, name: str, type: Any = Any) -> AsyncTopic[Any]:
        """A topic, whether it exists or not; with a `type` its data is decoded into that."""
        lanes = self._identities.of(name)
        return AsyncTopic(TopicCalls(name, type, self._endpoint.patience, self._endpoint.node, lanes), self._pool)

    @overload
    def follow(
        self,
        topics: Iterable[str] | Mapping[str, int],
        *,
        on_loss: Literal["yield"],
        **options: Unpack[FollowManyOptions],
    ) -> AsyncFollower[Record[Any] | Tombstone]: ...
    @overload
    def follow(
        self,
        topics: Iterable[str] | Mapping[str, int],
        *,
        on_loss: Literal["raise"] = "raise",
        **options: Unpack[FollowManyOptions],
    ) -> AsyncFollower[Record[Any]]: ...
    def follow(
        self,
        topics: Iterable[str] | Mapping[str, int],
        *,
        on_loss: OnLoss = "raise",
        **options: Unpack[FollowManyOptions],
    ) -> AsyncFollower[Any]:
        """The records of several topics over one stream, and those to come; a mapping names the cursor of each."""
        watch = watch_of(topics, self._endpoint.patience, options)
        return AsyncFollower(watch, waiting.Courier(self._pool), on_loss)

    async def topics(self, prefix: str = "", *, limit: int | None = None) -> list[TopicSummary]:
        """Every topic with the prefix, in order; with a `limit` only the first of them."""
        return await self._run(self._calls.topics(prefix, limit))

    async def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> list[RouterState]:
        """Every router with the prefix, the source and the dest, in order."""
        return await self._run(self._calls.routers(prefix, source, dest))

    async def router(self, name: str) -> RouterState:
        """One router, and how many records it has forwarded."""
        return await self._run(self._calls.router(name))

    async def put_router(self, name: str, *, source: str, dest: str, **options: Unpack[RouterOptions]) -> RouterState:
        """Copy every record that is appended to `source` to `dest`, from now on."""
        return await self._run(self._calls.put_router(name, source, dest, options))

    async def delete_router(self, name: str) -> bool:
        """Stop forwarding; whether there was such a router."""
        return await self._run(self._calls.delete_router(name))

    async def health(self) -> Health:
        """The server, if it is alive; its version, and for how long it has run."""
        return await self._run(self._calls.health())

    async def ready(self) -> Ready:
        """The server, if it serves: raises NotReady while it reads its log, StorageReadOnly where it stores nothing."""
        return await self._run(self._calls.ready())

    async def whoami(self) -> Identity:
        """What the key of this client may do: its scopes, and the prefixes of its topics."""
        return await self._run(self._calls.whoami())

    async def metrics(self) -> dict[str, Any]:
        """The metrics of the server: a number for each name, or numbers by label."""
        return await self._run(self._calls.metrics())

    async def consumers(self, cursors: str = CURSORS_TOPIC) -> list[ConsumerState]:
        """Every consumer that keeps its cursors in a topic of the server, and how far behind it was."""
        return await self._run(self._calls.consumers(cursors))

    async def pipelines(self, reports: str = PIPELINES_TOPIC) -> list[PipelineState]:
        """Every flow on Spark that reports into a topic of the server, as it was at its last report."""
        return await self._run(self._calls.pipelines(reports))

    async def request(
        self,
        method: Literal["GET", "PUT", "POST", "DELETE"],
        target: str,
        body: bytes | None = None,
        *,
        deadline_s: float | None = None,
        retries: bool | None = None,
        repeatable: bool = True,
    ) -> bytes:
        """The body of a success, for what has no method of its own; `target` is a path such as /v0/topics."""
        return await self._run(self._calls.request(method, target, body, deadline_s, retries, repeatable))

    @overload
    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> AsyncProducer[Any]: ...
    @overload
    def producer(self, topic: str, type: type[T], **options: Unpack[ProducerOptions]) -> AsyncProducer[T]: ...
    def producer(self, topic: str, type: Any = Any, **options: Unpack[ProducerOptions]) -> AsyncProducer[Any]:
        """What writes many records to a topic in the background, each of them once and in order."""
        check_topic_name(topic)
        outbox = Outbox(path("v0", "topics", topic), self._endpoint.patience, options)
        return AsyncProducer(topic, outbox, self._pool, options.get("deadline_s", DEADLINE_S))

    @overload
    def consumer(
        self,
        name: str,
        topics: str | Iterable[str],
        *,
        on_loss: Literal["yield"],
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer[Record[Any] | Tombstone]: ...
    @overload
    def consumer(
        self,
        name: str,
        topics: str | Iterable[str],
        *,
        on_loss: Literal["raise"] = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer[Record[Any]]: ...
    @overload
    def consumer(
        self,
        name: str,
        topics: str | Iterable[str],
        type: type[T],
        *,
        on_loss: Literal["yield"],
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer[Record[T] | Tombstone]: ...
    @overload
    def consumer(
        self,
        name: str,
        topics: str | Iterable[str],
        type: type[T],
        *,
        on_loss: Literal["raise"] = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer[Record[T]]: ...
    def consumer(
        self,
        name: str,
        topics: str | Iterable[str],
        type: Any = Any,
        *,
        on_loss: OnLoss = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer[Any]:
        """What reads topics from where it has got to, and remembers that under its name."""
        consumption = Consumption[Any](name, topics, type, self._endpoint.patience, on_loss, options)
        return AsyncConsumer(consumption, self._pool)

    @overload
    def worker(self, queue: str, **options: Unpack[WorkerOptions]) -> AsyncWorker[Any]: ...
    @overload
    def worker(self, queue: str, type: type[T], **options: Unpack[WorkerOptions]) -> AsyncWorker[T]: ...
    def worker(self, queue: str, type: Any = Any, **options: Unpack[WorkerOptions]) -> AsyncWorker[Any]:
        """What works off the jobs of a queue with functions of yours, several at a time."""
        return AsyncWorker(TopicCalls(queue, type, self._endpoint.patience, self._endpoint.node), self._pool, options)

    def _run(self, operation: Operation[T]) -> Coroutine[Any, Any, T]:
        return arun(operation, self._courier)
