"""Link: which server a command talks to, with which key, and for how long it waits.

An address is that of `--url`, or else of `--profile`, `TOPICS_URL`, `TOPICS_PROFILE`, the default of the file, or this
machine. The key of a profile goes to the server of that profile and to no other; `TOPICS_TOKEN` is used where nothing
nearer names a key. A key has no flag: every user of the machine can read a command line.

`connected` makes a command out of a function that takes a Link. It adds the options above, and ends every failure with
one line and an exit code.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from topics.client.client import Client
from topics.client.endpoint import ClientOptions
from topics.client.operations.call import log
from topics.client.transport.address import DEFAULT_URL
from topics.commands.explanation import explain
from topics.commands.failures import EXIT_INTERRUPTED, EXIT_USAGE, CommandError
from topics.commands.parameters import after_first, with_parameters
from topics.commands.profiles import load, profiles_file, read_token
from topics.errors import TopicsError

TIMEOUT_S: Final = 60.0
"""Longer than any long-poll."""
PATIENCE_S: Final = 30.0
"""How long a command waits for a server that restarts: well within the time for which a key is remembered."""
WAITS_SAID_S: Final = 5.0

Url = Annotated[str | None, typer.Option("--url", help="The address of the server; by default TOPICS_URL.")]
ProfileName = Annotated[str | None, typer.Option("--profile", help="The name of a server in profiles.toml.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="A file with the key; by default TOPICS_TOKEN is used.")
]

SERVER_OPTIONS: Final = {"url": Url, "profile": ProfileName, "token_file": TokenFile}


class Target(NamedTuple):
    """A server: its address, the key for it, the authority of its certificate."""

    url: str
    token: str | None
    ca: str | None = None
    warning: str | None = None


def target(
    url: str | None, profile: str | None, token_file: Path | None, environ: Mapping[str, str] = os.environ
) -> Target:
    """Which server is meant. Raises CommandError."""
    key = read_token(token_file, "--token-file") if token_file is not None else environ.get("TOPICS_TOKEN") or None
    if url is None and profile is None:
        url = environ.get("TOPICS_URL") or None
    if url is not None:
        return Target(url, key)
    found = load(profiles_file(environ), profile or environ.get("TOPICS_PROFILE") or None)
    if found is None:
        return Target(DEFAULT_URL, key)
    own = found.token if token_file is None else None
    return Target(found.url, own or key, found.ca, found.warning if own else None)


class Link:
    """A server. `now` fails at the first failure; `patient` waits for a server that restarts or is busy."""

    def __init__(self, target: Target, node: str | None = None) -> None:
        self.url = target.url
        self.has_key = target.token is not None
        self._options: ClientOptions = {"token": target.token, "timeout_s": TIMEOUT_S}
        if target.ca is not None:
            self._options["ca"] = target.ca
        self._node = node
        self.now = self._client(deadline_s=TIMEOUT_S, retries=False)
        self._patient: Client | None = None

    def _client(self, *, deadline_s: float, retries: bool) -> Client:
        options: ClientOptions = {**self._options, "deadline_s": deadline_s, "retries": retries}
        if self._node is not None:
            options["node"] = self._node
        return Client(self.url, **options)

    @property
    def patient(self) -> Client:
        """For what goes on for long, once the server was reached."""
        if self._patient is None:
            self._patient = self._client(deadline_s=PATIENCE_S, retries=True)
        return self._patient

    def as_node(self, node: str) -> Client:
        """The server as another holder of leases."""
        self.now.close()
        self._node = node
        self.now = self._client(deadline_s=TIMEOUT_S, retries=False)
        return self.now

    def close(self) -> None:
        """Close the connections."""
        self.now.close()
        if self._patient is not None:
            self._patient.close()


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """A command out of a function whose first parameter is a Link."""

    @functools.wraps(command)
    def run(
        *, context: typer.Context, url: str | None, profile: str | None, token_file: Path | None, **given: Any
    ) -> None:
        with reported(context.command_path):
            chosen = target(url, profile, token_file)
            if chosen.warning is not None:
                typer.echo(f"topics: warning: {chosen.warning}", err=True)
            with linked(chosen) as link:
                command(link, **given)

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    return with_parameters(run, [*after_first(command, SERVER_OPTIONS), context])


@contextlib.contextmanager
def linked(chosen: Target) -> Iterator[Link]:
    """A server for as long as a command runs; what the library raises becomes a CommandError."""
    try:
        link = Link(chosen)
    except TopicsError as error:
        raise CommandError(error.message, EXIT_USAGE) from None
    try:
        yield link
    except TopicsError as error:
        raise explain(error, link.url, link.has_key, link.now) from None
    finally:
        link.close()


class _Waits(logging.Handler):
    """Says now and then what a command waits for, such as a server that restarts."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command
        self._said_s = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        """Print what the library logs."""
        if time.monotonic() - self._said_s >= WAITS_SAID_S:
            self._said_s = time.monotonic()
            typer.echo(f"{self._command}: {record.getMessage()}", err=True)


@contextlib.contextmanager
def reported(command: str) -> Iterator[None]:
    """A failure is one line; an interrupt and a closed pipe end a command quietly."""
    waits = _Waits(command)
    log.addHandler(waits)
    try:
        yield
    except CommandError as error:
        typer.echo(f"{command}: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader is gone, so nothing may be flushed at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
    finally:
        log.removeHandler(waits)
