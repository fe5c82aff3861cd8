"""`topics queue`: the jobs of a queue by hand.

A lease belongs to a node. A command lives for a moment, so all commands of a user on a machine are one node, unless
`--node` or `TOPICS_NODE` names another: what one has claimed, the next can ack.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from typing import Annotated, Any, Final

import typer

from topics.client.answers import LeaseState, Settled, TopicState
from topics.client.client import Client
from topics.client.job import Job
from topics.client.record import Record
from topics.commands.failures import CommandError
from topics.commands.link import Link, connected
from topics.commands.menu import plain_app
from topics.commands.printer import label, one_line
from topics.commands.spans import local_time, shown_span, span_ms
from topics.commands.table import Json, counted, print_json, print_table
from topics.commands.topic_names import QueueName, glob, named, topics_at_hand
from topics.errors import TopicNotFound

LEASES_SEEN: Final = 1_000

app = plain_app("Claim, ack and nack jobs by hand; look at queues and dead letters.")

NodeName = Annotated[
    str | None,
    typer.Option("--node", envvar="TOPICS_NODE", help="The holder of the leases; by default you on this machine."),
]
Seqs = Annotated[list[int], typer.Argument(metavar="SEQ", help="The seqs of the jobs.", show_default=False)]


def _node() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"[:100]


def _as_node(link: Link, node: str | None) -> Client:
    return link.as_node(node or _node())


@app.command()
@connected
def claim(
    link: Link,
    queue: QueueName,
    max: Annotated[int, typer.Option("--max", "-n", help="At most this many jobs.", min=1)] = 1,
    wait: Annotated[
        int,
        typer.Option(
            parser=span_ms, metavar="TIME", help="Wait this long for the first one, at most 30s.", show_default=False
        ),
    ] = 0,
    lease: Annotated[
        int | None,
        typer.Option(parser=span_ms, metavar="TIME", help="Hold them this long; by default the queue's lease_ms."),
    ] = None,
    node: NodeName = None,
    as_json: Json = False,
    data_only: Annotated[bool, typer.Option("--data", help="Print only the data of each job.")] = False,
) -> None:
    """Lease jobs: seq, deliveries, end of the lease, tag, data.

    Ack what is done and nack what failed. What is neither comes again when its lease ends.
    """
    jobs = _as_node(link, node).topic(queue).claim(max, wait_ms=wait, lease_ms=lease)
    if not jobs:
        typer.echo(f"no job of {queue} is ready", err=True)
    for job in jobs:
        if as_json:
            print_json(_job(job))
        elif data_only:
            typer.echo(one_line(job.raw))
        else:
            typer.echo(
                f"{job.seq}  {job.deliveries}  {local_time(job.deadline)}  {label(job.tag)}  {one_line(job.raw)}"
            )


def _job(job: Job[Any]) -> dict[str, Any]:
    found = {"topic": job.topic, "$seq": job.seq, "$ts": job.ts, "deliveries": job.deliveries}
    found |= {"deadline": job.deadline, "lease_id": job.lease_id}
    found |= {name: value for name, value in (("$tag", job.tag), ("$node", job.node), ("meta", job.meta)) if value}
    return found | {"data": job.raw}


@app.command()
@connected
def ack(link: Link, queue: QueueName, seqs: Seqs, node: NodeName = None, as_json: Json = False) -> None:
    """Complete jobs, which deletes them."""
    done = _as_node(link, node).topic(queue).ack(seqs)
    _settled(done, f"acked {counted(done.acked, 'job')} of {queue}", as_json)


@app.command()
@connected
def nack(
    link: Link,
    queue: QueueName,
    seqs: Seqs,
    delay: Annotated[
        int | None,
        typer.Option(parser=span_ms, metavar="TIME", help="Deliver them this much later; else the queue's backoff."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why; it reaches the dead letter.")] = None,
    node: NodeName = None,
    as_json: Json = False,
) -> None:
    """Give jobs back, to be delivered again."""
    done = _as_node(link, node).topic(queue).nack(seqs, delay_ms=delay, reason=reason)
    _settled(done, f"gave back {counted(done.nacked, 'job')} of {queue}", as_json)


def _settled(done: Settled, text: str, as_json: bool) -> None:
    """Say what was done. What was skipped is a failure: somebody else may be at work on it."""
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{text}; {done.ready:,} ready, {done.in_flight:,} in flight")
    if done.skipped:
        raise CommandError(
            f"not held by this node, and therefore skipped: {', '.join(map(str, done.skipped))};"
            " `topics queue peek` shows which node holds what"
        )


@app.command()
@connected
def redrive(
    link: Link,
    queue: QueueName,
    seqs: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="SEQ", help="Seqs in the dead-letter topic; by default all letters.", show_default=False
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only letters with this tag; a * at its end for anything.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many; 0 for all.", min=0)] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many there are.")] = False,
    as_json: Json = False,
) -> None:
    """Turn dead letters into jobs again."""
    done = link.now.topic(queue).redrive(
        seqs=seqs, match=None if tag is None else glob(tag), limit=limit, dry_run=dry_run
    )
    if as_json:
        print_json(done)
    else:
        text = "would turn" if done.dry_run else "turned"
        typer.echo(f"{text} {counted(done.redriven, 'dead letter')} of {done.dead_letter} into jobs of {queue}")


@app.command()
@connected
def stats(
    link: Link,
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE",
            help="Queues, by name or by a pattern; by default all.",
            show_default=False,
            autocompletion=topics_at_hand,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Count the jobs of queues: ready, leased, delayed, dead."""
    names = named(link, queues) if queues else [each.topic for each in link.now.topics() if each.type == "queue"]
    states = [link.now.topic(name).state() for name in names]
    rows = [_stats(link, state) for state in states if state.queue is not None]
    if queues and len(rows) < len(states):
        logs = [state.topic for state in states if state.queue is None]
        raise CommandError(f"not a queue: {', '.join(logs)}; a queue is made with `topics create NAME --queue`")
    if as_json:
        for row in rows:
            print_json(row)
        return
    head = ("READY", "IN FLIGHT", "DELAYED", "DEAD", "OLDEST", "QUEUE")
    cells = [
        (row["ready"], row["in_flight"], row["delayed"], row["dead_letters"], _age(row["oldest_ts"]), row["topic"])
        for row in rows
    ]
    print_table(head, cells)


