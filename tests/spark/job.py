"""A Spark application in a process of its own, for tests that kill parts of it: `python job.py MASTER WHAT OPTIONS`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def copy(spark: Any, given: dict[str, Any]) -> None:
    """A stream from topic to topic, in batches, with a shuffle, so that a retried task may yield another order."""
    pause_s = given.get("pause_s", 0.0)

    def slowly(data: str) -> str:
        time.sleep(pause_s)
        return data

    slow = spark.udf.register("slow", slowly)
    source = spark.readStream.format("topics").options(
        url=given["url"], topic=given["source"], maxOffsetsPerTrigger="60"
    )
    rows = source.load().repartition(4)
    rows = rows.select(slow("data").alias("data")) if pause_s else rows.select("data")
    sink = rows.writeStream.format("topics").options(url=given["url"], topic=given["target"])
    query = sink.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()


def table(spark: Any, given: dict[str, Any]) -> None:
    """Count a topic by tag with executors that see no data directory, and write the counts back."""
    options = {"url": given["url"], "topic": given["source"], "dataDir": given["data_dir"], "minPartitions": "4"}
    frame = spark.read.format("topics").options(**options).load()
    counts = frame.groupBy("tag").count().selectExpr("to_json(struct(tag, count)) AS data", "tag")
    counts.write.format("topics").mode("append").options(url=given["url"], topic=given["target"]).save()


def main() -> None:
    from topics.spark import session

    master, what, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    spark = session(app_name=what, master=master, config=settings)
    spark.sparkContext.setLogLevel("OFF")
    {"copy": copy, "table": table}[what](spark, given)
    spark.stop()


if __name__ == "__main__":
    main()
