"""Spark over topics against Spark over files: scans, streaming, and what a scan costs the writers.

`make bench-spark ARGS='--records 5000000'`. A ratio within one run is what counts; the absolute figures belong to the
machine. Every figure of a scan is the best of a few runs. CPU is that of Spark, its Python workers and the server
together: on a machine that does other work too it is the figure to compare.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import spark_kafka
from bench.reads import await_sealed
from topics.spark.place import Place
from topics.testing import ServerProcess

BATCH = 1_000
RECORD_BYTES = 150
RUNS = 4
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "runs", "far", "away")
SQL = "SELECT tag, count(*) AS n, sum(length(data)) AS bytes, max(seq) AS last FROM {view} GROUP BY tag"


def load(server: ServerProcess, topic: str, records: int) -> float:
    """As `append`, unless the records are there already."""
    there = server.request("GET", f"/v0/topics/{topic}")
    return 0.0 if there.status == 200 and there.json["head_seq"] == records else append(server, topic, records)


def append(server: ServerProcess, topic: str, records: int) -> float:
    """Write so many records of about 150 bytes; the seconds it took."""
    connection = http.client.HTTPConnection(server.host, server.port)
    started = time.perf_counter()
    for first in range(0, records, BATCH):
        rows = []
        for n in range(first, min(first + BATCH, records)):
            data = f'{{"n":{n},"user":"u{n % 9973}","text":"{" ".join(WORDS[n % 5 :])}"}}'
            rows.append(
                f'{{"data":{data[:-1]},"pad":"{"x" * max(0, RECORD_BYTES - len(data) - 9)}"}},"tag":"t{n % 50}"}}'
            )
        body = '{"records":[' + ",".join(rows) + "]}"
        connection.request(
            "POST", f"/v0/topics/{topic}?return_seqs=false", body.encode(), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status in (200, 201), content
    connection.close()
    return time.perf_counter() - started


class SparkBench:
    """One server, one session, and what is measured with them."""

    def __init__(self, server: ServerProcess, scratch: Path) -> None:
        from topics.spark import session

        config = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "2g",
            "spark.local.dir": str(scratch / "local"),
        }
        self.spark = session(master="local[2]", config=config)
        self.spark.sparkContext.setLogLevel("OFF")
        self.server = server
        self.scratch = scratch

    def frame(self, topic: str, **options: str) -> Any:
        given = {"url": self.server.url, "topic": topic, "columns": "seq,tag,data", "minPartitions": "4", **options}
        return self.spark.read.format("topics").options(**given).load()

    def whole(self, topic: str, **options: str) -> Any:
        """All columns, and as many tasks as the source chooses."""
        return self.spark.read.format("topics").options(url=self.server.url, topic=topic, **options).load()

    def aggregate(self, make: Any) -> tuple[float, float]:
        """The seconds of one scan with a group-by, and the seconds of CPU."""
        started, spent = time.perf_counter(), cpu_s(os.getpid())
        make().createOrReplaceTempView("scanned")
        self.spark.sql(SQL.format(view="scanned")).collect()
        return time.perf_counter() - started, cpu_s(os.getpid()) - spent

    def scans(self, topic: str, records: int) -> None:
        """Source against Parquet and JSON lines of the same rows."""
        parquet, lines = str(self.scratch / "parquet"), str(self.scratch / "lines")
        for path in (parquet, lines):
            shutil.rmtree(path, ignore_errors=True)
        self.frame(topic).write.parquet(parquet)
        self.frame(topic).write.json(lines)
        schema = "seq bigint, tag string, data string"
        made = {
            "(a) topics, data directory": lambda: self.frame(topic, dataDir=str(self.server.data_dir)),
            "(a) with default options": lambda: self.whole(topic, dataDir=str(self.server.data_dir)),
            "(b) topics, HTTP blocks": lambda: self.frame(topic),
            "(c) Parquet": lambda: self.spark.read.parquet(parquet),
            "(d) JSON lines": lambda: self.spark.read.schema(schema).json(lines),
        }
        # In turns, so that neither a JVM that is warming up nor a busy moment of the machine hits only one of them.
        turns = [{name: self.aggregate(make) for name, make in made.items()} for _ in range(RUNS)]
        took = {name: tuple(min(turn[name][k] for turn in turns) for k in (0, 1)) for name in made}
        reference = took["(c) Parquet"]
        for name, (seconds, cpu) in took.items():
            rate, ratio, cpu_ratio = records / seconds, reference[0] / seconds, reference[1] / cpu
            print(
                f"  {name:28} {seconds:6.2f} s  {rate / 1e6:5.2f} M records/s  {ratio:4.2f} of Parquet"
                f"   CPU {cpu / records * 1e6:5.2f} us a record  {cpu_ratio:4.2f} of Parquet"
            )

    def growth(self, sizes: list[int]) -> None:
        """Whether the cost of a scan grows with its records and no faster."""
        for size in sizes:
            topic = f"scale-{size}"
            load(self.server, topic, size)
            turns = [self.aggregate(lambda topic=topic: self.frame(topic)) for _ in range(RUNS)]
            seconds, cpu = (min(turn[k] for turn in turns) for k in (0, 1))
            print(
                f"  {size:>10,} records {seconds:6.2f} s  {seconds / size * 1e6:5.2f} us a record"
                f"   CPU {cpu / size * 1e6:5.2f} us a record"
            )

    def streaming(self, topic: str, records: int) -> None:
        """Topic to topic: sustained rate, and the time of a small micro-batch."""
        stream = self.spark.readStream.format("topics")
        source = {"url": self.server.url, "topic": topic, "maxOffsetsPerTrigger": "200000", "columns": "tag,data"}
        rows = stream.options(**source).load()
        sink = rows.writeStream.format("topics").options(url=self.server.url, topic=f"{topic}-copy")
        started = time.perf_counter()
        query = sink.option("checkpointLocation", str(self.scratch / "copy")).trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - started
        print(f"  topic to topic: {records / seconds:,.0f} records/s over {records:,} records")
        self.latency()

    def writing(self, topic: str, records: int) -> None:
        """Rows of Parquet files into a topic, and a topic into a lake, before and after its files are merged."""
        rows = str(self.scratch / "rows")
        self.frame(topic, columns="tag,data").write.parquet(rows)
        took = []
        for turn in range(3):
            started = time.perf_counter()
            sink = self.spark.read.parquet(rows).write.format("topics").mode("append")
            sink.options(url=self.server.url, topic=f"{topic}-sink-{turn}").save()
            took.append(time.perf_counter() - started)
        print(f"  Parquet to topic: {records / min(took):,.0f} records/s")
        took = [self._archive(topic, f"lake-{turn}") for turn in range(3)]
        print(f"  topic to lake (archive --once): {records / min(took):,.0f} records/s")
        self._compact(self.scratch / "lake-0")

    def _archive(self, topic: str, name: str) -> float:
        from topics.pipeline.archive import Archive

        started = time.perf_counter()
        archive = Archive({"url": self.server.url, "topics": topic}, Place(self.scratch / name))
        query = archive.start(self.spark, True, "1 second", self.scratch / "never")
        query.awaitTermination()
        assert query.exception() is None
        return time.perf_counter() - started

    def _compact(self, lake: Path) -> None:
        from deltalake import DeltaTable

        from topics.pipeline.compact import compact

        for label in ("as written", "compacted"):
            paths = DeltaTable(str(lake / "events")).file_uris()
            turns = [self.aggregate(lambda paths=paths: self.spark.read.parquet(*paths)) for _ in range(RUNS)]
            seconds = min(took for took, _ in turns)
            print(f"  group-by over the archive, {label}: {seconds:.2f} s, {len(paths)} files")
            list(compact(Place(lake), 128 << 20))

    def latency(self) -> None:
        """Batches of a few records, one after the other."""
        append(self.server, "trickle", 10)
        options = {"url": self.server.url, "topic": "trickle", "startingOffsets": "latest"}
        rows = self.spark.readStream.format("topics").options(**options).load().select("data")
        sink = rows.writeStream.format("topics").options(url=self.server.url, topic="trickled")
        query = sink.option("checkpointLocation", str(self.scratch / "trickle")).start()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            append(self.server, "trickle", 10)
            time.sleep(0.2)
        reports = [report for report in query.recentProgress if report["numInputRows"]]
        query.stop()
        took = [report["durationMs"]["triggerExecution"] for report in reports[3:]]
        print(f"  micro-batch of a few records: p50 {statistics.median(took):.0f} ms over {len(took)} batches")

    def writers(self, topic: str) -> None:
        """p99 of one-record writes, alone and beside a full scan; server and writer on one core, Spark on the other."""
        if len(os.sched_getaffinity(0)) > 1:
            first, *others = sorted(os.sched_getaffinity(0))
            pin(family(self.server.pid), {first})
            pin([pid for pid in family(os.getpid()) if pid not in family(self.server.pid)], set(others))
        alone = self._write_latencies(lambda: time.sleep(4))
        beside = self._write_latencies(lambda: [self.aggregate(lambda: self.frame(topic)) for _ in range(2)])
        for name, found in (("alone", alone), ("beside a full scan", beside)):
            p50, p99 = statistics.median(found), statistics.quantiles(found, n=100)[98]
            print(f"  write {name:20} p50 {p50:5.2f} ms  p99 {p99:5.2f} ms  ({len(found)} writes)")

    def _write_latencies(self, meanwhile: Any) -> list[float]:
        prober = subprocess.Popen(
            [sys.executable, "-m", "bench.spark", "--probe", f"{self.server.host}:{self.server.port}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if len(os.sched_getaffinity(self.server.pid)) == 1:
            pin([prober.pid], os.sched_getaffinity(self.server.pid))
        meanwhile()
        out, _ = prober.communicate("stop")
        found: list[float] = json.loads(out)
        return found[100:]


def probe(address: str) -> None:
    """Write single records until stdin says stop, then print the latencies in milliseconds."""
    connection = http.client.HTTPConnection(*address.split(":"))
    body = b'{"records":[{"data":{"type":"resize","w":256},"tag":"tenant42"}]}'
    found = []
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        started = time.perf_counter()
        connection.request("POST", "/v0/topics/small", body, {"Content-Type": "application/json"})
        connection.getresponse().read()
        found.append((time.perf_counter() - started) * 1000)
    connection.close()
    print(json.dumps(found))


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += parents.get(found[-1], [])
    return found


def cpu_s(pid: int) -> float:
    """The CPU seconds of a process and all its descendants, those included that have ended and were waited for."""
    ticks = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def pin(pids: list[int], cores: set[int]) -> None:
    """Keep processes, with all their threads, on these cores."""
    for pid in pids:
        # Processes and threads end meanwhile.
        with contextlib.suppress(OSError):
            for thread in list(Path(f"/proc/{pid}/task").iterdir()):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread.name), cores)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--stream-records", type=int, default=1_000_000)
    parser.add_argument("--sizes", default="100000,1000000", help="of the topics whose scans are compared")
    parser.add_argument("--data-dir", type=Path, help="keep what is loaded there, and use what is there")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.probe:
        probe(chosen.probe)
        return
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as directory, ServerProcess(chosen.data_dir) as server:
        scratch = Path(directory)
        seconds = load(server, "events", chosen.records)
        await_sealed(server.data_dir)
        segments = len(server.request("GET", "/v0/topics/events/plan?segments=true").json["segments"])
        print(f"loaded {chosen.records:,} records of {RECORD_BYTES} bytes in {seconds:.0f} s: {segments} segments")
        bench = SparkBench(server, scratch)
        print("scan and group-by, local[2]:")
        bench.scans("events", chosen.records)
        if chosen.sizes:
            print("growth:")
            bench.growth([int(size) for size in chosen.sizes.split(",")])
        if chosen.stream_records:
            print("streaming:")
            load(server, "stream", chosen.stream_records)
            bench.streaming("stream", chosen.stream_records)
            print("writing:")
            bench.writing("stream", chosen.stream_records)
        print("writers:")
        bench.writers("events")
        bench.spark.stop()
        if chosen.stream_records:
            print("beside Kafka, in a session of its own:")
            spark_kafka.beside(server.url, server.data_dir, "stream", chosen.stream_records)


if __name__ == "__main__":
    main()
