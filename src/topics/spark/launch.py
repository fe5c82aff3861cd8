"""A SparkSession with the settings that suit the source "topics": an ordinary one, so you may build your own instead.

`register` makes the source known to a session that is already there, whatever Python its workers are started with.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Final

from topics.spark.errors import HIDE_TRACEBACK
from topics.spark.worker import DAEMON

UNCHECKED: Final = "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS"
"""Arrow's Java library checks the bounds of every value that is taken out of a batch, each text twice, unless this is
`true` in the environment of its process. Spark knows how many rows a batch has and asks for no others."""

DEFAULTS: Final = {
    f"spark.executorEnv.{UNCHECKED}": "true",
    # An error on a worker is its message, not a page of frames around it.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.redaction.regex": "(?i)secret|password|passwd|token|access[.]?key",
    "spark.sql.redaction.options.regex": "(?i)token",
}

LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A micro-batch writes two small files into its checkpoint. Spark's default manager starts processes for that, which
    # takes 80 ms of every batch. This one does not, and promises the same of a local file system: a file appears as a
    # whole, by a rename, after a look whether there is one.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings of a session on this machine alone."""

SOCKETS: Final = "spark.python.unix.domain.socket"
"""Spark and its workers exchange batches over loopback TCP, unless it is told to use Unix sockets, with which a
group-by takes 6 to 8 percent less time. Whoever can open such a socket can have a worker run anything, and is asked for
no secret as over TCP: so they are in a directory that only this user may enter."""
TEMP_DIR_BYTES_MAX: Final = 40
"""A system allows 104 or 108 for the path of a socket, of which the directory's own name and Spark's in it take 64."""
DAEMON_MODULE: Final = "spark.python.daemon.module"

NAMED_ELSEWHERE: Final = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "MASTER", "SPARK_REMOTE", "SPARK_CONF_DIR")
"""With one of these in the environment the master may be another machine; the first is set by `spark-submit`."""


def session(
    app_name: str = "topics",
    master: str | None = None,
    config: dict[str, str] | None = None,
    quiet: bool = True,
    apart: bool = False,
) -> Any:
    """The SparkSession; `config` wins over the defaults, and a session that already exists is used.

    With `apart` the JVM gets a process group of its own, for programs that end a batch after SIGTERM: a signal to the
    group of the program, as `timeout`, `kill %1` and schedulers send it, would end the JVM at once.
    """
    from topics.spark import java, version

    version.check()
    java.prepare()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Spark's own switch for what a worker prints of an exception, also for the workers that only plan.
    os.environ.setdefault(HIDE_TRACEBACK, "1")
    # For the process that is started for this session, if there is none yet.
    os.environ.setdefault(UNCHECKED, "true")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    settings = {**DEFAULTS, **(config or {})}
    if is_local(master, settings):
        settings = {**LOCAL, **sockets(settings), **settings}
    for name, value in settings.items():
        builder = builder.config(name, value)
    if apart:
        named = {} if master is None else {"spark.master": master}
        _start_apart({"spark.app.name": app_name, **settings, **named})
    spark = builder.getOrCreate()
    if quiet:
        spark.sparkContext.setLogLevel("ERROR")
    if not str(spark.sparkContext.master).startswith("local"):
        register(spark)
    return spark


def sockets(settings: dict[str, str]) -> dict[str, str]:
    """What has Spark and its workers use Unix sockets; nothing where that is chosen already, or not possible."""
    from pyspark import SparkContext

    if f"{SOCKETS}.enabled" in settings or DAEMON_MODULE in settings or SparkContext._active_spark_context is not None:
        return {}
    if len(os.fsencode(tempfile.gettempdir())) > TEMP_DIR_BYTES_MAX or not _have_package(os.environ["PYSPARK_PYTHON"]):
        return {}
    directory = tempfile.mkdtemp(prefix="topics-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return {f"{SOCKETS}.enabled": "true", f"{SOCKETS}.dir": directory, DAEMON_MODULE: DAEMON}


def _have_package(python: str) -> bool:
    """Whether workers with this Python, which may be another one than that of this process, find the package too."""
    with contextlib.suppress(OSError):
        # Spark starts the same program for its workers.
        found = subprocess.run([python, "-c", "import topics.spark"], capture_output=True, check=False)  # noqa: S603
        return found.returncode == 0
    return False


def _start_apart(settings: dict[str, str]) -> None:
    """Start the JVM in a process group of its own, unless there is one already. It ends when its stdin does."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        conf = SparkConf().setAll(list(settings.items()))
        gateway = launch_gateway(conf, {"process_group": 0})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)


def is_local(master: str | None, settings: dict[str, str]) -> bool:
    """Whether Spark runs on this machine alone, so that nobody else has to find its driver.

    Where no master is named here, `spark-submit` or the environment may have named one.
    """
    named = master or settings.get("spark.master")
    return named.startswith("local") if named else not any(name in os.environ for name in NAMED_ELSEWHERE)


def register(spark: Any) -> None:
    """Make the source known to a session whose workers would not find it.

    Spark starts workers with `PYSPARK_PYTHON`, or with whichever `python3` is on the PATH, and looks there for sources.
    One that is registered runs with the Python that registered it. On a cluster Spark runs a source that it has found
    with the Python of the driver and without the files of `--py-files`; one that is registered runs with
    `PYSPARK_PYTHON` and has them on its path.
    """
    from topics.spark import version

    version.check()
    from topics.spark.source import TopicsSource

    if type(spark).__module__.startswith("pyspark.sql.connect"):
        # The Python of the other side is what it is.
        spark.dataSource.register(TopicsSource)
        return
    context = spark.sparkContext
    before = context.pythonExec
    context.pythonExec = before if "PYSPARK_PYTHON" in os.environ else sys.executable
    try:
        spark.dataSource.register(TopicsSource)
    finally:
        context.pythonExec = before
