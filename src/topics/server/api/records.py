"""The HTTP API of records: append and delete them (the WRITE rules, the DELETE rules).

The answer to a write is hot, so it is formatted by hand, and the most frequent one with the fewest values. Fields that
the write has and the server does not know are named in it (HTTP-15).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns
from typing import Final

import msgspec

from topics.engine import Engine
from topics.engine.requests import Write
from topics.engine.write.ticket import OnDone, Ticket
from topics.server.api import bodies
from topics.server.api.answers import answer_receipt
from topics.server.api.attempts import Attempts
from topics.server.api.large_writes import LargeWrites
from topics.server.api.route import Route
from topics.server.api.tracing import trace
from topics.server.flow.admission import Admission
from topics.server.http.body import Rest
from topics.server.http.exchange import Exchange
from topics.server.http.reply import JSON_PREFIXES

_encode: Final = msgspec.json.Encoder().encode
_BOOL: Final = (b"false", b"true")
_WRITTEN: Final = (
    b'{"topic":"%b","first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,"created":%b,"deduped":%b,'
    b'"performance":{"server_total_ms":%.3f,"wal_append_ms":%.3f,%b}}'
)
_ONE_HEAD: Final = b'{"topic":"%b","first_seq":%d,"last_seq":%d,'
_ONE_TAIL: Final = (
    b'"head_seq":%d,"count":1,"created":false,"deduped":false,'
    b'"performance":{"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":0.000,"throttle_wait_ms":0.000}}'
)
_ONE_WRITTEN: Final = _ONE_HEAD + b'"seqs":[%d],' + _ONE_TAIL
_ONE_UNLISTED: Final = _ONE_HEAD + _ONE_TAIL
_WAITED: Final = b'"fsync_ms":%.3f,"throttle_wait_ms":%.3f'
_REUSED: Final = b'true,"key_reused":true'


class RecordHandlers:
    """Answers the routes that change the records of a topic."""

    def __init__(self, engine: Engine, admission: Admission, attempts: Attempts, large: LargeWrites) -> None:
        self._engine = engine
        self._admission = admission
        self._attempts = attempts
        self._large = large

    def write(self, exchange: Exchange) -> None:
        """`POST /v0/topics/:topic`."""
        if exchange.rest is not None:
            self._take_large(exchange, exchange.rest)
            return
        write = bodies.write(exchange.body)
        route: Route = exchange.head.route
        if type(write) is Write:
            self._trace_and_write(exchange, write, partial(_written, unknown=bodies.write.unknown(exchange.body)))
        elif route.adds_to_writes or write.config is not None:
            self._trace_and_write(exchange, write, _written)
        else:
            self._admission.write(route.name, write, _written, exchange)

    def _take_large(self, exchange: Exchange, rest: Rest) -> None:
        def taken(_: Write, write: Write, unknown: list[str]) -> None:
            on_done = partial(_written, unknown=unknown)
            self._attempts.handle(exchange, lambda exchange: self._write(exchange, write, on_done))

        exchange.rest = None
        route: Route = exchange.head.route
        body = exchange.body, rest
        self._large.take(route.name, body, bodies.write.envelope, taken, exchange.fail, route.traceparent)

    def _trace_and_write(self, exchange: Exchange, write: Write, on_done: OnDone) -> None:
        traceparent = exchange.head.route.traceparent
        if traceparent is not None:
            trace(write.records, traceparent)
        self._write(exchange, write, on_done)

    def _write(self, exchange: Exchange, write: Write, on_done: OnDone) -> None:
        route: Route = exchange.head.route
        if write.config is not None:
            route.principal.require_config(write.config)
        if write.idempotency_key is None:
            write.idempotency_key = route.idempotency_key
        self._admission.write(route.name, write, on_done, exchange)

    def delete(self, exchange: Exchange) -> None:
        """`POST /v0/topics/:topic/delete`."""
        self._engine.delete(exchange.head.route.name, bodies.delete(exchange.body), answer_receipt, exchange)


def _written(ticket: Ticket, unknown: Sequence[str] = ()) -> None:
    exchange: Exchange = ticket.context
    if ticket.error is not None:
        exchange.fail(ticket.error)
        return
    route: Route = exchange.head.route
    # A `disk` write may share a sync with what precedes it; only `fsync` asks for one (HTTP-24).
    sync_ns = ticket.sync_ns if ticket.topic.config.durable else 0
    first_seq, count = ticket.first_seq, ticket.count
    write_ms = ticket.write_ns / 1e6
    took_ms = (perf_counter_ns() - exchange.started_ns) / 1e6
    special = unknown or ticket.created or ticket.deduped or sync_ns or exchange.throttled_ns
    if count == 1 and not special:
        name, head_seq = route.name_bytes, ticket.head_seq
        if route.return_seqs:
            body = _ONE_WRITTEN % (name, first_seq, first_seq, first_seq, head_seq, took_ms, write_ms)
        else:
            body = _ONE_UNLISTED % (name, first_seq, first_seq, head_seq, took_ms, write_ms)
        exchange.respond_raw(b"%b%d\r\n\r\n%b" % (JSON_PREFIXES[200], len(body), body))
        return
    if not route.return_seqs:
        seqs = b""
    elif count == 1:
        seqs = b'"seqs":[%d],' % first_seq
    else:
        seqs = b'"seqs":%b,' % repr([*range(first_seq, first_seq + count)]).replace(" ", "").encode()
    body = _WRITTEN % (
        route.name_bytes,
        first_seq,
        first_seq + count - 1 if count else 0,
        seqs,
        ticket.head_seq,
        count,
        _BOOL[ticket.created],
        _REUSED if ticket.key_reused else _BOOL[ticket.deduped],
        took_ms,
        write_ms,
        _WAITED % (sync_ns / 1e6, exchange.throttled_ns / 1e6),
    )
    if unknown:
        body = b'%b,"unknown_fields":%b}' % (body[:-1], _encode(unknown))
    exchange.respond(201 if ticket.created else 200, body)
