"""Progress: what a pipeline has done so far, as Spark reports it, and how far it is from the heads of its topics."""

from __future__ import annotations

import json
import time
from typing import Any

from rich.table import Table

from topics.commands.table import counted


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
        parts += [counted(count, name.removesuffix("s")) for name, count in self._counts() if count]
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
