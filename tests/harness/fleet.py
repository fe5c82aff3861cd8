"""Fleet: a Spark standalone cluster, a topics server and an object store, each on a machine of its own.

The workers have Spark and the libraries, and not the package: it reaches them as a wheel, from the driver. Only the
server's machine has its data directory, and only the driver's has a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.harness.api import until
from tests.harness.machines import ROOT, Machines, answers, machines
from tests.harness.object_store import BUCKET, SECRET

KEY = "a-key-of-the-cluster-that-is-never-shown"
JOB = ROOT / "tests" / "spark" / "fleet_job.py"
VENV = ROOT / ".venv"
SPARK_DEADLINE_S = 280.0
LAKE = f"s3://{BUCKET}/lake"
URL = "http://server:4000"
MASTER = "spark://master:7077"
STORE = {
    "AWS_ENDPOINT_URL": "http://store:5000",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
"""Where the object store is and the keys for it: each machine that needs them has them in its environment."""
GIVEN = {
    "url": URL,
    "topic": "orders",
    "copy": "orders.copy",
    "lake": LAKE,
    "checkpoint": "/tmp/checkpoint",
    "staging": f"s3://{BUCKET}/staging",
}
_SMALL = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.driver.host": "driver",
    "spark.driver.bindAddress": "driver",
    "spark.submit.pyFiles": "/tmp/topics.zip",
    # A machine that is gone says nothing; by default Spark waits for two minutes.
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "10s",
    "spark.executor.heartbeatInterval": "3s",
}


class Fleet:
    """The machines, and what runs on them."""

    def __init__(self, room: Machines, logs: Path, wheel: Path) -> None:
        import pyspark

        from topics.spark import java

        java.prepare()
        self._room = room
        self.logs = logs
        self._spark = Path(pyspark.__file__).parent
        self._environ = {
            "SPARK_HOME": str(self._spark),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        self._environ |= {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
        self.server = room.add("server", VENV, ROOT / "src")
        self.store = room.add("store", VENV)
        self.client = room.add("client", VENV, ROOT / "src", JOB)
        self.master = room.add("master", VENV)
        self.driver = room.add("driver", VENV, ROOT / "src", JOB)
        self.workers = {name: room.add(name, VENV) for name in ("worker-1", "worker-2")}
        shutil.copy(wheel, self.driver.path("/tmp/topics.zip"))

    def log(self, name: str) -> Path:
        """What a program printed, over all its runs."""
        return self.logs / f"{name}.log"

    def start(self) -> None:
        """Start everything but the applications."""
        self.store.start(sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", "5000", log=self.log("store"))
        self.start_server()
        master = ("org.apache.spark.deploy.master.Master", "--host", "master", "--port", "7077", "--webui-port", "0")
        self.master.start(self._spark / "bin" / "spark-class", *master, log=self.log("master"), environ=self._environ)
        answers(self.store, 5000, "the object store answers")
        request = f"urllib.request.Request('http://store:5000/{BUCKET}', method='PUT')"
        self.client.run(sys.executable, "-c", f"import urllib.request; urllib.request.urlopen({request})")
        answers(self.master, 7077, "the master listens")
        for name in self.workers:
            self.start_worker(name)

    def start_server(self) -> None:
        """Start the server, also after it was killed: on the data directory that is there."""
        settings = {"TOPICS_HOST": "0.0.0.0", "TOPICS_DATA_DIR": "/tmp/data", "TOPICS_API_KEYS": KEY}
        self.server.start(sys.executable, "-m", "topics", "serve", log=self.log("server"), environ=settings)
        answers(self.server, 4000, "the server listens")

    def start_worker(self, name: str) -> None:
        """Start the Spark worker of a machine."""
        worker = ("org.apache.spark.deploy.worker.Worker", "--host", name, "--webui-port", "0")
        directories = {"SPARK_WORKER_DIR": "/tmp/work", "SPARK_LOCAL_DIRS": "/tmp/local"}
        self.workers[name].start(
            self._spark / "bin" / "spark-class",
            *worker,
            *("--cores", "2", "--memory", "2g", MASTER),
            log=self.log(name),
            environ={**self._environ, **STORE, **directories},
        )

    def start_archive(self) -> subprocess.Popen[bytes]:
        """`topics pipeline archive` on the driver's machine."""
        arguments = ["--topic", GIVEN["topic"], "--to", LAKE, "--url", URL, "--master", MASTER, "--max-offsets", "4000"]
        for name, value in _SMALL.items():
            arguments += ["--conf", f"{name}={value}"]
        return self.driver.start(
            *(sys.executable, "-m", "topics", "pipeline", "archive", *arguments),
            log=self.log("archive"),
            environ={**self._environ, **STORE, "TOPICS_TOKEN": KEY},
        )

    def submit(self, what: str, **settings: str) -> list[str]:
        """The command that submits an application."""
        confs = [f"--conf={name}={value}" for name, value in (_SMALL | settings).items()]
        return [
            str(self._spark / "bin" / "spark-submit"),
            "--master",
            MASTER,
            *confs,
            str(JOB),
            what,
            json.dumps(GIVEN),
        ]

    def start_copy(self) -> subprocess.Popen[bytes]:
        """The stream from topic to topic, by `spark-submit` on the driver's machine."""
        return self.driver.start(
            *self.submit("copy"),
            log=self.log("copy"),
            environ={**self._environ, **STORE, "TOPICS_TOKEN": KEY},
        )

    def run(self, what: str, settings: dict[str, str] | None = None, **environ: str) -> Any:
        """Submit an application that ends; what it prints at last, as JSON."""
        variables = {**self._environ, **STORE, "TOPICS_TOKEN": KEY, **environ}
        command = self.submit(what, **(settings or {}))
        said = self.driver.run(*command, environ=variables, timeout_s=SPARK_DEADLINE_S)
        return json.loads(said.splitlines()[-1])

    def load(self) -> None:
        """Write records to the end of the load, which is at once where there is a file `stop`."""
        environ = {"TOPICS_TOKEN": KEY}
        self.client.run(sys.executable, JOB, "load", json.dumps(GIVEN), environ=environ)

    def start_load(self) -> None:
        """Begin to write records, and to watch how far lake and copy are."""
        environ = {**STORE, "TOPICS_TOKEN": KEY}
        for what in ("load", "watch"):
            self.client.start(sys.executable, JOB, what, json.dumps(GIVEN), log=self.log(what), environ=environ)

    def status(self) -> dict[str, int]:
        """How many records are in lake and copy."""
        try:
            found: dict[str, int] = json.loads(self.client.path("/tmp/status").read_text())
        except FileNotFoundError:
            return {"lake": 0, "copy": 0}
        return {"lake": found["lake"], "copy": found.get("copy", 0)}

    def advance(self, records: int) -> None:
        """Wait until lake and copy each have this many records more than now."""
        before = self.status()

        def advanced() -> bool:
            now = self.status()
            return all(now[name] >= before[name] + records for name in before)

        try:
            until(advanced, f"lake and copy are {records} records further than {before}", SPARK_DEADLINE_S)
        except BaseException:
            for name in ("archive", "copy", "worker-1", "server"):
                sys.stderr.write(f"--- {name}\n{self.log(name).read_text()[-3000:]}\n")
            raise

    def finish_load(self) -> int:
        """Stop writing; how many records were written."""
        self.client.path("/tmp/stop").touch()
        log = self.log("load")
        return int(until(lambda: log.read_text().strip(), "the load ends", SPARK_DEADLINE_S))

    def ask(self, program: str) -> Any:
        """What a Python program prints as JSON on the client's machine, which has the keys of everything."""
        environ = {**STORE, "TOPICS_TOKEN": KEY}
        return json.loads(self.client.run(sys.executable, "-c", program, environ=environ, timeout_s=SPARK_DEADLINE_S))


@contextlib.contextmanager
def fleet(logs: Path, wheel: Path) -> Iterator[Fleet]:
    """A running cluster, while the context lasts."""
    with machines("server", "store", "client", "master", "driver", "worker-1", "worker-2") as room:
        made = Fleet(room, logs, wheel)
        made.start()
        yield made
