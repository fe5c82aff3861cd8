"""The HTTP API of records: append and delete them (the WRITE rules, the DELETE rules).

A write is here from its body to its answer. It may be larger than other bodies, but nothing of it is built besides its
records, and a large one is decoded in slices (slicing.py). A field that is unknown is ignored and named in the answer
(HTTP-15): a write is decoded strictly, and only one that does not pass is decoded again, leniently; such a write is a
plain `requests.Write`.

Most writes are one record and nothing else: their body is known to hold nothing more without a further look, and their
answer, formatted by hand, has the fewest values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns
from typing import Final, TypeVar

import msgspec

from topics.engine import Engine
from topics.engine.journal import OnDone, Ticket
from topics.engine.requests import Write
from topics.server.api import bodies
from topics.server.api.answers import answer_receipt
from topics.server.api.attempts import Attempts
from topics.server.api.bodies import U64_MAX, UNDECODED, UNKNOWN_SHOWN_MAX, Body, StrictPatch, StrictRecord, refusal
from topics.server.api.large_writes import LargeWrites
from topics.server.api.repeats import (
    RECORD_BYTES,
    REPEAT_BYTES,
    Repeats,
    field_names,
    has_room,
    label_bytes,
    names_in_records,
)
from topics.server.api.route import Route
from topics.server.api.tracing import trace
from topics.server.flow.admission import Admission
from topics.server.http.body import Rest
from topics.server.http.exchange import Exchange
from topics.server.http.reply import JSON_PREFIXES

W = TypeVar("W", bound=Write)

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

# The least that the parts of a write take besides their values.
_ENVELOPE_BYTES: Final = len(b'{"records":[]}') - 1
_KEY_BYTES: Final = len(b',"idempotency_key":""')
_PRODUCER_BYTES: Final = len(b',"producer_id":"","producer_seq":')
_BARE_BYTES: Final = _ENVELOPE_BYTES + RECORD_BYTES + REPEAT_BYTES
"""With less than this around its data, a write of one record has no other field: none is shorter than a repeat."""


class StrictWrite(Write, forbid_unknown_fields=True):
    """A write without unknown fields."""

    records: list[StrictRecord]  # type: ignore[assignment]
    config: StrictPatch | None = None


class WriteBody(Body[W]):
    """Decodes writes, the hot path: a repeat is looked for only where a body is longer than what was decoded needs."""

    __slots__ = ("_loose", "_others", "_shape", "_tag_bytes")

    def __init__(self, shape: type[W], loose: type[W]) -> None:
        """`shape` forbids unknown fields; `loose` is the same without that."""
        super().__init__(shape)
        self._shape = shape
        self._loose = msgspec.json.Decoder(loose).decode
        # The config is left out: how long it was is not known. What makes a retry safe is looked at by itself.
        apart = ("records", "config", "idempotency_key", "producer_id", "producer_seq")
        fields = [field for field in msgspec.structs.fields(shape) if field.name not in apart]
        self._others = [(field.name, field.default, len(f',"{field.name}":')) for field in fields]
        tag_field, tag = shape.__struct_config__.tag_field, shape.__struct_config__.tag
        self._tag_bytes = 0 if tag_field is None else len(f',"{tag_field}":"{tag}"')

    def __call__(self, body: bytes) -> W:
        """The decoded write."""
        # As any body is decoded, but without a further call where there is nothing but one record.
        try:
            if not body.isascii():
                body.decode()
            decoded = self._decode(body)
        except msgspec.ValidationError:
            return self._decode_loosely(body)
        except UNDECODED as error:
            raise refusal(body, error) from None
        records = decoded.records
        if len(records) != 1 or len(body) - len(records[0].data) >= _BARE_BYTES:
            self.check(body, decoded)
        return decoded

    def _decode_loosely(self, body: bytes) -> W:
        try:
            decoded = self._loose(body)
        except UNDECODED as error:
            raise refusal(body, error) from None
        self.check(body, decoded)
        return decoded

    def envelope(self, body: bytes) -> tuple[W, list[str]]:
        """What surrounds the records of a large write, as a write without any, and its unknown fields."""
        bodies.check_values(body)
        write = self(body)
        return write, self.unknown(body) if type(write) is not self._shape else []

    def unknown(self, body: bytes) -> list[str]:
        """The first few keys that are no field of ours, in the body, in its records and in its config."""
        fields: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        found = self.unknown_among(fields)
        found += bodies.record.unknown_among(names_in_records(bytes(fields["records"])), "records[].")
        if "config" in fields:
            found += bodies.config.unknown_among(field_names(bytes(fields["config"])), "config.")
        return found[:UNKNOWN_SHOWN_MAX]

    def check(self, body: bytes, decoded: W) -> None:
        """Raise InvalidRequest where a number is no u64, also in the config, or a field was given twice."""
        if self._may_repeat(body, decoded):
            Repeats().of_body(body)
        if (decoded.producer_seq or 0) > U64_MAX or decoded.expected_head_seq is not None:
            self.check_range(decoded)
        if decoded.config is not None:
            bodies.config.check_range(decoded.config, "config.")

    def _may_repeat(self, body: bytes, decoded: W) -> bool:
        if type(decoded) is not self._shape:
            return True
        records = decoded.records
        # Most bodies hold nothing but what was decoded, which leaves no room for a repeated key.
        if len(records) == 1:
            (record,) = records
            room = len(body) - _ENVELOPE_BYTES - RECORD_BYTES - len(record.data)
            if room < REPEAT_BYTES + label_bytes(record):
                return False
        else:
            room = len(body) - _ENVELOPE_BYTES - RECORD_BYTES * len(records)
            room -= sum([len(record.data) for record in records])
            if room < REPEAT_BYTES:
                return False
        key, producer_id = decoded.idempotency_key, decoded.producer_id
        if key is not None:
            room -= _KEY_BYTES + len(key)
        if producer_id is not None:
            room -= _PRODUCER_BYTES + len(producer_id) + len(str(decoded.producer_seq))
        if room < REPEAT_BYTES:
            return False
        room -= self._field_bytes(decoded)
        return room >= REPEAT_BYTES and has_room(room, body, records)

    def _field_bytes(self, decoded: W) -> int:
        """The least that the fields of a write take besides its records, as far as that is known."""
        size = self._tag_bytes
        for name, default, name_bytes in self._others:
            value = getattr(decoded, name)
            if value != default:
                size += name_bytes + (len(value) + 2 if isinstance(value, str) else len(str(value)))
        return size


write_body: Final = WriteBody(StrictWrite, Write)


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
        write = write_body(exchange.body)
        route: Route = exchange.head.route
        if type(write) is Write:
            self._trace_and_write(exchange, write, partial(_written, unknown=write_body.unknown(exchange.body)))
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
        self._large.take(route.name, body, write_body.envelope, taken, exchange.fail, route.traceparent)

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
