"""Work: `GET /v0/topics/:q/work`, jobs that are pushed to a worker as they come (API §10.8).

The stream holds at most `max` jobs at a time; an ack, nack or expiry makes room for the next. A client that does not
read gets no further jobs, because their leases would only run out in a buffer; one that does not read for too long is
closed, as any other stream is. However the stream ends, the jobs that were pushed on it and not acked are ready again
at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topics.engine.queue.worker import Worker
from topics.errors import InvalidRequest, NotAQueue, TopicsError
from topics.server.delivery.part import event
from topics.server.delivery.sse import HEADERS, RETRY, error_event, heartbeat, tune
from topics.server.delivery.subscriber import Feed, Subscriber
from topics.server.delivery.watch import HEARTBEAT_MS_DEFAULT, require_event_stream

if TYPE_CHECKING:
    from topics.engine import Engine
    from topics.engine.queue.claim import Hand
    from topics.engine.topic import Topic
    from topics.server.app import Route
    from topics.server.delivery.delivery import Delivery
    from topics.server.delivery.part import Part
    from topics.server.flow.admission import Admission
    from topics.server.http.exchange import Exchange
    from topics.server.http.stream import Stream
    from topics.server.limits import Limits, Slot

JOB: Final = b"job"


class Work:
    """Answers the route of work streams."""

    def __init__(
        self,
        engine: Engine,
        delivery: Delivery,
        admission: Admission,
        limits: Limits,
    ) -> None:
        self.engine = engine
        self.delivery = delivery
        self._admission = admission
        self._limits = limits

    def open_work(self, exchange: Exchange) -> None:
        """`GET /v0/topics/:q/work`."""
        route: Route = exchange.head.route
        query = route.query
        node = query.text("node")
        if not node:
            raise InvalidRequest("node must name the worker", field="node")
        max_claim = self.engine.limits.max_claim
        max_ = query.number("max", 1, least=1)
        lease_ms = query.number("lease_ms", 0) if query.has("lease_ms") else None
        self.engine.queues.check(route.name, node)
        require_event_stream(exchange)
        if exchange.head.method == "HEAD":
            exchange.respond(200, b"", b"text/event-stream; charset=utf-8")
            return
        self._admission.refuse_if_shut()
        slots = self._limits.take_stream(route.principal)
        stream = exchange.stream(200, HEADERS)
        if stream.closed:
            for slot in slots:
                slot.free()
            return
        self.delivery.refresh()
        WorkStream(self, stream, slots).open(route.name, node, min(max_, max_claim) if max_claim else max_, lease_ms)


class WorkStream(Subscriber):
    """One open work stream."""

    __slots__ = ("_name", "_slots", "_stream", "_topic", "_work", "_worker")

    def __init__(self, work: Work, stream: Stream, slots: list[Slot]) -> None:
        super().__init__(work.delivery)
        self.link = stream.connection
        self._work = work
        self._stream = stream
        self._slots = slots
        self._name = b""
        self._topic: Topic
        self._worker: Worker

    def open(self, name: str, node: str, max: int, lease_ms: int | None) -> None:
        """Begin: say hello, and want jobs."""
        stream = self._stream
        stream.on_drain = self.drained
        stream.on_close = self._closed
        tune(getattr(stream.connection, "transport", None))
        stream.write(RETRY + heartbeat(self.delivery.now_ms))
        self._name = name.encode()
        self._worker = Worker(node, max, lease_ms, self._push, self._end)
        self.delivery.enrol(self, self.last_ms + HEARTBEAT_MS_DEFAULT)
        self._topic = self._work.engine.queues.work(name, self._worker)

    def _push(self, hand: Hand) -> None:
        frames = [
            b"id: %d\n%b" % (lease.seq, event(JOB, b'{"topic":"%b",%b' % (self._name, text[1:])))
            for lease, text in zip(hand.leases, hand.texts, strict=True)
        ]
        self._stream.write(b"".join(frames))
        self.last_ms = self.delivery.tick_ms
        if self.link.write_paused:
            self._worker.paused = True
            self.stall()

    def _end(self, error: TopicsError) -> None:
        # Whatever has the name next, it is not the queue that the jobs came from (API §10.8).
        self._finish(NotAQueue.status, f"{error.message}: it is no queue any more")

    def drained(self) -> None:
        """The client reads again."""
        if not self.closed:
            self.recovered()
            self.aged = False
            self._worker.paused = False
            self._work.engine.queues.passes.stir(self._topic)

    def beat(self, tick_ms: int) -> int:
        """Send a heartbeat if nothing was sent for as long."""
        if tick_ms - self.last_ms >= HEARTBEAT_MS_DEFAULT:
            self.last_ms = tick_ms
            if not self.link.write_paused:
                self._stream.write(heartbeat(self.delivery.now_ms))
        return self.last_ms + HEARTBEAT_MS_DEFAULT

    def give_up(self) -> None:
        """The client does not read: a last word, and the end."""
        self._finish(408, "the client has not read from this stream for too long; reconnect to resume")

    def _finish(self, code: int, message: str) -> None:
        self._stream.write(error_event(code, message))
        self._stream.close()

    def _closed(self) -> None:
        for slot in self._slots:
            slot.free()
        self._work.engine.queues.stop_work(self._topic, self._worker)
        self.delivery.leave(self)

    def warn(self, retry_after_ms: int, topics: list[str]) -> None:
        """Say that jobs are paced; the stream stays open."""
        text = "work throttled under CPU pressure"
        self._stream.write(error_event(429, text, retry_after_ms=retry_after_ms, topics=topics))

    def feeds(self) -> tuple[Feed, ...]:
        """None: jobs come from the queue, not from a log's tail."""
        return ()

    def send(self, feed: Feed, part: Part) -> None:
        """Never called: there are no feeds."""

    def ended(self, feed: Feed) -> None:
        """Never called: there are no feeds."""

    def unreadable(self, feed: Feed, error: TopicsError) -> None:
        """Never called: there are no feeds."""
