"""The flags of `topics serve`: every setting is one.

They are made from the settings' own table, so that there is one list. A flag wins over its variable. Keys have no flag:
every user of the machine can read a command line.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import Field
from typing import Annotated, Any

import typer

from topics import settings
from topics.commands.parameters import optional, with_parameters
from topics.serve import serve


def serve_command(**flags: str | bool | None) -> None:
    """Run the server until SIGTERM or SIGINT. Keys come from TOPICS_API_KEYS or from a file, never from a flag."""
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
    return optional(setting.name, kind)


with_parameters(serve_command, [_flag_parameter(setting) for setting in settings.table()])
