"""SparkRun: a flow that runs as a streaming query, as its keeper sees it.

All flows share one Spark application and nothing else: each has a session of its own, so that the views and settings of
one are not those of another, and a pool of its own, so that a long batch of one leaves room for the tasks of others.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from topics.pipeline.checkpoint import cursors_of
from topics.pipeline.errors import PipelineError, reason
from topics.pipeline.flows.flows import Flow
from topics.pipeline.progress import Progress
from topics.pipeline.query import idle


class SparkRun:
    """One run of a flow, from its start to its end."""

    def __init__(self, spark: Any, flow: Flow, once: bool, pause_file: Path) -> None:
        """Starts the query, which may take long; raises whatever is wrong."""
        if (refusal := flow.refused()) is not None:
            raise PipelineError(refusal)
        self._known = None if flow.checkpoint is None else cursors_of(flow.checkpoint)
        self._pipeline = flow.make()
        self._progress: Progress = getattr(self._pipeline, "progress", None) or Progress(flow.kind)
        self._seen: tuple[Any, ...] = ()
        self._flows = False
        self._query: Any = None
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", flow.name)
        try:
            self._query = self._pipeline.start(_session(spark), once, flow.interval, pause_file)
        except BaseException:
            self._finish()
            raise

    def look(self) -> bool:
        """Take in what the query has reported since the last look; whether there is a new batch."""
        last = self._query.lastProgress
        if last is None:
            return False
        last = last if isinstance(last, dict) else last.jsonDict
        seen = (last["batchId"], last["timestamp"])
        if seen == self._seen:
            return False
        self._seen = seen
        self._flows = bool(last["numInputRows"])
        self._progress.take_all(self._query)
        return True

    @property
    def rows(self) -> int:
        """How many rows it has done."""
        return self._progress.records

    @property
    def rate(self) -> float:
        """Rows per second of the last batch; none if nothing came since."""
        return self._progress.rate if self._flows else 0.0

    @property
    def line(self) -> str:
        """What it has done; nothing before its first batch with rows."""
        return self._progress.line() if self._progress.records else ""

    @property
    def cursors(self) -> dict[str, int] | None:
        """How far it has got in each topic."""
        if not self._progress.cursors:
            return self._known
        return {**(self._known or {}), **self._progress.cursors}

    @property
    def active(self) -> bool:
        """Whether the query runs."""
        return bool(self._query.isActive)

    @property
    def idle(self) -> bool:
        """Whether it is between two batches."""
        return idle(self._query)

    def failure(self) -> str | None:
        """Why the query ended; None if it ended well."""
        failure = self._query.exception()
        return None if failure is None else reason(failure)

    def stop(self) -> None:
        """End the query, and what goes on beside it."""
        try:
            self._query.stop()
        finally:
            self._finish()

    def _finish(self) -> None:
        # A server that is away is what a flow may have failed for: what was deleted on it is erased at the next start.
        finish = getattr(self._pipeline, "finish", None)
        if finish is not None:
            with contextlib.suppress(Exception):
                finish()


def _session(spark: Any) -> Any:
    """A session of its own, for this thread.

    Spark looks for the sink of a stream in the session that is active in the thread, and no thread but the first has
    one.
    """
    session = spark.newSession()
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    return session
