"""Arrival: records enter a topic, written by clients (the WRITE rules) or derived from others (ROUTER-15, QUEUE-18).

The seqs are assigned, the Block is built and its frame is queued in one step, so that seq order and WAL order cannot
disagree. There is one frame per call, whatever the number of records. The engine checks limits, conditions and repeats
before; the ticket decides when the records become visible.

A router's copies and dead letters can be made again from what is logged elsewhere, so they cost no frame. They take
their seqs in the order in which readers see them: where the topic has writes that wait for their WAL class, the copy
becomes visible right after those. Where what they follow from must be on disk first, they wait for that, and so do the
topic's writes after them, whichever shard it is in.

A record of a write to a queue may have `delay_ms` or `deliver_at` (QUEUE-26). It is in the log at once, so it can be
read, counted and deleted, which cancels it; but no claim gets it before its time. The times are in the frame of the
write, so they survive a restart. On a log both are accepted and have no effect, like the queue fields of a config.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from topics.engine.journal import Journal, OnDone, Ticket
from topics.engine.limits import Limits
from topics.engine.promise import Receipt
from topics.engine.requests import RecordIn, Write
from topics.engine.topic import Jobs, Topic
from topics.engine.write import batch as batches
from topics.engine.write import extra as extras
from topics.engine.write.dedupe import Dedupe, Remembered
from topics.engine.write.digest import UNKNOWN, of_batch
from topics.engine.write.removal import position_of
from topics.engine.write.unkept import GONE
from topics.errors import InvalidRequest, TopicsError
from topics.storage import block as blocks
from topics.storage.block import HAS_TAG, Block

NOTHING_ASKED: Final = Write([])

Delay = tuple[int, int, int | None]
"""Which record of a write is hidden, until when, and the time that this is counted from; None where it is a date."""


def append(
    journal: Journal,
    topic: Topic,
    batch: batches.Batch,
    now: int,
    write: Write,
    created: Receipt | None,
    on_done: OnDone | None,
    context: Any,
) -> Ticket:
    """Give records their seqs and submit their frame: the ticket of a write that has passed every check.

    `created` is the receipt of the topic, where this write makes it. Raises, without having changed anything, where the
    WAL takes no more.
    """
    jobs = topic.queue
    ts = topic.last_ts
    if now > ts:
        ts = now
    delays = None if jobs is None else _delays(write.records, now, ts)
    if jobs is not None and delays:
        on_done = _delaying(jobs, delays, on_done)
    ticket = Ticket(topic, on_done, context)
    ticket.first_seq = first_seq = topic.next_seq
    draft = batch.draft
    if draft is None:
        block = blocks.encode(topic.id, first_seq, ts, batch.datas, batch.nodes, batch.tags, batch.metas)
    else:
        block = draft.place(topic.id, first_seq, ts)
    ticket.block = block
    ticket.count = block.n
    ticket.tags = batch.tags
    ticket.created = created is not None
    keyed = write.idempotency_key is not None or write.producer_id is not None
    last = topic.last_ticket
    logged = topic.config.durability != "ephemeral"
    if logged:
        derived = topic.inbound is not None or topic.letters
        extra = _extra(topic, write, delays or (), derived) if keyed or derived or delays else b""
        journal.append(topic, ticket, block, extra)
    topic.assign(block)
    if keyed:
        digest = UNKNOWN if write.idempotency_key is None else of_batch(batch)
        _remember(topic, write, ticket, ts, journal.clock.steady_ms(), digest)
    if topic.inbound is not None:
        topic.inbound.note_stamps(block)
    if not logged:
        _show(topic, ticket, last)
    return ticket


def _show(topic: Topic, ticket: Ticket, last: Ticket | None) -> None:
    """Show a write that is in no log: at once, or after the writes before it, or once its topic's config is durable."""
    topic.unkept.add(ticket.first_seq, ticket.last_seq, GONE)
    config = topic.last_config
    if config is not None and not config.done:
        # The records go nowhere. But a client that learns of the topic must find it after a restart, and a restart has
        # to know that there were records which it does not have.
        ticket.gated = ticket.apart = True
        ticket.before = last
        topic.last_ticket = ticket
        ticket.follow_all([config])
    else:
        ticket.follow(last)


