"""`topics tail`, `read` and `delete`: the records of topics, as they come, from when on, and which of them to delete.

Both readers go by cursor, so that a server that restarts, or a connection that breaks, costs nothing but time. What was
lost to retention or a crash is printed in its place among the records. Of several topics, what exists is printed in the
order of time, and what is written later as it arrives.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from topics.client.answers import TopicState
from topics.client.follower import FollowManyOptions
from topics.client.operations.read import ReadOptions
from topics.client.reader import Reader
from topics.client.record import Record, Tombstone
from topics.commands.confirmation import Yes, confirm
from topics.commands.failures import EXIT_USAGE, CommandError
from topics.commands.link import Link, connected
from topics.commands.printer import Printer
from topics.commands.progress import progress
from topics.commands.spans import local_time, time_ms
from topics.commands.table import Json, counted, print_json
from topics.commands.topic_names import TopicName, TopicNames, glob, named

PROGRESS_EVERY: Final = 1_000

Item = Record[Any] | Tombstone

Since = Annotated[
    int | None,
    typer.Option(parser=time_ms, metavar="TIME", help="Begin at this time: 10m means 10 minutes ago, or a date."),
]
FromSeq = Annotated[
    int | None, typer.Option(help="Begin after this seq; 0 is the beginning.", min=0, show_default=False)
]
Tag = Annotated[str | None, typer.Option(help="Only records with this tag; a * at its end stands for anything.")]
Node = Annotated[str | None, typer.Option(help="Leave out records of this node.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print whole records, and gaps, as JSON, one per line.")]
DataOnly = Annotated[bool, typer.Option("--data", help="Print only the data of each record; gaps go to stderr.")]


class Wanted(NamedTuple):
    """What of each topic is wanted."""

    from_seq: int | None = None
    from_ts: int | None = None
    until_ts: int | None = None
    tag: str | None = None
    node: str | None = None

    def check(self, names: Sequence[str]) -> None:
        """Refuse what cannot be meant."""
        if self.from_seq is not None and len(names) > 1:
            raise CommandError("--from-seq is for one topic: each counts its own seqs; use --since", EXIT_USAGE)
        if self.from_seq is not None and self.from_ts is not None:
            raise CommandError("--from-seq and --since both say where to begin: give one of them", EXIT_USAGE)

    @property
    def filters(self) -> FollowManyOptions:
        """What a reader leaves out."""
        options = FollowManyOptions()
        if self.tag is not None:
            options["match"] = glob(self.tag)
        if self.node is not None:
            options["node"] = self.node
        return options

    def options(self, cursor: int) -> ReadOptions:
        """What to ask for, by default from a cursor on."""
        options = ReadOptions(**self.filters)  # type: ignore[typeddict-item]
        if self.from_ts is not None:
            options["from_ts"] = self.from_ts
        else:
            options["from_seq"] = cursor if self.from_seq is None else self.from_seq
        return options


@connected
def tail(
    link: Link,
    topics: TopicNames,
    last: Annotated[
        int, typer.Option("--last", "-n", help="Begin with about this many of the last records of each.", min=0)
    ] = 10,
    since: Since = None,
    from_seq: FromSeq = None,
    tag: Tag = None,
    node: Node = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f/-F", help="Go on with new records.")] = True,
    as_json: AsJson = False,
    data_only: DataOnly = False,
) -> None:
    """Print the records of topics as they come, until Ctrl-C.

    One line each: seq, time, tag, data; of several topics, the topic first. It only reads, so the jobs of a queue stay
    where they are.
    """
    names = named(link, topics)
    wanted = Wanted(from_seq, since, None, tag, node)
    wanted.check(names)
    starts = {name: _before_last(link.now.topic(name).state(), last) for name in names}
    printer = Printer(as_json=as_json, data_only=data_only, width=_width(names))
    readers = {name: link.patient.topic(name).read(on_loss="yield", **wanted.options(starts[name])) for name in names}
    for item in _merged(readers, None):
        printer.put(item)
    printer.flush()
    if not follow:
        return
    for item in _followed(link, {name: reader.cursor for name, reader in readers.items()}, wanted):
        printer.put(item)
        printer.flush()


def _followed(link: Link, cursors: dict[str, int], wanted: Wanted) -> Iterator[Item]:
    if len(cursors) > 1:
        with link.patient.follow(cursors, on_loss="yield", **wanted.filters) as follower:
            yield from follower
        return
    [(name, cursor)] = cursors.items()
    options = wanted._replace(from_ts=None, from_seq=cursor).options(cursor)
    yield from link.patient.topic(name).follow(on_loss="yield", **options)


@connected
def read(
    link: Link,
    topics: TopicNames,
    since: Since = None,
    until: Annotated[
        int | None, typer.Option(parser=time_ms, metavar="TIME", help="End before this time: a span ago, or a date.")
    ] = None,
    from_seq: FromSeq = None,
    tag: Tag = None,
    node: Node = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="At most this many records.", min=1)] = None,
    as_json: AsJson = False,
    data_only: DataOnly = False,
) -> None:
    """Print the records of topics from the beginning to the head, or a part of them, and end.

    With the output in a file and a terminal to show it on, a bar shows how far it has got.
    """
    names = named(link, topics)
    wanted = Wanted(from_seq, since, until, tag, node)
    wanted.check(names)
    states = [link.now.topic(name).state() for name in names]
    printer = Printer(as_json=as_json, data_only=data_only, width=_width(names))
    readers = {name: link.patient.topic(name).read(on_loss="yield", **wanted.options(0)) for name in names}
    starts = {state.topic: max(from_seq or 0, state.earliest_seq - 1) for state in states}
    by_seq = since is None and until is None and limit is None
    total = sum(max(0, state.head_seq - starts[state.topic]) for state in states) if by_seq else limit
    with progress("reading", total, shown=not sys.stdout.isatty()) as step:
        for number, item in enumerate(_limited(_merged(readers, until), limit), 1):
            printer.put(item)
            if number % PROGRESS_EVERY == 0:
                done = sum(max(0, reader.cursor - starts[name]) for name, reader in readers.items())
                step(done if by_seq else number)
        printer.flush()


def _before_last(state: TopicState, last: int) -> int:
    """The cursor before the last records, about as many as asked for."""
    # Seqs may have holes, where jobs were acked for example: a short topic is shown whole.
    before_all = state.earliest_seq - 1
    return before_all if state.count <= last else max(state.head_seq - last, before_all)


def _merged(readers: dict[str, Reader[Item]], until_ts: int | None) -> Iterable[Item]:
    """What the readers give, in the order of time."""
    timed = [_timed(reader, until_ts) for reader in readers.values()]
    if len(timed) == 1:
        return (item for _, item in timed[0])
    return (item for _, item in heapq.merge(*timed, key=lambda each: each[0]))


def _timed(reader: Reader[Item], until_ts: int | None) -> Iterator[tuple[int, Item]]:
    """Each item with its time; a loss has that of the record before it. Times never go back within a topic."""
    ts = 0
    for item in reader:
        if isinstance(item, Record):
            ts = item.ts
            if until_ts is not None and ts >= until_ts:
                return
        yield ts, item


def _limited(items: Iterable[Item], limit: int | None) -> Iterator[Item]:
    records = 0
    for item in items:
        yield item
        records += isinstance(item, Record)
        if records == limit:
            return


def _width(names: Sequence[str]) -> int:
    """How wide the column of topics is: one topic needs none."""
    return max(map(len, names)) if len(names) > 1 else 0


@connected
def delete(
    link: Link,
    topic: TopicName,
    tag: Annotated[str | None, typer.Option(help="Those with this tag; a * at its end stands for anything.")] = None,
    before_seq: Annotated[int | None, typer.Option(help="Those below this seq.", min=1)] = None,
    before: Annotated[
        int | None,
        typer.Option(parser=time_ms, metavar="TIME", help="Those written before this time: a span ago, or a date."),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete records for good, by tag, seq or time.

    What several options name is deleted where all of them agree. To delete everything, use `topics purge` or `rm`.
    """
    if tag is None and before_seq is None and before is None:
        raise CommandError("say which records: --tag, --before-seq or --before", EXIT_USAGE)
    handle = link.now.topic(topic)
    state = handle.state()
    parts = [] if tag is None else [f'with the tag "{tag}"']
    if before_seq is not None:
        parts.append(f"below seq {before_seq}")
    if before is not None:
        parts.append(f"from before {local_time(before)}")
        first = next(iter(handle.read(from_ts=before, on_loss="yield", limit=1)), None)
        at = state.head_seq + 1 if first is None else first.seq if isinstance(first, Record) else first.gap_from
        before_seq = at if before_seq is None else min(at, before_seq)
    confirm(f"Delete the records of {topic} {' and '.join(parts)} for good? It holds {state.count:,}.", yes)
    done = handle.delete(before_seq=before_seq, match=None if tag is None else glob(tag))
    if as_json:
        print_json(done)
    else:
        left = f"{done.count:,} {'is' if done.count == 1 else 'are'} left"
        typer.echo(f"deleted {counted(done.deleted, 'record')} of {topic}, {left}")
