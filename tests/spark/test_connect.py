"""Spark Connect: a client without a JVM, and a server that has the package.

It starts a server of its own, so only `make test-cluster` runs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.api import Api
from tests.harness.spark import records
from topics.testing import ServerProcess

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif("TOPICS_CLUSTER" not in os.environ, reason="takes minutes: make test-cluster runs it"),
]

PROGRAM = """
import json, os, sys
from topics.spark import java, register
java.prepare()
os.environ["PYSPARK_PYTHON"] = sys.executable
url, topic, checkpoint = sys.argv[1:]
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").getOrCreate()
orders = spark.read.format("topics").options(url=url, topic=topic).load()
counts = {row["tag"]: row["count"] for row in orders.groupBy("tag").count().collect()}
register(spark)
orders.limit(3).select("data").write.format("topics").mode("append").options(url=url, topic=topic + ".few").save()
stream = spark.readStream.format("topics").options(url=url, topic=topic).load().select("data")
sink = stream.writeStream.format("topics").options(url=url, topic=topic + ".copy", checkpointLocation=checkpoint)
sink.trigger(availableNow=True).start().awaitTermination()
print(json.dumps([type(spark).__module__, counts]))
spark.stop()
"""


def test_a_connect_client_reads_writes_and_streams(
    server: ServerProcess, api: Api, topic_name: str, tmp_path: Path
) -> None:
    """SPARK-37."""
    for n in range(1, 41):
        api.write(topic_name, {"data": n, "tag": f"t{n % 2}"})
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.url, topic_name, str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    module, counts = json.loads(ran.stdout.splitlines()[-1])
    assert module.startswith("pyspark.sql.connect")
    assert counts == {"t0": 20, "t1": 20}
    assert len(records(api, f"{topic_name}.few")) == 3
    assert sorted(record["data"] for record in records(api, f"{topic_name}.copy")) == list(range(1, 41))
