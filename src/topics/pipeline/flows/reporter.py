"""Reporter: tells the server how flows are doing, in the topic `topics.pipelines`.

A report is a record tagged with the name of its flow; the last one of a name counts. A change of state is reported
within a second, everything else every few seconds, so that a report that is old means a flow that is gone. All reports
of a moment go in one write. The write that creates the topic gives it a cap and a TTL.

Reports are worth nothing to the flows themselves: where they cannot be stored, one warning is given, and nothing waits
for them. They have a thread of their own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from topics.client.operations.pipelines import PIPELINES_TOPIC, REPORTS_CONFIG, PipelineState
from topics.client.record import Draft
from topics.clock import Clock
from topics.commands.link import Target
from topics.errors import TopicsError
from topics.pipeline.flows.flows import Flow
from topics.pipeline.flows.lag import Lag, Lags, client_of

TICK_S: Final = 1.0
STEADY_MS: Final = 5_000
CHANGED_MS: Final = 1_000


class Reported(Protocol):
    """A flow that can be asked how it is."""

    @property
    def cursors(self) -> dict[str, int] | None:
        """How far it has got in each topic; None where that is not known."""

    def now(self) -> PipelineState:
        """The flow as it is now."""


class Reporter:
    """Reports flows, until it is closed."""

    def __init__(
        self,
        write: Callable[[list[Draft[PipelineState]]], None],
        flows: Sequence[tuple[Flow, Reported]],
        lag: Callable[[Flow, dict[str, int] | None], Lag],
        clock: Clock,
        warn: Callable[[str], None],
    ) -> None:
        """`write` stores reports or raises TopicsError; `warn` is called, once, where that does not work."""
        self._write = write
        self._flows = flows
        self._lag = lag
        self._clock = clock
        self._warn = warn
        self._reported: dict[str, tuple[str, int]] = {}
        self._silent = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.lags: dict[str, Lag] = {}
        """The lag of each flow when it was measured last."""

    def start(self) -> None:
        """Report from now on."""
        self._thread = threading.Thread(target=self._loop, name="reports", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report the end of every flow, and stop."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self.tick()

    def _loop(self) -> None:
        while not self._closed.wait(TICK_S):
            self.tick()

    def tick(self) -> None:
        """Report what is due. Raises nothing."""
        now_ms = self._clock.steady_ms()
        due = [(flow, state) for flow, kept in self._flows if self._is_due(state := kept.now(), now_ms)]
        if not due:
            return
        cursors = {flow.name: kept.cursors for flow, kept in self._flows}
        for flow, state in due:
            self.lags[flow.name] = lag = self._lag(flow, cursors[flow.name])
            state.lag, state.lag_s = lag
            self._reported[state.name] = state.state, now_ms
        try:
            self._write([Draft(data=state, tag=state.name) for _, state in due])
            self._silent = False
        except TopicsError as error:
            if not self._silent:
                self._warn(f"reports are not stored in {PIPELINES_TOPIC}: {error.message}")
            self._silent = True
            # A change that was not stored is reported at the next chance.
            for _, state in due:
                self._reported[state.name] = "", now_ms

    def _is_due(self, state: PipelineState, now_ms: int) -> bool:
        before, at_ms = self._reported.get(state.name, ("", now_ms - CHANGED_MS))
        if state.state != before:
            return now_ms - at_ms >= CHANGED_MS or state.ended
        return not state.ended and now_ms - at_ms >= STEADY_MS


@contextlib.contextmanager
def reporting(
    server: Target, flows: Sequence[tuple[Flow, Reported]], clock: Clock, warn: Callable[[str], None]
) -> Iterator[Reporter]:
    """A reporter of these flows for as long as they run."""
    lags = Lags()
    with contextlib.closing(lags), client_of(server) as client:
        topic: Any = client.topic(PIPELINES_TOPIC)

        def write(reports: list[Draft[PipelineState]]) -> None:
            topic.write_many(reports, config=REPORTS_CONFIG)

        reporter = Reporter(write, flows, lags.of, clock, warn)
        reporter.start()
        try:
            yield reporter
        finally:
            reporter.close()
