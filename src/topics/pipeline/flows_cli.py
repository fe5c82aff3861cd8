"""`topics pipeline run` and `check`: several flows out of one file, in one Spark application."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from topics.clock import SystemClock
from topics.commands.table import print_table
from topics.pipeline.errors import PipelineError
from topics.pipeline.flows.flows import Flow, Flows, read
from topics.pipeline.flows.keeper import Keeper
from topics.pipeline.flows.reporter import reporting
from topics.pipeline.flows.secrets import Secrets
from topics.pipeline.flows.spark_run import SparkRun
from topics.pipeline.flows.supervisor import Board, Signals, Supervisor
from topics.pipeline.launch import ENDED, alive, fail, failures, need_extra, session_of
from topics.pipeline.options import Once, Reports, Verbose
from topics.pipeline.stop import Stop

File = Annotated[Path, typer.Argument(help="The file with the flows, in YAML.")]
CONF: Final = {"spark.scheduler.mode": "FAIR"}


def check(file: File) -> None:
    """Check a file of flows without starting any.

    Neither Spark nor a server is needed. Every problem is a line with its place in the file; the exit code is then 1.
    """
    found = _read(file, Secrets(os.environ))
    rows = [(flow.kind, flow.topic, flow.server.url, flow.name) for flow in found.flows]
    print_table(("KIND", "TOPIC", "SERVER", "FLOW"), rows, left=("KIND", "TOPIC", "SERVER"))


def run(
    file: File,
    once: Once = False,
    master: Annotated[str | None, typer.Option(help="Where Spark runs, instead of what the file says.")] = None,
    report: Reports = True,
    verbose: Verbose = False,
) -> None:
    """Run all flows of a file in one Spark application.

    A flow that fails is begun again after a pause, and the others go on. SIGTERM finishes the batches, a second one
    ends it at once.
    """
    need_extra()
    secrets = Secrets(os.environ)
    found = _read(file, secrets)
    conf = [f"{name}={value}" for name, value in {**CONF, **found.conf}.items()]
    with (
        Signals() as stop,
        failures(verbose),
        session_of(f"pipeline run {file.name}", master or found.master, conf, verbose) as spark,
    ):
        code = _supervise(found, spark, stop, secrets, once, report)
        if not alive(spark):
            fail(ENDED)
    if code:
        raise typer.Exit(code)


def _supervise(found: Flows, spark: Any, stop: Stop, secrets: Secrets, once: bool, report: bool) -> int:
    clock = SystemClock()
    console = Console()

    def keeper(flow: Flow) -> Keeper:
        def start() -> SparkRun:
            return SparkRun(spark, flow, once, stop.file)

        named = flow.name, flow.kind, flow.topic
        return Keeper(*named, start, found.restart, clock, stop, secrets, once=once)

    def warn(text: str) -> None:
        console.print(f"warning: {secrets.hidden(text)}", soft_wrap=True, markup=False, highlight=False)

    keepers = [keeper(flow) for flow in found.flows]
    pairs = list(zip(found.flows, keepers, strict=True))
    with (
        reporting(found.server, pairs if report else [], clock, warn) as reporter,
        Board(keepers, lambda: reporter.lags, console) as board,
    ):
        return Supervisor(keepers, stop, lambda: alive(spark), board.show).run()


def _read(file: Path, secrets: Secrets) -> Flows:
    if find_spec("yaml") is None:
        fail("yaml not installed: pipelines need the extra `spark` (pip install 'topics-engine[spark]')")
    try:
        return read(file, os.environ, secrets)
    except PipelineError as failure:
        for line in str(failure).splitlines():
            typer.echo(f"topics pipeline: {secrets.hidden(line)}", err=True)
        sys.exit(1)
