"""Topics as Spark tables and streams, and what Spark computes as records of topics.

Spark itself finds the source "topics" (batch and streaming, read and write) through the module `pyspark_topics`.
`session()` gives a SparkSession with the settings that suit this source. Importing this package does not import Spark,
so that a worker starts fast.
"""

from topics.spark.launch import register, session

__all__ = ["register", "session"]
