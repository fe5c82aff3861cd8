"""Answers: what calls return, as small structs with the names of the API (docs/api.md)."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from topics.client.errors import BadAnswer
from topics.client.transport.answer import Answer

T = TypeVar("T")


class Written(msgspec.Struct):
    """Records were appended, with the seqs from `first_seq` to `last_seq`; `deduped`: by an earlier attempt."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool

    @property
    def seq(self) -> int:
        """The seq of the record, where it was one."""
        return self.last_seq


class Deleted(msgspec.Struct):
    """Records were deleted."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class DeletedTopic(msgspec.Struct):
    """A topic was deleted, or (`deleted` is false) did not exist."""

    topic: str
    deleted: bool
    routers_removed: list[str] = []


class Config(msgspec.Struct):
    """The config of a topic."""

    type: str = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: str = "old"
    durable: bool = False
    durability: str = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    backoff_ms: int = 0
    backoff_max_ms: int = 3_600_000


class Configured(msgspec.Struct):
    """A topic was created or configured. `unknown_fields` are those that the server has ignored: usually typos."""

    topic: str
    created: bool
    config: Config
    unknown_fields: list[str] = []


class QueueCounts(msgspec.Struct):
    """The jobs of a queue."""

    ready: int
    in_flight: int
    dead_lettered: int


class TopicState(msgspec.Struct):
    """The state of a topic right now."""

    topic: str
    type: str
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: Config
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    queue: QueueCounts | None = None
    erased_before_ts: int | None = None


class TopicSummary(msgspec.Struct):
    """One topic of a list."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    type: str = "log"


class RouterState(msgspec.Struct):
    """A router."""

    router: str
    source: str
    dest: str
    guarantee: str
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: Any = None
    allow_cycle: bool = False
    forwarded_total: int = 0
    created: bool = False
    unknown_fields: list[str] = []


class Settled(msgspec.Struct):
    """Jobs were acked, nacked or extended; `skipped` are the seqs whose lease this client no longer holds."""

    topic: str
    skipped: list[int]
    acked: int = 0
    nacked: int = 0
    extended: int = 0
    ready: int = 0
    in_flight: int = 0
    deadlines: dict[str, int] = {}


class LeaseState(msgspec.Struct):
    """A job of a queue that is leased or delayed: `deadline` is when its lease or its delay ends."""

    seq: int
    state: str
    node: str
    lease_id: str | None
    deadline: int
    deliveries: int


class Redriven(msgspec.Struct):
    """Dead letters that were made jobs again, by their seqs in the dead-letter topic."""

    topic: str
    dead_letter: str
    redriven: int
    seqs: list[int]
    dry_run: bool


class Health(msgspec.Struct):
    """A server that is alive."""

    status: str
    version: str = ""
    uptime_ms: int = 0


class Ready(msgspec.Struct):
    """A server that serves."""

    status: str
    topics: int = 0


class Identity(msgspec.Struct):
    """What a key may do; `prefixes` is empty where it may do so with every topic."""

    scopes: list[str]
    prefixes: list[str]
    key: str | None = None


class ConsumerState(msgspec.Struct):
    """Where a consumer had got to at its last commit: the cursor of each topic, and its lag where the topic exists."""

    consumer: str
    committed_ts: int
    cursors: dict[str, int]
    lag: dict[str, int]


class Decoder:
    """Decodes answers, each type of them with one decoder."""

    def __init__(self) -> None:
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

    def __call__(self, answer: Answer, shape: type[T]) -> T:
        """The body of an answer."""
        decoder = self._decoders.get(shape)
        if decoder is None:
            decoder = self._decoders[shape] = msgspec.json.Decoder(shape)
        try:
            return decoder.decode(answer.body)  # type: ignore[no-any-return]
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadAnswer(f"the answer is not from a topics server: {error}") from None


decode: Final = Decoder()
