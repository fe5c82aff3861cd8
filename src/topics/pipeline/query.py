"""Query: one streaming query, from its start to its end.

Once it is to stop (`stop`) and plans nothing more, it is stopped between two batches; after a second signal, at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from topics.pipeline.checkpoint import forget_torn_start
from topics.pipeline.display import Display
from topics.pipeline.errors import PipelineError, reason
from topics.pipeline.progress import Progress
from topics.pipeline.stop import Stop
from topics.spark.place import Place

POLL_S: Final = 0.2
CHECKPOINT: Final = "_checkpoint"


def stream(
    spark: Any, options: dict[str, str], offsets_max: int | None, pause_file: Path, format: str = "topics"
) -> Any:
    """A stream of topics that plans no batch while `pause_file` exists."""
    options = {**options, "pauseFile": str(pause_file)}
    if offsets_max is not None:
        options["maxOffsetsPerTrigger"] = str(offsets_max)
    return spark.readStream.format(format).options(**options).load()


def state_of(root: Place, checkpoint: Path | None) -> Path | None:
    """Where an archive keeps its state: beside its tables, unless it is named; None where it is only in those."""
    return checkpoint or (None if root.path is None else root.path / CHECKPOINT)


def start(query: Any, name: str, checkpoint: Path, once: bool, interval: str) -> Any:
    """Start a query that runs until everything is done, or again at each interval."""
    forget_torn_start(checkpoint)
    query = query.option("checkpointLocation", str(checkpoint)).queryName(name)
    return (query.trigger(availableNow=True) if once else query.trigger(processingTime=interval)).start()


def follow(query: Any, progress: Progress, stop: Stop, display: Display, once: bool) -> None:
    """Show a query's progress until it ends by itself, fails, or is to stop."""
    try:
        while query.isActive:
            if progress.take_all(query):
                display.line(progress.line())
            if stop.asked > 1 or (stop.asked and not once and idle(query)):
                break
            query.awaitTermination(POLL_S)
        if progress.take_all(query):
            display.line(progress.line())
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
