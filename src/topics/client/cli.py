"""`topics ls`, `show`, `publish` and `tail` on the command line: a failure is one line and exit code 1.

Each command imports what it needs when it runs, because `topics serve` goes through the same parser of flags and must
not wait for those imports.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topics.client.options import DEFAULT_URL, ClientError, TokenFile, Url, token

if TYPE_CHECKING:
    from topics.client.link import Link

EXIT_INTERRUPTED = 130

Topic = Annotated[str, typer.Argument(help="The topic.", show_default=False)]


def ls(
    prefix: Annotated[str, typer.Argument(help="Only topics that start with this.", show_default=False)] = "",
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """List topics with their records, bytes and heads."""
    from topics.client import listing

    with _connected("ls", url, token_file) as client:
        rows = list(listing.topics(client, prefix))
        for line in listing.table(rows):
            typer.echo(line)


def show(topic: Topic, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Print the state of a topic, of its queue, and its config."""
    from topics.client import listing

    with _connected("show", url, token_file) as client:
        for line in listing.state(client, topic):
            typer.echo(line)


def publish(
    topic: Topic,
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Records as JSON; without any, each line of the input is one.", show_default=False),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Send each record as a string, whatever it holds.")] = False,
    tag: Annotated[str | None, typer.Option(help="The tag of each record.")] = None,
    node: Annotated[str | None, typer.Option(help="The node of each record.")] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Append records to a topic.

    The topic is created if it does not exist. After a lost connection they are sent again, and stored once.
    """
    from topics.client.publish import Publisher, lines_of

    with _connected("publish", url, token_file) as client:
        publisher = Publisher(client, topic, text=text, tag=tag, node=node)
        if not data and sys.stdin.isatty():
            typer.echo("one record per line, as JSON unless --text is given; end with Ctrl-D", err=True)
        try:
            publisher.publish([[each.encode() for each in data]] if data else lines_of(sys.stdin.fileno()))
        finally:
            done = publisher.published
            if done.records == 0:
                typer.echo("nothing was published", err=True)
            else:
                records = "1 record" if done.records == 1 else f"{done.records:,} records"
                seqs = f"seq {done.last_seq}" if done.records == 1 else f"seqs {done.first_seq} to {done.last_seq}"
                typer.echo(f"published {records} to {topic}: {seqs}", err=True)


def tail(
    topic: Topic,
    last: Annotated[
        int, typer.Option("--last", "-n", help="Begin with about this many of the last records.", min=0)
    ] = 10,
    from_seq: Annotated[
        int | None, typer.Option(help="Begin after this seq instead; 0 is the beginning.", min=0, show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f/-F", help="Go on with new records.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print whole records, and gaps, as JSON.")] = False,
    data_only: Annotated[
        bool, typer.Option("--data", help="Print only the data of each record; gaps go to stderr.")
    ] = False,
    node: Annotated[str | None, typer.Option(help="Leave out records of this node.")] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Print the records of a topic as they come.

    One line each: seq, time, tag, data. It only reads, so the jobs of a queue stay where they are.
    """
    from topics.client.tail import Tail, data_text, gap_text, one_line, record_text

    with _connected("tail", url, token_file) as client:
        reader = Tail(client, topic)
        start, head = reader.start(last)
        shown = one_line if as_json else data_text if data_only else record_text
        cursor = start if from_seq is None else from_seq
        for raw, is_gap in reader.read(cursor, None if follow else head, node):
            if is_gap:
                typer.echo(one_line(raw) if as_json else gap_text(raw), err=data_only)
            else:
                typer.echo(shown(raw))


@contextlib.contextmanager
def _connected(command: str, url: str, token_file: Path | None) -> Iterator[Link]:
    """A client for as long as a command runs. A failure is one line; an interrupt and a closed pipe end it quietly."""
    from topics.client.link import Link

    try:
        with Link(url, token(token_file)) as client:
            yield client
    except ClientError as error:
        typer.echo(f"topics {command}: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader is gone, so nothing may be flushed at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
