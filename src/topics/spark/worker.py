"""Worker: the Python process in which Spark calls the source, to plan or to run a task.

Spark's daemon forks a worker and keeps it for the next call. After each call it collects garbage, and the next one
waits for that, or competes with it for a core. With the modules that are loaded by then this takes 30 ms, about as long
as decoding 300,000 records; a query has two calls that plan and one for each task.
"""

from __future__ import annotations

import functools
import gc
import sys
from typing import Final

DAEMON: Final = "pyspark.daemon"


@functools.cache
def freeze_loaded() -> None:
    """Leave what this worker has loaded out of its garbage collections, from the first call on.

    Only once: to ask whether anything is frozen already takes 5 ms, because what is frozen is counted one by one.
    A process that is not of Spark's daemon is left as it is.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == DAEMON:
        gc.freeze()
