"""`topics serve`, from the environment to the exit code of the server.

It is separate from the command line (cli.py), because a parser of flags takes as long to import as the server does:
where there are no flags, `python -m topics` comes straight here.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from typing import Final

from topics import settings
from topics.server.auth import Keys, check_exposure

EXIT_BAD_SETTINGS: Final = 2


def serve(flags: Mapping[str, str]) -> int:
    """Run the server until SIGTERM or SIGINT with the settings of the environment, overridden by `flags`."""
    try:
        # Keys first: whatever happens next, the plaintext has left the environment.
        keys = Keys.take(os.environ)
        chosen, warnings = settings.read(os.environ, flags)
        if chosen.api_keys_file is not None:
            keys.read_file(chosen.api_keys_file)
        check_exposure(chosen, keys)
    except settings.BadSettings as error:
        _print(str(error).splitlines())
        return EXIT_BAD_SETTINGS
    _print([f"warning: {warning}" for warning in warnings])
    # What an import makes is never garbage, and looking for garbage in it takes time.
    gc.disable()
    try:
        from topics.server.server import Server

        return Server(chosen, keys).run()
    finally:
        gc.enable()


def _print(lines: list[str]) -> None:
    for line in lines:
        sys.stderr.write(f"topics: {line}\n")
