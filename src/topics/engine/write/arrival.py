"""Arrival: records enter a topic, by one write or by several together (the WRITE rules).

The seqs are assigned, the Block is built and its frame is queued in one step, so that seq order and WAL order cannot
disagree. There is one frame per call, whatever the number of records. The engine checks limits, conditions and repeats
before; the ticket decides when the records become visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from topics.engine.requests import Write
from topics.engine.write import batch as batches
from topics.engine.write import extra as extras
from topics.engine.write.dedupe import Dedupe, Remembered
from topics.engine.write.delay import delays_of, when_visible
from topics.engine.write.removal import position_of
from topics.engine.write.reserve import reserve
from topics.engine.write.ticket import OnDone, Receipt, Ticket
from topics.engine.write.unkept import GONE
from topics.errors import TopicsError
from topics.storage import block as blocks

if TYPE_CHECKING:
    from topics.engine.journal import Journal
    from topics.engine.limits import Limits
    from topics.engine.topic import Topic

NOTHING_ASKED: Final = Write([])


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
    delays = None if jobs is None else delays_of(write.records, now)
    if jobs is not None and delays:
        on_done = when_visible(jobs, delays, on_done)
    ts = topic.last_ts
    if now > ts:
        ts = now
    ticket = Ticket(topic, on_done, context)
    ticket.first_seq = first_seq = topic.next_seq
    ticket.block = block = blocks.encode(topic.id, first_seq, ts, batch.datas, batch.nodes, batch.tags, batch.metas)
    ticket.count = n = block.n
    ticket.tags = batch.tags
    ticket.created = created is not None
    keyed = write.idempotency_key is not None or write.producer_id is not None
    last = topic.last_ticket
    logged = topic.config.durability != "ephemeral"
    if logged:
        derived = topic.inbound is not None or topic.letters
        extra = _extra(topic, write, delays, derived) if keyed or derived or delays else b""
        journal.append(topic, ticket, block, extra)
    topic.last_ts = ts
    topic.next_seq = first_seq + n
    topic.pending.add(block)
    if keyed:
        _remember(topic, write, ticket, ts)
    if topic.inbound is not None:
        topic.inbound.note_stamps(block)
    if logged:
        reserve(journal, topic)
    else:
        _show(topic, ticket, created, last)
    return ticket


def _show(topic: Topic, ticket: Ticket, created: Receipt | None, last: Ticket | None) -> None:
    """Show a write that is in no log: at once, or after the writes before it, or once its topic is durable."""
    topic.unkept.add(ticket.first_seq, ticket.last_seq, GONE)
    if created is not None:
        # The records go nowhere, but a client that learns of the topic must find its config after a restart.
        ticket.gated = True
        topic.last_ticket = ticket
    ticket.follow(last if created is None else created)


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


def _extra(topic: Topic, write: Write, delays: list[tuple[int, int]] | None, derived: bool) -> bytes:
    """What the frame holds besides the records: keys, delays, and the place of `derived` records."""
    position, source_id = position_of(topic) if derived else (None, 0)
    return extras.encode(
        extras.AppendExtra(
            write.idempotency_key, write.producer_id, write.producer_seq or 0, position, delays, source_id
        )
    )


def _remember(topic: Topic, write: Write, ticket: Ticket, ts: int) -> None:
    dedupe = topic.dedupe
    if dedupe is None:
        dedupe = topic.dedupe = Dedupe()
    ticket.remembered = remembered = Remembered(ticket.first_seq, ticket.count, ts, ticket)
    if write.idempotency_key is not None:
        dedupe.remember_key(write.idempotency_key, remembered)
    if write.producer_id is not None and write.producer_seq is not None:
        dedupe.remember_producer(write.producer_id, write.producer_seq, remembered)
