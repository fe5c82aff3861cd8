"""The same work on topics and on Kafka, through Spark: group-by, streaming read, sink, and batches of a few records.

`make bench-spark` runs this at its end; `python -m bench.spark_kafka --records 1000000` runs it alone. One session does
everything, in turns, so a ratio within one run is what counts. Each figure of a contender is the median of its runs.
Kafka is measured as it comes, and with settings for throughput; its topics have as many partitions as a scan of ours
has tasks at least. Broker and server share the cores with Spark.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench import kafka

ROOT = Path(__file__).parents[1]
PARTITIONS = 4
RUNS = 3
BATCH = 200_000
TRICKLE_S = 15
SQL = "SELECT tag, count(*) AS n, sum(length(data)) AS bytes, max(seq) AS last FROM {view} GROUP BY tag"
TUNED_READ = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.fetch.max.wait.ms": "20",
}
TUNED_WRITE = {
    "kafka.batch.size": str(1 << 19),
    "kafka.linger.ms": "20",
    "kafka.compression.type": "lz4",
    "kafka.buffer.memory": str(128 << 20),
}


def beside(url: str, data_dir: Path, topic: str, records: int) -> None:
    """Measure in a process of its own, whose JVM has the connector, or say why not."""
    if shutil.which("mvn") is None:
        print("  skipped: there is no mvn, which fetches broker and connector")
        return
    given = ("--url", url, "--data-dir", str(data_dir), "--topic", topic, "--records", str(records))
    subprocess.run([sys.executable, "-m", "bench.spark_kafka", *given], cwd=ROOT, check=False)


class Contender(NamedTuple):
    """One system, by the options of Spark's readers and writers."""

    name: str
    format: str
    options: dict[str, str]
    topic: str
    """The option that names the topic to read."""
    read: dict[str, str]
    write: dict[str, str]
    columns: tuple[str, ...]
    """The tag, the data and the seq, as expressions over its rows."""
    rows: tuple[str, ...]
    """What its sink takes, as expressions over tag and data."""
    suffix: str = ""
    """Of the topic to read: Kafka keeps batches as they were written, so each way of writing has a topic."""


