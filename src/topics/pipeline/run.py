"""Running one streaming query from the command line: its progress, its end, its failures.

SIGTERM and SIGINT let the query finish its batch: a file is created that the source looks for before it plans the next
batch, and once nothing more is planned the query is stopped. A second signal does not wait.
"""

from __future__ import annotations

import re
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

POLL_S: Final = 0.2
_SOURCE_ERROR: Final = re.compile(r"topics\.(?:spark|pipeline)\.errors\.\w+: (.*?)(?:\n|$)")


class PipelineError(Exception):
    """The pipeline cannot run; the message says why."""


class Progress:
    """What a pipeline has done so far, and how it shows."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._started = time.monotonic()
        self._batches: set[int] = set()
        self.batch = -1
        self.records = 0
        self.files = 0
        self.losses = 0
        self.errors = 0
        self.rate = 0.0
        self.lag = 0

    def take(self, reported: dict[str, Any]) -> bool:
        """Take in Spark's report of a batch; whether it is a batch not seen before that had rows."""
        batch = int(reported["batchId"])
        self.lag = _lag(reported)
        if batch in self._batches or not reported["numInputRows"]:
            return False
        self._batches.add(batch)
        self.batch = batch
        self.records += int(reported["numInputRows"])
        self.rate = float(reported.get("processedRowsPerSecond") or 0.0)
        return True

    def take_all(self, query: Any) -> bool:
        """Take in everything that a query has reported; whether anything is new."""
        reports = [report if isinstance(report, dict) else report.jsonDict for report in query.recentProgress]
        return [self.take(report) for report in reports].count(True) > 0

    def line(self) -> str:
        """One line about the last batch."""
        parts = [f"batch {self.batch}", f"{self.records:,} records", f"{self.rate:,.0f}/s", f"lag {self.lag:,}"]
        if self.files:
            parts.append(f"{self.files} files")
        if self.losses:
            parts.append(f"{self.losses} gaps")
        if self.errors:
            parts.append(f"{self.errors:,} errors")
        return f"{self._title}: " + ", ".join(parts)

    def table(self) -> Table:
        """The live display."""
        table = Table("pipeline", "batch", "records", "rate", "lag", "files", "gaps", "seconds")
        batch = "-" if self.batch < 0 else str(self.batch)
        seconds = f"{time.monotonic() - self._started:.0f}"
        cells = (self._title, batch, f"{self.records:,}", f"{self.rate:,.0f}/s", f"{self.lag:,}")
        table.add_row(*cells, str(self.files), str(self.losses), seconds)
        return table


def _lag(reported: dict[str, Any]) -> int:
    lag = 0
    for source in reported["sources"]:
        ends, heads = source.get("endOffset"), source.get("latestOffset")
        if isinstance(ends, dict) and isinstance(heads, dict):
            for topic, head in heads.items():
                done = ends.get(topic) or {"epoch": head["epoch"], "seq": 0}
                lag += max(0, int(head["seq"]) - (int(done["seq"]) if done["epoch"] == head["epoch"] else 0))
    return lag


class Stop:
    """Turns signals into a file that the source looks for."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="topics-pipeline-")
        self.file = Path(self._scratch.name) / "stop"
        self.asked = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._scratch.cleanup()

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        self.asked += 1
        self.file.touch()


def follow(query: Any, progress: Progress, stop: Stop, console: Console, once: bool) -> None:
    """Show a query's progress until it ends by itself, fails, or is told to stop."""

    def look(show: Callable[[], None]) -> None:
        while query.isActive:
            if progress.take_all(query):
                show()
            if stop.asked > 1 or (stop.asked and not once and _idle(query)):
                break
            query.awaitTermination(POLL_S)
        if progress.take_all(query):
            show()

    try:
        if console.is_terminal:
            with Live(progress.table(), console=console, refresh_per_second=4) as live:
                look(lambda: live.update(progress.table()))
                live.update(progress.table())
        else:
            look(lambda: console.print(progress.line(), soft_wrap=True))
    finally:
        failure = query.exception() if not query.isActive else None
        query.stop()
    if failure is not None and stop.asked <= 1:
        raise PipelineError(reason(failure))


def _idle(query: Any) -> bool:
    status = query.status
    return not status["isTriggerActive"] and not status["isDataAvailable"]


def reason(failure: BaseException) -> str:
    """What went wrong, without what Spark wraps around it."""
    text = str(failure)
    found = _SOURCE_ERROR.search(text)
    if found is not None:
        return found[1].strip()
    text = re.split(r"\nJVM stacktrace|\n=== Streaming Query|\n\tat ", text)[0]
    return re.sub(r"^An error occurred while calling \S+\n: ", "", text).strip()
