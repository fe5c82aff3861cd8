"""Where the driver of a session is to be found."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import Api
from topics.pipeline.launch import CONTEXT_LOGGERS, hide_logs
from topics.spark import launch
from topics.testing import ServerProcess


@pytest.mark.parametrize(
    ("master", "settings", "environ", "expected"),
    [
        (None, {}, {}, True),
        ("local[2]", {}, {"PYSPARK_GATEWAY_PORT": "1"}, True),
        ("local-cluster[2,1,1024]", {}, {}, True),
        ("spark://master:7077", {}, {}, False),
        (None, {"spark.master": "yarn"}, {}, False),
        (None, {}, {"PYSPARK_GATEWAY_PORT": "1"}, False),
        (None, {}, {"SPARK_CONF_DIR": "/etc/spark"}, False),
    ],
)
def test_the_driver_is_on_loopback_only_where_spark_is_local(
    master: str | None,
    settings: dict[str, str],
    environ: dict[str, str],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SPARK-35: under `spark-submit` the master is named elsewhere, and executors must find the driver."""
    for name in launch.NAMED_ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert launch.is_local(master, settings) is expected


def test_sql_that_is_wrong_is_not_logged_beside_the_line_of_a_command(capfd: pytest.CaptureFixture[str]) -> None:
    """PIPELINE-9: PySpark would print it once more, as JSON with every frame."""
    from pyspark.errors import AnalysisException
    from pyspark.logger import PySparkLogger

    class Wrong(AnalysisException):
        """As the JVM hands it over: with the place in the SQL."""

        def getQueryContext(self) -> list[Any]:  # noqa: N802
            return [Place()]

    class Place:
        def contextType(self) -> Any:  # noqa: N802
            return type("Kind", (), {"name": "SQL"})

    loggers = [PySparkLogger.getLogger(name) for name in CONTEXT_LOGGERS]
    try:
        hide_logs()
        Wrong("no such function", messageParameters={})._log_exception()
        assert capfd.readouterr().err == ""
    finally:
        for logger in loggers:
            logger.disabled = False
    Wrong("no such function", messageParameters={})._log_exception()
    assert "no such function" in capfd.readouterr().err, "this is what is hidden"


def test_a_local_session_keeps_checkpoints_without_a_program_for_each_file(spark: Any) -> None:
    """Each of the two files of a micro-batch would take 40 ms."""
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    assert spark.conf.get(manager) == launch.LOCAL[manager]


def test_a_session_takes_values_out_of_batches_without_a_check_of_each(spark: Any) -> None:
    """Spark knows how many rows a batch has, and asks for no others."""
    arrow = spark.sparkContext._jvm.org.apache.arrow
    assert arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED is False
    assert spark.conf.get(f"spark.executorEnv.{launch.UNCHECKED}") == "true"


def test_a_local_session_and_its_workers_meet_where_nobody_else_can(spark: Any) -> None:
    """Whoever may open a Unix socket of Spark's workers may have them run anything: no secret is asked for."""
    assert spark.conf.get(f"{launch.SOCKETS}.enabled") == "true"
    directory = Path(spark.conf.get(f"{launch.SOCKETS}.dir"))
    assert directory.stat().st_mode & 0o777 == 0o700
    spark.range(1).rdd.map(str).collect()
    assert list(directory.glob(".*.sock"))


@pytest.fixture
def before_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has no Spark yet."""
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


@pytest.mark.usefixtures("before_spark")
def test_unix_sockets_are_used_only_where_they_can_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    assert launch.sockets({})[f"{launch.SOCKETS}.enabled"] == "true"
    assert launch.sockets({f"{launch.SOCKETS}.enabled": "false"}) == {}, "the user's choice"
    assert launch.sockets({launch.DAEMON_MODULE: "own.daemon"}) == {}, "the user's workers"
    deep = tmp_path / ("d" * launch.TEMP_DIR_BYTES_MAX)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert launch.sockets({}) == {}, "no socket can have so long a path"
    assert list(deep.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    assert launch.sockets({}) == {}, "the Python of the workers lacks this package"
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "missing"))
    assert launch.sockets({}) == {}, "Spark says itself what is wrong with that"


ENDS = """
import sys
from pyspark.sql.functions import udf
from topics.spark import session

spark = session(master="local[2]", config={"spark.ui.enabled": "false"})
read = spark.read.format("topics").options(url=sys.argv[1], topic="t").load()
assert read.select(udf(lambda text: text + "!")("data")).collect() == [("1!",)]
print(spark.conf.get("spark.python.unix.domain.socket.dir"))
spark.stop()
"""


def test_a_session_that_ends_says_nothing_and_leaves_nothing(server: ServerProcess) -> None:
    """Spark closes the sockets of its workers, of which its own daemon would print a traceback."""
    api = Api(server.host, server.port)
    api.write("t", {"data": 1})
    api.close()
    ran = subprocess.run([sys.executable, "-c", ENDS, server.url], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert not Path(ran.stdout.strip()).exists()
