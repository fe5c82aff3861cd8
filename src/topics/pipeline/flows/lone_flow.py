"""LoneFlow: a pipeline that runs alone, as its reports show it. There is nobody to begin it again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from topics.client.operations.pipelines import PipelineState
from topics.clock import Clock
from topics.commands.link import Target
from topics.pipeline.checkpoint import cursors_of
from topics.pipeline.flows.flows import Flow
from topics.pipeline.flows.keeper import short
from topics.pipeline.flows.secrets import Secrets
from topics.pipeline.progress import Progress

NAME_CHARS_MAX: Final = 100
QUIET_MS: Final = 10_000
"""If nothing came for so long, the rate of the last batch says nothing any more."""


class LoneFlow:
    """One pipeline and its progress, which another thread moves on."""

    def __init__(self, flow: Flow, progress: Progress, clock: Clock, secrets: Secrets) -> None:
        self._flow = flow
        self._progress = progress
        self._clock = clock
        self._secrets = secrets
        self._known = None if flow.checkpoint is None else cursors_of(flow.checkpoint)
        self._ended: tuple[str, str | None] | None = None
        self._turn = threading.Lock()
        self._state = "starting"
        self._since = clock.now_ms()
        self._rows, self._rows_ms = 0, clock.steady_ms()

    @property
    def cursors(self) -> dict[str, int] | None:
        """How far it has got in each topic."""
        done = dict(self._progress.cursors)
        return {**(self._known or {}), **done} if done else self._known

    def end(self, state: str, error: str | None = None) -> None:
        """It has ended."""
        self._ended = state, error

    def now(self) -> PipelineState:
        """The pipeline as it is now."""
        progress, cursors = self._progress, self.cursors or {}
        state, error = self._ended or (
            "running" if progress.batch != "starting" or progress.cursors else "starting",
            None,
        )
        with self._turn:
            if state != self._state:
                self._state, self._since = state, self._clock.now_ms()
            if progress.records != self._rows:
                self._rows, self._rows_ms = progress.records, self._clock.steady_ms()
            flows = self._ended is None and self._clock.steady_ms() - self._rows_ms < QUIET_MS
        return PipelineState(
            name=self._flow.name,
            kind=self._flow.kind,
            topic=self._flow.topic,
            state=state,
            seq=cursors.get(self._flow.topic),
            rows=progress.records,
            rate=round(progress.rate, 1) if flows else 0.0,
            error=None if error is None else short(error, self._secrets),
            since=self._since,
        )


def lone_flow(
    kind: str, name: str | None, server: dict[str, str], topics: list[str], prefix: str | None, checkpoint: Path | None
) -> Flow:
    """What a command runs, as a flow; by default it is called after what it does."""
    place = Target(server["url"], server.get("token"))
    what = f"{prefix}*" if prefix is not None else ",".join(topics)
    shown = (name or f"{kind}:{what}")[:NAME_CHARS_MAX]
    return Flow(shown, kind, place, tuple(topics), prefix, "", checkpoint, lambda: None)
