"""The HTTP face of the engine: topics, writes, reads and deletes (API §1 to §5).

Each handler decodes, calls the engine once and renders what it answers. Nothing is decided here: limits and meaning
are the engine's. The two hot answers, to a write and to a diff, are formatted by hand in one step, status line
included.
"""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics.engine import requests
from topics.engine.log.difference import Difference
from topics.engine.write.ticket import Receipt, Ticket
from topics.server.api import bodies
from topics.server.api.longpoll import LongPoll
from topics.server.http.query import page_cursor
from topics.server.http.reply import GZIP_FLOOR_BYTES, prefix

if TYPE_CHECKING:
    from topics.engine import Engine
    from topics.server.app import Route
    from topics.server.driver import RunThen
    from topics.server.flow.admission import Admission
    from topics.server.http.exchange import Exchange

WAIT_MS_MAX: Final = 30_000

_encode: Final = msgspec.json.Encoder().encode
_BOOL: Final = (b"false", b"true")
_WRITTEN: Final = (
    b'{"topic":"%b","first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,"created":%b,"deduped":%b,'
    b'"performance":{"server_total_ms":%.3f,"wal_append_ms":%.3f,%b}}'
)
_WAITED: Final = b'"fsync_ms":%.3f,"throttle_wait_ms":%.3f'
_NOT_WAITED: Final = _WAITED % (0, 0)
_DIFF_TAIL: Final = (
    b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"tombstone":%b,"lag":%d,'
    b'"performance":{"server_total_ms":%.3f,"records_scanned":%d,"throttle_wait_ms":0.0}}'
)


