"""Watching: several topics at once, over one stream of server-sent events, from cursors of our own.

The server's session is thrown away with its stream: a new one is made from our cursors, so that nothing depends on what
a server remembers. Topics that do not exist are looked for from time to time; one that was deleted and created anew is
reported as a loss, as in `reading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from topics.client.answers import decode
from topics.client.calling import Patience, call, log, pause_of
from topics.client.errors import Unreachable, refusal
from topics.client.operation import Close, Open, Operation, Pause, Read
from topics.client.reading import LIMIT, PASSING, Batch, FollowOptions, Place
from topics.client.record import Record, Tombstone, typed
from topics.client.transport.answer import Answer
from topics.client.transport.events import Event, EventParser
from topics.client.transport.request import EVENTS, Request, path
from topics.errors import TopicNotFound, TopicsError

T = TypeVar("T")

HEARTBEAT_MS: Final = 5_000
SILENCE_S: Final = 15.0
"""A stream that is silent for three heartbeats is dead."""
MISSING_S: Final = 1.0
"""How often topics that do not exist are looked for."""
_PACED: Final = 429


class _Session(msgspec.Struct):
    stream_url: str


class _Deleted(msgspec.Struct):
    topic: str


class _Error(msgspec.Struct):
    code: int
    error: str = ""


class Watching(Generic[T]):
    """One watch of several topics; `batch` is an operation."""

    def __init__(self, places: Mapping[str, Place], data: Any, patience: Patience, options: FollowOptions) -> None:
        self.places = dict(places)
        self.heads: dict[str, int] = {name: place.cursor for name, place in places.items()}
        self._patience = patience._replace(retries=False, replaces=False)
        self._waits = options.get("missing") == "wait"
        self._tail = set(places) if options.get("tail") else set()
        self._missing: set[str] = set()
        self._looked_at = 0.0
        self._watched = {"match": options["match"]} if "match" in options else {}
        self._fields: dict[str, Any] = {"include_tags": True, "limit": options.get("limit", LIMIT)}
        for name in ("node", "max_batch_bytes"):
            if name in options:
                self._fields[name] = options[name]
        self._frame = msgspec.json.Decoder(_frame(typed(Record, data)))
        self._events = EventParser()
        self._waiting: list[Event] = []
        self._open = False

    def batch(self) -> Operation[Batch[T]]:
        """What comes next."""
        failures = 0
        while True:
            try:
                if not self._open:
                    lost = yield from self._connect()
                    if lost:
                        return Batch(lost, 0, 0, False)
                batch = yield from self._next()
            except TopicsError as failure:
                yield from self._drop()
                if not self._is_passing(failure):
                    raise
                failures += 1
                pause_s = pause_of(failures, (failure.retry_after_ms or 0) / 1000)
                log.warning("following %s: trying again in %.2f s: %s", self._names(), pause_s, failure.message)
                yield Pause(pause_s)
                continue
            if batch is not None:
                return batch

    def _names(self) -> str:
        names = sorted(self.places)
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    def _is_passing(self, failure: TopicsError) -> bool:
        if isinstance(failure, TopicNotFound):
            return self._waits
        return isinstance(failure, Unreachable) or failure.status in PASSING or failure.code == "not_found"

    def _drop(self) -> Operation[None]:
        self._open = False
        self._events = EventParser()
        self._waiting = []
        yield Close()

    def _connect(self) -> Operation[list[Record[T] | Tombstone]]:
        """Open a stream; or the losses that were found before."""
        lost: list[Record[T] | Tombstone] = []
        self._missing = set()
        for name, place in self.places.items():
            try:
                gap, head_seq = yield from place.check(name, path("v0", "topics", name), self._patience)
            except TopicNotFound:
                if not self._waits:
                    raise
                self._missing.add(name)
                continue
            if name in self._tail:
                self._tail.discard(name)
                place.cursor = head_seq
            self.heads[name] = head_seq
            if gap is not None:
                lost.append(gap)
        self._looked_at = self._patience.now()
        if lost:
            return lost
        wanted = {
            name: {"from_seq": place.cursor, **self._watched}
            for name, place in self.places.items()
            if name not in self._missing
        }
        if not wanted:
            raise TopicNotFound(f"none of the topics exists: {self._names()}")
        heartbeat_ms = 1_000 if self._missing else HEARTBEAT_MS
        body = msgspec.json.encode({"topics": wanted, "heartbeat_ms": heartbeat_ms, **self._fields})
        answer = yield from call(Request(b"POST", b"/v0/watch", body), self._patience)
        request = Request(b"GET", decode(answer, _Session).stream_url.encode(), fields=EVENTS)
        request.timeout_s = self._patience.timeout_s
        request.until = self._patience.now() + self._patience.deadline_s
        refused: Answer | None = yield Open(request)
        if refused is not None:
            raise refusal(refused.status, refused.body)
        self._open = True
        return []

    def _next(self) -> Operation[Batch[T] | None]:
        """The next batch out of the stream, or None where there is none yet."""
        while self._waiting:
            batch = self._take(self._waiting.pop(0))
            if batch is not None:
                return batch
        chunk: bytes = yield Read(SILENCE_S)
        if not chunk:
            raise Unreachable("the stream has ended", sent=True)
        self._waiting = self._events.feed(chunk)
        if self._missing and self._patience.now() - self._looked_at > MISSING_S:
            yield from self._look()
        return None

    def _look(self) -> Operation[None]:
        """Look for topics that did not exist; where there is one, the stream is opened again with it."""
        self._looked_at = self._patience.now()
        for name in sorted(self._missing):
            try:
                yield from call(Request(b"GET", path("v0", "topics", name) + b"/plan"), self._patience)
            except TopicNotFound:
                continue
            # What has arrived and was not delivered is read again, from our cursors.
            yield from self._drop()
            return

    def _take(self, event: Event) -> Batch[T] | None:
        if event.kind == b"record":
            frame = self._frame.decode(event.data)
            items: list[Record[T] | Tombstone] = frame.records
            for item in items:
                item.topic = frame.topic
            self.places[frame.topic].cursor = frame.to_seq
            self.heads[frame.topic] = frame.head_seq
            return Batch(items, frame.to_seq, frame.head_seq, frame.to_seq == frame.head_seq) if items else None
        if event.kind == b"tombstone":
            gap = msgspec.json.decode(event.data, type=Tombstone)
            self.places[gap.topic].cursor = gap.next_from_seq
            self.heads[gap.topic] = max(self.heads[gap.topic], gap.head_seq)
            return Batch([gap], gap.next_from_seq, gap.head_seq, False)
        if event.kind == b"topic-deleted":
            raise TopicNotFound(f'topic "{msgspec.json.decode(event.data, type=_Deleted).topic}" was deleted')
        if event.kind == b"error":
            error = msgspec.json.decode(event.data, type=_Error)
            if error.code != _PACED:
                raise Unreachable(f"the server has ended the stream: {error.error}", sent=True)
        return None


_frames: Final[dict[Any, Any]] = {}


def _frame(record: Any) -> Any:
    """The shape of a `record` event with records of a type."""
    found = _frames.get(record)
    if found is None:
        fields: list[Any] = [("topic", str), ("records", list[record]), ("to_seq", int), ("head_seq", int)]
        found = _frames[record] = msgspec.defstruct("Frame", fields)
    return found
