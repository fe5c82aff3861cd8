"""`topics completion`: what teaches a shell to complete commands, options, and the names of topics."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]


class Shell(StrEnum):
    """The shells that there is a script for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def script(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="The shell.", show_default=False)],
) -> None:
    """Print the completion for a shell.

    bash: eval "$(topics completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, after compinit. fish: topics
    completion fish > ~/.config/fish/completions/topics.fish. Names of topics come from the server.
    """
    typer.echo(get_completion_script(prog_name="topics", complete_var="_TOPICS_COMPLETE", shell=shell.value))