def _stats(link: Link, state: TopicState) -> dict[str, Any]:
    assert state.queue is not None
    oldest = next(iter(link.now.topic(state.topic).read(limit=1, on_loss="yield")), None) if state.count else None
    dead = None
    if state.config.dead_letter is not None:
        try:
            dead = link.now.topic(state.config.dead_letter).state().count
        except TopicNotFound:
            dead = 0
    return {
        "topic": state.topic,
        "ready": state.queue.ready,
        "in_flight": state.queue.in_flight,
        "delayed": state.count - state.queue.ready - state.queue.in_flight,
        "dead_letters": dead,
        "oldest_ts": oldest.ts if isinstance(oldest, Record) else None,
    }


def _age(ts: int | None) -> str | None:
    return None if ts is None else shown_span(max(0, int(time.time() * 1000) - ts))


@app.command()
@connected
def peek(
    link: Link,
    queue: QueueName,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many jobs.", min=1, max=1_000)] = 10,
    as_json: Json = False,
) -> None:
    """Look at the first jobs, and at which node holds them.

    Nothing is claimed.
    """
    handle = link.now.topic(queue)
    leases = {lease.seq: lease for lease in handle.leases(LEASES_SEEN)}
    rows = []
    for item in handle.read(on_loss="yield", limit=limit):
        if not isinstance(item, Record):
            continue
        rows.append((item, leases.get(item.seq)))
        if len(rows) == limit:
            break
    if as_json:
        for record, lease in rows:
            print_json(_peeked(record, lease))
        return
    cells = [
        (
            record.seq,
            lease.state if lease else "ready",
            lease.deliveries if lease else 0,
            lease.node if lease else "",
            local_time(lease.deadline) if lease and lease.state in ("leased", "delayed") else "",
            label(record.tag),
            one_line(record.raw),
        )
        for record, lease in rows
    ]
    left = ("STATE", "NODE", "UNTIL", "TAG")
    print_table(("SEQ", "STATE", "DELIVERIES", "NODE", "UNTIL", "TAG", "DATA"), cells, left=left)


def _peeked(record: Record[Any], lease: LeaseState | None) -> dict[str, Any]:
    found: dict[str, Any] = {"topic": record.topic, "$seq": record.seq, "$ts": record.ts, "$tag": record.tag}
    found |= {"state": lease.state if lease else "ready", "deliveries": lease.deliveries if lease else 0}
    found |= {"node": lease.node if lease else None, "deadline": lease.deadline if lease else None}
    return found | {"data": record.raw}
