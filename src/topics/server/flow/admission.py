"""Admission: where writes and claims wait when the server is under pressure, and are refused when that does not help.

In calm times a write goes straight to the engine. At the last rung of the ladder, or where the storage's queue is
full, it is parked: it goes on as soon as there is room again, and says so in `throttle_wait_ms`; after `WAIT_MS_MAX` it
is answered 429 with `retry_after_ms`. A write with `disable_backpressure` is not held back by pressure at all, and
where the storage itself is full it waits as long as `OPTED_OUT_WAIT_MS_MAX`, trading latency for not failing. At most
`PARKED_MAX` writes wait; one more is refused at once. Parked writes keep their order.

A claim hands out work, so under pressure it waits with the writes (API §10.2). What ends work, an ack, nack or extend,
is never held back: it takes load off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from topics.errors import Throttled, TopicsError
from topics.server.flow.gathering import Gathering
from topics.storage.wal.shard import QueueFull

if TYPE_CHECKING:
    from topics.engine import Engine
    from topics.engine.requests import Write
    from topics.engine.write.ticket import OnDone
    from topics.server.flow.pressure import Pressure

WAIT_MS_MAX: Final = 500
OPTED_OUT_WAIT_MS_MAX: Final = 10_000
PARKED_MAX: Final = 4_096


class Writer(Protocol):
    """Who asked for a write, and is told what came of it."""

    throttled_ns: int
    """How long the write was parked."""

    def fail(self, error: TopicsError) -> None:
        """Answer with an error."""


class _Parked:
    """A request that waits. `run` is None once nobody waits for it any more."""

    __slots__ = ("deadline_ns", "opted_out", "run", "since_ns", "writer")

    def __init__(self, run: Callable[[], None], writer: Writer, opted_out: bool, since_ns: int) -> None:
        self.run: Callable[[], None] | None = run
        self.writer = writer
        self.opted_out = opted_out
        self.since_ns = since_ns
        self.deadline_ns = since_ns + (OPTED_OUT_WAIT_MS_MAX if opted_out else WAIT_MS_MAX) * 1_000_000

    def leave(self) -> None:
        """Whoever waited is gone."""
        self.run = None


class Admission:
    """The way of a write to the engine."""

    def __init__(self, engine: Engine, pressure: Pressure, on_parked: Callable[[], None]) -> None:
        """`on_parked` is called when a write begins to wait: `pump` has to be called until none does."""
        self._engine = engine
        self._pressure = pressure
        self._on_parked = on_parked
        self._parked: deque[_Parked] = deque()
        self.gathering = Gathering(engine, self._write_alone)
        self.shut = False
        """Whether writes are held back; the governor says so."""

    @property
    def parked(self) -> int:
        """How many writes wait."""
        return len(self._parked)

    def write(self, name: str, write: Write, on_done: OnDone, writer: Writer) -> None:
        """Append, now or when there is room; `on_done` gets the ticket, whose context is `writer`.

        Raises where the write is refused at once; `writer.fail`, or `on_done` with a ticket that has failed, is called
        where it is refused later.
        """
        held = (self.shut and not write.disable_backpressure) or self._parked
        if held or not self.gathering.add(name, write, on_done, writer):
            self._write_alone(name, write, on_done, writer)

    def _write_alone(self, name: str, write: Write, on_done: OnDone, writer: Writer) -> None:
        if not ((self.shut and not write.disable_backpressure) or self._parked):
            try:
                self._engine.write(name, write, on_done, writer)
            except QueueFull:
                pass
            else:
                return
        self._park(lambda: self._engine.write(name, write, on_done, writer), writer, write.disable_backpressure)

    def park_claim(self, run: Callable[[], None], writer: Writer) -> Callable[[], None]:
        """Have a claim wait, as `shut` asks; what to call where the client goes away meanwhile. Raises as `write`."""
        return self._park(run, writer, opted_out=False).leave

    def refuse_if_shut(self) -> None:
        """Raise where there is no use in waiting: a stream of jobs is opened again later."""
        if self.shut:
            raise self._refusal()

    def _park(self, run: Callable[[], Any], writer: Writer, opted_out: bool) -> _Parked:
        if len(self._parked) >= PARKED_MAX:
            raise self._refusal()
        parked = _Parked(run, writer, opted_out, self._engine.clock.elapsed_ns())
        self._parked.append(parked)
        self._on_parked()
        return parked

    def pump(self) -> None:
        """Let what is parked go on as far as there is room, and refuse what has waited long enough."""
        now_ns = self._engine.clock.elapsed_ns()
        full = False
        kept: deque[_Parked] = deque()
        parked, self._parked = self._parked, kept
        for each in parked:
            writer = each.writer
            if each.run is None:
                continue
            if not full and (each.opted_out or not self.shut):
                writer.throttled_ns = now_ns - each.since_ns
                try:
                    each.run()
                    continue
                except QueueFull:
                    full = True
                except TopicsError as error:
                    writer.fail(error)
                    continue
            if now_ns >= each.deadline_ns:
                writer.fail(self._refusal())
            else:
                kept.append(each)

    def _refusal(self) -> Throttled:
        return Throttled(
            "the server is under pressure; retry later, or let a write wait with disable_backpressure",
            retry_after_ms=self._pressure.retry_after_ms,
        )
