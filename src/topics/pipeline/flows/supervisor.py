"""Supervisor: several flows in one application, each with a keeper in a thread of its own.

The first signal lets every flow finish its batch, the second ends the process at once, whatever a flow or Spark is busy
with: what was not committed is done again at the next start, and counts once all the same. If Spark itself is gone, no
flow can begin again, and the application ends, so that what runs it can start it again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from topics.commands.failures import EXIT_FAILED, EXIT_INTERRUPTED
from topics.commands.spans import shown_span
from topics.pipeline.display import Display
from topics.pipeline.flows.keeper import Keeper
from topics.pipeline.flows.lag import Lag
from topics.pipeline.stop import Stop

POLL_S: Final = 0.25
ALIVE_EVERY_S: Final = 2.0
PATIENCE_S: Final = 5.0
"""How long the end of the process waits for queries to stop after the second signal."""
LINE_EVERY_S: Final = 10.0
"""How often the progress of a flow is a line, where nobody looks at a terminal."""


class Signals(Stop):
    """Signals for several flows: the second one ends the process soon, also where nothing listens."""

    def __init__(self, leave: Callable[[int], Any] = os._exit) -> None:
        super().__init__()
        self._leave = leave

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        super()._on_signal(number, frame)
        if self.asked == 2:
            last = threading.Timer(PATIENCE_S, self._leave, (EXIT_INTERRUPTED,))
            last.daemon = True
            last.start()


class Supervisor:
    """Runs keepers until each of them has ended."""

    def __init__(
        self, keepers: Sequence[Keeper], stop: Stop, alive: Callable[[], bool], show: Callable[[], None]
    ) -> None:
        """`alive` says whether Spark is there, `show` is called every now and then."""
        self._keepers = keepers
        self._stop = stop
        self._alive = alive
        self._show = show

    def run(self) -> int:
        """The exit code of the application."""
        threads = [
            threading.Thread(target=self._keep, args=(each,), name=each.name, daemon=True) for each in self._keepers
        ]
        for thread in threads:
            thread.start()
        looked_s = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            # Signals are handled between two waits.
            time.sleep(POLL_S)
            self._show()
            if time.monotonic() - looked_s >= ALIVE_EVERY_S:
                looked_s = time.monotonic()
                if not self._alive():
                    return EXIT_FAILED
        self._show()
        if self._stop.asked > 1:
            return EXIT_INTERRUPTED
        return EXIT_FAILED if any(each.state == "failed" for each in self._keepers) else 0

    def _keep(self, keeper: Keeper) -> None:
        while not keeper.ended:
            keeper.step()
            if not keeper.ended:
                time.sleep(POLL_S)


class Board(Display):
    """Shows all flows."""

    def __init__(self, keepers: Sequence[Keeper], lags: Callable[[], dict[str, Lag]], console: Console) -> None:
        super().__init__(self.table, console)
        self._keepers = keepers
        self._lags = lags
        self._shown: dict[str, tuple[str, int]] = {}
        self._lines: dict[str, tuple[str, float]] = {}

    def show(self) -> None:
        """Print what is new, a line each."""
        now_s = time.monotonic()
        for keeper in self._keepers:
            now = keeper.now()
            last, at_s = self._lines.get(now.name, ("", -LINE_EVERY_S))
            if keeper.line not in ("", last) and (now_s - at_s >= LINE_EVERY_S or now.ended):
                self._lines[now.name] = keeper.line, now_s
                self.line(f"{now.name}: {keeper.line}")
            if self._shown.get(now.name) != (now.state, now.restarts):
                self._shown[now.name] = now.state, now.restarts
                self.line(f"{now.name}: {self._state_text(keeper)}")

    def _state_text(self, keeper: Keeper) -> str:
        now = keeper.now()
        if now.state == "waiting":
            return f"failed, begins again in {shown_span(keeper.pause_ms)}: {now.error}"
        return f"{now.state}: {now.error}" if now.state == "failed" else now.state

    def table(self) -> Table:
        """All flows at a glance."""
        table = Table("flow", "kind", "state", "rows", "rate", "lag", "late", "restarts", "last error")
        lags = self._lags()
        for keeper in self._keepers:
            now = keeper.now()
            lag = lags.get(now.name, Lag())
            late = "-" if lag.seconds is None else shown_span(lag.seconds * 1000)
            records = "-" if lag.records is None else f"{lag.records:,}"
            cells = (now.name, now.kind, now.state, f"{now.rows:,}", f"{now.rate:,.0f}/s", records, late)
            table.add_row(*cells, str(now.restarts), now.error or "")
        return table
