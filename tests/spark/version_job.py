"""One application in a plain session, for any version of PySpark: what it found, as JSON in its last line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.harness.spark import SETTINGS
from topics.spark import register, table
from topics.spark.place import Place


class Application:
    """A plain session, without any setting of ours."""

    def __init__(self, url: str, topic: str, scratch: Path) -> None:
        builder = SparkSession.builder.master("local[2]")
        own = {"spark.driver.host": "127.0.0.1", "spark.sql.warehouse.dir": str(scratch / "warehouse")}
        for name, value in {**SETTINGS, **own}.items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("OFF")
        self.source = {"url": url, "topic": topic}
        self.scratch = scratch

    def failure(self, action: Any) -> str:
        try:
            action()
        except Exception as failure:
            return str(failure)
        return "none"

    def batch(self, **options: str) -> Any:
        return self.spark.read.format("topics").options(**{**self.source, **options}).load()

    def batches(self, checkpoint: str, **options: str) -> list[list[int]]:
        """The seqs of each batch of a query that runs once."""
        found: list[list[int]] = []
        query = (
            self.spark.readStream.format("topics")
            .options(**self.source, **options)
            .load()
            .writeStream.foreachBatch(lambda frame, _: found.append(sorted(row.seq for row in frame.collect())))
            .option("checkpointLocation", str(self.scratch / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found

    def copy(self) -> None:
        """Everything that is new into another topic."""
        rows = self.spark.readStream.format("topics").options(**self.source).load().select("data")
        sink = rows.writeStream.format("topics").options(url=self.source["url"], topic=f"{self.source['topic']}.copy")
        checkpoint = str(self.scratch / "copied")
        sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

    def archive(self) -> dict[str, int]:
        from deltalake import DeltaTable

        from topics.pipeline.archive import Archive

        self.spark.sparkContext.pythonExec = sys.executable
        root = self.scratch / "lake"
        pipeline = Archive(self.source, Place(root), typed=True)
        query = pipeline.start(self.spark, True, "1 second", self.scratch / "pause")
        query.awaitTermination()
        directories = {"events": root / "events", "typed": root / "typed" / self.source["topic"]}
        return {name: DeltaTable(str(path)).to_pyarrow_table().num_rows for name, path in directories.items()}

    def unified(self) -> dict[str, list[int]]:
        """The seqs of the topic over lake and server, as a table and as a stream."""
        place = {"topic": self.source["topic"], "lake": self.scratch / "lake", "url": self.source["url"]}
        found: list[int] = []
        query = (
            table(self.spark, **place, streaming=True)
            .writeStream.foreachBatch(lambda frame, _: found.extend(sorted(row.seq for row in frame.collect())))
            .option("checkpointLocation", str(self.scratch / "unified"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return {"table": sorted(row.seq for row in table(self.spark, **place).collect()), "stream": found}


def main(url: str, topic: str, scratch: Path) -> None:
    application = Application(url, topic, scratch)
    found: dict[str, Any] = {"unregistered": application.failure(lambda: application.batch().count())}
    refusal = application.failure(lambda: register(application.spark))
    if refusal == "none":
        sql = application.spark.sql
        options = ", ".join(f"{name} '{value}'" for name, value in application.source.items())
        sql(f"CREATE TABLE kept USING topics OPTIONS ({options})")
        found["table"] = sql("SELECT count(*) AS n FROM kept").first().n
        found["unknown"] = application.failure(lambda: application.batch(topic="no-such-topic").count())
        found["limited"] = application.failure(
            lambda: found.update(batches=application.batches("a", maxOffsetsPerTrigger="300"))
        )
        found["unlimited"] = application.batches("b")
        found["again"] = application.batches("b")
        application.copy()
        application.copy()
        found["archived"] = application.archive()
        found["unified"] = application.unified()
    found["refusal"] = refusal
    application.spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
