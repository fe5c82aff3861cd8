"""The options of every command that talks to a server: its address, and the key.

The key comes from `TOPICS_TOKEN` or from a file, never from the command line, where every user of the machine could
read it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

DEFAULT_URL: Final = "http://127.0.0.1:4000"

Url = Annotated[str, typer.Option(help="The address of the server.", envvar="TOPICS_URL")]
TokenFile = Annotated[Path | None, typer.Option(help="A file with the key; by default TOPICS_TOKEN is used.")]


class ClientError(Exception):
    """A command cannot do what it was asked for; the message is for people."""


def token(file: Path | None) -> str | None:
    """The key, if there is one."""
    if file is None:
        return os.environ.get("TOPICS_TOKEN") or None
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except OSError as error:
        raise ClientError(f"--token-file {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ClientError(f"--token-file {file}: it is not text") from None