class Handlers:
    """Answers the routes of topics and records."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, admission: Admission) -> None:
        self.engine = engine
        self.loop = loop
        self.run_then: RunThen
        self.admission = admission

    # Topics

    def put_topic(self, exchange: Exchange) -> None:
        """`PUT /v0/topics/:topic`."""
        patch = bodies.config(exchange.body)
        exchange.head.route.principal.require_config(patch)
        self.engine.put_topic(exchange.head.route.name, patch, self._put, exchange)

    def _put(self, receipt: Receipt) -> None:
        answer_put(receipt, bodies.config)

    def get_topic(self, exchange: Exchange) -> None:
        """`GET /v0/topics/:topic`."""
        route: Route = exchange.head.route
        answer(exchange, 200, self.engine.state(route.name, touch=route.query.flag("touch", True)))

    def list_topics(self, exchange: Exchange) -> None:
        """`GET /v0/topics`."""
        route: Route = exchange.head.route
        query = route.query
        page, after = self.engine.list_topics(
            prefix=query.text("prefix"),
            after=query.cursor(),
            page_size=query.page_size(),
            allowed=route.principal.prefixes,
            touch=query.flag("touch", False),
        )
        body: dict[str, Any] = {"topics": page}
        if after is not None:
            body["next_cursor"] = page_cursor(after)
        answer(exchange, 200, body)

    def delete_topic(self, exchange: Exchange) -> None:
        """`DELETE /v0/topics/:topic`."""
        route: Route = exchange.head.route
        if_empty = route.query.flag("if_empty", False)
        self.engine.delete_topic(route.name, if_empty, self._deleted, exchange)

    def _deleted(self, receipt: Receipt) -> None:
        """Name only those of the routers that are gone which the key may know of (API §12)."""
        route: Route = receipt.context.head.route
        if receipt.error is None and receipt.result.routers_removed:
            known = [name for name in receipt.result.routers_removed if route.principal.may_touch(name)]
            receipt.result = msgspec.structs.replace(receipt.result, routers_removed=known)
        answer_receipt(receipt)

    # Records

    def write(self, exchange: Exchange) -> None:
        """`POST /v0/topics/:topic`."""
        route: Route = exchange.head.route
        write = bodies.write(exchange.body)
        if write.config is not None:
            route.principal.require_config(write.config)
        if write.idempotency_key is None:
            write.idempotency_key = route.idempotency_key
        self.admission.write(route.name, write, self._written, exchange)

    def _written(self, ticket: Ticket) -> None:
        exchange: Exchange = ticket.context
        if ticket.error is not None:
            exchange.fail(ticket.error)
            return
        route: Route = exchange.head.route
        first_seq, count = ticket.first_seq, ticket.count
        if not route.return_seqs:
            seqs = b""
        elif count == 1:
            seqs = b'"seqs":[%d],' % first_seq
        else:
            seqs = b'"seqs":%b,' % repr([*range(first_seq, first_seq + count)]).replace(" ", "").encode()
        # A `disk` write may share a sync with what precedes it; only `fsync` asks for one (API §0.9).
        sync_ns = ticket.sync_ns if ticket.topic.config.durable else 0
        waited = sync_ns or exchange.throttled_ns
        body = _WRITTEN % (
            route.name_bytes,
            first_seq,
            first_seq + count - 1 if count else 0,
            seqs,
            ticket.head_seq,
            count,
            _BOOL[ticket.created],
            _BOOL[ticket.deduped],
            (perf_counter_ns() - exchange.started_ns) / 1e6,
            ticket.write_ns / 1e6,
            _WAITED % (sync_ns / 1e6, exchange.throttled_ns / 1e6) if waited else _NOT_WAITED,
        )
        status = 201 if ticket.created else 200
        if exchange.head.accepts_gzip and len(body) > GZIP_FLOOR_BYTES:
            exchange.respond(status, body)
        else:
            exchange.respond_raw(b"%b%d\r\n\r\n%b" % (prefix(status), len(body), body))

    def diff(self, exchange: Exchange) -> None:
        """`POST /v0/topics/:topic/diff`."""
        diff = bodies.diff(exchange.body)
        difference = self.engine.diff(exchange.head.route.name, diff)
        if diff.wait_ms and is_idle(difference):
            LongPoll(self, exchange, diff, difference, min(diff.wait_ms, WAIT_MS_MAX)).start()
        else:
            send_difference(exchange, difference)

    def delete(self, exchange: Exchange) -> None:
        """`POST /v0/topics/:topic/delete`."""
        delete: requests.Delete = bodies.delete(exchange.body)
        self.engine.delete(exchange.head.route.name, delete, answer_receipt, exchange)


def is_idle(difference: Difference) -> bool:
    """Whether a reader that may wait should: nothing to deliver, nothing lost, nothing more to look at."""
    return not difference.count and difference.tombstone is None and difference.caught_up


def send_difference(exchange: Exchange, difference: Difference) -> None:
    """Answer a diff."""
    tombstone = difference.tombstone
    head = b'{"topic":"%b","records":[' % exchange.head.route.name_bytes
    tail = _DIFF_TAIL % (
        difference.next_from_seq,
        difference.head_seq,
        difference.earliest_seq,
        _BOOL[difference.caught_up],
        b"null" if tombstone is None else tombstone.wire(),
        difference.lag,
        (perf_counter_ns() - exchange.started_ns) / 1e6,
        difference.scanned,
    )
    pieces = difference.pieces
    if len(pieces) > 1:
        # One join for the whole answer: the text of a large read is not copied once more for its commas.
        spread = [b","] * (2 * len(pieces) - 1)
        spread[::2] = pieces
        pieces = spread
    size = len(head) + sum(map(len, pieces)) + len(tail)
    if exchange.head.accepts_gzip and size > GZIP_FLOOR_BYTES:
        exchange.respond(200, b"".join((head, *pieces, tail)))
    else:
        exchange.respond_raw(b"".join((prefix(200), b"%d\r\n\r\n" % size, head, *pieces, tail)))


def answer(exchange: Exchange, status: int, result: Any, timing: dict[str, float] | None = None) -> None:
    """Answer with a struct or dict as a JSON object that carries `performance`."""
    performance = {"server_total_ms": exchange.elapsed_ms, **(timing or {})}
    body = _encode(result)
    joint = b"," if len(body) > 2 else b""
    exchange.respond(status, b'%b%b"performance":%b}' % (body[:-1], joint, _encode(performance)))


def answer_put(receipt: Receipt, body: bodies.Body[Any]) -> None:
    """Answer a PUT, and name the fields that it ignored: a typo in a config would otherwise show only when it hurts."""
    status = 201 if receipt.result.created else 200
    if unknown := body.unknown(receipt.context.body):
        receipt.result = {**msgspec.structs.asdict(receipt.result), "unknown_fields": unknown}
    answer_receipt(receipt, status)


def answer_receipt(receipt: Receipt, status: int = 200) -> None:
    """Answer with what a command came to, whose receipt carries the exchange."""
    exchange: Exchange = receipt.context
    if receipt.error is not None:
        exchange.fail(receipt.error)
        return
    timing = {
        "wal_append_ms": round(receipt.write_ns / 1e6, 3),
        "fsync_ms": round(receipt.sync_ns / 1e6, 3),
    }
    answer(exchange, status, receipt.result, timing)
