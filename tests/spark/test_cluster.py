"""Beyond one process: a driver that is killed, executors that are killed, and clusters on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness.api import Api, until
from tests.harness.spark import records
from topics.testing import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

JOB = Path(__file__).with_name("job.py")
KILLS = int(os.environ.get("TOPICS_DRIVER_KILLS", "1"))
"""How often each driver is killed at random; more of them find more."""
SPARK_DEADLINE_S = 280.0
"""Generous, because each step starts a JVM or three: alone it takes seconds, on a busy machine minutes."""


class Job:
    """A running application; its processes are a group of their own, and only they are ever signalled."""

    def __init__(self, master: str, what: str, log: Path, **given: Any) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(JOB), master, what, json.dumps(given)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """The driver and all it started are gone at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()

    def ended(self) -> bool:
        return self._process.poll() is not None

    def finish(self) -> None:
        try:
            code = self._process.wait(SPARK_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end:\n{self._log.read_text()[-3000:]}") from None
        assert code == 0, self._log.read_text()[-3000:]

    def executors(self) -> list[int]:
        """The executors of this application, by their process ids."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                group = os.getpgid(int(entry.name))
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if group == self._process.pid and b"CoarseGrainedExecutorBackend" in command and b"java" in command[:200]:
                found.append(int(entry.name))
        return found


@contextmanager
def running(master: str, what: str, log: Path, **given: Any) -> Iterator[Job]:
    job = Job(master, what, log, **given)
    try:
        yield job
    finally:
        job.close()


def head(api: Api, topic: str) -> int:
    found: int = api.state(topic)["head_seq"] if api.exists(topic) else 0
    return found


def test_a_driver_killed_twice_copies_every_record_once(
    server: ServerProcess, api: Api, topic_name: str, tmp_path: Path
) -> None:
    """Exactly-once through kill -9: once while a batch is staged, once after some were published."""
    api.fill(topic_name, 240)
    target = f"{topic_name}.copy"
    given = {"url": server.url, "source": topic_name, "target": target, "checkpoint": str(tmp_path / "checkpoint")}
    log = tmp_path / "log"
    with running("local[2]", "copy", log, pause_s=0.01, **given) as job:
        until(lambda: job.ended() or list(tmp_path.rglob("*.staged")), "a task has staged its rows", SPARK_DEADLINE_S)
        assert not job.ended(), log.read_text()[-2000:]
        job.kill()
    with running("local[2]", "copy", log, pause_s=0.01, **given) as job:
        until(lambda: job.ended() or head(api, target) >= 120, "two batches are published", SPARK_DEADLINE_S)
        assert not job.ended(), log.read_text()[-2000:]
        job.kill()
    with running("local[2]", "copy", log, **given) as job:
        job.finish()
    assert sorted(record["data"] for record in records(api, target)) == list(range(1, 241))


def files_of(checkpoint: Path) -> set[str]:
    """The names of what a query has written of its offsets, half-written files included."""
    return {f"{kind}/{path.name}" for kind in ("offsets", "commits") for path in (checkpoint / kind).glob("*")}


def kill_while_committing(job: Job, checkpoint: Path, chance: Random, torn_start: bool) -> None:
    """Kill a driver near one of the next files of its checkpoint, also near the first one if `torn_start`."""
    last, left = files_of(checkpoint), chance.randint(1, 8)
    deadline = time.monotonic() + SPARK_DEADLINE_S
    while left and not job.ended() and time.monotonic() < deadline:
        found = files_of(checkpoint)
        left -= found != last and (torn_start or "offsets/0" in found)
        last = found
        time.sleep(0.0005)
    time.sleep(chance.uniform(0.0, 0.03))
    ended = job.ended()
    job.close()
    assert not ended, "it has something to do"


@pytest.mark.parametrize("what", ["archive", "copy"])
def test_a_driver_killed_while_it_commits_offsets_leaves_every_record_once(
    server: ServerProcess, api: Api, topic_name: str, tmp_path: Path, what: str
) -> None:
    """Kill -9 at random moments around the files of a checkpoint: whatever is left there, the next driver goes on."""
    chance = Random(what)
    total, batch = 40 * (KILLS + 1), 4
    api.fill(topic_name, total)
    target = str(tmp_path / "lake") if what == "archive" else f"{topic_name}.copy"
    checkpoint = tmp_path / "checkpoint"
    given = {"url": server.url, "source": topic_name, "target": target, "checkpoint": str(checkpoint), "batch": batch}
    log = tmp_path / "log"
    for _ in range(KILLS):
        with running("local[2]", what, log, **given) as job:
            # Spark itself begins no query over half a file of its first batch; a pipeline does.
            kill_while_committing(job, checkpoint, chance, torn_start=what == "archive")
    with running("local[2]", what, log, **given | {"batch": total}) as job:
        job.finish()
    if what == "copy":
        assert sorted(record["data"] for record in records(api, target)) == list(range(1, total + 1))
    else:
        from deltalake import DeltaTable

        held = DeltaTable(f"{target}/events").to_pyarrow_table(columns=["seq"])["seq"].to_pylist()
        assert sorted(held) == list(range(1, total + 1))


def test_an_executor_killed_in_the_middle_of_a_batch_costs_nothing(
    server: ServerProcess, api: Api, topic_name: str, tmp_path: Path
) -> None:
    """`local-cluster`: the task is run again elsewhere, its rows in another order, and each record is there once."""
    api.fill(topic_name, 120)
    target = f"{topic_name}.copy"
    given = {"url": server.url, "source": topic_name, "target": target, "checkpoint": str(tmp_path / "checkpoint")}
    with running("local-cluster[2,1,1024]", "copy", tmp_path / "log", pause_s=0.03, **given) as job:
        until(lambda: job.ended() or list(tmp_path.rglob("*.staged")), "a task has staged its rows", SPARK_DEADLINE_S)
        executors = job.executors()
        assert len(executors) == 2, (tmp_path / "log").read_text()[-2000:]
        os.kill(executors[0], signal.SIGKILL)
        job.finish()
    assert sorted(record["data"] for record in records(api, target)) == list(range(1, 121))


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """Starts them; to Spark the workers are two machines, without which no task would be speculated on."""
    import pyspark

    from topics.spark import java

    java.prepare()
    home = Path(pyspark.__file__).parent
    environ = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}

    def start(stack: ExitStack, name: str, *arguments: str) -> Path:
        log = directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environ, "SPARK_WORKER_DIR": str(directory / name)},
                start_new_session=True,
            )

        def stop() -> None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        stack.callback(stop)
        return log

    with ExitStack() as stack:
        master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = start(stack, "master", *master)
        found = until(
            lambda: re.search(r"spark://127\.0\.0\.1:\d+", log.read_text()), "the master listens", SPARK_DEADLINE_S
        )
        for name, host in (("worker-1", "127.0.0.1"), ("worker-2", "127.0.0.2")):
            worker = ("org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", "0")
            start(stack, name, *worker, "--cores", "1", "--memory", "1g", found[0])
        registered = "Registering worker"
        until(lambda: log.read_text().count(registered) == 2, "both workers are registered", SPARK_DEADLINE_S)
        yield found[0]


@pytest.fixture(scope="module")
def marks(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the twin tasks left their marks, once a standalone cluster has counted and copied the topic "beyond"."""
    directory = tmp_path_factory.mktemp("cluster")
    (directory / "marks").mkdir()
    api = Api(server.host, server.port)
    for n in range(1, 121):
        api.write("beyond", {"data": n, "tag": f"t{n % 4}"})
    api.close()
    given = {
        "url": server.url,
        "source": "beyond",
        "target": "beyond.copy",
        "counts": "beyond.counts",
        "data_dir": str(directory / "not-mounted"),
        "checkpoint": str(directory / "checkpoint"),
        "marks": str(directory / "marks"),
    }
    with standalone(directory) as master, running(master, "table+speculate", directory / "log", **given) as job:
        job.finish()
    return directory / "marks"


@pytest.mark.usefixtures("marks")
def test_a_standalone_cluster_reads_over_http_and_writes(api: Api) -> None:
    """Executors that cannot see the data directory read everything from the server."""
    counts = sorted((record["data"]["tag"], record["data"]["count"]) for record in records(api, "beyond.counts"))
    assert counts == [("t0", 30), ("t1", 30), ("t2", 30), ("t3", 30)]


def test_a_speculative_task_beside_a_straggler_writes_nothing_twice(api: Api, marks: Path) -> None:
    """Two attempts of one task run to their end at the same time: the driver publishes what one of them staged."""
    assert {path.name for path in marks.iterdir()} == {"0", "1"}, "both attempts of the first task ran"
    assert sorted(record["data"] for record in records(api, "beyond.copy")) == list(range(1, 121))