def append_together(
    journal: Journal, limits: Limits, topic: Topic, writes: Sequence[tuple[Write, OnDone, Any]]
) -> None:
    """Append writes of one record each, in their order, as one Block; each has its ticket.

    One that breaks a limit fails alone. Raises, without having changed anything, where the WAL takes no more.
    """
    taken: list[tuple[Ticket, batches.Batch]] = []
    refused: list[tuple[Ticket, TopicsError]] = []
    for write, on_done, context in writes:
        ticket = Ticket(topic, on_done, context)
        try:
            taken.append((ticket, batches.check(write, limits)))
        except TopicsError as error:
            refused.append((ticket, error))
    if taken:
        now = journal.clock.now_ms()
        all_of_them = batches.join([batch for _, batch in taken])
        together = append(journal, topic, all_of_them, now, NOTHING_ASKED, None, None, None)
        for first_seq, (ticket, _) in enumerate(taken, together.first_seq):
            ticket.first_seq = first_seq
            ticket.count = 1
            ticket.follow(together)
    for ticket, why in refused:
        ticket.fail(why)


def _extra(topic: Topic, write: Write, delays: Sequence[Delay], derived: bool) -> bytes:
    """What the frame holds besides the records: keys, delays, and the place of `derived` records."""
    position, source_id, run = position_of(topic) if derived else (None, 0, None)
    return extras.encode(
        extras.AppendExtra(
            write.idempotency_key,
            write.producer_id,
            write.producer_seq or 0,
            position,
            [(i, due_ms) for i, due_ms, _ in delays] or None,
            source_id,
            [i for i, _, since_ms in delays if since_ms is None] or None,
            run,
        )
    )


def _remember(topic: Topic, write: Write, ticket: Ticket, ts: int, at_ms: int, digest: int) -> None:
    dedupe = topic.dedupe
    if dedupe is None:
        dedupe = topic.dedupe = Dedupe(topic.log.totals)
    ticket.remembered = remembered = Remembered(ticket.first_seq, ticket.count, ts, at_ms, ticket, digest)
    dedupe.remember(write.idempotency_key, write.producer_id, write.producer_seq, remembered)


def _delays(records: list[RecordIn], now_ms: int, ts: int) -> list[Delay]:
    """Each record that is to be delivered later, of those that are dated `ts`; raises InvalidRequest."""
    delays: list[Delay] = []
    for i, record in enumerate(records):
        if record.delay_ms is None and record.deliver_at is None:
            continue
        field = f"records[{i}].{'delay_ms' if record.deliver_at is None else 'deliver_at'}"
        if record.delay_ms is not None and record.deliver_at is not None:
            raise InvalidRequest(f"{field}: give either delay_ms or deliver_at, not both", field=field)
        if record.delay_ms:
            delays.append((i, ts + record.delay_ms, ts))
        elif record.deliver_at is not None and record.deliver_at > now_ms:
            delays.append((i, record.deliver_at, None))
    return delays


def _delaying(jobs: Jobs, delays: list[Delay], on_done: OnDone | None) -> OnDone:
    """What a write does when it is committed: hide its delayed jobs, then answer."""

    def done(ticket: Ticket) -> None:
        if ticket.error is None:
            first_seq = ticket.first_seq
            for (due_ms, since_ms), together in groupby(delays, itemgetter(1, 2)):
                jobs.delay([first_seq + i for i, _, _ in together], due_ms, since_ms)
        if on_done is not None:
            on_done(ticket)

    return done


def derive(topic: Topic, block: Block, on_done: OnDone | None = None, after: Sequence[Receipt] = ()) -> None:
    """Append a derived Block that begins at the topic's `next_seq`; it is shown once all of `after` are done."""
    last = topic.last_ticket
    ticket = _ticket_of(topic, block, on_done)
    topic.assign(block)
    if after:
        ticket.gated = ticket.apart = True
        ticket.before = last
        topic.last_ticket = ticket
        ticket.follow_all(after)
    elif last is None:
        ticket.commit(0, 0)
    else:
        ticket.gated = last.gated
        ticket.apart = last.apart
        topic.last_ticket = ticket
        ticket.follow(last)


def append_block(journal: Journal, topic: Topic, block: Block) -> None:
    """Append a derived Block that follows from nothing on disk: it is logged here, as a write is."""
    if topic.config.durability == "ephemeral":
        derive(topic, block)
        return
    journal.append(topic, _ticket_of(topic, block, None), block, _extra(topic, NOTHING_ASKED, (), True))
    topic.assign(block)


def _ticket_of(topic: Topic, block: Block, on_done: OnDone | None) -> Ticket:
    assert block.first_seq == topic.next_seq
    assert block.first_ts >= topic.last_ts
    ticket = Ticket(topic, on_done, None)
    ticket.block = block
    ticket.tags = block.tags() if block.bits & HAS_TAG else None
    ticket.first_seq = block.first_seq
    ticket.count = block.n
    return ticket
