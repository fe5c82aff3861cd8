"""A Spark application in a process of its own, for tests that kill parts of it: `python job.py MASTER WHAT OPTIONS`.

WHAT is one job or several with a "+" between, done one after the other by one application.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def copy(spark: Any, given: dict[str, Any]) -> None:
    """A stream from topic to topic, in batches, with a shuffle, so that a retried task may yield another order."""
    pause_s = given.get("pause_s", 0.0)

    def slowly(data: str) -> str:
        time.sleep(pause_s)
        return data

    slow = spark.udf.register("slow", slowly)
    source = spark.readStream.format("topics").options(
        url=given["url"], topic=given["source"], maxOffsetsPerTrigger=str(given.get("batch", 60))
    )
    rows = source.load().repartition(4)
    rows = rows.select(slow("data").alias("data")) if pause_s else rows.select("data")
    sink = rows.writeStream.format("topics").options(url=given["url"], topic=given["target"])
    query = sink.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()


def archive(spark: Any, given: dict[str, Any]) -> None:
    """A topic into a lake, in batches."""
    from topics.pipeline.archive import Archive
    from topics.spark.place import Place

    source, checkpoint = {"url": given["url"], "topics": given["source"]}, Path(given["checkpoint"])
    archived = Archive(source, Place(given["target"]), checkpoint=checkpoint, offsets_max=given["batch"])
    archived.start(spark, True, "1 second", checkpoint / "never").awaitTermination()


def speculate(spark: Any, given: dict[str, Any]) -> None:
    """A stream whose first task waits for its speculative twin; then both yield their rows, in opposite orders."""
    marks = Path(given["marks"])

    def twinned(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        rows = list(batches)
        if context.partitionId() == 0:
            (marks / str(context.attemptNumber())).touch()
            deadline = time.monotonic() + 120
            while len(list(marks.iterdir())) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
        for batch in rows[:: -1 if context.attemptNumber() else 1]:
            yield batch.take(list(range(batch.num_rows))[:: -1 if context.attemptNumber() else 1])

    source = spark.readStream.format("topics").options(
        url=given["url"], topic=given["source"], maxOffsetsPerTrigger="60"
    )
    rows = source.load().select("data").repartition(2).mapInArrow(twinned, "data string")
    sink = rows.writeStream.format("topics").options(url=given["url"], topic=given["target"])
    query = sink.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()


def table(spark: Any, given: dict[str, Any]) -> None:
    """Count a topic by tag with executors that see no data directory, and write the counts back."""
    options = {"url": given["url"], "topic": given["source"], "dataDir": given["data_dir"], "minPartitions": "4"}
    frame = spark.read.format("topics").options(**options).load()
    counts = frame.groupBy("tag").count().selectExpr("to_json(struct(tag, count)) AS data", "tag")
    counts.write.format("topics").mode("append").options(url=given["url"], topic=given["counts"]).save()


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
    if "speculate" in what:
        speculation = {"interval": "100ms", "multiplier": "1.01", "quantile": "0.5", "minTaskRuntime": "100ms"}
        settings |= {"spark.speculation": "true"} | {f"spark.speculation.{k}": v for k, v in speculation.items()}
    spark = session(app_name=what, master=master, config=settings)
    spark.sparkContext.setLogLevel("OFF")
    for job in what.split("+"):
        {"archive": archive, "copy": copy, "speculate": speculate, "table": table}[job](spark, given)
    spark.stop()


if __name__ == "__main__":
    main()
