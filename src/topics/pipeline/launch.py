"""Launch: what a command of pipelines runs on, and what it does around its work, from the server to the end.

A failure is one line and an exit code; Spark starts only once the server and the topics are known to exist; and one
pipeline reports to the server how it is doing, as those of a file do (`reporter`). The options that name the server and
Spark are added to each command by `launched`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console

from topics.clock import SystemClock
from topics.commands.failures import CommandError
from topics.commands.link import SERVER_OPTIONS, target
from topics.commands.parameters import after_first, optional, with_parameters
from topics.pipeline import options
from topics.pipeline.display import Display
from topics.pipeline.errors import PipelineError, reason
from topics.pipeline.flows.flows import Flow, source_of
from topics.pipeline.flows.lone_flow import LoneFlow
from topics.pipeline.flows.reporter import reporting
from topics.pipeline.flows.secrets import Secrets
from topics.pipeline.progress import Progress
from topics.pipeline.query import follow
from topics.pipeline.stop import Stop

ENDED: Final = "Spark has ended, and nothing can go on without it: start it again; what was not committed is done then"

CONTEXT_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def need_extra() -> None:
    """Fail with one line if the server is installed and Spark is not, or one that is too old."""
    if missing := [name for name in ("pyspark", "pyarrow", "deltalake") if find_spec(name) is None]:
        fail(
            f"{' and '.join(missing)} not installed: pipelines need the extra `spark` "
            "(make setup in a checkout, or pip install 'topics-engine[spark]')"
        )
    from topics.spark import version
    from topics.spark.errors import SourceError

    try:
        version.check()
    except SourceError as error:
        fail(str(error))


def server_of(url: str | None, profile: str | None, token_file: Path | None) -> dict[str, str]:
    """The server that a command means, as options of the Spark source."""
    try:
        chosen = target(url, profile, token_file)
    except CommandError as error:
        fail(str(error))
    if chosen.ca is not None:
        fail(f"the profile of {chosen.url} has a ca, which pipelines do not take: trust it on the whole machine")
    return source_of(chosen)


class Launch:
    """What a command of pipelines runs on: a server, and Spark, which starts only once it is needed."""

    def __init__(
        self,
        url: str | None,
        profile: str | None,
        token_file: Path | None,
        master: str | None,
        conf: list[str] | None,
        verbose: bool,
    ) -> None:
        self._named = url, profile, token_file
        self._master = master or "local[2]"
        self._conf = conf
        self._verbose = verbose

    @functools.cached_property
    def source(self) -> dict[str, str]:
        """The server, as options of the Spark source."""
        return server_of(*self._named)

    def check(self, topics: list[str]) -> None:
        """Fail at once, before a JVM is started, if the server or a topic does not exist."""
        from topics.spark.client import PLANNING_RETRY_MS
        from topics.spark.errors import ServerRefused, SourceError
        from topics.spark.options import ReadOptions
        from topics.spark.servers import Servers

        chosen = {"topics": ",".join(topics)} if topics else {"topicPrefix": "a"}
        try:
            addresses = ReadOptions({**self.source, **chosen}, False).addresses
            with contextlib.closing(Servers(addresses, PLANNING_RETRY_MS)) as client:
                for topic in topics:
                    client.plan(topic)
                if not topics:
                    client.topics("a", lambda _: False)
        except ServerRefused as refused:
            # A key that may only write cannot list topics, and need not.
            if topics or refused.status != 403:
                fail(str(refused))
        except SourceError as error:
            fail(str(error))

    def session(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A Spark session for as long as a command runs."""
        return session_of(name, self._master, self._conf, self._verbose)

    def failures(self) -> contextlib.AbstractContextManager[None]:
        """A failure is one line, unless --verbose asks for everything."""
        return failures(self._verbose)

    def run(self, pipeline: Any, progress: Progress, flow: Flow | None, once: bool, interval: str) -> None:
        """Run one pipeline to its end; as a flow it reports how it is doing."""
        with (
            Stop() as stop,
            self.failures(),
            reported(flow, progress, stop, once),
            Display(progress.table, Console()) as display,
            self.session(type(pipeline).__name__.lower()) as spark,
        ):
            query = pipeline.start(spark, once, interval, stop.file)
            follow(query, progress, stop, display, once)


