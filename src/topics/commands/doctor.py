"""`topics doctor`: what is wrong with a server or with its machine, and what to change."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from topics.commands import machine_checks, server_checks
from topics.commands.explanation import is_here
from topics.commands.finding import Finding
from topics.commands.link import Link, connected
from topics.commands.table import Json, bold, counted, print_json

_COLOURS: Final = {"ok": typer.colors.GREEN, "note": typer.colors.YELLOW, "bad": typer.colors.RED}


@connected
def doctor(
    link: Link,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The data directory; by default TOPICS_DATA_DIR.")
    ] = None,
    machine: Annotated[
        bool | None,
        typer.Option(
            "--machine/--no-machine",
            help="Look at this machine too; by default if the server is on it.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find what is wrong with a server and its machine.

    On the machine: settings, disk, clock, open files, memory; a small file is synced in the data directory. The exit
    code is 1 if something has to be changed.
    """
    findings = []
    looks = [("The server", server_checks.look_at(link))]
    if machine or (machine is None and is_here(link.url)):
        looks.append(("This machine", machine_checks.look_at(dict(os.environ), data_dir)))
    for title, found in looks:
        if not as_json:
            typer.echo(bold(title))
        for finding in found:
            findings.append(finding)
            if as_json:
                print_json(finding)
            else:
                _print(finding)
    wrong = sum(each.level == "bad" for each in findings)
    noted = sum(each.level == "note" for each in findings)
    if not as_json:
        text = f"{counted(wrong, 'thing')} to change" if wrong else "Nothing has to be changed"
        typer.echo(bold(text + (f", {counted(noted, 'note')}." if noted else ".")))
    if wrong:
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    level = f"{finding.level:<4}"
    if sys.stdout.isatty():
        level = typer.style(level, fg=_COLOURS[finding.level], bold=finding.level == "bad")
    typer.echo(f"  {level}  {finding.check:<9} {finding.found}")
    if finding.advice:
        typer.echo(f"                  → {finding.advice}")
