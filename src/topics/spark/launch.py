"""A SparkSession with the settings that suit the source "topics": an ordinary one, so you may build your own instead.

A session of your own needs `spark.sql.python.filterPushdown.enabled` where the option `pushFilters` is used.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

DEFAULTS: Final = {
    "spark.sql.python.filterPushdown.enabled": "true",
    # An error on a worker is its message, not a page of frames around it.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.redaction.regex": "(?i)secret|password|passwd|token|access[.]?key",
    "spark.sql.redaction.options.regex": "(?i)token",
}


def session(
    app_name: str = "topics", master: str | None = None, config: dict[str, str] | None = None, quiet: bool = True
) -> Any:
    """The SparkSession; `config` wins over the defaults, and a session that already exists is used."""
    from topics.spark import java

    java.prepare()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Spark's own switch for what a worker prints of an exception, also for the workers that only plan.
    os.environ.setdefault("SPARK_HIDE_TRACEBACK", "1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    settings = {**DEFAULTS, **(config or {})}
    if (master or "local").startswith("local"):
        settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", **settings}
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if quiet:
        spark.sparkContext.setLogLevel("ERROR")
    return spark
