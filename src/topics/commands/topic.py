"""`topics create`, `config`, `purge` and `rm`: a topic as a whole."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from topics.client.answers import Configured, TopicState
from topics.commands.confirmation import Yes, confirm
from topics.commands.failures import CommandError
from topics.commands.fields import config_of
from topics.commands.link import Link, connected
from topics.commands.listing import config_facts
from topics.commands.table import Json, counted, print_facts, print_json
from topics.commands.topic_names import TopicName, TopicNames, named
from topics.errors import TopicNotFound

Fields = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FIELD=VALUE",
        help="Config fields, such as ttl=7d cap_bytes=10GB durability=fsync.",
        show_default=False,
    ),
]


@connected
def create(
    link: Link,
    topic: TopicName,
    fields: Fields = None,
    queue: Annotated[bool, typer.Option("--queue", help="Make a queue: the same as type=queue.")] = False,
    as_json: Json = False,
) -> None:
    """Create a topic, with a config if that is given.

    docs/api.md#config lists the fields. To change those of a topic that exists, use `topics config`.
    """
    wanted = ({"type": "queue"} if queue else {}) | config_of(fields or [])
    handle = link.now.topic(topic)
    try:
        handle.state()
    except TopicNotFound:
        done = handle.configure(**wanted)
    else:
        raise CommandError(f'topic "{topic}" exists already; `topics config {topic} FIELD=VALUE` changes it')
    if as_json:
        print_json(done)
        return
    kind = "queue" if done.config.type == "queue" else "topic"
    typer.echo(f"created the {kind} {topic} ({done.config.durability}){_set(done, wanted)}")


@connected
def config(link: Link, topic: TopicName, fields: Fields = None, as_json: Json = False) -> None:
    """Print the config of a topic, or change fields of it.

    Only the fields that are named change. A cap or a TTL that is lowered takes records at once.
    """
    handle = link.now.topic(topic)
    state = handle.state()
    if fields:
        wanted = config_of(fields)
        done = handle.configure(**wanted)
        if as_json:
            print_json(done.config)
        else:
            typer.echo(f"configured {topic}{_set(done, wanted)}")
    elif as_json:
        print_json(state.config)
    else:
        print_facts(config_facts(state))


def _set(done: Configured, wanted: dict[str, Any]) -> str:
    """The fields that were asked for, as the config has them now."""
    values = [f"{name}={getattr(done.config, name)}" for name in wanted if name != "type"]
    return f": {' '.join(values)}" if values else ""


@connected
def purge(link: Link, topic: TopicName, yes: Yes = False, as_json: Json = False) -> None:
    """Delete all records of a topic, and keep the topic.

    Its config, its routers and its seqs stay: the next record gets the next seq.
    """
    handle = link.now.topic(topic)
    state = handle.state()
    confirm(f"Delete all {_holding(state)} of {topic} for good?", yes)
    done = handle.delete(before_seq=state.head_seq + 1)
    if as_json:
        print_json(done)
    else:
        typer.echo(f"deleted {counted(done.deleted, 'record')} of {topic}")


@connected
def rm(
    link: Link,
    topics: TopicNames,
    yes: Yes = False,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only topics that hold no records.")] = False,
    as_json: Json = False,
) -> None:
    """Delete topics with their records and routers."""
    names = named(link, topics)
    states = [link.now.topic(name).state() for name in names]
    if len(names) == 1:
        question = f"Delete {names[0]} with {_holding(states[0])} and its routers for good?"
    else:
        for state in states:
            typer.echo(f"{state.topic}: {_holding(state)}", err=True)
        question = f"Delete these {len(names)} topics with their records and routers for good?"
    confirm(question, yes)
    for name in names:
        done = link.now.topic(name).delete_topic(if_empty=if_empty)
        if as_json:
            print_json(done)
        else:
            routers = f", and the routers {', '.join(done.routers_removed)}" if done.routers_removed else ""
            typer.echo(f"deleted {name}{routers}")


def _holding(state: TopicState) -> str:
    return counted(state.count, "job" if state.queue is not None else "record")
