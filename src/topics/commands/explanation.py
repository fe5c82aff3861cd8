"""Explanation: what a failure of the library means for somebody at a shell, and what to do next.

A topic or router that does not exist comes with the names that were probably meant.
"""

from __future__ import annotations

import difflib
from typing import Final

from topics.client.client import Client
from topics.client.errors import Unreachable
from topics.commands.failures import EXIT_DENIED, EXIT_NOT_FOUND, EXIT_UNREACHABLE, CommandError
from topics.errors import (
    Forbidden,
    NotAQueue,
    NotFound,
    RouterCycle,
    RouterNotFound,
    TopicNotFound,
    TopicsError,
    Unauthorized,
)

SUGGESTED_MAX: Final = 3
NAMES_SEEN_MAX: Final = 10_000
_LOOPBACK: Final = ("//127.", "//localhost", "//[::1]")


def is_here(url: str) -> bool:
    """Whether an address is of this machine."""
    return any(part in url for part in _LOOPBACK)


def explain(error: TopicsError, url: str, has_key: bool, client: Client) -> CommandError:
    """What a failure of the library means for somebody at a shell."""
    if isinstance(error, Unreachable):
        start = "start one with `topics serve`, or " if is_here(url) else ""
        text = error.message.removesuffix("; is the server running?")
        hint = f"{start}name another server with --url, --profile or TOPICS_URL"
        return CommandError(f"{text}; {hint}", EXIT_UNREACHABLE)
    if isinstance(error, Unauthorized):
        wrong = "does not know this key" if has_key else "wants a key"
        return CommandError(
            f"{url} {wrong} (401 unauthorized); put the right one into TOPICS_TOKEN, or use --token-file or --profile",
            EXIT_DENIED,
        )
    text = f"{error.message} ({error.status} {error.code})" if error.status else error.message
    if isinstance(error, Forbidden):
        return CommandError(f"{text}; `topics doctor` shows what the key may do", EXIT_DENIED)
    if isinstance(error, TopicNotFound | RouterNotFound):
        return CommandError(text + _near(error, client), EXIT_NOT_FOUND)
    if isinstance(error, NotFound):
        return CommandError(text, EXIT_NOT_FOUND)
    if isinstance(error, RouterCycle):
        return CommandError(f"{text}; --allow-cycle permits it")
    if isinstance(error, NotAQueue):
        return CommandError(f"{text}; a queue is made with `topics create NAME --queue`")
    return CommandError(text)


def _near(error: TopicsError, client: Client) -> str:
    """The names that were probably meant, as far as the key may see them."""
    kind = "router" if isinstance(error, RouterNotFound) else "topic"
    wanted = error.detail.get(kind)
    if not isinstance(wanted, str):
        return ""
    listed = "`topics router ls`" if kind == "router" else "`topics ls`"
    try:
        if kind == "router":
            names = [each.router for each in client.routers()]
        else:
            names = [each.topic for each in client.topics(limit=NAMES_SEEN_MAX)]
    except TopicsError:
        return f"; {listed} shows those that exist"
    close = difflib.get_close_matches(wanted, names, SUGGESTED_MAX)
    if close:
        quoted = [f'"{name}"' for name in close]
        return f"; did you mean {' or '.join([', '.join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)}?"
    return f"; {listed} shows those that exist" if names else f"; there are no {kind}s yet"
