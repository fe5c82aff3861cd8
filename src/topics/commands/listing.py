"""`topics ls` and `topics show`: which topics there are, and what one of them holds."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import typer

from topics.client.answers import TopicState
from topics.commands.fields import QUEUE_ONLY
from topics.commands.link import Link, connected
from topics.commands.spans import local_time, shown_size, shown_span
from topics.commands.table import Json, print_facts, print_json, print_table
from topics.commands.topic_names import TopicName, named, topics_at_hand

_NOT_REPEATED: Final = frozenset({"type", "durable", "auto_create"})


@connected
def ls(
    link: Link,
    prefix: Annotated[
        str,
        typer.Argument(
            metavar="PREFIX",
            help="Only topics that start with this, or that a pattern such as '*.dead' fits.",
            show_default=False,
            autocompletion=topics_at_hand,
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """List topics with their records, bytes and heads."""
    if any(wild in prefix for wild in "*?["):
        chosen = set(named(link, [prefix]))
        rows = [each for each in link.now.topics() if each.topic in chosen]
    else:
        rows = link.now.topics(prefix)
    if as_json:
        for row in rows:
            print_json(row)
        return
    cells = [(row.count, row.bytes, row.head_seq, row.topic) for row in rows]
    print_table(("RECORDS", "BYTES", "HEAD", "TOPIC"), cells)


@connected
def show(link: Link, topic: TopicName, as_json: Json = False) -> None:
    """Print the state of a topic, of its queue, and its config."""
    state = link.now.topic(topic).state()
    if as_json:
        print_json(state)
    else:
        print_facts(_facts(state))


def _facts(state: TopicState) -> list[tuple[str, Any]]:
    facts: list[tuple[str, Any]] = [
        ("topic", state.topic),
        ("type", state.type),
        ("count", state.count),
        ("bytes", in_units("bytes", state.bytes)),
        ("head_seq", state.head_seq),
        ("earliest_seq", state.earliest_seq),
    ]
    queue = state.queue
    if queue is not None:
        facts += [(name, getattr(queue, name)) for name in queue.__struct_fields__]
        facts.append(("delayed", state.count - queue.ready - queue.in_flight))
    for name in ("last_write_ts", "last_read_ts"):
        ts = getattr(state, name)
        facts.append((name.removesuffix("_ts"), "never" if ts is None else local_time(ts)))
    return facts + config_facts(state)


def config_facts(state: TopicState) -> list[tuple[str, Any]]:
    """The config of a topic; of a log without what is for queues."""
    return [
        (name, in_units(name, value))
        for name, value in msgspec.structs.asdict(state.config).items()
        if name not in _NOT_REPEATED and (state.queue is not None or name not in QUEUE_ONLY)
    ]


def in_units(name: str, value: Any) -> Any:
    """A number of milliseconds or bytes, and in larger units what it is."""
    if name.endswith("_ms") and value >= 1_000:
        return f"{value} ({shown_span(value)})"
    if name.endswith("bytes") and value >= 1_000:
        return f"{value} ({shown_size(value)})"
    return value
