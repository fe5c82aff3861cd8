"""Client: a server, for programs that wait in threads. `AsyncClient` is the same for asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from topics.client.answers import ConsumerState, Health, Identity, Ready, RouterState, TopicSummary
from topics.client.async_worker import WorkerOptions
from topics.client.consumer import Consumer
from topics.client.endpoint import ClientOptions, Endpoint
from topics.client.follower import Follower, FollowManyOptions, watch_of
from topics.client.operations.consumption import ConsumerOptions, Consumption
from topics.client.operations.cursors import CURSORS_TOPIC
from topics.client.operations.identity import Identities
from topics.client.operations.operation import Operation, run
from topics.client.operations.outbox import DEADLINE_S, Outbox, ProducerOptions
from topics.client.operations.pipelines import PIPELINES_TOPIC, PipelineState
from topics.client.operations.read import OnLoss
from topics.client.operations.server_calls import RouterOptions, ServerCalls
from topics.client.operations.topic_calls import TopicCalls
from topics.client.producer import Producer
from topics.client.record import Record, Tombstone
from topics.client.topic import Topic
from topics.client.transport import blocking
from topics.client.transport.request import path
from topics.client.worker import Worker
from topics.names import check_topic_name

T = TypeVar("T")


class Client:
    """A server. Any number of threads may use one client; `close` it, or use it in a `with` block."""

    def __init__(self, url: str | None = None, **options: Unpack[ClientOptions]) -> None:
        """`url` is by default what `TOPICS_URL` holds, or else http://127.0.0.1:4000."""
        self._endpoint = Endpoint(url, options)
        self._pool = blocking.Pool(
            self._endpoint.address,
            size=self._endpoint.connections_max,
            connect_timeout_s=self._endpoint.connect_timeout_s,
        )
        self._calls = ServerCalls(self._endpoint.patience)
        self._identities = Identities()
        self._courier = blocking.SharedCourier(self._pool)

    def __repr__(self) -> str:
        return f"Client({self._endpoint.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    @overload
    def topic(self, name: str) -> Topic[Any]: ...
    @overload
    def topic(self, name: str, type: type[T]) -> Topic[T]: ...
    def topic(self, name: str, type: Any = Any) -> Topic[Any]:
        """A topic, whether it exists or not; with a `type` its data is decoded into that."""
        lanes = self._identities.of(name)
        return Topic(TopicCalls(name, type, self._endpoint.patience, self._endpoint.node, lanes), self._pool)

    @overload
    def follow(
        self,
        topics: Iterable[str] | Mapping[str, int],
        *,
        on_loss: Literal["yield"],
        **options: Unpack[FollowManyOptions],
    ) -> Follower[Record[Any] | Tombstone]: ...
    @overload
    def follow(
        self,
        topics: Iterable[str] | Mapping[str, int],
        *,
        on_loss: Literal["raise"] = "raise",
        **options: Unpack[FollowManyOptions],
    ) -> Follower[Record[Any]]: ...
    def follow(
        self,
        topics: Iterable[str] | Mapping[str, int],
        *,
        on_loss: OnLoss = "raise",
        **options: Unpack[FollowManyOptions],
    ) -> Follower[Any]:
        """The records of several topics over one stream, and those to come; a mapping names the cursor of each."""
        watch = watch_of(topics, self._endpoint.patience, options)
        return Follower(watch, blocking.Courier(self._pool), on_loss)

    def topics(self, prefix: str = "", *, limit: int | None = None) -> list[TopicSummary]:
        """Every topic with the prefix, in order; with a `limit` only the first of them."""
        return self._run(self._calls.topics(prefix, limit))

    def routers(self, prefix: str = "", *, source: str | None = None, dest: str | None = None) -> list[RouterState]:
        """Every router with the prefix, the source and the dest, in order."""
        return self._run(self._calls.routers(prefix, source, dest))

    def router(self, name: str) -> RouterState:
        """One router, and how many records it has forwarded."""
        return self._run(self._calls.router(name))

    def put_router(self, name: str, *, source: str, dest: str, **options: Unpack[RouterOptions]) -> RouterState:
        """Copy every record that is appended to `source` to `dest`, from now on."""
        return self._run(self._calls.put_router(name, source, dest, options))

    def delete_router(self, name: str) -> bool:
        """Stop forwarding; whether there was such a router."""
        return self._run(self._calls.delete_router(name))

    def health(self) -> Health:
        """The server, if it is alive; its version, and for how long it has run."""
        return self._run(self._calls.health())

    def ready(self) -> Ready:
        """The server, if it serves: raises NotReady while it reads its log, StorageReadOnly where it stores nothing."""
        return self._run(self._calls.ready())

    def whoami(self) -> Identity:
        """What the key of this client may do: its scopes, and the prefixes of its topics."""
        return self._run(self._calls.whoami())

    def metrics(self) -> dict[str, Any]:
        """The metrics of the server: a number for each name, or numbers by label."""
        return self._run(self._calls.metrics())

    def consumers(self, cursors: str = CURSORS_TOPIC) -> list[ConsumerState]:
        """Every consumer that keeps its cursors in a topic of the server, and how far behind it was."""
        return self._run(self._calls.consumers(cursors))

    def pipelines(self, reports: str = PIPELINES_TOPIC) -> list[PipelineState]:
        """Every flow on Spark that reports into a topic of the server, as it was at its last report."""
        return self._run(self._calls.pipelines(reports))

    def request(
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
        return self._run(self._calls.request(method, target, body, deadline_s, retries, repeatable))

    @overload
    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> Producer[Any]: ...
    @overload
    def producer(self, topic: str, type: type[T], **options: Unpack[ProducerOptions]) -> Producer[T]: ...
    def producer(self, topic: str, type: Any = Any, **options: Unpack[ProducerOptions]) -> Producer[Any]:
        """What writes many records to a topic in the background, each of them once and in order."""
        check_topic_name(topic)
        outbox = Outbox(path("v0", "topics", topic), self._endpoint.patience, options)
        return Producer(topic, outbox, self._pool, options.get("deadline_s", DEADLINE_S))

    @overload
    def consumer(
        self,
        name: str,
        topics: str | Iterable[str],
        *,
        on_loss: Literal["yield"],
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Record[Any] | Tombstone]: ...
    @overload
    def consumer(
        self,
        name: str,
        topics: str | Iterable[str],
        *,
        on_loss: Literal["raise"] = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Record[Any]]: ...
    @overload
    def consumer(
        self,
        name: str,
        topics: str | Iterable[str],
        type: type[T],
        *,
        on_loss: Literal["yield"],
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Record[T] | Tombstone]: ...
    @overload
    def consumer(
        self,
        name: str,
        topics: str | Iterable[str],
        type: type[T],
        *,
        on_loss: Literal["raise"] = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Record[T]]: ...
    def consumer(
        self,
        name: str,
        topics: str | Iterable[str],
        type: Any = Any,
        *,
        on_loss: OnLoss = "raise",
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Any]:
        """What reads topics from where it has got to, and remembers that under its name."""
        consumption = Consumption[Any](name, topics, type, self._endpoint.patience, on_loss, options)
        return Consumer(consumption, self._pool)

    @overload
    def worker(self, queue: str, **options: Unpack[WorkerOptions]) -> Worker[Any]: ...
    @overload
    def worker(self, queue: str, type: type[T], **options: Unpack[WorkerOptions]) -> Worker[T]: ...
    def worker(self, queue: str, type: Any = Any, **options: Unpack[WorkerOptions]) -> Worker[Any]:
        """What works off the jobs of a queue with functions of yours, several at a time."""
        return Worker(TopicCalls(queue, type, self._endpoint.patience, self._endpoint.node), self._endpoint, options)

    def _run(self, operation: Operation[T]) -> T:
        return run(operation, self._courier)
