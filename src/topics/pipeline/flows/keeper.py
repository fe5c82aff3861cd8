"""Keeper: keeps one flow running, whatever happens to it.

A flow that fails is begun again after a pause that doubles with each failure, up to a limit; one that has run for a
while without a failure begins with the shortest pause again. What a flow does, and how it fails, concerns nobody else:
each has a keeper, and each keeper a thread of its own (`supervisor`).

A keeper does nothing by itself. `step` looks at the flow once, and time comes from a clock, so that tests can go
through a day of failures by hand.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from topics.client.operations.pipelines import ENDED, PipelineState
from topics.clock import Clock
from topics.pipeline.errors import reason
from topics.pipeline.flows.flows import Restart
from topics.pipeline.flows.secrets import Secrets

ERROR_CHARS_MAX: Final = 300
JITTER: Final = 0.2
"""Pauses differ by this much, so that flows that fail together do not all come back at once."""


class Run(Protocol):
    """A flow that was started, until it ends."""

    def look(self) -> bool:
        """Take in what it has done since the last look; whether there is anything new."""

    @property
    def rows(self) -> int:
        """How many rows it has done."""

    @property
    def rate(self) -> float:
        """Rows per second of the last batch."""

    @property
    def line(self) -> str:
        """What it has done, in a line for people."""

    @property
    def cursors(self) -> dict[str, int] | None:
        """How far it has got in each topic; None where that is not known."""

    @property
    def active(self) -> bool:
        """Whether it runs."""

    @property
    def idle(self) -> bool:
        """Whether it is between two batches; the next one has nothing to do once it was asked to stop."""

    def failure(self) -> str | None:
        """Why it ended; None if it ended well."""

    def stop(self) -> None:
        """End it now, wherever it is, and free what it holds. May be called again."""


class Asked(Protocol):
    """How often it was asked to stop: once lets batches finish, twice does not."""

    asked: int


class Pauses:
    """How long to wait after each failure in a row."""

    def __init__(self, restart: Restart, chance: Callable[[], float] = random.random) -> None:
        self._restart = restart
        self._chance = chance
        self._failures = 0

    def next_ms(self) -> int:
        """The pause after one more failure."""
        # Beyond this many doublings every pause is the longest.
        pause = min(self._restart.most_ms, self._restart.first_ms << min(self._failures, 40))
        self._failures += 1
        return max(1, round(pause * (1 + JITTER * (2 * self._chance() - 1))))

    def calm(self) -> None:
        """It has run for long enough."""
        self._failures = 0


class Keeper:
    """One flow and its state. `step` belongs to one thread, everything else may be asked by any."""

    def __init__(
        self,
        name: str,
        kind: str,
        topic: str,
        start: Callable[[], Run],
        restart: Restart,
        clock: Clock,
        stop: Asked,
        secrets: Secrets,
        *,
        once: bool = False,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`start` may take long and may raise anything. With `once` the flow ends when it has done everything."""
        self._start = start
        self._pauses = Pauses(restart, chance)
        self._calm_ms = restart.calm_ms
        self._clock = clock
        self._stop = stop
        self._secrets = secrets
        self._once = once
        self._run: Run | None = None
        self._rows_before = 0
        self._due_ms = 0
        self._began_ms = 0
        self._single = topic
        self._turn = threading.Lock()
        self.pause_ms = 0
        """How long it waits, or waited last, for its next start."""
        self.cursors: dict[str, int] | None = None
        """How far it has got in each topic."""
        self.line = ""
        """What it has done, in a line for people."""
        self._state = PipelineState(name=name, kind=kind, topic=topic, state="starting", since=clock.now_ms())

    @property
    def name(self) -> str:
        """The name of the flow."""
        return self._state.name

    @property
    def state(self) -> str:
        """What the flow is doing."""
        return self._state.state

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to do."""
        return self._state.state in ENDED

    def now(self) -> PipelineState:
        """The flow as it is now; its lag is not known here."""
        with self._turn:
            return msgspec.structs.replace(self._state)

    def step(self) -> None:
        """Look at the flow once, and do what is due. Raises nothing."""
        try:
            self._step()
        except Exception as failure:
            self._fail(reason(failure))

    def _step(self) -> None:
        if self.ended:
            return
        if self._run is None:
            self._begin()
            return
        run = self._run
        self._look(run)
        if not run.active:
            self._ended_by_itself(run)
        elif self._stop.asked > 1 or (self._stop.asked and not self._once and run.idle):
            self._end(run, "stopped")
        elif self._stop.asked:
            self._become("stopping")
        elif self._clock.steady_ms() - self._began_ms >= self._calm_ms:
            self._pauses.calm()
            self._set(error=None)

    def _begin(self) -> None:
        if self._stop.asked:
            self._become("stopped")
            return
        if self._clock.steady_ms() < self._due_ms:
            return
        self._become("starting")
        self._run = run = self._start()
        self._began_ms = self._clock.steady_ms()
        self._note(run)
        self._become("running")

    def _look(self, run: Run) -> None:
        if not run.look():
            return
        self.line = run.line
        self._note(run)

    def _note(self, run: Run) -> None:
        self.cursors = run.cursors if run.cursors is not None else self.cursors
        seq = (self.cursors or {}).get(self._single)
        self._set(rows=self._rows_before + run.rows, rate=round(run.rate, 1), seq=seq)

    def _ended_by_itself(self, run: Run) -> None:
        failure = run.failure()
        self._look(run)
        if failure is not None and self._stop.asked < 2:
            self._fail(failure)
        elif self._once or self._stop.asked:
            self._end(run, "stopped" if self._stop.asked else "done")
        else:
            self._fail("it ended by itself")

    def _end(self, run: Run, state: str) -> None:
        run.stop()
        self._look(run)
        self._run = None
        self._set(rate=0.0)
        self._become(state)

    def _fail(self, failure: str) -> None:
        """Note a failure, free what the flow holds, and say when it begins again."""
        run, self._run = self._run, None
        if run is not None:
            self._rows_before += run.rows
            try:
                run.stop()
            except Exception as second:
                failure = failure or reason(second)
        self._set(error=short(failure, self._secrets), rate=0.0)
        if self._once or self._stop.asked:
            # One that fails while it is to stop is begun again at the next start, as any other.
            self._become("failed" if self._once else "stopped")
            return
        self.pause_ms = self._pauses.next_ms()
        self._due_ms = self._clock.steady_ms() + self.pause_ms
        self._set(restarts=self._state.restarts + 1)
        self._become("waiting")

    def _become(self, state: str) -> None:
        if state != self._state.state:
            self._set(state=state, since=self._clock.now_ms())

    def _set(self, **fields: Any) -> None:
        with self._turn:
            for name, value in fields.items():
                setattr(self._state, name, value)


def short(failure: str, secrets: Secrets) -> str:
    """What went wrong on one line of bounded length, without secrets."""
    error = secrets.hidden(" ".join(failure.split()))
    return error if len(error) <= ERROR_CHARS_MAX else error[: ERROR_CHARS_MAX - 3] + "..."
