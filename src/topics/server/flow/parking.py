"""Parking: where writes and claims wait when the server is under pressure, and are refused when that does not help.

At the last rung of the ladder (pressure.py), or where the storage's queue or the memory for what is not sealed is full,
a request is parked: it goes on as soon as there is room again, and its answer says so in `throttle_wait_ms`; after
`WAIT_MS_MAX` it is answered 429 with `retry_after_ms`. A write with `disable_backpressure` is not held back by pressure
at all, and where the storage itself is full it waits up to `OPTED_OUT_WAIT_MS_MAX`, trading latency for not failing. At
most `PARKED_MAX` requests wait; one more is refused at once. What is parked keeps its order.

A claim hands out work, so under pressure it waits with the writes (PRESSURE-2). What ends work, an ack, nack or extend,
is never held back: it takes load off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from msgspec import Struct

from topics.clock import Clock
from topics.errors import Internal, Throttled, TopicsError
from topics.server.flow.pressure import REFUSE_WRITES, Pressure
from topics.storage.wal.shard import QueueFull

log = logging.getLogger("topics.server")

WAIT_MS_MAX: Final = 500
OPTED_OUT_WAIT_MS_MAX: Final = 10_000
PARKED_MAX: Final = 4_096
PUMP_S: Final = 0.01


class Writer(Protocol):
    """What asked for a write, and gets its answer: an exchange, or a publish on a WebSocket."""

    throttled_ns: int
    """How long the request was parked."""

    def fail(self, error: TopicsError) -> None:
        """Answer with an error."""


class Parked(Struct, eq=False):
    """A request that waits. `run` is None once its client has gone."""

    run: Callable[[], Any] | None
    writer: Writer
    opted_out: bool
    since_ns: int
    topic: str

    def leave(self) -> None:
        """The client has gone."""
        self.run = None


class Parking:
    """The requests that wait for the pressure to fall."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, pressure: Pressure) -> None:
        self._loop = loop
        self._clock = clock
        self._pressure = pressure
        self._timer: asyncio.TimerHandle | None = None
        self.waiting: deque[Parked] = deque()
        self.shut = False
        """Whether what did not opt out of backpressure has to wait."""
        self.parked_total = 0
        self.refused_total = 0
        """Requests that had to wait, and those that were refused, whether they had waited or not."""

    def set_level(self, level: int) -> None:
        """The pressure has changed."""
        self.shut = level >= REFUSE_WRITES

    def stop(self) -> None:
        """Let nothing go on any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def refuse_if_shut(self) -> None:
        """Raise where there is no use in waiting: a stream of jobs is opened again later."""
        if self.shut:
            raise self._refusal()

    def holds(self, topic: str) -> bool:
        """Whether a write to this topic waits: one that comes later must not overtake it."""
        return any(each.topic == topic for each in self.waiting)

    def park(self, run: Callable[[], Any], writer: Writer, *, opted_out: bool = False, topic: str = "") -> Parked:
        """Have `run` called when there is room, unless `writer.fail` is called before; raises where too much waits.

        `topic` is the one that is written to.
        """
        if len(self.waiting) >= PARKED_MAX:
            raise self._refusal()
        parked = Parked(run, writer, opted_out, self._clock.elapsed_ns(), topic)
        self.waiting.append(parked)
        self.parked_total += 1
        self._pump_soon()
        return parked

    def _pump_soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(PUMP_S, self._pump_on)

    def _pump_on(self) -> None:
        self._timer = None
        self.pump()
        if self.waiting:
            self._pump_soon()

    def pump(self) -> None:
        """Let what is parked go on as far as there is room, and refuse what has waited long enough."""
        now_ns = self._clock.elapsed_ns()
        full: QueueFull | None = None
        full_topics: dict[str, QueueFull] = {}
        kept: deque[Parked] = deque()
        parked, self.waiting = self.waiting, kept
        for each in parked:
            writer = each.writer
            if each.run is None:
                continue
            if full is None and each.topic not in full_topics and (each.opted_out or not self.shut):
                writer.throttled_ns = now_ns - each.since_ns
                try:
                    each.run()
                    continue
                except QueueFull as error:
                    if error.of_topic and each.topic:
                        full_topics[each.topic] = error
                    else:
                        full = error
                except TopicsError as error:
                    writer.fail(error)
                    continue
                except Exception:
                    log.exception("a parked request could not go on")
                    writer.fail(Internal())
                    continue
            if now_ns - each.since_ns >= (OPTED_OUT_WAIT_MS_MAX if each.opted_out else WAIT_MS_MAX) * 1_000_000:
                full_now = full_topics.get(each.topic) or full
                self.refused_total += full_now is not None
                writer.fail(full_now or self._refusal())
            else:
                kept.append(each)

    def _refusal(self) -> Throttled:
        self.refused_total += 1
        return Throttled(
            "the server is under pressure; retry later, or let a write wait with disable_backpressure",
            retry_after_ms=self._pressure.retry_after_ms,
        )
