"""Worker: the Python process in which Spark calls the source, to plan or to run a task.

Spark's daemon forks a worker and keeps it for the next call. After each call it collects garbage, and the next one
waits for that, or competes with it for a core. With the modules that are loaded by then this takes 30 ms, about as long
as decoding 300,000 records; a query has two calls that plan and one for each task.

A worker that waits for work ends when Spark closes its socket, at the end of a session or after a minute, and then it
still writes a last answer. Over TCP that goes unnoticed. A Unix socket says that the pipe is broken, of which Spark's
daemon prints a traceback. Here it does not: what becomes of a task whose Spark has gone is no question for a worker.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import Any, Final

SPARKS_DAEMON: Final = "pyspark.daemon"
DAEMON: Final = "topics.spark.daemon"


def _main() -> str | None:
    """The module that this process runs."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return None if spec is None else spec.name


@functools.cache
def freeze_loaded() -> None:
    """Leave what this worker has loaded out of its garbage collections, from the first call on.

    Only once: to ask whether anything is frozen already takes 5 ms, because what is frozen is counted one by one.
    A process that is not of a daemon is left as it is.
    """
    if _main() in (SPARKS_DAEMON, DAEMON):
        gc.freeze()


def quiet(work: Callable[..., int]) -> Callable[..., int]:
    """What a worker does for one call, without a word where Spark has gone; anything but 0 ends the worker."""

    def worker(*given: Any) -> int:
        try:
            return work(*given)
        except BrokenPipeError:
            return 1

    return worker


def end_quietly() -> None:
    """Have this process end without a word when Spark has gone, if it is a worker of Spark's own daemon.

    Spark plans with workers of that one, whichever it is told to use for tasks.
    """
    daemon: Any = sys.modules.get("__main__")
    if _main() == SPARKS_DAEMON and hasattr(daemon, "worker"):
        daemon.worker = quiet(daemon.worker)
