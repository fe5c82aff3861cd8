"""Where the driver of a session is to be found."""

from __future__ import annotations

from typing import Any

import pytest

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


def test_a_local_session_keeps_checkpoints_without_a_program_for_each_file(spark: Any) -> None:
    """Each of the two files of a micro-batch would take 40 ms."""
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    assert spark.conf.get(manager) == launch.LOCAL[manager]
