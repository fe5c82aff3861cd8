"""Where the driver of a session is to be found."""

from __future__ import annotations

from typing import Any

import pytest

from topics.pipeline.launch import CONTEXT_LOGGERS, hide_logs
from topics.spark import launch


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
