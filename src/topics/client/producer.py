"""Producer: many records, written in the background in large batches, each of them once. For threads.

`write` only puts a record into a bounded buffer, and waits where that is full. A thread of its own sends what has
gathered (`outbox`). What could not be written is raised by the next `write`, `flush` or `close`: nothing is lost
without a word. A program that ends without `close` is held up until the buffer is empty or the deadline is over.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import weakref
from collections.abc import Mapping
from datetime import datetime
from time import monotonic
from typing import Any, Final, Generic, Self, TypeVar

from topics.client.errors import Closed, NotWritten, TimedOut
from topics.client.operations.operation import run
from topics.client.operations.outbox import Outbox, Parcel
from topics.client.operations.write import record_text
from topics.client.transport import blocking, forks
from topics.errors import Internal, TopicsError

T = TypeVar("T")

ABANDON_S: Final = 1.0
log: Final = logging.getLogger("topics.client")


class Producer(Generic[T]):
    """Writes to one topic. Any number of threads may use it; `close` it, or use it in a `with` block."""

    def __init__(self, topic: str, outbox: Outbox, pool: blocking.Pool, deadline_s: float) -> None:
        self.topic = topic
        self._outbox = outbox
        self._courier = blocking.Courier(pool)
        self._deadline_s = deadline_s
        self._forks = forks.count
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._flushing = 0
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name=f"topics-producer-{topic}", daemon=True)
        self._thread.start()
        _open.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except TopicsError:
            # What went wrong first matters more; the failure is in the log.
            if kind is None:
                raise

    @property
    def producer_id(self) -> str:
        """The name under which the server counts this producer's writes."""
        return self._outbox.producer_id

    @property
    def written(self) -> int:
        """How many records are stored."""
        return self._outbox.written

    @property
    def last_seq(self) -> int:
        """The seq of the last record that is stored."""
        return self._outbox.last_seq

    def write(
        self,
        data: T,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        delay_ms: int | None = None,
        deliver_at: int | datetime | None = None,
    ) -> None:
        """Put a record into the buffer; waits where that is full.

        Raises NotWritten for records before it, and has not taken this one then.
        """
        text = record_text(data, tag, node, meta, delay_ms, deliver_at)
        outbox = self._outbox
        if self._forks != forks.count:
            raise Closed("the producer was made in another process: make one after the fork")
        with self._lock:
            if outbox.failures or outbox.dead is not None or self._closing or not outbox.has_room:
                self._admit()
            if outbox.add(text):
                self._work.notify()

    def _admit(self) -> None:
        """Wait for room; raises what the caller has to know."""
        until = monotonic() + self._deadline_s
        while True:
            if self._closing:
                raise Closed("the producer is closed")
            self._outbox.check()
            if self._outbox.has_room:
                return
            if not self._room.wait(until - monotonic()) and monotonic() >= until:
                raise TimedOut(f"the buffer of the producer has been full for {self._deadline_s:g} s")

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything that was given so far is stored; raises NotWritten for what is not.

        With `timeout_s`, raises TimedOut where that takes longer; what is left is still tried.
        """
        if self._forks != forks.count:
            raise Closed("the producer was made in another process: make one after the fork")
        with self._lock:
            self._flush(timeout_s)
            self._outbox.check()

    def _flush(self, timeout_s: float | None) -> None:
        outbox = self._outbox
        goal = outbox.added
        until = None if timeout_s is None else monotonic() + timeout_s
        self._flushing += 1
        self._work.notify()
        try:
            while outbox.ended < goal and outbox.dead is None:
                if until is not None and monotonic() >= until:
                    raise TimedOut(f"{goal - outbox.ended:,} records are not stored after {timeout_s:g} s")
                self._room.wait(None if until is None else until - monotonic())
        finally:
            self._flushing -= 1

    def close(self, timeout_s: float | None = None) -> None:
        """Store what is left, and end; raises NotWritten for what could not be stored.

        What is not stored after `timeout_s`, or when the wait is interrupted (Ctrl-C), is given up.
        """
        if self._forks != forks.count:
            return
        try:
            with self._lock:
                self._closing = True
                with contextlib.suppress(TimedOut):
                    self._flush(timeout_s)
                if self._outbox.ended < self._outbox.added and self._outbox.dead is None:
                    self._courier.interrupt()
                self._work.notify()
            self._thread.join()
        except BaseException:
            # Long enough to log what is given up.
            self._courier.interrupt()
            self._thread.join(ABANDON_S)
            raise
        finally:
            _open.discard(self)
        with self._lock:
            if self._outbox.failures:
                self._outbox.check()
            dead, self._outbox.dead = self._outbox.dead, None
        if dead is not None:
            raise dead

    def _serve(self) -> None:
        while True:
            with self._lock:
                parcel = self._next()
            if parcel is None:
                return
            error: TopicsError | None = None
            try:
                written = run(self._outbox.send(parcel), self._courier)
            except TopicsError as failure:
                error = failure
            except Exception as failure:
                # A defect of the library: the caller gets it, instead of waiting for ever.
                error = Internal(f"the producer failed: {failure!r}")
            with self._lock:
                if error is None:
                    self._outbox.arrived(parcel, written)
                else:
                    self._outbox.refused(parcel, error)
                self._room.notify_all()

    def _next(self) -> Parcel | None:
        """What goes next, once it is time; None at the end."""
        outbox = self._outbox
        while outbox.dead is None:
            due_in_s = outbox.due_in_s
            if due_in_s is not None and (due_in_s <= 0 or self._flushing or self._closing):
                return outbox.take()
            if due_in_s is None and self._closing:
                return None
            self._work.wait(due_in_s)
        return None


_open: Final[weakref.WeakSet[Producer[Any]]] = weakref.WeakSet()


@atexit.register
def _finish() -> None:
    for producer in list(_open):
        try:
            producer.close()
        except NotWritten as error:
            log.error("a producer of %s was not closed: %s", producer.topic, error.message)
