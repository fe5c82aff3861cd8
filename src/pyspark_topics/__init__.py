"""How Spark finds the data source "topics": it looks for a `DefaultSource` in every module called `pyspark_*`."""

from topics.spark.source import TopicsSource as DefaultSource

__all__ = ["DefaultSource"]
