"""Topics as Spark tables and streams, and what Spark computes as records of topics.

Spark itself finds the source "topics" (batch and streaming, read and write) through the module `pyspark_topics`.
`session()` gives a SparkSession with the settings that suit this source. `table()` gives a topic together with its
archive. Importing this package does not import Spark, so that a worker starts fast.
"""

from pathlib import Path
from typing import Any

from topics.spark import worker
from topics.spark.launch import register, session

__all__ = ["register", "session", "table"]

# Every worker that Spark calls the source in gets here, in whatever role it does.
worker.end_quietly()


def table(spark: Any, topic: str, lake: str | Path, streaming: bool = False, **options: Any) -> Any:
    """A topic as one DataFrame: what the lake holds of it, and what came after that from the server, each record once.

    With `streaming` it is a stream that begins with the lake and goes on live. `options` are those of the source, `url`
    among them.
    """
    from topics.spark import unified

    return (unified.stream if streaming else unified.table)(spark, topic, lake, **options)
