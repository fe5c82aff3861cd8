"""Outbox: what a producer has been given and a server has not yet acknowledged, in numbered batches.

Exactly once: a batch has a `producer_seq`, and the next one is sent only when it has ended. So a batch may be sent as
often as it takes, over any number of connections and restarts of the server: the server stores it once, and in order.
A number is used for one content only; a batch that the server refuses as too large is split under new numbers, and a
record that it refuses is left out of the batch. A server
that takes no more producers gets idempotency keys instead, which it remembers for as long as a batch is tried.

The outbox does no input and output and has no lock; the producers bring both. It is bounded: `has_room` says whether
more may be added.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final, TypedDict

import msgspec

from topics.client.answers import Written, decode
from topics.client.errors import Closed, NotWritten, Unreachable
from topics.client.operations.call import Patience, call
from topics.client.operations.operation import Operation
from topics.client.options import check_options
from topics.client.transport.request import Request
from topics.errors import BatchTooLarge, Conflict, PayloadTooLarge, TopicFull, TopicsError

BATCH_RECORDS: Final = 5_000
BATCH_BYTES: Final = 512 << 10
BUFFER_BYTES: Final = 32 << 20
DEADLINE_S: Final = 120.0
FAILURES_MAX: Final = 16
"""Most failures that wait for the caller to come back; after that they are only counted and logged."""
REFUSED_MAX: Final = 16
"""Most records that are left out of one batch, which is sent again for each, before the batch is given up."""
_FIELD: Final = re.compile(r"records\[(\d{1,9})\]")
_WAITED_FOR: Final = frozenset((TopicFull.status,))

log: Final = logging.getLogger("topics.client")
_encode: Final = msgspec.json.Encoder().encode


class ProducerOptions(TypedDict, total=False):
    """How a producer works.

    - `linger_ms`: how long a record may wait for others to share its write (5).
    - `batch_records`, `batch_bytes`: most in one write (5000, 512 KiB); `buffer_bytes`: most that may wait (32 MiB).
    - `deadline_s`: how long a write is tried before the producer gives up (120).
    - `producer_id`, `first_seq`: a name of your own, and the number of its first write; both by default fresh.
    - `create`, `config`: as for a write.
    """

    linger_ms: float
    batch_records: int
    batch_bytes: int
    buffer_bytes: int
    deadline_s: float
    producer_id: str
    first_seq: int
    create: bool
    config: Mapping[str, Any]


class Parcel:
    """Some records on their way: one write."""

    __slots__ = ("bytes", "number", "refused", "texts")

    def __init__(self, number: int, texts: list[bytes], size: int, refused: int = 0) -> None:
        """`refused` counts the records that were left out of it."""
        self.number = number
        self.texts = texts
        self.bytes = size
        self.refused = refused


class Outbox:
    """The records of one producer; `now` is a clock in seconds."""

    def __init__(
        self, target: bytes, patience: Patience, options: ProducerOptions, now: Callable[[], float] = monotonic
    ) -> None:
        self._target = target + b"?return_seqs=false"
        check_options("producer", options, ProducerOptions)
        self._patience = patience._replace(deadline_s=options.get("deadline_s", DEADLINE_S))
        self._linger_s = options.get("linger_ms", 5.0) / 1000
        self._batch_records = max(1, options.get("batch_records", BATCH_RECORDS))
        self._batch_bytes = options.get("batch_bytes", BATCH_BYTES)
        self._buffer_bytes = options.get("buffer_bytes", BUFFER_BYTES)
        self._now = now
        self.producer_id = options.get("producer_id") or uuid.uuid4().hex
        self._number = options.get("first_seq", 1)
        fields = {"create": options.get("create"), "config": options.get("config")}
        self._plain = _encode(fields)[:-1]
        self._id = _encode(self.producer_id)
        self._keyed = False
        self._texts: list[bytes] = []
        self._bytes = 0
        self._oldest_s = 0.0
        self._split: deque[Parcel] = deque()
        self._under_way_bytes = 0
        self.failures: list[NotWritten] = []
        self.dead: NotWritten | None = None
        self.added = self.ended = self.written = self.last_seq = 0

    @property
    def has_room(self) -> bool:
        """Whether another record may be added."""
        return self._bytes + self._under_way_bytes < self._buffer_bytes

    @property
    def full(self) -> bool:
        """Whether what waits should go now, without waiting for more."""
        return bool(self._split) or self._bytes >= self._batch_bytes or len(self._texts) >= self._batch_records

    @property
    def due_in_s(self) -> float | None:
        """How long what waits may wait for more; None where nothing waits."""
        if self.full:
            return 0.0
        return max(0.0, self._oldest_s + self._linger_s - self._now()) if self._texts else None

    def add(self, text: bytes) -> bool:
        """Take a record, given as text; whether there is something to do that there was not before."""
        texts = self._texts
        if not texts:
            self._oldest_s = self._now()
        texts.append(text)
        self._bytes += len(text)
        self.added += 1
        return len(texts) == 1 or self.full

    def take(self) -> Parcel | None:
        """What goes next, as much as fits into one write."""
        if self._split:
            return self._split.popleft()
        texts = self._texts
        if not texts:
            return None
        size = self._bytes
        if len(texts) > self._batch_records or size > self._batch_bytes:
            count = size = 0
            for text in texts:
                if count and (count == self._batch_records or size + len(text) > self._batch_bytes):
                    break
                count += 1
                size += len(text)
            self._texts, texts = texts[count:], texts[:count]
            self._oldest_s = 0.0
        else:
            self._texts = []
        self._bytes -= size
        self._under_way_bytes += size
        return self._parcel(texts, size)

    def _parcel(self, texts: list[bytes], size: int) -> Parcel:
        number = self._number
        self._number += 1
        return Parcel(number, texts, size)

    def send(self, parcel: Parcel) -> Operation[Written]:
        """Write a parcel, as often as it takes."""
        request = Request(b"POST", self._target, self._body(parcel))

        def noticed(failure: TopicsError) -> None:
            if failure.detail.get("limit") == "max_producers_per_topic" and not self._keyed:
                # The server does not know this producer, so nothing of it is stored: it may as well use keys.
                self._keyed = True
                request.body = self._body(parcel)

        answer = yield from call(request, self._patience, also=_WAITED_FOR, noticed=noticed)
        written = decode(answer, Written)
        if written.deduped and (request.attempts == 1 or written.count != len(parcel.texts)):
            # The server remembers another write under this number, so this one was dropped.
            raise Conflict(
                f'the producer "{self.producer_id}" has written {parcel.number} before: give each producer a name of'
                " its own, or first_seq"
            )
        return written

    def _body(self, parcel: Parcel) -> bytes:
        texts = b",".join(parcel.texts)
        if self._keyed:
            key = f"{self.producer_id}-{parcel.number}".encode()
            return b'%b,"idempotency_key":"%b","records":[%b]}' % (self._plain, key, texts)
        return b'%b,"producer_id":%b,"producer_seq":%d,"records":[%b]}' % (
            self._plain, self._id, parcel.number, texts,
        )  # fmt: skip

    def arrived(self, parcel: Parcel, written: Written) -> None:
        """A parcel is stored."""
        self._finished(parcel)
        self.written += len(parcel.texts)
        self.last_seq = written.last_seq

    def refused(self, parcel: Parcel, error: TopicsError) -> None:
        """A parcel could not be written."""
        index = _record_of(error)
        if index is not None and index < len(parcel.texts) and parcel.refused < REFUSED_MAX:
            self._leave_out(parcel, index, error)
            return
        if isinstance(error, BatchTooLarge | PayloadTooLarge) and len(parcel.texts) > 1:
            half = len(parcel.texts) // 2
            self._send_before([parcel.texts[:half], parcel.texts[half:]])
            self._batch_records = max(1, min(self._batch_records, half))
            return
        self._finished(parcel)
        if isinstance(error, Unreachable | Conflict | Closed) or error.status in (429, 503):
            self._end(parcel, error)
        else:
            self._note(NotWritten(error, parcel.texts))

    def _send_before(self, parts: list[list[bytes]], refused: int = 0) -> None:
        """Send these next, before everything else that waits, under new numbers."""
        for texts in reversed(parts):
            self._split.appendleft(Parcel(0, texts, sum(map(len, texts)), refused))
        for each in self._split:
            each.number = self._number
            self._number += 1

    def _leave_out(self, parcel: Parcel, index: int, error: TopicsError) -> None:
        """One record is what the server refuses: the others of the batch are sent without it."""
        text = parcel.texts.pop(index)
        self._finished(Parcel(0, [text], len(text)))
        self._note(NotWritten(error, [text]))
        if parcel.texts:
            self._send_before([parcel.texts], parcel.refused + 1)

    def _finished(self, parcel: Parcel) -> None:
        self._under_way_bytes -= parcel.bytes
        self.ended += len(parcel.texts)

    def _note(self, failure: NotWritten) -> None:
        log.error("%s", failure.message)
        if len(self.failures) < FAILURES_MAX:
            self.failures.append(failure)

    def _end(self, parcel: Parcel, error: TopicsError) -> None:
        """Give up, with everything that waits: to go on after a gap nobody knows the size of would break the order."""
        sent = isinstance(error, Closed) or (isinstance(error, Unreachable) and error.sent)
        maybe = len(parcel.texts) if sent else 0
        texts = list(parcel.texts)
        while (waiting := self.take()) is not None:
            self._finished(waiting)
            texts += waiting.texts
        self.dead = NotWritten(error, texts, maybe_written=maybe)
        log.error("%s", self.dead.message)

    def check(self) -> None:
        """Raise what the caller has to know: each failure once, and the last one always."""
        if self.failures:
            raise self.failures.pop(0)
        if self.dead is not None:
            raise self.dead


def _record_of(error: TopicsError) -> int | None:
    """Which record of a write the server refuses, where it says so."""
    found = _FIELD.match(str(error.detail.get("field", "")))
    return None if found is None else int(found[1])
