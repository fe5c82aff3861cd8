"""Failures: a command that cannot do what it was asked for ends with one line, and an exit code for programs."""

from __future__ import annotations

from typing import Final

EXIT_FAILED: Final = 1
"""The server refused, or the input is not what it should be."""
EXIT_USAGE: Final = 2
"""The command line is wrong, or something that cannot be undone was not confirmed."""
EXIT_UNREACHABLE: Final = 3
"""No server answers."""
EXIT_DENIED: Final = 4
"""The key is missing, not known, or may not do this."""
EXIT_NOT_FOUND: Final = 5
"""The topic, router or queue does not exist."""
EXIT_INTERRUPTED: Final = 130


class CommandError(Exception):
    """A command cannot do what it was asked for; the message is for people."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
