"""Work: `GET /v0/topics/:q/work`, jobs that are pushed to a worker as they come (the WORK rules).

The stream holds at most `max` jobs at a time; an ack, nack or expiry makes room for the next. A client that does not
read gets no further jobs, because their leases would only run out in a buffer; one that does not read for too long is
closed, as any other stream is. However the stream ends, the jobs that were pushed on it and not acked are ready again
at once.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from topics.engine import Engine
from topics.engine.queue.claim import Hand, Worker
from topics.engine.topic import Topic
from topics.errors import InvalidRequest, NotAQueue, TopicsError
from topics.server.api.principal import Principal
from topics.server.api.route import Route
from topics.server.delivery.delivery import Delivery
from topics.server.delivery.event_stream import (
    CONTENT_TYPE,
    HEADERS,
    HEARTBEAT_MS_DEFAULT,
    RETRY,
    EventStream,
    heartbeat,
    require_event_stream,
)
from topics.server.delivery.notice import event
from topics.server.flow.parking import Parking
from topics.server.flow.slots import Slot, Slots
from topics.server.http.account import Share
from topics.server.http.exchange import Exchange
from topics.server.http.stream import Stream
from topics.server.http.turns import Turns

JOB: Final = b"job"


class Work:
    """Answers the route of work streams."""

    def __init__(self, engine: Engine, delivery: Delivery, parking: Parking, slots: Slots, turns: Turns) -> None:
        self.queues = engine.queues
        self._turns = turns
        self._max_claim = engine.limits.max_claim
        self.delivery = delivery
        self._parking = parking
        self._slots = slots

    def open(self, exchange: Exchange) -> None:
        """`GET /v0/topics/:q/work`."""
        route: Route = exchange.head.route
        query = route.query
        node = query.text("node")
        if not node:
            raise InvalidRequest("node must name the worker", field="node")
        max_ = query.number("max", 1, least=1)
        lease_ms = query.number("lease_ms", 0) if query.has("lease_ms") else None
        self.queues.check(route.name, node)
        require_event_stream(exchange)
        if exchange.head.method == "HEAD":
            exchange.respond(200, b"", CONTENT_TYPE)
            return
        self._parking.refuse_if_shut()
        slot = self._slots.take_stream(route.principal)
        stream = exchange.stream(200, HEADERS)
        if stream.closed:
            slot.free()
            return
        self.delivery.refresh()
        max_ = min(max_, self._max_claim) if self._max_claim else max_
        WorkStream(self, stream, route.principal, slot, route.name, node, max_, lease_ms)

    def stop(self, topic: Topic, worker: Worker) -> None:
        """A stream is over: give its jobs back, in turns with others where very many streams end at once."""
        worker.closed = True
        self._turns.in_turn(partial(self.queues.stop_work, topic, worker))


class WorkStream(EventStream):
    """One open work stream."""

    __slots__ = ("_name", "_slot", "_topic", "_work", "_worker")

    kind = "work"

    def __init__(
        self,
        work: Work,
        stream: Stream,
        principal: Principal,
        slot: Slot,
        name: str,
        node: str,
        max: int,
        lease_ms: int | None,
    ) -> None:
        """Greet the client, and ask for jobs."""
        super().__init__(work.delivery, stream, principal, HEARTBEAT_MS_DEFAULT, "work")
        self._work = work
        self._slot = slot
        self._name = name.encode()
        self._topic, _ = work.queues.topic(name)
        self._worker = Worker(node, max, lease_ms, self._push, self._end)
        self.greet(RETRY + heartbeat(self.delivery.now_ms))
        work.queues.work(name, self._worker)

    def _push(self, hand: Hand) -> None:
        frames = [
            b"id: %d\n%b" % (lease.seq, event(JOB, b'{"topic":"%b",%b' % (self._name, text[1:])))
            for lease, text in zip(hand.leases, hand.texts, strict=True)
        ]
        written = b"".join(frames)
        self.stream.write(written)
        self.last_ms = self.delivery.tick_ms
        self.delivery.pushes.jobs_total += len(frames)
        if self.link.write_paused:
            self.keep(Share(self.delivery.account, len(written)))
            self._worker.paused = True
            self.stall()

    def _end(self, error: TopicsError) -> None:
        # Whatever has the name next, it is not the queue that the jobs came from (WORK-5).
        self.finish(NotAQueue.status, f"{error.message}: it is no queue any more")

    def drained(self) -> None:
        """The client reads again."""
        self.release()
        if not self.closed:
            self.recovered()
            self.aged = False
            self._worker.paused = False
            self._work.queues.passes.stir(self._topic)

    def _closed(self) -> None:
        self._slot.free()
        self._work.stop(self._topic, self._worker)
        super()._closed()
