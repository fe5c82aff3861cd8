"""Spark over topics beside Spark over files: scans, streaming, writing, archives, and what a scan costs the writers.

`make bench-spark ARGS='--records 5000000'` prints one table. A ratio within one run is what counts; the absolute
figures belong to the machine. CPU is that of Spark, its Python workers and the server together: on a machine that does
other work too it is the figure to compare. How rows are measured and added is in `bench.spark_rows`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import pickle
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from bench import spark_floor, spark_kafka
from bench.reads import await_sealed
from bench.row import Row, at_least, at_most
from bench.spark_rows import Contender, Work, markdown, measure, over_sessions
from topics.spark.place import Place
from topics.testing import ServerProcess

BATCH = 1_000
RECORD_BYTES = 150
RUNS = 4
SESSIONS = 3
"""How many sessions a group-by is measured in: how well the compiler of a JVM does with Spark's own code, such as that
of `length`, is a matter of luck, and makes a difference of up to a third for as long as that JVM lives."""
ARCHIVED = 0.95
"""The share of the topic that the lake of `table` holds."""
STREAM_BATCH = 200_000
TRICKLE_S = 15
WARM_BATCHES = 3
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "runs", "far", "away")
SQL = "SELECT tag, count(*) AS n, sum(length(data)) AS bytes, max(seq) AS last FROM {view} GROUP BY tag"


def load(server: ServerProcess, topic: str, records: int) -> float:
    """As `append`, unless the records are there already."""
    there = server.request("GET", f"/v0/topics/{topic}")
    return 0.0 if there.status == 200 and there.json["head_seq"] == records else append(server, topic, records)


def append(server: ServerProcess, topic: str, records: int, before: int = 0) -> float:
    """Write so many records of about 150 bytes, after so many of them; the seconds it took."""
    connection = http.client.HTTPConnection(server.host, server.port)
    started = time.perf_counter()
    for first in range(before, before + records, BATCH):
        rows = []
        for n in range(first, min(first + BATCH, before + records)):
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


class Scans:
    """One session, and a group-by over the records of a server that may be those of another process."""

    def __init__(self, url: str, data_dir: Path, pid: int, scratch: Path) -> None:
        from topics.spark import session

        config = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "2g",
            "spark.local.dir": str(scratch / "local"),
        }
        self.spark = session(master="local[2]", config=config)
        self.spark.sparkContext.setLogLevel("OFF")
        self.url, self.data_dir, self.pid = url, data_dir, pid
        self.scratch = scratch

    def frame(self, topic: str, schema: str | None = None, **options: str) -> Any:
        """All columns or those of a schema, and as many tasks as the source chooses."""
        reader = self.spark.read.format("topics").options(url=self.url, topic=topic, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    def aggregate(self, frame: Any) -> None:
        """One scan with a group-by."""
        frame.createOrReplaceTempView("scanned")
        self.spark.sql(SQL.format(view="scanned")).collect()

    def scans(self, topic: str, records: int, lake: Path) -> Work:
        """A group-by over the source, over files of the same rows, and over a lake with the source as its tail."""
        from topics.spark import table

        files, lines = str(self.scratch / "parquet"), str(self.scratch / "lines")
        chosen = self.frame(topic, columns="seq,tag,data")
        chosen.write.parquet(files)
        chosen.write.json(lines)
        schema = "seq bigint, tag string, data string"
        options = spark_floor.prepare(self.url, topic, self.scratch / "floor.arrow")
        self.spark.dataSource.register(spark_floor.Floor)
        ready = self.spark.read.format("floor").options(**options)
        url, data_dir = self.url, str(self.data_dir)
        whole = self.archive(topic, "whole")
        return Work(
            "group-by",
            records,
            [
                self._scan("Parquet", lambda: self.spark.read.parquet(files)),
                self._scan("Delta, the files of an archive", lambda: self.delta(whole)),
                self._scan("JSON lines", lambda: self.spark.read.schema(schema).json(lines)),
                self._scan("a Python source that does nothing", ready.load),
                self._scan("topics over HTTP", lambda: self.frame(topic)),
                self._scan("topics, `dataDir`", lambda: self.frame(topic, dataDir=data_dir), 1.1),
                self._scan(
                    "topics, `dataDir`, with the schema of the files",
                    lambda: self.frame(topic, schema, dataDir=data_dir),
                    1.1,
                ),
                self._scan("`table`, 95 percent archived", lambda: table(self.spark, topic, lake, url=url), 1.15),
            ],
            "Parquet",
        )

    def _scan(self, name: str, make: Callable[[], Any], ratio_max: float | None = None) -> Contender:
        target = None if ratio_max is None else at_most(ratio_max, "ratio")
        return Contender(name, lambda _: self.aggregate(make()), target)

    def delta(self, lake: Path) -> Any:
        """The table of events in a lake, as Spark's own reader takes its files."""
        from deltalake import DeltaTable

        return self.spark.read.parquet(*DeltaTable(str(lake / "events")).file_uris())

    def archive(self, topic: str, name: str, **options: Any) -> Path:
        """Archive a topic once, and where the lake is."""
        from topics.pipeline.archive import Archive

        root = self.scratch / name
        archive = Archive({"url": self.url, "topics": topic}, Place(root), **options)
        query = archive.start(self.spark, True, "1 second", self.scratch / "never")
        query.awaitTermination()
        assert query.exception() is None
        return root

    def cpu_s(self) -> float:
        """The CPU seconds of Spark, its workers and the server so far."""
        return cpu_s({*family(os.getpid()), *family(self.pid)})


