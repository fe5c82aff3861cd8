"""The command `topics`: which commands there are, and where each of them is.

Nothing is imported before a command is called (`commands/menu`), because `topics serve` and the completion of a shell
go through the same list and must not wait for what they do not need.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from topics import __version__
from topics.commands.menu import CONTEXT, Entry, Menu, Section

EXIT_NO_DATA = 2


class _Commands(Menu):
    sections = (
        Section(
            "Topics",
            (
                Entry("ls", "List topics with their records, bytes and heads.", "topics.commands.listing:ls"),
                Entry("show", "Print the state of a topic, of its queue, its config.", "topics.commands.listing:show"),
                Entry("create", "Create a topic or a queue.", "topics.commands.topic:create"),
                Entry("config", "Print the config of a topic, or change it.", "topics.commands.topic:config"),
                Entry("purge", "Delete all records of a topic, and keep the topic.", "topics.commands.topic:purge"),
                Entry("rm", "Delete topics with their records and routers.", "topics.commands.topic:rm"),
            ),
        ),
        Section(
            "Records",
            (
                Entry("publish", "Append records to a topic.", "topics.commands.publish:publish"),
                Entry("tail", "Print the records of topics as they come.", "topics.commands.records:tail"),
                Entry("read", "Print the records of topics up to the head.", "topics.commands.records:read"),
                Entry("delete", "Delete records by tag, seq or time.", "topics.commands.records:delete"),
            ),
        ),
        Section(
            "Groups of commands",
            (
                Entry("queue", "Claim, ack and nack jobs; dead letters.", "topics.commands.queue:app"),
                Entry("router", "Copy records from topic to topic.", "topics.commands.router:app"),
                Entry("consumer", "See how far consumers have got.", "topics.commands.consumer:app"),
                Entry("pipeline", "Run data pipelines on Spark.", "topics.pipeline.cli:app"),
            ),
        ),
        Section(
            "Server",
            (
                Entry("serve", "Run the server until SIGTERM or SIGINT.", "topics.flags:serve_command"),
                Entry("ping", "Ask a server whether it is there, and wait for it.", "topics.commands.ping:ping"),
                Entry("watch", "Watch the rates of all topics, like top.", "topics.commands.watch:watch"),
                Entry("doctor", "Find what is wrong, and what to change.", "topics.commands.doctor:doctor"),
                Entry("bench", "Measure how fast a server is from here.", "topics.commands.bench:bench"),
                Entry("backup", "Back up a running server, as of one moment.", "topics.backup.cli:backup"),
                Entry("restore", "Make a data directory of a backup.", "topics.backup.cli:restore"),
                Entry("verify", "Check every byte of a data directory or a backup.", "topics.cli:verify"),
                Entry("dump", "Print a data directory as lines of JSON.", "topics.cli:dump"),
                Entry("completion", "Print the completion for bash, zsh or fish.", "topics.commands.completion:script"),
            ),
        ),
    )


# Tracebacks with local variables could show a key.
app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"topics {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A persistent event engine with a JSON HTTP API.

    The server is --url, --profile or TOPICS_URL, its key TOPICS_TOKEN or --token-file.
    """


def verify(
    directory: Annotated[
        Path, typer.Argument(help="A data directory, of a server that is stopped, or a copy of one; or a backup.")
    ],
    cold_dir: Annotated[Path | None, typer.Option(help="The directory of its older segments.")] = None,
) -> None:
    """Check every byte of a data directory or a backup.

    The exit code is 0 if all is well, 1 if something is damaged, 2 if it is not a data directory.
    """
    from topics.backup.verify import verify as check

    with _readable(directory):
        code = check(directory, typer.echo, cold_directory=cold_dir)
    sys.exit(code)


def dump(
    directory: Annotated[Path, typer.Argument(help="A data directory, of a server that is stopped, or a copy of one.")],
) -> None:
    """Print a data directory as lines of JSON.

    Every frame and every Block is a line. Exit codes are those of `verify`.
    """
    from topics.storage.inspect.dump import dump as print_lines

    with _readable(directory):
        code = print_lines(str(directory), typer.echo)
    if code == EXIT_NO_DATA:
        typer.echo(f"topics: {directory} is not a data directory, or is empty: there is nothing to dump", err=True)
    sys.exit(code)


@contextlib.contextmanager
def _readable(directory: Path) -> Iterator[None]:
    """Report in one line which server is writing to the directory, and what cannot be read."""
    from topics.server.startup_errors import holder_text
    from topics.storage.disk import RealDisk
    from topics.storage.store import LOCK_NAME

    try:
        holder = None if directory.is_file() else RealDisk().holder(str(directory / LOCK_NAME))
        if holder is not None:
            typer.echo(
                f"topics: {holder_text(holder)} serves {directory}: what it is writing now may look torn, damaged or"
                " missing; to be sure, stop it, or look at a copy",
                err=True,
            )
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        typer.echo(f"topics: cannot read {error.filename or 'the directory'}: {error.strerror}", err=True)
        raise typer.Exit(EXIT_NO_DATA) from None
