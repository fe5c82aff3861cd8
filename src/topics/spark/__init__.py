"""Topics as Spark tables and streams, and what Spark computes as records of topics.

`spark.read.format("topics")` and the three other doors are found by Spark itself through the module `pyspark_topics`.
`session()` gives a SparkSession with the settings that this source profits from. Nothing here imports Spark before it
is needed, so that a worker starts fast.
"""

from __future__ import annotations

from typing import Any

__all__ = ["session"]


def session(**settings: Any) -> Any:
    """A SparkSession in which the source "topics" works at its best; see `topics.spark.launch`."""
    from topics.spark import launch

    return launch.session(**settings)