class Comparison:
    """One session, and the systems that it measures in turns."""

    def __init__(self, spark: Any, url: str, data_dir: Path | None, broker: str, scratch: Path) -> None:
        self.spark, self.url, self.scratch = spark, url, scratch
        ours = Contender("topics", "topics", {"url": url}, "topic", {}, {}, ("tag", "data", "seq"), ("tag", "data"))
        self.kafka = Contender(
            "Kafka", "kafka", {"kafka.bootstrap.servers": broker}, "subscribe", {"startingOffsets": "earliest"}, {},
            ("CAST(key AS string) AS tag", "CAST(value AS string) AS data", "offset AS seq"),
            ("tag AS key", "data AS value"),
        )  # fmt: skip
        tuned = self.kafka._replace(
            name="Kafka, tuned", read={**self.kafka.read, **TUNED_READ}, write=TUNED_WRITE, suffix="-tuned"
        )
        self.contenders = [ours, self.kafka, tuned]
        direct = [] if data_dir is None else [ours._replace(name="topics, dataDir", read={"dataDir": str(data_dir)})]
        self.scanned = [*direct, *self.contenders]

    def fill(self, topic: str) -> None:
        """The same records in Kafka, and as files for the sinks."""
        ours = self.contenders[0]
        frame = self.spark.read.format("topics").options(**ours.options, topic=topic, columns="tag,data").load()
        frame.write.parquet(str(self.scratch / "rows"))
        for contender in self.contenders[1:]:
            self.save(contender, topic + contender.suffix)

    def save(self, to: Contender, topic: str) -> None:
        rows = self.spark.read.parquet(str(self.scratch / "rows")).selectExpr(*to.rows)
        rows.write.format(to.format).options(**to.options, **to.write, topic=topic).mode("append").save()

    def group(self, by: Contender, topic: str) -> None:
        options = {**by.options, **by.read, by.topic: topic + by.suffix}
        rows = self.spark.read.format(by.format).options(**options).load().selectExpr(*by.columns)
        rows.createOrReplaceTempView("scanned")
        self.spark.sql(SQL.format(view="scanned")).collect()

    def stream(self, by: Contender, topic: str, run: str) -> None:
        options = {**by.options, **by.read, by.topic: topic + by.suffix, "maxOffsetsPerTrigger": str(BATCH)}
        rows = self.spark.readStream.format(by.format).options(**options).load().selectExpr(*by.columns)
        sink = rows.writeStream.format("noop").option("checkpointLocation", str(self.scratch / f"stream-{run}"))
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
        assert query.exception() is None

    def trickle(self, by: Contender, send: Callable[[], None]) -> list[float]:
        """The milliseconds of batches of a few records, from topic to topic."""
        options = {**by.options, **by.read, by.topic: "trickle", "startingOffsets": "latest"}
        send()
        rows = self.spark.readStream.format(by.format).options(**options).load().selectExpr(*by.columns)
        to = rows.selectExpr(*by.rows).writeStream.format(by.format).options(**by.options, **by.write, topic="trickled")
        query = to.option("checkpointLocation", str(self.scratch / f"trickle-{by.name}")).start()
        deadline = time.monotonic() + TRICKLE_S
        while time.monotonic() < deadline:
            send()
            time.sleep(0.2)
        reports = [report for report in query.recentProgress if report["numInputRows"]]
        query.stop()
        return [float(report["durationMs"]["triggerExecution"]) for report in reports[3:]]

    def senders(self) -> dict[str, Callable[[], None]]:
        """What writes ten records, by the format that they are read with."""
        parts = self.url.removeprefix("http://").partition(":")
        connection = http.client.HTTPConnection(parts[0], int(parts[2]))
        body = json.dumps({"records": [{"data": {"n": n}} for n in range(10)]}).encode()

        def ours() -> None:
            connection.request("POST", "/v0/topics/trickle", body, {"Content-Type": "application/json"})
            connection.getresponse().read()

        classes = self.spark._jvm.org.apache.kafka.clients.producer
        text = "org.apache.kafka.common.serialization.StringSerializer"
        settings = {"bootstrap.servers": self.kafka.options["kafka.bootstrap.servers"]}
        producer = classes.KafkaProducer({**settings, "key.serializer": text, "value.serializer": text})

        def theirs() -> None:
            for n in range(10):
                producer.send(classes.ProducerRecord("trickle", json.dumps({"n": n})))
            producer.flush()

        return {"topics": ours, "kafka": theirs}

    def run(self, topic: str, records: int) -> None:
        """Everything, with a line per figure."""
        self.fill(topic)
        works: tuple[tuple[str, list[Contender], Callable[[Contender, int], None]], ...] = (
            ("group-by", self.scanned, lambda by, _: self.group(by, topic)),
            ("streaming read", self.scanned, lambda by, run: self.stream(by, topic, f"{by.name}-{run}")),
            ("sink", self.contenders, lambda by, run: self.save(by, f"sink-{by.name.replace(', ', '-')}-{run}")),
        )
        for work, contenders, do in works:
            took: dict[str, list[float]] = {contender.name: [] for contender in contenders}
            # In turns, so that neither a JVM that is warming up nor a busy moment of the machine hits only one of them.
            for run in range(RUNS + 1):
                for contender in contenders:
                    started = time.perf_counter()
                    do(contender, run)
                    took[contender.name].append(time.perf_counter() - started)
            reference = statistics.median(took[self.kafka.name][1:])
            for name, seconds in ((name, statistics.median(found[1:])) for name, found in took.items()):
                rate = f"{records / seconds:>11,.0f} records/s"
                print(f"  {work:16} {name:16} {seconds:6.2f} s {rate}  {seconds / reference:4.2f} of Kafka's time")
        senders = self.senders()
        for contender in self.contenders[:2]:
            found = self.trickle(contender, senders[contender.format])
            p50, p99 = statistics.median(found), statistics.quantiles(found, n=100)[98]
            print(
                f"  {'10 records':16} {contender.name:16} p50 {p50:.0f} ms, p99 {p99:.0f} ms over {len(found)} batches"
            )


def main() -> None:
    from topics.spark import session

    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--topic", default="stream")
    parser.add_argument("--url", help="a server that has these records in this topic; without it, one is started")
    parser.add_argument("--data-dir", type=Path)
    chosen = parser.parse_args()
    if chosen.url is None:
        _alone(chosen.records)
        return
    import pyspark

    try:
        version, jars = kafka.connector(pyspark.__version__)
        with tempfile.TemporaryDirectory(prefix="topics-bench-") as directory:
            scratch = Path(directory)
            with kafka.broker(scratch / "broker", PARTITIONS) as broker:
                config = {
                    "spark.ui.enabled": "false",
                    "spark.sql.shuffle.partitions": "2",
                    "spark.driver.memory": "2g",
                    "spark.driver.extraClassPath": ":".join(map(str, jars)),
                    "spark.local.dir": str(scratch / "local"),
                }
                spark = session(master="local[2]", config=config)
                spark.sparkContext.setLogLevel("OFF")
                print(f"  Spark {pyspark.__version__}, connector {version}, broker {kafka.BROKER}, local[2]")
                Comparison(spark, chosen.url, chosen.data_dir, broker, scratch).run(chosen.topic, chosen.records)
                spark.stop()
    except kafka.Missing as reason:
        print(f"  skipped: {reason}")


def _alone(records: int) -> None:
    """A server with the records, and then the comparison."""
    from bench.reads import await_sealed
    from bench.spark import load
    from topics.testing import ServerProcess

    with ServerProcess() as server:
        load(server, "stream", records)
        await_sealed(server.data_dir)
        beside(server.url, server.data_dir, "stream", records)


if __name__ == "__main__":
    main()
