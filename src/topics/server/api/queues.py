"""The HTTP API of queues: claim, ack, nack, extend, redrive (the QUEUE rules).

A claim may be answered later: when its coalescing window closes, or when a job comes within `wait_ms`. A client that
goes away while it waits is taken out of the line, so that no job is leased to a client that has gone.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Final

import msgspec

from topics.engine import Engine
from topics.engine.promise import Receipt
from topics.engine.queue.claim import Claim
from topics.engine.queue.requests import AckedJobs, AckJobs, ClaimJobs, ExtendJobs, NackJobs, RedriveJobs
from topics.server.api.answers import answer, answer_receipt, separated
from topics.server.api.attempts import Attempts
from topics.server.api.bodies import Body, RecurringBody
from topics.server.api.route import Route
from topics.server.api.shapes import JobHistory, Leases
from topics.server.flow.parking import Parking
from topics.server.http.exchange import Exchange


class AckBody(Body[AckJobs]):
    """Decodes acks: one that has no more quotes than its strings need names no field twice."""

    __slots__ = ()

    def _may_repeat(self, body: bytes, decoded: AckJobs) -> bool:
        strings = 3 if decoded.lease_ids is None else 4 + len(decoded.lease_ids)
        return (body.count(b'"') != 2 * strings or b"\\" in body) and super()._may_repeat(body, decoded)


# A worker sends the same claim again and again.
_claim: Final = RecurringBody(ClaimJobs)
_ack: Final = AckBody(AckJobs)
_nack: Final = Body(NackJobs)
_extend: Final = Body(ExtendJobs)
_redrive: Final = Body(RedriveJobs, RedriveJobs())
LEASES_SHOWN: Final = 100
LEASES_SHOWN_MAX: Final = 1_000
HISTORIES_SHOWN: Final = 20
HISTORIES_SHOWN_MAX: Final = 100
LARGE_JOB_BYTES: Final = 16 << 10
_encode: Final = msgspec.json.Encoder().encode
_ACKED: Final = (
    b'{"topic":"%b","acked":%d,"skipped":%b,"ready":%d,"in_flight":%d,'
    b'"performance":{"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":%.3f}}'
)
_CLAIMED_TAIL: Final = b'],"count":%d,"ready":%d,"performance":{"server_total_ms":%.3f,"throttle_wait_ms":%.3f}}'


class QueueHandlers:
    """Answers the routes of queues."""

    def __init__(self, engine: Engine, parking: Parking, attempts: Attempts) -> None:
        self._queues = engine.queues
        self._parking = parking
        self._attempts = attempts

    def claim(self, exchange: Exchange) -> None:
        """`POST /v0/topics/:q/claim`."""
        if self._parking.shut:
            parked = self._parking.park(lambda: self._attempts.handle(exchange, self.claim), exchange)
            exchange.on_disconnect = parked.leave
            return
        name = exchange.head.route.name
        claim = self._queues.claim(name, _claim(exchange.body), _claimed, exchange)
        if not claim.done:
            exchange.on_disconnect = lambda: self._queues.give_up(name, claim)
            exchange.begin_wait()

    def ack(self, exchange: Exchange) -> None:
        """`POST /v0/topics/:q/ack`."""
        self._queues.ack(exchange.head.route.name, _ack(exchange.body), _acked, exchange)

    def nack(self, exchange: Exchange) -> None:
        """`POST /v0/topics/:q/nack`."""
        self._queues.nack(exchange.head.route.name, _nack(exchange.body), answer_receipt, exchange)

    def extend(self, exchange: Exchange) -> None:
        """`POST /v0/topics/:q/extend`."""
        self._queues.extend(exchange.head.route.name, _extend(exchange.body), answer_receipt, exchange)

    def leases(self, exchange: Exchange) -> None:
        """`GET /v0/topics/:q/leases`."""
        route: Route = exchange.head.route
        limit = min(route.query.number("limit", LEASES_SHOWN, 1), LEASES_SHOWN_MAX)
        answer(exchange, 200, Leases(route.name, self._queues.leases(route.name, limit)))

    def history(self, exchange: Exchange) -> None:
        """`GET /v0/topics/:q/history`: of one job, or of those that had trouble last."""
        route: Route = exchange.head.route
        if route.query.has("seq"):
            jobs = [self._queues.job(route.name, route.query.number("seq", 0, 1))]
        else:
            limit = min(route.query.number("limit", HISTORIES_SHOWN, 1), HISTORIES_SHOWN_MAX)
            jobs = self._queues.troubled(route.name, limit)
        answer(exchange, 200, JobHistory(route.name, jobs))

    def redrive(self, exchange: Exchange) -> None:
        """`POST /v0/topics/:q/redrive`."""
        route: Route = exchange.head.route
        topic, _ = self._queues.topic(route.name)
        if topic.config.dead_letter is not None:
            route.principal.require_name(topic.config.dead_letter)
        self._queues.redrive(route.name, _redrive(exchange.body), answer_receipt, exchange)


def _claimed(claim: Claim) -> None:
    exchange: Exchange = claim.context
    exchange.on_disconnect = None
    exchange.end_wait()
    if claim.error is not None:
        exchange.fail(claim.error)
        return
    head = b'{"topic":"%b","claimed":[' % exchange.head.route.name_bytes
    elapsed_ms = (perf_counter_ns() - exchange.started_ns) / 1e6
    tail = _CLAIMED_TAIL % (len(claim.leased.texts), claim.ready, elapsed_ms, exchange.throttled_ns / 1e6)
    texts = claim.leased.texts
    # Small ones are joined faster than they are counted and sent one by one.
    jobs = separated(texts) if texts and len(texts[0]) > LARGE_JOB_BYTES else [claim.text]
    exchange.respond_parts([head, *jobs, tail])


def _acked(receipt: Receipt) -> None:
    exchange: Exchange = receipt.context
    if receipt.error is not None:
        exchange.fail(receipt.error)
        return
    done: AckedJobs = receipt.result
    body = _ACKED % (
        exchange.head.route.name_bytes,
        done.acked,
        _encode(done.skipped) if done.skipped else b"[]",
        done.ready,
        done.in_flight,
        (perf_counter_ns() - exchange.started_ns) / 1e6,
        receipt.write_ns / 1e6,
        receipt.sync_ns / 1e6,
    )
    exchange.respond(200, body)
