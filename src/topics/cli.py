"""The command `topics`.

`topics serve` takes every setting as a flag too; the flags are made from the settings' own table, so that there is one
list. A flag wins over its variable. Keys have no flag: every user of the machine can read a command line.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any

import typer

from topics import __version__, settings
from topics.backup import cli as backups
from topics.client import cli as client
from topics.pipeline import cli as pipelines
from topics.serve import serve

EXIT_NO_DATA = 2

# Tracebacks with local variables could show a key.
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(pipelines.app, name="pipeline")


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
    """A persistent event engine with a JSON HTTP API."""


def _serve(**flags: str | bool | None) -> None:
    sys.exit(serve({name: str(value) for name, value in flags.items() if value is not None}))


def _flag_parameter(setting: Field[Any]) -> inspect.Parameter:
    name = settings.flag(setting)
    is_switch = isinstance(setting.default, bool)
    shown = (
        str(setting.default).lower() if is_switch else "not set" if setting.default in (None, ()) else setting.default
    )
    option = typer.Option(
        f"{name}/--no-{name.removeprefix('--')}" if is_switch else name,
        help=f"{setting.metadata['doc']} ({settings.variable(setting)}, default {shown})",
        metavar=None if is_switch else "VALUE",
        show_default=False,
    )
    kind = Annotated[bool | None if is_switch else str | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with a parameter for each setting, in the form that typer reads."""
    parameters = [_flag_parameter(setting) for setting in settings.table()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


app.command(
    "serve", help="Run the server until SIGTERM or SIGINT. Keys are read from TOPICS_API_KEYS, and only there."
)(_with_flags(_serve))


for command in (client.ls, client.show, client.publish, client.tail, backups.backup, backups.restore):
    app.command()(command)


@app.command()
def verify(
    directory: Annotated[
        Path, typer.Argument(help="A data directory, of a server that is stopped, or a copy of one; or a backup.")
    ],
    cold_dir: Annotated[Path | None, typer.Option(help="The directory of its older segments.")] = None,
) -> None:
    """Check every byte of a data directory or a backup.

    The exit code is 0 if all is well, 1 if something is damaged, 2 if it is not a data directory.
    """
    from topics.backup.checking import verify as check

    with _readable(directory):
        code = check(directory, typer.echo, cold_directory=cold_dir)
    sys.exit(code)


@app.command()
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
