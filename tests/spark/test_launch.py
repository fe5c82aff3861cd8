"""Where the driver of a session is to be found."""

from __future__ import annotations

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
