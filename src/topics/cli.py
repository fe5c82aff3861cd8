"""The command `topics`.

`topics serve` takes every setting as a flag too; the flags are made from the settings' own table, so that there is one
list. A flag wins over its variable. Keys have none: a command line can be read by every user of the machine.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import Field
from typing import Annotated, Any

import typer

from topics import __version__, settings
from topics.pipeline import cli as pipelines
from topics.server.auth import Keys, check_exposure

EXIT_BAD_SETTINGS = 2

# Tracebacks with local variables could show a key.
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
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
    given = {name: str(value) for name, value in flags.items() if value is not None}
    try:
        # Keys first: whatever happens next, the plaintext has left the environment.
        keys = Keys.take(os.environ)
        chosen, warnings = settings.read(os.environ, given)
        check_exposure(chosen, keys)
    except settings.BadSettings as error:
        for line in str(error).splitlines():
            typer.echo(f"topics: {line}", err=True)
        raise typer.Exit(EXIT_BAD_SETTINGS) from None
    for warning in warnings:
        typer.echo(f"topics: warning: {warning}", err=True)
    from topics.server.app import serve

    sys.exit(serve(chosen, keys))


def _flag_parameter(setting: Field[Any]) -> inspect.Parameter:
    name = settings.flag(setting)
    is_switch = isinstance(setting.default, bool)
    shown = str(setting.default).lower() if is_switch else setting.default
    option = typer.Option(
        f"{name}/--no-{name.removeprefix('--')}" if is_switch else name,
        help=f"{setting.metadata['doc']} ({settings.variable(setting)}, default {shown})",
        metavar=None if is_switch else "VALUE",
        show_default=False,
    )
    kind = Annotated[bool | None if is_switch else str | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with a parameter for each setting, in the form in which typer looks for them."""
    parameters = [_flag_parameter(setting) for setting in settings.table()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


app.command("serve", help="Run the server until SIGTERM or SIGINT.")(_with_flags(_serve))
