"""The commands `topics pipeline archive`, `transform`, `replay`, `erase` and `report`, and where the others are."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from topics.commands.link import ProfileName, TokenFile, Url
from topics.commands.table import counted
from topics.errors import TopicsError
from topics.names import check_topic_name
from topics.pipeline import options
from topics.pipeline.display import Display
from topics.pipeline.errors import PipelineError
from topics.pipeline.flows.lone_flow import lone_flow
from topics.pipeline.flows.schema import SPAN, SPAN_TEXT
from topics.pipeline.flows_cli import check, run
from topics.pipeline.launch import Launch, failures, launched, need_extra, server_of
from topics.pipeline.launch import fail as _fail
from topics.pipeline.progress import Progress
from topics.pipeline.query import state_of
from topics.pipeline.status import status
from topics.pipeline.stop import Stop

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, help="Run data pipelines on Spark."
)

app.command()(run)
app.command()(check)
app.command()(status)


@app.command()
@launched
def archive(
    launch: Launch,
    to: Annotated[str, typer.Option(help="Where the lake tables are: a directory, or s3://bucket/lake and the like.")],
    topic: Annotated[list[str] | None, typer.Option(help="A topic to archive; may be repeated.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Archive all topics with this prefix, also new ones.")] = None,
    format: options.Format = "delta",
    catalog: options.Catalog = None,
    namespace: options.Namespace = "topics",
    checkpoint: options.Checkpoint = None,
    typed: options.Typed = False,
    compact: options.Compact = False,
    follow_deletes: options.FollowDeletes = False,
    target_file_bytes: Annotated[int, typer.Option(help="A file is cut when it reaches this size.", min=1)] = 128 << 20,
    min_partitions: Annotated[int | None, typer.Option(help="At least this many tasks per batch.", min=1)] = None,
    once: options.Once = False,
    interval: options.Interval = "1 second",
    offsets_max: options.OffsetsMax = None,
    name: options.FlowName = None,
    report: options.Reports = True,
) -> None:
    """Keep lake tables of topics.

    Every record is in them once, and every gap in a table of its own.
    """
    from topics.pipeline.archive import Archive

    root = _place("--to", to)
    if compact and not topic and prefix is None:
        _compact(root, target_file_bytes)
        return
    chosen = _archived(topic, prefix)
    _check_format(format, root, catalog, {"typed": typed, "compact": compact, "follow_deletes": follow_deletes})
    _check_span("--interval", interval)
    launch.check(topic or [])
    pipeline = Archive(
        {**launch.source, **chosen}, root, format, checkpoint.absolute() if checkpoint else None, target_file_bytes,
        offsets_max, min_partitions, typed, follow_deletes, catalog, namespace,
    )  # fmt: skip
    flow = (
        lone_flow("archive", name, launch.source, topic or [], prefix, state_of(root, pipeline.checkpoint))
        if report
        else None
    )
    launch.run(pipeline, pipeline.progress, flow, once, interval)
    _finish(launch, pipeline, to, typed)
    if compact:
        _compact(root, target_file_bytes)


@app.command()
@launched
def transform(
    launch: Launch,
    sql: Annotated[Path, typer.Option(help="A file with the SELECT; each topic is a view of its name.")],
    to: Annotated[str, typer.Option(help="The topic that the rows are written to.")],
    topic: Annotated[list[str], typer.Option(help="A topic to read; may be repeated.")],
    checkpoint: Annotated[Path, typer.Option(help="The directory of the state; each pipeline needs one of its own.")],
    watermark: Annotated[str, typer.Option(help="How late an event may come before its window closes.")] = "10 seconds",
    mode: Annotated[str, typer.Option(help="append, update or complete.")] = "append",
    error_topic: Annotated[str | None, typer.Option(help="The topic for rows that cannot become records.")] = None,
    staging: options.Staging = None,
    once: options.Once = False,
    interval: options.Interval = "1 second",
    offsets_max: options.OffsetsMax = None,
    name: options.FlowName = None,
    report: options.Reports = True,
) -> None:
    """Run streaming SQL over topics.

    Each row of the result becomes one record.
    """
    from topics.pipeline.transform import Transform

    try:
        text = sql.read_text(encoding="utf-8")
    except OSError as error:
        _fail(f"--sql {sql}: {error.strerror}")
    if mode not in ("append", "update", "complete"):
        _fail(f'--mode is "{mode}"; it must be append, update or complete')
    _check_span("--interval", interval)
    _check_span("--watermark", watermark)
    _check_target(to)
    if error_topic is not None:
        _check_target(error_topic, "--error-topic")
    launch.check(topic)
    pipeline = Transform(
        launch.source, topic, text, to, checkpoint.absolute(), watermark, mode, offsets_max, error_topic, staging
    )
    progress = Progress(f"transform to {to}")
    flow = lone_flow("transform", name, launch.source, topic, None, pipeline.checkpoint) if report else None
    launch.run(pipeline, progress, flow, once, interval)


@app.command()
@launched
def replay(
    launch: Launch,
    source: Annotated[str, typer.Option("--from", help="Where archive keeps its tables.")],
    to: Annotated[str, typer.Option(help="The topic that the records are written to.")],
    name: Annotated[str, typer.Option(help="The name of this replay: the same name goes on where it stopped.")],
    state: Annotated[Path, typer.Option(help="The directory of the state.")],
    topic: Annotated[list[str] | None, typer.Option(help="Replay only this topic; may be repeated.")] = None,
    from_seq: Annotated[int | None, typer.Option(help="The first seq.", min=1)] = None,
    to_seq: Annotated[int | None, typer.Option(help="The last seq.", min=1)] = None,
    from_time: Annotated[
        str | None, typer.Option(help="From this time on, 2024-01-31 or 2024-01-31 12:00:00 UTC.")
    ] = None,
    to_time: Annotated[str | None, typer.Option(help="Before this time.")] = None,
    where: Annotated[
        str | None, typer.Option(help="A condition in SQL over topic, seq, ts, node, tag, meta, data.")
    ] = None,
    rate: Annotated[int | None, typer.Option(help="Most records per second.", min=1)] = None,
    staging: options.Staging = None,
) -> None:
    """Write records of a lake into a topic again.

    They are written in order, each once.
    """
    from topics.pipeline.lake.contents import exists
    from topics.pipeline.replay import Replay

    _check_target(to)
    root = _lake(source)
    if not exists(root):
        _fail(f"--from {source}: there is no archive in it")
    launch.check([])
    pipeline = Replay(
        launch.source, root, to, name, state.absolute(), topic or [],
        from_seq, to_seq, from_time, to_time, where, rate, staging=staging,
    )  # fmt: skip
    progress = Progress(f"replay to {to}")
    console = Console()
    with Stop() as stop, launch.failures():
        with Display(progress.table, console) as display, launch.session("replay") as spark:
            for done in pipeline.run(spark):
                progress.step(*done)
                display.line(progress.line())
                if stop.asked:
                    break
        if stop.asked:
            console.print("stopped; the same command goes on from here", soft_wrap=True)
        else:
            console.print(f"replay to {to}: {progress.records:,} records, done", soft_wrap=True)


@app.command()
@launched
def erase(
    launch: Launch,
    source: Annotated[str, typer.Option("--from", help="Where archive keeps its tables.")],
    topic: Annotated[list[str], typer.Option(help="A topic whose deleted records leave the lake; may be repeated.")],
    tag: Annotated[
        str | None, typer.Option(help="All records with this tag that the server does not hold any more.")
    ] = None,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Also remove the files that only older versions of the tables need.")
    ] = False,
) -> None:
    """Erase from a lake what was deleted on the server.

    It leaves the tables of events, typed data and errors; the files go with a vacuum.
    """
    from topics.pipeline.lake.erase import Eraser

    for name in topic:
        _check_target(name, "--topic")
    console = Console()
    with launch.failures(), contextlib.ExitStack() as sessions:
        eraser = Eraser(_lake(source), launch.source, lambda: sessions.enter_context(launch.session("erase")))
        for name in topic:
            done = eraser.follow(name) if tag is None else eraser.forget(name, tag)
            console.print(f"{name}: {done.records:,} records erased", soft_wrap=True)
            if done.live:
                console.print(f"{name}: {done.live:,} with this tag are live on the server and stay", soft_wrap=True)
            for table, version in () if vacuum else done.versions.items():
                console.print(f"{table}: its versions up to {version} hold them until a vacuum", soft_wrap=True)
        for table, files in eraser.vacuum() if vacuum else ():
            console.print(f"{table}: {counted(files, 'file')} removed", soft_wrap=True)


@app.command()
def report(
    source: Annotated[str, typer.Option("--from", help="Where archive keeps its tables.")],
    to: Annotated[str, typer.Option(help="The page to write: a file, or an address as of a lake.")] = "report.html",
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic; may be repeated.")] = None,
    hours: Annotated[int, typer.Option(help="Most hours to show, up to the newest record.", min=1, max=2400)] = 168,
    url: Url = None,
    profile: ProfileName = None,
    token_file: TokenFile = None,
) -> None:
    """Write one HTML page about a lake.

    It shows volume per topic and hour, lag, and what was lost.
    """
    need_extra()
    from topics.pipeline.report import page
    from topics.pipeline.report.report import gather

    try:
        found = gather(_lake(source), server_of(url, profile, token_file), topic or [])
        directory, _, name = to.rpartition("/")
        place = _place("--to", directory or ("/" if to.startswith("/") else "."))
        place.write(name, page.render(found, hours).encode())
    except PipelineError as failure:
        _fail(str(failure))
    except OSError as error:
        _fail(f"--to {to}: {error.strerror}")
    if found.trouble:
        typer.echo(f"topics pipeline: warning: no lag in the report: {found.trouble}", err=True)
    Console().print(f"the report is in {to}", soft_wrap=True)


def _lake(given: str) -> Any:
    """The lake of `--from`, with tables that more than an archive can work on."""
    root = _place("--from", given)
    _check_tables("--from", root)
    return root


def _check_format(format: str, root: Any, catalog: str | None, changes: dict[str, bool]) -> None:
    from topics.pipeline.lake.formats import refusal

    with failures(False):
        refused = refusal(format, root, catalog, changes)
    if refused is not None:
        _fail(refused)


def _check_tables(option: str, root: Any) -> None:
    from topics.pipeline.lake.formats import unreadable

    with failures(False):
        trouble = unreadable(root)
    if trouble is not None:
        _fail(f"{option}: {trouble}")


def _place(option: str, given: str) -> Any:
    """Where a lake is, as an option names it."""
    from topics.spark.place import BadPlace, Place

    try:
        return Place(given)
    except BadPlace as error:
        _fail(f"{option}: {error}")


def _compact(root: Any, file_bytes: int) -> None:
    from deltalake.exceptions import DeltaError

    from topics.pipeline.lake.compact import compact

    _check_tables("--compact", root)
    try:
        for table, removed, added in compact(root, file_bytes):
            merged = f"{removed} files merged into {added}" if removed else "nothing to merge"
            Console().print(f"compact {table}: {merged}", soft_wrap=True)
    except (PipelineError, DeltaError) as failure:
        _fail(str(failure))


def _archived(topics: list[str] | None, prefix: str | None) -> dict[str, str]:
    """The option of the source that names what to archive."""
    if bool(topics) == (prefix is not None):
        _fail("say what to archive: --topic (one or more) or --prefix")
    return {"topics": ",".join(topics or [])} if prefix is None else {"topicPrefix": prefix}


def _finish(launch: Launch, pipeline: Any, to: str, typed: bool) -> None:
    """Bring an archive to its end, and say where its tables are."""
    with launch.failures():
        erased = pipeline.finish()
    console = Console()
    if erased is not None:
        console.print(f"{erased:,} records erased that were deleted on the server", soft_wrap=True)
    names = "events, losses, typed, errors" if typed else "events, losses"
    console.print(f"the tables are in {to}: {names}", soft_wrap=True)


def _check_span(option: str, text: str) -> None:
    if re.fullmatch(SPAN, text) is None:
        _fail(f'{option} is "{text}"; it must be {SPAN_TEXT}')


def _check_target(topic: str, option: str = "--to") -> None:
    try:
        check_topic_name(topic)
    except TopicsError as error:
        _fail(f"{option}: {error.message}")
