"""AsyncProducer: many records, written in the background in large batches, each of them once. For asyncio.

The same as `Producer`, with a task in the place of its thread. It must be closed: an event loop that ends takes the
task with it. What is left then is lost, and a ResourceWarning says so.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping
from datetime import datetime
from time import monotonic
from typing import Any, Generic, Self, TypeVar

from topics.client.errors import Closed, TimedOut
from topics.client.operations.operation import arun
from topics.client.operations.outbox import Outbox, Parcel
from topics.client.operations.write import record_text
from topics.client.transport import waiting
from topics.errors import Internal, TopicsError

T = TypeVar("T")


class AsyncProducer(Generic[T]):
    """Writes to one topic. Any number of tasks may use it; `close` it, or use `async with`."""

    def __init__(self, topic: str, outbox: Outbox, pool: waiting.Pool, deadline_s: float) -> None:
        self.topic = topic
        self._outbox = outbox
        self._courier = waiting.Courier(pool)
        self._deadline_s = deadline_s
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._flushing = 0
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def __del__(self, warn: Any = warnings.warn) -> None:
        left = self._outbox.added - self._outbox.ended
        if left:
            warn(f"a producer of {self.topic} was not closed: {left:,} records are lost", ResourceWarning, source=self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.close()
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

    async def write(
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
        if outbox.failures or outbox.dead is not None or self._closing or not outbox.has_room:
            await self._admit()
        if outbox.add(text):
            if self._task is None:
                self._task = asyncio.create_task(self._serve(), name=f"topics-producer-{self.topic}")
            self._work.set()
            if outbox.full:
                # A loop that only writes would otherwise fill the buffer before anything is sent.
                await asyncio.sleep(0)

    async def _admit(self) -> None:
        """Wait for room; raises what the caller has to know."""
        until = monotonic() + self._deadline_s
        while True:
            if self._closing:
                raise Closed("the producer is closed")
            self._outbox.check()
            if self._outbox.has_room:
                return
            await self._write_ended(until - monotonic())

    async def _write_ended(self, timeout_s: float | None) -> None:
        """Wait until a write is over."""
        self._room.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._room.wait()
        except TimeoutError:
            raise TimedOut(f"the buffer of the producer has been full for {self._deadline_s:g} s") from None

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything that was given so far is stored; raises NotWritten for what is not.

        With `timeout_s`, raises TimedOut where that takes longer; what is left is still tried.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._flush()
        except TimeoutError:
            left = self._outbox.added - self._outbox.ended
            raise TimedOut(f"{left:,} records are not stored after {timeout_s:g} s") from None
        self._outbox.check()

    async def _flush(self) -> None:
        outbox = self._outbox
        goal = outbox.added
        self._flushing += 1
        self._work.set()
        try:
            while outbox.ended < goal and outbox.dead is None:
                await self._write_ended(None)
        finally:
            self._flushing -= 1

    async def close(self, timeout_s: float | None = None) -> None:
        """Store what is left, and end; raises NotWritten for what could not be stored.

        What is not stored after `timeout_s`, or when the wait is cancelled, is given up.
        """
        self._closing = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._flush()
        except TimeoutError:
            self._courier.interrupt()
        except asyncio.CancelledError:
            self._courier.interrupt()
            raise
        self._work.set()
        if self._task is not None:
            await self._task
            self._task = None
        if self._outbox.failures:
            self._outbox.check()
        dead, self._outbox.dead = self._outbox.dead, None
        if dead is not None:
            raise dead

    async def _serve(self) -> None:
        outbox = self._outbox
        while (parcel := await self._next()) is not None:
            try:
                written = await arun(outbox.send(parcel), self._courier)
            except TopicsError as error:
                outbox.refused(parcel, error)
            except Exception as error:
                # A defect of the library: the caller gets it, instead of waiting for ever.
                outbox.refused(parcel, Internal(f"the producer failed: {error!r}"))
            else:
                outbox.arrived(parcel, written)
            self._room.set()

    async def _next(self) -> Parcel | None:
        """What goes next, once it is time; None at the end."""
        outbox = self._outbox
        while outbox.dead is None:
            due_in_s = outbox.due_in_s
            if due_in_s is not None and (due_in_s <= 0 or self._flushing or self._closing):
                return outbox.take()
            if due_in_s is None and self._closing:
                return None
            self._work.clear()
            try:
                async with asyncio.timeout(due_in_s):
                    await self._work.wait()
            except TimeoutError:
                continue
        return None
