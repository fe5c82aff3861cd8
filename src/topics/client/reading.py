"""Reading: a topic from a cursor, batch by batch, to its head or for ever; where a read stands is all it remembers.

Nothing is skipped silently. A loss is part of a batch, before the records that come after it. A server that restarts, a
connection that breaks and a proxy that gives up cost time, and the read goes on from its cursor: a read as long as
a call may take, a follower for ever.

A topic that was deleted and created anew counts its seqs from 1 again, and a cursor of the old one may look like one of
the new. So a reader remembers the epoch of its topic, and asks for it again whenever it may have missed a change: after
a failure, and where its cursor comes from an earlier run. Another epoch is reported as a loss (`recreated`), and the
read begins at the start of the new topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar

import msgspec

from topics.client.answers import decode
from topics.client.calling import Patience, call, log, pause_of
from topics.client.errors import Unreachable
from topics.client.operation import Operation, Pause
from topics.client.record import Record, Tombstone, typed
from topics.client.transport.request import Request
from topics.errors import TopicNotFound, TopicsError

T = TypeVar("T")

OnLoss = Literal["raise", "yield"]
LIMIT: Final = 1_000
WAIT_MS: Final = 20_000
"""How long a server may hold a read that has nothing to deliver; well below what proxies tolerate."""
PASSING: Final = frozenset((408, 429, 500, 502, 503, 504))
"""Statuses that say nothing about the request, only about the moment."""

_encode: Final = msgspec.json.Encoder().encode


class ReadOptions(TypedDict, total=False):
    """What a read may ask for.

    - `from_seq`: the cursor, read what comes after it; `from_ts`: begin with the first record of that time or later, in
      milliseconds since the epoch.
    - `match`: only these tags: `"X"`, `["tag", "Eq", "X"]` or `["tag", "Glob", "X*"]`.
    - `node`: leave out the records of this node, or of these.
    - `limit`, `max_batch_bytes`: how much to fetch at a time.
    """

    from_seq: int
    from_ts: int
    match: str | Sequence[str]
    node: str | Sequence[str]
    limit: int
    max_batch_bytes: int


class FollowOptions(ReadOptions, total=False):
    """What a follower may ask for, beside what a read may.

    - `tail`: True begins at the head, with what is written from now on.
    - `missing`: `"raise"` (the default) raises TopicNotFound where the topic does not exist or is deleted, `"wait"`
      waits until it is created.
    - `epoch`: the epoch of `from_seq`, where it comes from an earlier run (`Reader.epoch`).
    """

    tail: bool
    missing: Literal["raise", "wait"]
    epoch: int


class _Plan(msgspec.Struct):
    epoch: int
    head_seq: int
    earliest_seq: int


class Place:
    """Where a reader stands in a topic: a cursor, and the epoch that it is of."""

    __slots__ = ("cursor", "epoch")

    def __init__(self, cursor: int = 0, epoch: int | None = None) -> None:
        self.cursor = cursor
        self.epoch = epoch

    def check(self, topic: str, target: bytes, patience: Patience) -> Operation[tuple[Tombstone | None, int]]:
        """Look whether the topic is still the same: a loss where it is not, and the head."""
        answer = yield from call(Request(b"GET", target + b"/plan"), patience)
        plan = decode(answer, _Plan)
        was, self.epoch = self.epoch, plan.epoch
        if was is None or was == plan.epoch or self.cursor == 0:
            return None, plan.head_seq
        last, self.cursor = self.cursor, plan.earliest_seq - 1
        lost = Tombstone(
            gap_from=1,
            gap_to=max(last, plan.earliest_seq - 1),
            reason="recreated",
            earliest_seq=plan.earliest_seq,
            head_seq=plan.head_seq,
            topic=topic,
        )
        return lost, plan.head_seq


class Batch(Generic[T]):
    """What one answer delivers, in order; `cursor` is the position after all of it."""

    __slots__ = ("caught_up", "cursor", "head_seq", "items")

    def __init__(self, items: list[Record[T] | Tombstone], cursor: int, head_seq: int, caught_up: bool) -> None:
        self.items = items
        self.cursor = cursor
        self.head_seq = head_seq
        self.caught_up = caught_up


class Reading(Generic[T]):
    """One read of one topic; `batch` is an operation."""

    def __init__(
        self,
        topic: str,
        target: bytes,
        data: Any,
        patience: Patience,
        options: FollowOptions,
        *,
        follow: bool,
    ) -> None:
        self.topic = topic
        self._target = target
        # A follower repeats its calls itself, because it has to look at the epoch after each failure.
        self._patience = patience._replace(retries=False, replaces=False) if follow else patience
        self._follow = follow
        self._shape = _shape(typed(Record, data))
        self._waits = options.get("missing") == "wait"
        self._tail = options.get("tail", False)
        self.epoch: int | None = options.get("epoch")
        self.cursor = options.get("from_seq", 0)
        self.head_seq = self.cursor
        self.caught_up = False
        self._doubt = follow
        self._fields: dict[str, Any] = {"include_tags": True, "limit": options.get("limit", LIMIT)}
        for name in ("from_ts", "match", "node", "max_batch_bytes"):
            if name in options:
                self._fields[name] = options[name]

    def batch(self) -> Operation[Batch[T] | None]:
        """What comes next; None at the end of a read that does not follow."""
        failures = 0
        while self._follow or not self.caught_up:
            try:
                if self._doubt:
                    lost = yield from self._check_epoch()
                    self._doubt = False
                    if lost is not None:
                        return Batch([lost], self.cursor, lost.head_seq, False)
                batch = yield from self._fetch()
            except TopicsError as failure:
                if not self._follow or not self._is_passing(failure):
                    raise
                self._doubt = True
                failures += 1
                if failures == 1 and isinstance(failure, Unreachable) and failure.reused:
                    continue
                pause_s = pause_of(failures, (failure.retry_after_ms or 0) / 1000)
                log.warning("following %s: trying again in %.2f s: %s", self.topic, pause_s, failure.message)
                yield Pause(pause_s)
                continue
            failures = 0
            if batch.items:
                return batch
        return None

    def _is_passing(self, failure: TopicsError) -> bool:
        if isinstance(failure, TopicNotFound):
            return self._waits
        return isinstance(failure, Unreachable) or failure.status in PASSING

    def _check_epoch(self) -> Operation[Tombstone | None]:
        """Whether the topic is still the one that the cursor is of; a loss where it is not."""
        place = Place(self.cursor, self.epoch)
        lost, head_seq = yield from place.check(self.topic, self._target, self._patience)
        self.cursor, self.epoch = place.cursor, place.epoch
        if self._tail:
            self._tail = False
            self.cursor = head_seq
        return lost

    def _fetch(self) -> Operation[Batch[T]]:
        waits = self._follow and self.caught_up
        fields = {"from_seq": self.cursor, "wait_ms": WAIT_MS if waits else 0, **self._fields}
        request = Request(b"POST", self._target + b"/diff", _encode(fields))
        patience = self._patience
        if waits:
            request.timeout_s = WAIT_MS / 1000 + patience.timeout_s
            patience = patience._replace(deadline_s=WAIT_MS / 1000 + patience.deadline_s)
        answer = yield from call(request, patience)
        found = decode(answer, self._shape)
        # From here on the cursor says where to begin.
        self._fields.pop("from_ts", None)
        items: list[Record[T] | Tombstone] = found.records
        topic = self.topic
        for item in items:
            item.topic = topic
        if found.tombstone is not None:
            found.tombstone.topic = topic
            items.insert(0, found.tombstone)
        self.cursor = found.next_from_seq
        self.head_seq = found.head_seq
        self.caught_up = found.caught_up
        return Batch(items, self.cursor, self.head_seq, self.caught_up)


_shapes: Final[dict[Any, Any]] = {}


def _shape(record: Any) -> Any:
    """The shape of an answer with records of a type."""
    found = _shapes.get(record)
    if found is None:
        fields: list[Any] = [
            ("records", list[record]), ("next_from_seq", int), ("head_seq", int), ("caught_up", bool),
            ("tombstone", Tombstone | None, None),
        ]  # fmt: skip
        found = _shapes[record] = msgspec.defstruct("Diff", fields)
    return found
