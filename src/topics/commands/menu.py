"""Menu: a group of commands in sections, each of them loaded when it is called.

The help of the group, the completion of its names and the hint for a misspelt one come from the table alone. A command
that is registered with typer in the usual way, and is in no section, is listed at the end.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


class Entry(NamedTuple):
    """A command: its name, one line of help, and `module:name` of the function, or of the typer app of a group."""

    name: str
    help: str
    home: str


class Section(NamedTuple):
    """Commands that belong together."""

    title: str
    entries: tuple[Entry, ...]


def plain_app(help: str) -> typer.Typer:
    """A group of commands in the manner of this one: plain text, and no traceback, which could show a key."""
    return typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,
        context_settings=CONTEXT,
        help=help,
    )


class Menu(TyperGroup):
    """A group whose commands are those of `sections`."""

    sections: ClassVar[tuple[Section, ...]] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._homes = {entry.name: entry.home for section in self.sections for entry in section.entries}
        for section in self.sections:
            for entry in section.entries:
                # Stands for the command until it is called.
                self.add_command(TyperCommand(name=entry.name, help=entry.help, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name, loaded."""
        home = self._homes.pop(args[0], None)
        if home is not None:
            self.add_command(_load(home, args[0]), args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        listed = {entry.name for section in self.sections for entry in section.entries}
        others = [(name, self.commands[name]) for name in self.list_commands(ctx) if name not in listed]
        rows = {section.title: [(entry.name, entry.help) for entry in section.entries] for section in self.sections}
        if others:
            rows["More"] = [(name, command.get_short_help_str(formatter.width)) for name, command in others]
        width = max(len(name) for section in rows.values() for name, _ in section)
        for title, section in rows.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", help) for name, help in section])


def _load(home: str, name: str) -> Any:
    module, _, attribute = home.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if isinstance(found, typer.Typer):
        app = found
    else:
        app = plain_app("")
        app.command(name)(found)
    command = typer.main.get_command(app)
    command.name = name
    return command
