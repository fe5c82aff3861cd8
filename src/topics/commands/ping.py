"""`topics ping`: whether a server is there and serves, how long it takes to answer, and a way to wait for it."""

from __future__ import annotations

import statistics
import time
from typing import Annotated, Final

import typer

from topics.client.client import Client
from topics.client.errors import Unreachable
from topics.commands.link import Link, connected
from topics.commands.spans import shown_span, span_ms
from topics.commands.table import Json, print_json
from topics.errors import NotReady, ShuttingDown

PAUSE_S: Final = 0.1


@connected
def ping(
    link: Link,
    count: Annotated[int, typer.Option("--count", "-c", help="Ask this often.", min=1)] = 1,
    interval: Annotated[int, typer.Option(parser=span_ms, metavar="TIME", help="The pause between.")] = 1_000,
    wait: Annotated[
        int,
        typer.Option(
            parser=span_ms,
            metavar="TIME",
            help="Wait this long for a server that starts, such as 30s.",
            show_default=False,
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Ask a server whether it is there and ready. The exit code is 0 if it is."""
    _await(link.now, wait)
    took: list[float] = []
    for number in range(count):
        if number:
            time.sleep(interval / 1000)
        began = time.perf_counter()
        health = link.now.health()
        took.append((time.perf_counter() - began) * 1000)
        ready = link.now.ready()
        if as_json:
            print_json({
                "url": link.url, "version": health.version, "uptime_ms": health.uptime_ms, "status": ready.status,
                "topics": ready.topics, "took_ms": round(took[-1], 3),
            })  # fmt: skip
        else:
            typer.echo(
                f"{link.url}: topics {health.version}, {ready.status}, up {shown_span(health.uptime_ms)},"
                f" {took[-1]:.2f} ms"
            )
    if count > 1 and not as_json:
        typer.echo(
            f"{count} answers: {min(took):.2f} ms at best, {statistics.median(took):.2f} in the middle,"
            f" {max(took):.2f} at worst"
        )


def _await(client: Client, wait_ms: int) -> None:
    """Return once the server serves, or raise why it does not."""
    until = time.monotonic() + wait_ms / 1000
    while True:
        try:
            client.ready()
        except (Unreachable, NotReady, ShuttingDown):
            if time.monotonic() >= until:
                raise
            time.sleep(PAUSE_S)
        else:
            return
