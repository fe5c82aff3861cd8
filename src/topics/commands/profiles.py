"""Profiles: servers by name, in a file, so that nobody has to remember an address or paste a key.

The file is `profiles.toml` below `$XDG_CONFIG_HOME/topics` (`~/.config/topics`), or what `TOPICS_PROFILES` names: one
table for each server, and the name of the default one. A key is better kept in a file of its own (`token_file`); where
it is in this one and others can read it, every command says so.
"""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from topics.commands.failures import EXIT_USAGE, CommandError

FIELDS: Final = ("url", "token", "token_file", "ca")


class Profile(NamedTuple):
    """One server; `warning` is what is wrong with how its key is kept."""

    name: str
    url: str
    token: str | None = None
    ca: str | None = None
    warning: str | None = None


def profiles_file(environ: Mapping[str, str]) -> Path:
    """Where the profiles are."""
    if named := environ.get("TOPICS_PROFILES"):
        return Path(named).expanduser()
    home = environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path("~/.config").expanduser()) / "topics" / "profiles.toml"


def load(file: Path, name: str | None) -> Profile | None:
    """The profile with the name; without a name the default one, if there is any."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if name is None:
            return None
        raise CommandError(f'there is no profile "{name}": {file} does not exist', EXIT_USAGE) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}", EXIT_USAGE) from None
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CommandError(f"{file} is not TOML: {error}", EXIT_USAGE) from None
    default = found.pop("default", None)
    name = name if name is not None else default
    if name is None:
        return None
    table = found.get(name) if isinstance(name, str) else None
    if not isinstance(table, dict):
        close = difflib.get_close_matches(str(name), found, 1)
        hint = f'did you mean "{close[0]}"?' if close else f"it has: {', '.join(found) or 'none'}"
        raise CommandError(f'there is no profile "{name}" in {file}; {hint}', EXIT_USAGE)
    return _profile(name, table, file)


def _profile(name: str, table: dict[str, Any], file: Path) -> Profile:
    where = f'the profile "{name}" in {file}'
    for field, value in table.items():
        if field not in FIELDS:
            raise CommandError(f'{where} has a field "{field}"; it may have {", ".join(FIELDS)}', EXIT_USAGE)
        if not isinstance(value, str):
            raise CommandError(f"{where}: {field} must be a text", EXIT_USAGE)
    if "url" not in table:
        raise CommandError(f"{where} has no url", EXIT_USAGE)
    token, warning = table.get("token"), None
    if token is None and "token_file" in table:
        token = read_token(Path(table["token_file"]).expanduser(), f"{where}: token_file")
    elif token is not None and file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        warning = f"{file} holds a key and other users can read it: chmod 600 {file}"
    ca = table.get("ca")
    return Profile(name, table["url"], token, None if ca is None else str(Path(ca).expanduser()), warning)


def read_token(file: Path, named: str) -> str | None:
    """The key in a file; `named` is what the error calls it."""
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except OSError as error:
        raise CommandError(f"{named} {file}: {os.strerror(error.errno or 0)}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{named} {file}: it is not text") from None
