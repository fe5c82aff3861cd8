"""A Kafka broker and Spark's connector for it, as Maven packages, for the rows that are measured beside ours.

Packages are fetched once into `.cache/kafka`. Where Maven is missing or cannot fetch them, `Missing` says so and the
rows are skipped. The connector is that of the running Spark, or the newest older one that can be had: it is made of
Spark's own classes, so `bench.spark_kafka` tries it before it measures anything.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache" / "kafka"
BROKER = "4.2.0"
CLIENTS = "3.9.2"
"""What the connector is built with; a broker serves older clients."""
OLDER = ("4.2.1", "4.2.0", "4.1.1", "4.0.0")
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
FETCH_S = 300
START_S = 60
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>broker</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{kafka}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={directory}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class Missing(Exception):
    """There is no Kafka to measure, and this is why."""


def connector(spark_version: str) -> tuple[str, list[Path]]:
    """The version of Spark's connector, and its jars."""
    target = CACHE / f"connector-{spark_version}"
    versions = (spark_version, *(version for version in OLDER if version < spark_version))
    found, jar = _newest("org.apache.spark:spark-sql-kafka-0-10_2.13", versions, target)
    _, provider = _newest("org.apache.spark:spark-token-provider-kafka-0-10_2.13", (found, *versions), target)
    _, clients = _newest("org.apache.kafka:kafka-clients", (CLIENTS,), target)
    _, pool = _newest("org.apache.commons:commons-pool2", ("2.13.1", "2.12.0"), target)
    return found, [jar, provider, clients, pool]


def _newest(artifact: str, versions: tuple[str, ...], target: Path) -> tuple[str, Path]:
    name = artifact.partition(":")[2]
    for version in versions:
        jar = target / f"{name}-{version}.jar"
        if not jar.exists():
            _maven("dependency:copy", f"-Dartifact={artifact}:{version}", f"-DoutputDirectory={target}", must=False)
        if jar.exists():
            return version, jar
    raise Missing(f"Maven has no {name} of {', '.join(versions)}")


def _broker_jars() -> Path:
    target = CACHE / f"broker-{BROKER}"
    if not (target / ".ready").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        pom = CACHE / "broker.xml"
        pom.write_text(POM.format(kafka=BROKER))
        _maven("dependency:copy-dependencies", "-f", str(pom), f"-DoutputDirectory={target}")
        (target / ".ready").touch()
    return target


def _maven(goal: str, *arguments: str, must: bool = True) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing("there is no mvn, which fetches broker and connector")
    CACHE.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [maven, "-B", "-q", goal, *arguments], cwd=CACHE, capture_output=True, text=True, timeout=FETCH_S, check=False
    )
    if must and done.returncode:
        raise Missing("Maven cannot fetch the broker: " + (done.stdout.splitlines() or ["it says nothing"])[0])


@contextlib.contextmanager
def broker(directory: Path, partitions: int) -> Iterator[str]:
    """One node that is broker and controller, while the context lasts; its address."""
    jars = f"{_broker_jars()}/*"
    port, control = _free_port(), _free_port()
    directory.mkdir()
    properties = directory / "server.properties"
    properties.write_text(
        PROPERTIES.format(port=port, control=control, directory=directory / "log", partitions=partitions)
    )
    formatting = ["java", "-cp", jars, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
    done = subprocess.run(formatting, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"the broker does not start: {done.stderr[-300:]}")
    process = subprocess.Popen(
        ["java", "-Xmx1g", "-cp", jars, "kafka.Kafka", str(properties)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(port, process)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.2)
    raise Missing(f"the broker does not answer within {START_S} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
