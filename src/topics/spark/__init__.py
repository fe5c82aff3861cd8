"""Topics as Spark tables and streams, and what Spark computes as records of topics.

Spark itself finds the source "topics" (batch and streaming, read and write) through the module `pyspark_topics`.
`session()` gives a SparkSession with the settings that suit this source. Nothing here imports Spark before it is
needed, so that a worker starts fast.
"""

from __future__ import annotations

from typing import Any

__all__ = ["session"]


def session(**settings: Any) -> Any:
    """A SparkSession with the settings that suit the source "topics"; see `topics.spark.launch`."""
    from topics.spark import launch

    return launch.session(**settings)