def launched(command: Callable[..., None]) -> Callable[..., None]:
    """A command out of a function whose first parameter is a Launch; adds the options of servers and of Spark."""
    added = {**SERVER_OPTIONS, "master": options.Master, "conf": options.Conf}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        need_extra()
        launch = Launch(**{name: given.pop(name) for name in (*added, "verbose")})
        command(launch, **given)

    parameters = after_first(command, added)
    return with_parameters(run, [*parameters, optional("verbose", options.Verbose, default=False)])


@contextlib.contextmanager
def session_of(name: str, master: str, conf: list[str] | None, verbose: bool) -> Iterator[Any]:
    """A Spark session for as long as a command runs."""
    from topics.spark import session

    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    for setting in conf or []:
        key, separator, value = setting.partition("=")
        if not separator:
            fail(f"--conf {setting}: it must be NAME=VALUE")
        settings[key] = value
    with silence(verbose):
        spark = session(app_name=f"topics {name}", master=master, config=settings, apart=True)
    if not verbose:
        spark.sparkContext.setLogLevel("OFF")
        hide_logs()
    try:
        yield spark
    except Exception as failure:
        if isinstance(failure, typer.Exit) or alive(spark):
            raise
        raise PipelineError(ENDED) from failure
    spark.stop()


def alive(spark: Any) -> bool:
    """Whether the JVM is there, and the application runs in it."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


def hide_logs() -> None:
    """Keep off the screen what Python's side of Spark logs of a failure: it is said in one line.

    py4j logs each connection to a JVM that has ended, and PySpark each SQL that is wrong, as JSON with all its frames.
    """
    from pyspark.logger import PySparkLogger

    for name in CONTEXT_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    shown = logging.StreamHandler()
    shown.setLevel(logging.WARNING)
    shown.addFilter(lambda record: Path(record.pathname).parent.name != "py4j")
    logging.basicConfig(format="%(message)s", handlers=[shown])


@contextlib.contextmanager
def silence(verbose: bool) -> Iterator[None]:
    """Keep what the JVM prints out of the display, unless it does not start: then it is the only hint.

    The JVM inherits the stderr that it is started with, and keeps it.
    """
    if verbose:
        yield
        return
    with tempfile.TemporaryFile() as printed:
        own = os.dup(2)
        os.dup2(printed.fileno(), 2)
        try:
            yield
        except BaseException:
            printed.seek(0)
            os.write(own, printed.read())
            raise
        finally:
            os.dup2(own, 2)
            os.close(own)


@contextlib.contextmanager
def failures(verbose: bool) -> Iterator[None]:
    """A failure is one line, unless --verbose asks for everything."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as failure:
        if verbose:
            raise
        fail(reason(failure))


@contextlib.contextmanager
def reported(flow: Flow | None, progress: Progress, stop: Stop, once: bool) -> Iterator[None]:
    """Report a pipeline that runs meanwhile, and how it ended."""
    if flow is None:
        yield
        return
    clock = SystemClock()
    secrets = Secrets(os.environ)
    secrets.add("the key of the server", flow.server.token)
    running = LoneFlow(flow, progress, clock, secrets)

    def warn(text: str) -> None:
        typer.echo(f"topics pipeline: warning: {text}; --no-report does without", err=True)

    with reporting(flow.server, [(flow, running)], clock, warn):
        try:
            yield
        except BaseException as failure:
            why = "it could not be started" if isinstance(failure, typer.Exit) else reason(failure)
            running.end("failed", why)
            raise
        running.end("done" if once and not stop.asked else "stopped")


def fail(message: str) -> Any:
    """End the command with one line."""
    typer.echo(f"topics pipeline: {message}", err=True)
    raise typer.Exit(1)
