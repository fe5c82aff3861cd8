"""Running one streaming query from the command line: its progress, its end, its failures.

On SIGTERM and SIGINT the query finishes its batch: a file is created that the source looks for before it plans the next
batch, and once nothing more is planned the query is stopped. A second signal stops it at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from topics.spark.place import Place

POLL_S: Final = 0.2
CHECKPOINT: Final = "_checkpoint"
_SOURCE_ERROR: Final = re.compile(r"topics\.(?:spark\.errors|pipeline\.run)\.\w+: (.*?)(?:\n|$)")


class PipelineError(Exception):
    """The pipeline cannot run; the message says why."""


class Progress:
    """What a pipeline has done so far, as a line or a table."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._started = self._stepped = time.monotonic()
        self._newest = -1
        self.batch = "starting"
        self.records = 0
        self.files = 0
        self.losses = 0
        self.errors = 0
        self.rate = 0.0
        self.lag = 0
        self.cursors: dict[str, int] = {}
        """How far it has got in each topic."""

    def take(self, reported: dict[str, Any]) -> bool:
        """Take in Spark's report of a batch; whether it is a batch not seen before that had rows."""
        batch = int(reported["batchId"])
        self.lag = _lag(reported)
        self.cursors |= _ends(reported)
        if batch <= self._newest or not reported["numInputRows"]:
            return False
        self._newest = batch
        self.batch = str(batch)
        self._count(reported)
        return True

    def _count(self, reported: dict[str, Any]) -> None:
        self.records += int(reported["numInputRows"])
        self.rate = float(reported.get("processedRowsPerSecond") or 0.0)

    def take_all(self, query: Any) -> bool:
        """Take in everything that a query has reported; whether anything is new."""
        reports = [report if isinstance(report, dict) else report.jsonDict for report in query.recentProgress]
        return [self.take(report) for report in reports].count(True) > 0

    def step(self, number: int, of: int, records: int, left: int) -> None:
        """Take in a step of a pipeline that knows how many there are."""
        now = time.monotonic()
        self.batch, self.lag = f"{number} of {of}", left
        self.records += records
        self.rate = records / max(now - self._stepped, 0.001)
        self._stepped = now

    def line(self) -> str:
        """One line about the last batch."""
        parts = [f"batch {self.batch}", f"{self.records:,} records", f"{self.rate:,.0f}/s", f"lag {self.lag:,}"]
        parts += [f"{count:,} {name}" for name, count in self._counts() if count]
        return f"{self._title}: " + ", ".join(parts)

    def table(self) -> Table:
        """The live display."""
        counts = [(name, count) for name, count in self._counts() if count]
        table = Table("pipeline", "batch", "records", "rate", "lag", *(name for name, _ in counts), "seconds")
        seconds = f"{time.monotonic() - self._started:.0f}"
        cells = (self._title, self.batch, f"{self.records:,}", f"{self.rate:,.0f}/s", f"{self.lag:,}")
        table.add_row(*cells, *(f"{count:,}" for _, count in counts), seconds)
        return table

    def _counts(self) -> tuple[tuple[str, int], ...]:
        return ("files", self.files), ("gaps", self.losses), ("errors", self.errors)


class Display:
    """Shows progress: a table that stays in place on a terminal, and a line for each batch elsewhere."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self._progress = progress
        self._console = console
        # The table is made again at each refresh, so that its seconds count while a batch runs.
        self._live = Live(get_renderable=progress.table, console=console) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self) -> None:
        """A batch is done."""
        if self._live is None:
            self._console.print(self._progress.line(), soft_wrap=True)


def _lag(reported: dict[str, Any]) -> int:
    """How many records the heads of the topics are ahead; Spark reports offsets as text."""
    lag = 0
    for source in reported["sources"]:
        ends, heads = (json.loads(source.get(name) or "null") for name in ("endOffset", "latestOffset"))
        for topic, head in (heads or {}).items():
            done = (ends or {}).get(topic)
            lag += max(0, head["seq"] - (done["seq"] if done and done["epoch"] == head["epoch"] else 0))
    return lag


def _ends(reported: dict[str, Any]) -> dict[str, int]:
    """How far a batch goes in each topic."""
    ends = (json.loads(source.get("endOffset") or "null") or {} for source in reported["sources"])
    return {topic: int(at["seq"]) for each in ends for topic, at in each.items()}


def stream(
    spark: Any, options: dict[str, str], offsets_max: int | None, pause_file: Path, format: str = "topics"
) -> Any:
    """A stream of topics that plans no batch while `pause_file` exists."""
    options = {**options, "pauseFile": str(pause_file)}
    if offsets_max is not None:
        options["maxOffsetsPerTrigger"] = str(offsets_max)
    return spark.readStream.format(format).options(**options).load()


def state_of(root: Place, checkpoint: Path | None) -> Path | None:
    """Where an archive keeps its state: beside its tables, if nothing else is said; None where it is only in those."""
    return checkpoint or (None if root.path is None else root.path / CHECKPOINT)


def start(query: Any, name: str, checkpoint: Path, once: bool, interval: str) -> Any:
    """Start a query that runs until everything is done, or again at each interval."""
    query = query.option("checkpointLocation", str(checkpoint)).queryName(name)
    return (query.trigger(availableNow=True) if once else query.trigger(processingTime=interval)).start()


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
        # In this order: whoever sees that it is asked can rely on the file.
        self.file.touch()
        self.asked += 1


def follow(query: Any, progress: Progress, stop: Stop, display: Display, once: bool) -> None:
    """Show a query's progress until it ends by itself, fails, or is to stop."""
    try:
        while query.isActive:
            if progress.take_all(query):
                display.show()
            if stop.asked > 1 or (stop.asked and not once and idle(query)):
                break
            query.awaitTermination(POLL_S)
        if progress.take_all(query):
            display.show()
    finally:
        failure = query.exception() if not query.isActive else None
        query.stop()
    if failure is not None and stop.asked <= 1:
        raise PipelineError(reason(failure))


def idle(query: Any) -> bool:
    """Whether a query is between two batches. While it is to pause, the next one has nothing to do.

    Whether data is available does not matter: after a batch that had some, Spark says so until the next interval.
    """
    return not query.status["isTriggerActive"]


def reason(failure: BaseException) -> str:
    """What went wrong, without what Spark wraps around it."""
    text = str(failure)
    found = _SOURCE_ERROR.search(text)
    if found is not None:
        return found[1].strip()
    text = re.split(r"\nJVM stacktrace|\n=== Streaming Query|\n\tat ", text)[0]
    return re.sub(r"^An error occurred while calling \S+\n: ", "", text).strip()


@contextlib.contextmanager
def silence(verbose: bool) -> Iterator[None]:
    """Keep what the JVM prints out of the display, unless it does not start: then it is the only hint.

    The JVM inherits the stderr that it is started with, and keeps it.
    """
    if verbose:
        yield
        return
    with tempfile.TemporaryFile() as printed:
        own = os.dup(2)
        os.dup2(printed.fileno(), 2)
        try:
            yield
        except BaseException:
            printed.seek(0)
            os.write(own, printed.read())
            raise
        finally:
            os.dup2(own, 2)
            os.close(own)