class SparkBench(Scans):
    """A session, a server, and what is measured with both."""

    def __init__(self, server: ServerProcess, scratch: Path) -> None:
        super().__init__(server.url, server.data_dir, server.pid, scratch)
        self.server = server

    def growth(self, sizes: list[int]) -> Iterator[Row]:
        """Whether the cost of a scan grows with its records and no faster."""
        for size in sizes:
            topic = f"scale-{size}"
            load(self.server, topic, size)
            scan = self._scan(f"{size:,} records over HTTP", partial(self.frame, topic))
            yield from measure(Work("group-by, growth", size, [scan]), self.cpu_s)

    def streaming(self, topic: str, records: int) -> Work:
        """All records in batches of 200,000, to a sink that does nothing."""
        given = {"url": self.url, "topic": topic, "maxOffsetsPerTrigger": str(STREAM_BATCH)}

        def stream(turn: int) -> None:
            sink = self.spark.readStream.format("topics").options(**given).load().writeStream.format("noop")
            sink = sink.option("checkpointLocation", str(self.scratch / f"stream-{turn}"))
            query = sink.trigger(availableNow=True).start()
            query.awaitTermination()
            assert query.exception() is None

        wanted = at_least(450_000, "records_s")
        return Work("streaming read", records, [Contender("topics over HTTP", stream, wanted)])

    def sink(self, topic: str, records: int) -> Work:
        """Rows of Parquet files into a new topic."""
        rows = str(self.scratch / "rows")
        self.frame(topic, columns="tag,data").write.parquet(rows)

        def write(turn: int) -> None:
            sink = self.spark.read.parquet(rows).write.format("topics").mode("append")
            sink.options(url=self.url, topic=f"{topic}-sink-{turn}").save()

        def make(_: int) -> None:
            self.spark.read.parquet(rows).write.format("noop").mode("overwrite").save()

        making = Contender("Parquet to nowhere: what making the rows takes of it", make)
        return Work("sink", records, [Contender("Parquet to a topic", write, at_least(400_000, "records_s")), making])

    def archives(self, topic: str, records: int) -> Work:
        """A topic into a new lake."""
        wanted = at_least(300_000, "records_s")
        return Work(
            "archive",
            records,
            [Contender("a topic to Delta", lambda turn: self.archive(topic, f"lake-{turn}"), wanted)],
        )

    def compacted(self, topic: str, records: int) -> Work:
        """A group-by over a lake as its archive wrote it, and merged."""
        from topics.pipeline.lake.compact import compact

        written, merged = (self.archive(topic, name, offsets_max=STREAM_BATCH) for name in ("small", "merged"))
        list(compact(Place(merged), 128 << 20))
        return Work(
            "compact, then group-by",
            records,
            [self._scan("as written", lambda: self.delta(written)), self._scan("merged", lambda: self.delta(merged))],
        )

    def latency(self) -> Row:
        """Batches of a few records from topic to topic, one after the other."""
        append(self.server, "trickle", 10)
        options = {"url": self.url, "topic": "trickle", "startingOffsets": "latest"}
        rows = self.spark.readStream.format("topics").options(**options).load().select("data")
        sink = rows.writeStream.format("topics").options(url=self.url, topic="trickled")
        query = sink.option("checkpointLocation", str(self.scratch / "trickle")).start()
        deadline = time.monotonic() + TRICKLE_S
        while time.monotonic() < deadline:
            append(self.server, "trickle", 10)
            time.sleep(0.2)
        reports = [report for report in query.recentProgress if report["numInputRows"]]
        query.stop()
        took = [float(report["durationMs"]["triggerExecution"]) for report in reports[WARM_BATCHES:]]
        p50, p99 = statistics.median(took), statistics.quantiles(took, n=100)[98]
        title = f"topic to topic, {len(took)} batches of a few records"
        return Row("micro-batch", title, p50_ms=p50, p99_ms=p99, target=at_most(200, "p50_ms"))

    def writers(self, topic: str) -> Iterator[Row]:
        """p99 of one-record writes, alone and beside a full scan; server and writer on one core, Spark on the other."""
        if len(os.sched_getaffinity(0)) > 1:
            first, *others = sorted(os.sched_getaffinity(0))
            pin(family(self.server.pid), {first})
            pin([pid for pid in family(os.getpid()) if pid not in family(self.server.pid)], set(others))
        alone = self._write_latencies(lambda: time.sleep(4))
        beside = self._write_latencies(lambda: self._scan_twice(topic))
        for name, found in (("alone", alone), ("beside a full scan", beside)):
            p50, p99 = statistics.median(found), statistics.quantiles(found, n=100)[98]
            yield Row("write of one record", f"{name}, {len(found):,} writes", p50_ms=p50, p99_ms=p99)

    def _scan_twice(self, topic: str) -> None:
        for _ in range(2):
            self.aggregate(self.frame(topic))

    def _write_latencies(self, meanwhile: Callable[[], None]) -> list[float]:
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
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port))
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


