"""Confirmation: what cannot be undone is asked for first, and refused where nobody can answer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from topics.commands.failures import EXIT_FAILED, EXIT_USAGE, CommandError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def confirm(question: str, yes: bool) -> None:
    """Go on only if somebody has said yes, by an option or at the terminal. Raises CommandError."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Nobody is there to answer: say --yes if you mean it", EXIT_USAGE)
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was changed", EXIT_FAILED)
