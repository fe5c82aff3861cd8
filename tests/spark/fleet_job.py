"""What runs on the machines of a cluster test: `python fleet_job.py WHAT OPTIONS`, options as JSON.

load    write records to a topic, at a steady rate, until there is a file `stop`; each is written once
watch   write down, again and again, how far lake and copy are
copy    a stream from topic to topic on Spark
count   the number of records by tag, on Spark
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

BATCH = 100
PAUSE_S = 0.3
BEHIND_MAX = 10_000
"""So far may the copy be behind on a slow machine, or it would take long to catch up at the end."""


def call(given: dict[str, Any], path: str, body: Any = None) -> dict[str, Any]:
    """An answer of the server, which may be away for a while."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['TOPICS_TOKEN']}"}
    data = None if body is None else json.dumps(body).encode()
    while True:
        request = urllib.request.Request(f"{given['url']}/v0/topics/{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429:
                raise
        except OSError:
            pass
        time.sleep(0.2)


def head(given: dict[str, Any], topic: str) -> int:
    """The last seq of a topic, 0 where it does not exist."""
    try:
        return int(call(given, given[topic])["head_seq"])
    except urllib.error.HTTPError:
        return 0


def load(given: dict[str, Any]) -> None:
    """Every write carries a producer seq, so the one that a killed server may have taken is repeated and dropped."""
    written = 0
    while not written or not Path("stop").exists():
        records = [{"data": n, "tag": f"t{n % 4}"} for n in range(written + 1, written + BATCH + 1)]
        call(given, given["topic"], {"producer_id": "load", "producer_seq": written, "records": records})
        written += BATCH
        time.sleep(PAUSE_S)
        while written - head(given, "copy") > BEHIND_MAX and not Path("stop").exists():
            time.sleep(PAUSE_S)
    sys.stdout.write(f"{written}\n")


def watch(given: dict[str, Any]) -> None:
    """The records that the lake holds, by its log; and the heads of the topics."""
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    while True:
        found = {"lake": 0}
        with contextlib.suppress(TableNotFoundError):
            actions = pa.table(DeltaTable(given["lake"] + "/events").get_add_actions(flatten=True))
            found["lake"] = sum(actions["num_records"].to_pylist())
        for name in ("topic", "copy"):
            found[name] = head(given, name)
        Path("status.new").write_text(json.dumps(found))
        Path("status.new").replace("status")
        time.sleep(0.3)


def copy(given: dict[str, Any]) -> None:
    """In small batches and with a shuffle, so that a retried task may yield another order."""
    from topics.spark import session

    spark = session("copy", config={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"})
    options = {"url": given["url"], "topic": given["topic"], "maxOffsetsPerTrigger": "4000"}
    rows = spark.readStream.format("topics").options(**options).load().repartition(4).select("data", "tag")
    sink = rows.writeStream.format("topics").options(url=given["url"], topic=given["copy"])
    sink = sink.options(checkpointLocation=given["checkpoint"], stagingDir=given["staging"])
    sink.trigger(processingTime="500 milliseconds").start().awaitTermination()


def count(given: dict[str, Any]) -> None:
    """Executors tell where the package is that they use."""
    from topics.spark import session

    def where(batches: Any) -> Any:
        import pyarrow

        import topics

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"place": [topics.__file__]})

    spark = session("count", config={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"})
    frame = spark.read.format("topics").options(url=given["url"], topic=given["topic"], minPartitions="4").load()
    counts = {row["tag"]: row["count"] for row in frame.groupBy("tag").count().collect()}
    places = {row["place"] for row in frame.mapInArrow(where, "place string").collect()}
    sys.stdout.write(json.dumps({"counts": counts, "places": sorted(places)}) + "\n")
    spark.stop()


if __name__ == "__main__":
    {"load": load, "watch": watch, "copy": copy, "count": count}[sys.argv[1]](json.loads(sys.argv[2]))
