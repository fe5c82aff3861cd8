"""`topics router`: what is copied from topic to topic, and the picture of it."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from topics.client.answers import RouterState
from topics.client.operations.server_calls import RouterOptions
from topics.commands.confirmation import Yes, confirm
from topics.commands.link import Link, connected
from topics.commands.menu import plain_app
from topics.commands.table import Json, counted, print_json, print_table
from topics.commands.topic_names import glob, topics_at_hand
from topics.errors import RouterNotFound

app = plain_app("Copy records from topic to topic.")

Source = Annotated[
    str,
    typer.Argument(metavar="SOURCE", help="The topic to copy from.", show_default=False, autocompletion=topics_at_hand),
]
Dest = Annotated[
    str, typer.Argument(metavar="DEST", help="The topic to copy to.", show_default=False, autocompletion=topics_at_hand)
]


@app.command()
@connected
def ls(
    link: Link,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only routers that start with this.", show_default=False)
    ] = "",
    source: Annotated[str | None, typer.Option(help="Only those from this topic.")] = None,
    dest: Annotated[str | None, typer.Option(help="Only those to this topic.")] = None,
    as_json: Json = False,
) -> None:
    """List routers with what they have copied."""
    found = link.now.routers(prefix, source=source, dest=dest)
    if as_json:
        for each in _whole(link, found):
            print_json(each)
        return
    cells = [(each.forwarded_total, each.source, each.dest, filter_text(each.filter), each.router) for each in found]
    print_table(("COPIED", "SOURCE", "DEST", "TAG", "ROUTER"), cells, left=("SOURCE", "DEST", "TAG"))


@app.command()
@connected
def add(
    link: Link,
    source: Source,
    dest: Dest,
    name: Annotated[str | None, typer.Option(help="Its name; by default SOURCE->DEST.")] = None,
    tag: Annotated[str | None, typer.Option(help="Copy only this tag; a * at its end stands for anything.")] = None,
    exactly_once: Annotated[
        bool, typer.Option("--exactly-once", help="Give each copy a stable key, for readers that must see it once.")
    ] = False,
    allow_cycle: Annotated[bool, typer.Option("--allow-cycle", help="Permit a router that closes a cycle.")] = False,
    as_json: Json = False,
) -> None:
    """Copy from one topic to another.

    Every record that is appended to SOURCE from now on is copied. Topics that do not exist are created.
    """
    options = RouterOptions(filter=None if tag is None else glob(tag), allow_cycle=allow_cycle)
    if exactly_once:
        options["guarantee"] = "exactly_once"
    done = link.now.put_router(name or f"{source}->{dest}", source=source, dest=dest, **options)
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{'created' if done.created else 'changed'} the router {done.router}: {source} to {dest}")


@app.command()
@connected
def rm(
    link: Link,
    routers: Annotated[
        list[str], typer.Argument(metavar="ROUTER", help="The names of the routers.", show_default=False)
    ],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Stop copying; the copies that were made stay."""
    found = [link.now.router(name) for name in routers]
    named = ", ".join(f"{each.router} ({counted(each.forwarded_total, 'record')} copied)" for each in found)
    confirm(f"Remove {named}? What is written from then on is not copied any more.", yes)
    for name in routers:
        deleted = link.now.delete_router(name)
        if as_json:
            print_json({"router": name, "deleted": deleted})
        else:
            typer.echo(f"removed the router {name}")


@app.command()
@connected
def graph(
    link: Link,
    dot: Annotated[bool, typer.Option("--dot", help="Print it for Graphviz.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print it for Mermaid.")] = False,
    as_json: Json = False,
) -> None:
    """Draw what flows where, as a tree of topics."""
    found = link.now.routers()
    if as_json:
        for each in found:
            print_json({"source": each.source, "dest": each.dest, "router": each.router, "filter": each.filter})
    elif dot:
        typer.echo("\n".join(["digraph routers {", "  rankdir=LR;", *_dot(found), "}"]))
    elif mermaid:
        typer.echo("\n".join(["graph LR", *_mermaid(found)]))
    elif not found:
        typer.echo("there are no routers; `topics router add SOURCE DEST` makes one", err=True)
    else:
        typer.echo("\n".join(tree(found)))


def _whole(link: Link, listed: Sequence[RouterState]) -> list[RouterState]:
    """Routers with every field, of which a list leaves some out; one that is removed meanwhile is passed over."""
    found = []
    for each in listed:
        with contextlib.suppress(RouterNotFound):
            found.append(link.now.router(each.router))
    return found


def tree(routers: Sequence[RouterState]) -> Iterator[str]:
    """Every topic that is copied from, with what it flows into below it; a topic is drawn once, and named again."""
    below: dict[str, list[RouterState]] = defaultdict(list)
    for each in routers:
        below[each.source].append(each)
    dests = {each.dest for each in routers}
    drawn: set[str] = set()

    def draw(topic: str, indent: str) -> Iterator[str]:
        drawn.add(topic)
        for number, each in enumerate(below[topic], 1):
            is_last = number == len(below[topic])
            again = each.dest in drawn and bool(below.get(each.dest))
            tag = f" [{filter_text(each.filter)}]" if each.filter else ""
            arrow = "└─▶" if is_last else "├─▶"
            more = ", see above" if again else ""
            yield f"{indent}{arrow} {each.dest}{tag}  ({each.forwarded_total:,} copied{more})"
            if not again and below.get(each.dest):
                yield from draw(each.dest, indent + ("    " if is_last else "│   "))

    # A cycle has no topic that nothing flows into: it is drawn from its first one.
    for topic in [*(each for each in below if each not in dests), *below]:
        if topic not in drawn:
            yield topic
            yield from draw(topic, "")


def filter_text(found: Any) -> str:
    """A filter as it is given to `--tag`."""
    return "" if not found else str(found[-1]) if isinstance(found, list) else str(found)


def _dot(routers: Sequence[RouterState]) -> Iterator[str]:
    for each in routers:
        label = f' [label="{filter_text(each.filter)}"]' if each.filter else ""
        yield f'  "{each.source}" -> "{each.dest}"{label};'


def _mermaid(routers: Sequence[RouterState]) -> Iterator[str]:
    numbers = {
        name: f"t{i}" for i, name in enumerate(sorted({n for each in routers for n in (each.source, each.dest)}))
    }
    for name, number in numbers.items():
        yield f'  {number}["{name}"]'
    for each in routers:
        label = f'|"{filter_text(each.filter)}"|' if each.filter else ""
        yield f"  {numbers[each.source]} -->{label} {numbers[each.dest]}"
