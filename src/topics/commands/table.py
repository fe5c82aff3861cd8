"""Tables and facts as plain text: for people, and for awk and cut."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]


def print_table(head: Sequence[str], rows: Iterable[Sequence[Any]], *, left: Sequence[str] = ()) -> None:
    """Columns, numbers to the right; those named in `left`, and the last one, begin on the left."""
    cells = [tuple(head), *(tuple(cell(value) for value in row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for number, row in enumerate(cells):
        line = "  ".join(
            text if i == len(head) - 1 else f"{text:<{widths[i]}}" if head[i] in left else f"{text:>{widths[i]}}"
            for i, text in enumerate(row)
        )
        typer.echo(bold(line) if number == 0 else line)


def print_facts(facts: Sequence[tuple[str, Any]]) -> None:
    """A line for each fact: its name and its value."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        typer.echo(f"{name:<{width}}  {cell(value)}")


def print_json(value: Any) -> None:
    """One object on one line."""
    typer.echo(msgspec.json.encode(value))


def cell(value: Any) -> str:
    """A value as a table shows it: `-` for what is not there, and nothing that could control a terminal."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or value == "":
        return "-"
    text = str(value)
    return text if text.isprintable() else msgspec.json.encode(text).decode()


def bold(text: str) -> str:
    """A heading, where somebody looks at it."""
    return typer.style(text, bold=True) if sys.stdout.isatty() else text


def counted(count: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
