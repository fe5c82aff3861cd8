"""`topics consumer`: how far the consumers have got that keep their cursors on the server."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from topics.client.operations.cursors import CURSORS_TOPIC
from topics.commands.link import Link, connected
from topics.commands.menu import plain_app
from topics.commands.spans import shown_span
from topics.commands.table import Json, print_json, print_table

app = plain_app("See how far consumers have got.")


@app.callback()
def main() -> None:
    """See how far consumers have got."""


@app.command()
@connected
def ls(
    link: Link,
    cursors: Annotated[str, typer.Option(help="The topic that holds the cursors.")] = CURSORS_TOPIC,
    as_json: Json = False,
) -> None:
    """List consumers with their cursors and their lag.

    A consumer of the Python library is listed once it has committed; one with its cursors in a file is not.
    """
    found = link.now.consumers(cursors)
    if as_json:
        for each in found:
            print_json(each)
        return
    now_ms = int(time.time() * 1000)
    cells = [
        (each.lag.get(topic), cursor, f"{shown_span(max(0, now_ms - each.committed_ts))} ago", topic, each.consumer)
        for each in found
        for topic, cursor in sorted(each.cursors.items())
    ]
    print_table(("LAG", "CURSOR", "COMMITTED", "TOPIC", "CONSUMER"), cells, left=("TOPIC",))
