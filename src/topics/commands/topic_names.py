"""Topic names: which topics a command is for: names, or patterns such as `orders.*`, which a shell completes.

A tag may be a pattern, too. No topic has `*`, `?` or `[` in its name, so that a pattern is never taken for a name.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from topics.client.client import Client
from topics.commands.failures import EXIT_NOT_FOUND, CommandError
from topics.commands.link import Link, target
from topics.errors import TopicsError

COMPLETED_MAX: Final = 100
COMPLETION_S: Final = 1.0
_WILD: Final = re.compile(r"[*?\[]")


def topics_at_hand(ctx: typer.Context, incomplete: str) -> list[str]:
    """The topics that an argument may be completed to; none where the server does not answer at once."""
    try:
        chosen = target(ctx.params.get("url"), ctx.params.get("profile"), _path(ctx.params.get("token_file")))
        options: dict[str, Any] = {} if chosen.ca is None else {"ca": chosen.ca}
        with Client(
            chosen.url,
            token=chosen.token,
            timeout_s=COMPLETION_S,
            connect_timeout_s=COMPLETION_S,
            deadline_s=COMPLETION_S,
            retries=False,
            **options,
        ) as client:
            return [each.topic for each in client.topics(incomplete, limit=COMPLETED_MAX)]
    except (TopicsError, CommandError):
        return []


def _path(value: Any) -> Path | None:
    return None if value is None else Path(value)


TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False, autocompletion=topics_at_hand)
]
TopicNames = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC",
        help="Topics, by name or by a pattern such as 'orders.*'.",
        show_default=False,
        autocompletion=topics_at_hand,
    ),
]
QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The queue.", show_default=False, autocompletion=topics_at_hand)
]


def named(link: Link, arguments: Sequence[str]) -> list[str]:
    """The topics that the arguments name, each once; a pattern that fits none is an error."""
    found: dict[str, None] = {}
    for argument in arguments:
        wild = _WILD.search(argument)
        if wild is None:
            found[argument] = None
            continue
        fitting = [
            each.topic
            for each in link.now.topics(argument[: wild.start()])
            if fnmatch.fnmatchcase(each.topic, argument)
        ]
        if not fitting:
            raise CommandError(f'no topic is like "{argument}"; `topics ls` shows those that exist', EXIT_NOT_FOUND)
        found |= dict.fromkeys(fitting)
    return list(found)


def glob(tag: str) -> str | list[str]:
    """A tag as the API takes it: one that ends with * is a pattern."""
    return ["tag", "Glob", tag] if tag.endswith("*") else tag
