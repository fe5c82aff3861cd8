"""The command `topics` in this process: a dozen of them take as long as one process does to start."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from topics.cli import app


class Shell:
    """Runs commands against one server. Its standard input is no terminal."""

    def __init__(self, url: str, **variables: str) -> None:
        self._environ = {"TOPICS_URL": url, "TOPICS_PROFILES": "/none", "COLUMNS": "200", **variables}

    def run(self, *arguments: str, exit_code: int | None = 0) -> tuple[str, str]:
        """What a command prints, and what it prints to stderr; an exit code of None is any."""
        ended = CliRunner().invoke(app, list(arguments), env=self._environ, prog_name="topics")
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        assert exit_code in (None, ended.exit_code), f"{arguments}: exit code {ended.exit_code}\n{ended.output}"
        return ended.stdout, ended.stderr

    def out(self, *arguments: str) -> str:
        """What a command prints."""
        return self.run(*arguments)[0]

    def json(self, *arguments: str) -> list[Any]:
        """The objects that a command prints with --json."""
        return [json.loads(line) for line in self.out(*arguments, "--json").splitlines()]

    def fails(self, exit_code: int, *arguments: str) -> str:
        """The last line of a command that fails."""
        return self.run(*arguments, exit_code=exit_code)[1].splitlines()[-1]