def cpu_s(pids: set[int]) -> float:
    """The CPU seconds of processes, and of their children that have ended and were waited for."""
    ticks = 0
    for member in pids:
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


def scan_in_sessions(server: ServerProcess, lake: Path, records: int) -> list[Row]:
    """The group-by, in one process after the other, each of which has a JVM of its own."""
    found = []
    for _ in range(SESSIONS):
        with tempfile.TemporaryDirectory(prefix="topics-bench-") as directory:
            rows = Path(directory) / "rows"
            given = json.dumps([server.url, str(server.data_dir), server.pid, str(lake), records, str(rows)])
            subprocess.run([sys.executable, "-m", "bench.spark", "--scan", given], check=True)
            found.append(pickle.loads(rows.read_bytes()))
    return over_sessions(found, records, "Parquet")


def scan(given: str) -> None:
    """Measure the group-by in this process, for `scan_in_sessions`."""
    url, data_dir, pid, lake, records, rows = json.loads(given)
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as directory:
        bench = Scans(url, Path(data_dir), pid, Path(directory))
        measured = measure(bench.scans("events", records, Path(lake)), bench.cpu_s)
        Path(rows).write_bytes(pickle.dumps(measured))
        bench.spark.stop()


def works(bench: SparkBench, records: int) -> dict[str, Callable[[], list[Row]]]:
    """Everything that is measured, by name; each prepares what it needs."""

    def of(prepare: Callable[[str, int], Work]) -> Callable[[], list[Row]]:
        return lambda: measure(prepare("events", records), bench.cpu_s)

    return {
        "group-by": lambda: scan_in_sessions(bench.server, bench.scratch / "lake", records),
        "stream": of(bench.streaming),
        "trickle": lambda: [bench.latency()],
        "sink": of(bench.sink),
        "archive": of(bench.archives),
        "compact": of(bench.compacted),
        # It binds processes to cores, so it comes last.
        "writers": lambda: list(bench.writers("events")),
    }


def _wants(name: str, only: list[str] | None) -> bool:
    return not only or any(fnmatch(name, pattern) for pattern in only)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--only", action="append", metavar="NAME", help="works to measure, such as group-by or 's*'")
    parser.add_argument("--sizes", default="", help="of topics whose scans are compared, such as 100000,1000000")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    parser.add_argument("--scan", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.probe:
        probe(chosen.probe)
        return
    if chosen.scan:
        scan(chosen.scan)
        return
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as directory, ServerProcess() as server:
        bench = SparkBench(server, Path(directory))
        archived = int(chosen.records * ARCHIVED)
        seconds = append(server, "events", archived)
        bench.archive("events", "lake")
        seconds += append(server, "events", chosen.records - archived, archived)
        await_sealed(server.data_dir)
        segments = len(server.request("GET", "/v0/topics/events/plan?segments=true").json["segments"])
        print(f"loaded {chosen.records:,} records of {RECORD_BYTES} bytes in {seconds:.0f} s: {segments} segments")
        if chosen.sizes:
            rows += bench.growth([int(size) for size in chosen.sizes.split(",")])
        for name, run in works(bench, chosen.records).items():
            if _wants(name, chosen.only):
                found = run()
                rows += found
                # As they come, because a run takes minutes and the table is its last line.
                print("\n".join(markdown(found).splitlines()[2:]), flush=True)
        bench.spark.stop()
        if _wants("kafka", chosen.only):
            print("beside Kafka, in a session of its own:")
            spark_kafka.beside(server.url, server.data_dir, "events", chosen.records)
    print(markdown(rows))


if __name__ == "__main__":
    main()
