"""Exactly once on a real cluster: machines of their own, no file system in common, and kills under load.

It takes minutes, so only `make test-cluster` runs it; TOPICS_CLUSTER says how many rounds of kills there are.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Iterator

import pytest

from tests.acceptance.test_packages import ROOT, build
from tests.harness.api import until
from tests.harness.fleet import GIVEN, KEY, SPARK_DEADLINE_S, Fleet, fleet
from tests.harness.machines import refused
from tests.harness.object_store import SECRET

ROUNDS = int(os.environ.get("TOPICS_CLUSTER", "0"))
SEED = int(os.environ.get("TOPICS_CLUSTER_SEED", "7"))
PROGRESS = 1_500
"""Records that lake and copy each have to take in between two kills: several batches."""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not ROUNDS, reason="takes minutes: make test-cluster runs it"),
    pytest.mark.skipif(bool(ROUNDS) and refused() is not None, reason=str(refused()) if ROUNDS else ""),
]

LAKE = f"""
import json
from deltalake import DeltaTable
rows = DeltaTable("{GIVEN["lake"]}/events").to_pyarrow_table()
losses = DeltaTable("{GIVEN["lake"]}/losses").to_pyarrow_table()
print(json.dumps([rows["seq"].to_pylist(), [json.loads(data) for data in rows["data"].to_pylist()], losses.num_rows]))
"""
COPY = f"""
import json
from topics import Client
with Client("{GIVEN["url"]}") as client:
    print(json.dumps([record.data for record in client.topic("{GIVEN["copy"]}").read()]))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    wheel = build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")
    with fleet(tmp_path_factory.mktemp("logs"), wheel) as running:
        yield running


def test_executors_take_the_package_from_the_driver(cluster: Fleet) -> None:
    """SPARK-35: as `--py-files`; what they read comes over the network."""
    cluster.client.run("sh", "-c", "touch stop")
    cluster.load()
    said = cluster.run("count")
    assert said["counts"] == {f"t{n}": 25 for n in range(4)}
    assert all("topics.zip" in place for place in said["places"]), said["places"]
    cluster.client.path("/tmp/stop").unlink()


def test_executors_take_an_environment_as_an_archive(cluster: Fleet) -> None:
    """SPARK-35: as `--archives`; here its libraries are those of the machine, or it would be half a gigabyte."""
    python = cluster.driver.path("/tmp/environment")
    venv.create(python, symlinks=True)
    (packages,) = python.glob("lib/*/site-packages")
    with zipfile.ZipFile(cluster.driver.path("/tmp/topics.zip")) as wheel:
        wheel.extractall(packages)
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    cluster.driver.run("tar", "-czf", "environment.tar.gz", "-C", "environment", ".")
    settings = {"spark.archives": "environment.tar.gz#environment", "spark.submit.pyFiles": ""}
    said = cluster.run(
        "count", settings, PYSPARK_PYTHON="./environment/bin/python", PYSPARK_DRIVER_PYTHON=sys.executable
    )
    assert sum(said["counts"].values()) == 100
    assert all("/environment/lib/" in place and "/tmp/work/" in place for place in said["places"]), said["places"]


def test_every_record_is_there_once_through_kills_of_everything(cluster: Fleet) -> None:
    """SPARK-36: executors with their worker, the driver and the server, each killed under load, again and again."""
    chance = random.Random(SEED)
    archive, copy = cluster.start_archive(), cluster.start_copy()
    cluster.start_load()
    for _ in range(ROUNDS):
        for victim in chance.sample(["worker-1", "worker-2", "driver", "server"], 4):
            cluster.advance(PROGRESS)
            time.sleep(chance.uniform(0.0, 1.5))
            if victim == "driver":
                assert cluster.driver.kill() >= 2, "both drivers ran"
                archive, copy = cluster.start_archive(), cluster.start_copy()
            elif victim == "server":
                assert cluster.server.kill() == 1
                cluster.start_server()
            else:
                assert cluster.workers[victim].kill("CoarseGrainedExecutorBackend"), "executors ran there"
                cluster.workers[victim].kill()
                cluster.start_worker(victim)
    cluster.advance(PROGRESS)
    written = cluster.finish_load()
    until(lambda: min(cluster.status().values()) >= written, f"all {written} records are there", SPARK_DEADLINE_S)
    for pid in cluster.driver.pids("topics pipeline archive"):
        os.kill(pid, signal.SIGTERM)
    assert archive.wait(SPARK_DEADLINE_S) == 0, cluster.log("archive").read_text()[-3000:]
    assert copy.poll() is None, cluster.log("copy").read_text()[-3000:]
    cluster.driver.kill()
    everything = list(range(1, written + 1))
    seqs, data, losses = cluster.ask(LAKE)
    assert sorted(seqs) == everything
    assert sorted(data) == everything
    assert losses == 0
    assert sorted(cluster.ask(COPY)) == everything


def test_nothing_was_shared_and_no_key_was_shown(cluster: Fleet) -> None:
    """SPARK-36: neither in what programs print, nor in what Spark writes down of an application."""
    for worker in cluster.workers.values():
        assert not worker.path(GIVEN["checkpoint"]).exists()
        assert not worker.path("/tmp/data").exists()
        assert not worker.path(str(ROOT / "src")).exists()
    assert not cluster.driver.path("/tmp/data").exists()
    shown = list(cluster.logs.iterdir())
    for machine in (cluster.master, cluster.driver, *cluster.workers.values()):
        for name in ("stdout", "stderr", "*.log"):
            shown += machine.path("/tmp").rglob(name)
    assert len(shown) > 10, "the logs of all executors are among them"
    for path in shown:
        text = path.read_bytes()
        assert KEY.encode() not in text, path
        assert SECRET.encode() not in text, path
