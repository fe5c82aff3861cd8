"""Redrive: dead letters go back to the queue that they came from, as new jobs (an addition to API §10.6).

The jobs are appended first and the letters deleted once that is committed, so a crash in between leaves a letter that
was put back already: at least once, as everything about a queue. A job that was put back is a new record, so its
deliveries are counted from the start; its `$dead_letter_*` fields are taken off. Letters of other queues, and letters
that somebody works on right now, are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from topics.engine.log.tags import TagMatch, parse_match
from topics.engine.meta import without_fields
from topics.engine.queue.dead_letter import DELIVERIES, FROM, SRC_SEQ
from topics.engine.queue.lease import LEASED
from topics.engine.queue.queue import Queue
from topics.engine.queue.requests import RedriveJobs, RedrivenJobs
from topics.engine.requests import NO_RAW, RecordIn, Write
from topics.engine.write.removal import remove
from topics.engine.write.ticket import OnReceipt, Receipt, Ticket
from topics.errors import BatchTooLarge, InvalidRequest, TopicsError

if TYPE_CHECKING:
    from topics.engine.engine import Engine
    from topics.engine.topic import Topic
    from topics.storage.block import Block

_FIELDS = frozenset((FROM, DELIVERIES, SRC_SEQ))
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode


def redrive(
    engine: Engine, name: str, request: RedriveJobs, on_done: OnReceipt | None = None, context: Any = None
) -> Receipt:
    """Put dead letters of a queue back; the result is a RedrivenJobs. May raise Miss, having changed nothing."""
    topic, _ = engine.queues.topic(name)
    dead_letter = topic.config.dead_letter
    if dead_letter is None:
        raise InvalidRequest(f'queue "{name}" has no dead_letter topic to put jobs back from', topic=name)
    max_claim = engine.limits.max_claim
    if request.seqs is not None and 0 < max_claim < len(request.seqs):
        raise BatchTooLarge(
            f"{len(request.seqs)} seqs in one call; the limit is {max_claim}: split the call",
            field="seqs",
            count=len(request.seqs),
            limit="max_claim",
            max=max_claim,
        )
    letters = engine.topics.get(dead_letter)
    limit = min(request.limit or max_claim, max_claim) if max_claim else request.limit or 1 << 62
    found = [] if letters is None else _find(engine, letters, name, request, limit)
    seqs = [block.first_seq + i for block, i in found]
    receipt = Receipt(RedrivenJobs(name, dead_letter, len(seqs), seqs, request.dry_run), on_done, context)
    if request.dry_run or not found or letters is None:
        receipt.commit(0, 0)
        return receipt.waited(engine.run_until_idle)
    taken = letters

    def appended(ticket: Ticket) -> None:
        error = ticket.error
        try:
            if error is None and not remove(engine.journal, taken, 0, seqs, receipt, engine.clock.now_ms())[1]:
                receipt.commit(ticket.write_ns, ticket.sync_ns)
        except TopicsError as refused:
            error = refused
        if error is not None:
            receipt.fail(error)

    engine.write(name, Write([_record(block, i) for block, i in found], create=False), appended)
    return receipt.waited(engine.run_until_idle)


def _find(engine: Engine, letters: Topic, queue: str, request: RedriveJobs, limit: int) -> list[tuple[Block, int]]:
    engine.queues.apply_acks(letters).catch_up()
    letters.expire(engine.clock.now_ms())
    match = None if request.match is None else parse_match(request.match)
    wanted = None if request.seqs is None else set(request.seqs)
    return letters.reading(_matching, letters, queue, wanted, match, limit)


def _matching(
    letters: Topic, queue: str, wanted: set[int] | None, match: TagMatch | None, limit: int
) -> list[tuple[Block, int]]:
    found = []
    for block, i in _live(letters):
        if wanted is not None and block.first_seq + i not in wanted:
            continue
        if (match is None or match(block.tag(i))) and _is_from(block.meta(i), queue):
            found.append((block, i))
            if len(found) == limit:
                break
    return found


def _live(letters: Topic) -> Iterator[tuple[Block, int]]:
    log, queue = letters.log, letters.queue
    leases = queue.leases if isinstance(queue, Queue) else {}
    for entry in log.retained():
        for a, b in entry.live_runs(max(0, log.start - entry.first_seq), entry.n):
            block = entry.block()
            for i in range(a, b):
                lease = leases.get(entry.first_seq + i)
                if lease is None or lease.state is not LEASED:
                    yield block, i


def _is_from(meta: bytes | None, queue: str) -> bool:
    return meta is not None and FROM.encode() in meta and _decode_meta(meta).get(FROM) == queue


def _record(block: Block, i: int) -> RecordIn:
    tag, node, meta = block.tag(i), block.node(i), without_fields(block.meta(i), _FIELDS)
    return RecordIn(
        msgspec.Raw(block.data(i)),
        None if tag is None else tag.decode(),
        None if node is None else node.decode(),
        NO_RAW if meta is None else msgspec.Raw(meta),
    )
