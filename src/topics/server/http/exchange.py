"""One request and its answer.

An `Exchange` is what the connection layer hands to `head.door` once the whole body is there. It is answered exactly
once, now or later, by `respond`, `respond_raw`, `fail`, `stream` or `upgrade`; a second answer is a defect and raises.
Exchanges of one connection may be answered in any order: the connection sends the answers in the order of the requests.

When the client goes away first, `on_disconnect` is called once, and answering afterwards is harmless. A client that has
only closed its sending side looks the same to TCP, so `on_disconnect` may still answer (an empty long-poll, say) and
that answer is sent; an exchange that `on_disconnect` leaves unanswered is given up. An exchange without `on_disconnect`
is still answered to a client that has closed its sending side. So `on_disconnect` marks an exchange that only waits,
and a server that stops does not wait for it (`hurry`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any, Final, Protocol

from topics.errors import RETRY_AFTER_MS, Internal, ShuttingDown, TopicsError
from topics.server.http import access, reply
from topics.server.http.access import request_id_of
from topics.server.http.body import Rest
from topics.server.http.head import Head
from topics.server.http.reply import GZIP_FLOOR_BYTES, GZIP_INLINE_MAX_BYTES, JSON, JSON_PREFIXES
from topics.server.http.stream import Sink, Stream
from topics.server.http.upgrade import Upgrade

log = logging.getLogger("topics.server")

LARGE_ANSWER_BYTES: Final = 256 * 1024


def as_answer(error: Exception, doing: str, head: Head) -> TopicsError:
    """What a client is answered when something raised; a defect goes to the log, and nothing of it to the client."""
    if isinstance(error, TopicsError):
        return error
    answer = Internal()
    answer.request_id = request_id_of(head)
    _log_defect(f"{doing} a request failed", head, answer.request_id, error)
    return answer


def _log_defect(what: str, head: Head, request_id: str, error: Exception | None = None) -> None:
    fields = {"request_id": request_id, "method": head.method, "route": head.tally.route}
    log.error("%s", what, exc_info=error, extra={"fields": fields})


class App(Protocol):
    """What the connection layer serves."""

    def resolve(self, head: Head) -> Any:
        """Set `head.door`, which handles the requests with this head, and return their route, kept as `head.route`.

        Called before the body is read. A head that repeats on its connection, but for the digits of a Content-Length,
        reuses its route and its door without another call; so whatever may change between requests is for the door to
        know, and neither may depend on how long the body is. It may set `head.body_limit`. A raised TopicsError is
        answered at once.
        """


def admit(app: App, head: Head) -> None:
    """Have a head resolved; raises what answers it."""
    try:
        head.route = app.resolve(head)
    except Exception as error:
        raise as_answer(error, "resolving", head) from None


class Carrier(Sink, Protocol):
    """What carries exchanges: an HTTP/1.1 connection, or one stream of an HTTP/2 connection."""

    current: Exchange | None
    queue: list[Exchange]
    waiting: bool
    answer: Callable[[bytes], None]

    @property
    def clogged(self) -> bool:
        """Whether the client has not taken earlier answers, so that a further one would only wait in memory."""

    @property
    def gone(self) -> bool:
        """Whether the client can be sent nothing any more."""

    def in_turn(self, call: Callable[[], None]) -> None:
        """Call now, or in another turn of the loop where this one has taken long enough."""

    def carry_on(self) -> None:
        """The current exchange is answered."""

    def deliver(self, exchange: Exchange, answer: bytes) -> None:
        """Send a rendered response in its turn."""

    def deliver_parts(self, exchange: Exchange, head: bytes, parts: list[bytes]) -> None:
        """As `deliver`, with a body in parts that are not copied if it can be helped."""

    def open_stream(self, exchange: Exchange, head: bytes) -> Stream:
        """Send the head of a response and leave its body open."""

    def hand_over(self, exchange: Exchange, upgrade: Upgrade) -> None:
        """Give the transport away."""


class Exchange:
    """One request and its answer, see the module."""

    __slots__ = (
        "_request_id", "answer", "answered", "body", "carrier", "closes", "head", "on_disconnect", "on_over", "plain",
        "rest", "started_ns", "throttled_ns", "waited_ns",
    )  # fmt: skip

    def __init__(self, carrier: Carrier, head: Head, body: bytes, started_ns: int) -> None:
        self.carrier = carrier
        self.head = head
        self.body = body
        self.rest: Rest | None = None
        """What follows `body`, where that is handed over in parts."""
        self.started_ns = started_ns
        """`perf_counter_ns` when the request's first byte was dispatched."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called once if the client goes away before the answer."""
        self.on_over: Callable[[], None] | None = None
        """Called exactly once when the exchange is over: answered, turned into a stream, or its connection lost."""
        self.answered = False
        self.answer: bytes | Stream | None = None
        """An answer that waits for its turn. Belongs to the carrier."""
        self.closes = not head.keep_alive
        """Whether the connection ends with this answer. Belongs to the carrier."""
        self.plain = head.plain
        """Whether a rendered keep-alive response can go out as it is. Belongs to the carrier."""
        self.throttled_ns = 0
        """How long the request was held back under pressure."""
        self.waited_ns = 0
        """How long it waited because its client asked for that. Negative while it does, see `begin_wait`."""

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the request's first byte was dispatched, rounded to microseconds."""
        return round((perf_counter_ns() - self.started_ns) / 1e6, 3)

    @property
    def request_id(self) -> str:
        """What the request is called in an error and in the log; made when it is asked for."""
        try:
            return self._request_id
        except AttributeError:
            self._request_id: str = request_id_of(self.head)
            return self._request_id

    def begin_wait(self) -> None:
        """The client asked to wait until there is something for it: that time is not the server's."""
        self.waited_ns -= perf_counter_ns()

    def end_wait(self) -> None:
        """There is something, or the time is up."""
        if self.waited_ns < 0:
            self.waited_ns += perf_counter_ns()

    def _begin_answer(self) -> None:
        if self.answered:
            raise RuntimeError("the exchange is already answered")
        self.answered = True

    def respond_raw(self, response: bytes) -> None:
        """Answer with a response that is already rendered as HTTP/1.1 keep-alive (see `reply.prefix`)."""
        if self.answered:
            raise RuntimeError("the exchange is already answered")
        self.answered = True
        tally = self.head.tally
        if tally.unseen:
            tally.unseen -= 1
        else:
            self._look(len(response))
        if not self.plain:
            response = self._fit(response)
        carrier = self.carrier
        if carrier.current is self and not carrier.queue and not self.closes:
            carrier.current = None
            carrier.answer(response)
            if carrier.waiting:
                carrier.carry_on()
        else:
            carrier.deliver(self, response)
        if self.on_over is not None:
            self.over()

    def respond(self, status: int, body: bytes, content_type: bytes = JSON, headers: bytes = b"") -> None:
        """Answer; `headers` are further complete lines. Compressed if the client takes gzip and it is worth it."""
        if status != 200:
            self.head.tally.count_status(status)
        if self.head.accepts_gzip and len(body) > GZIP_FLOOR_BYTES:
            headers += b"Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n"
            if len(body) > GZIP_INLINE_MAX_BYTES:
                self._respond_packed(status, body, content_type, headers)
                return
            body = reply.gzip(body)
        if content_type is JSON and not headers:
            self.respond_raw(b"%b%d\r\n\r\n%b" % (JSON_PREFIXES[status], len(body), body))
        else:
            self.respond_raw(reply.render(status, body, content_type, headers))

    def respond_parts(self, parts: list[bytes], *, in_turn: bool = False) -> None:
        """Answer 200 with JSON in parts, so that a large answer is not copied. The list is used up.

        A large answer is sent when the loop has time for it, or now if it is its turn already.
        """
        size = sum(map(len, parts))
        if size <= LARGE_ANSWER_BYTES and not self.head.accepts_gzip:
            self.respond_raw(b"".join((b"%b%d\r\n\r\n" % (JSON_PREFIXES[200], size), *parts)))
        elif size > LARGE_ANSWER_BYTES:
            if in_turn:
                self._respond_large(parts, size)
            else:
                self._begin_answer()
                self.carrier.in_turn(partial(self._respond_later, parts, size))
        else:
            self.respond(200, b"".join(parts))

    def _respond_later(self, parts: list[bytes], size: int) -> None:
        self.answered = False
        self._respond_large(parts, size)

    def _respond_large(self, parts: list[bytes], size: int) -> None:
        if self.head.accepts_gzip:
            self.respond(200, b"".join(parts))
            return
        head = b"%b%d\r\n\r\n" % (JSON_PREFIXES[200], size)
        self._begin_answer()
        tally = self.head.tally
        if tally.unseen:
            tally.unseen -= 1
        else:
            self._look(len(head) + size)
        if not self.plain:
            head = self._fit(head, size)
            if self.head.method == "HEAD":
                parts = []
        self.carrier.deliver_parts(self, head, parts)
        self.over()

    def _respond_packed(self, status: int, body: bytes, content_type: bytes, headers: bytes) -> None:
        """Compress in a thread, where zlib runs without the interpreter's lock, then answer."""
        self._begin_answer()

        def packed(future: asyncio.Future[bytes]) -> None:
            if not future.cancelled():
                self.answered = False
                self.respond_raw(reply.render(status, future.result(), content_type, headers))

        asyncio.get_running_loop().run_in_executor(None, reply.gzip, body).add_done_callback(packed)

    def fail(self, error: TopicsError) -> None:
        """Answer with the error's status and envelope, and what the request is called (LOG-3)."""
        self.end_wait()
        if isinstance(error, Internal):
            if error.request_id is None:
                _log_defect("a request failed, see the line before", self.head, self.request_id)
            else:
                self._request_id = error.request_id
        self.head.tally.count_status(error.status)
        body = reply.error_body(error, perf_counter_ns() - self.started_ns, self.request_id)
        headers = reply.error_headers(error) + b"X-Request-Id: %b\r\n" % self.request_id.encode()
        self.respond_raw(reply.render(error.status, body, headers=headers))
        access.note(self, error.status, len(body), error.code)

    def raised(self, error: Exception) -> None:
        """The handler raised: that is the answer, unless one was given before."""
        answer = as_answer(error, "handling", self.head)
        if not self.answered:
            self.fail(answer)

    def stream(self, status: int, headers: bytes) -> Stream:
        """Answer with a body that has no end yet; the connection serves nothing else from then on.

        `headers` are complete lines and name the content type. The body ends with the connection.
        """
        self._begin_answer()
        head = reply.status_line(status) + self.head.answer_headers + headers
        self._count(status, len(head))
        opened = self.carrier.open_stream(self, head + b"\r\n")
        self.over()
        return opened

    def upgrade(self, upgrade: Upgrade) -> None:
        """Hand the transport, and whatever was received after the head, to a protocol that sends its own 101.

        Possible for requests whose `head.upgrade` is set: the connection dispatches them only when every earlier
        request is answered, and parses nothing after them.
        """
        self._begin_answer()
        self._count(101, 0)
        self.carrier.hand_over(self, upgrade)
        self.over()

    def _count(self, status: int, sent_bytes: int) -> None:
        """Count and log an answer without an end, as `respond_raw` and `_fit` do for the others."""
        tally = self.head.tally
        if status != 200:
            tally.count_status(status)
        if tally.unseen:
            tally.unseen -= 1
        else:
            self._look(sent_bytes)
        access.note(self, status, sent_bytes)

    def _look(self, sent_bytes: int) -> None:
        """Count the request with its latency and its size."""
        head = self.head
        received_bytes = head.message_bytes
        if head.chunked or not received_bytes:
            received_bytes += len(self.body)
        head.tally.look(perf_counter_ns() - self.started_ns - self.waited_ns, received_bytes, sent_bytes)

    def over(self) -> None:
        """Call `on_over`, once. Belongs to the carrier."""
        on_over, self.on_over = self.on_over, None
        if on_over is not None:
            on_over()

    def leave(self) -> bool:
        """Call `on_disconnect`, once; True if it was called and nothing is answered yet. Belongs to the carrier."""
        on_disconnect, self.on_disconnect = self.on_disconnect, None
        if on_disconnect is None or self.answered:
            return False
        try:
            on_disconnect()
        except Exception:
            log.exception("leaving a request failed", extra={"fields": {"request_id": self.request_id}})
        return not self.answered

    def hurry(self) -> None:
        """The server stops: a request that only waits is answered with what there is, or else turned away."""
        self.turn_away(ShuttingDown(retry_after_ms=RETRY_AFTER_MS))

    def turn_away(self, error: TopicsError) -> None:
        """A request that only waits is answered now: with what there is, or else with the error."""
        if self.leave():
            self.fail(error)

    def abandon(self) -> None:
        """No answer can be sent any more: call everyone that waits for the end. Belongs to the carrier."""
        if isinstance(self.answer, Stream):
            self.answer.end()
        self.leave()
        try:
            self.over()
        except Exception:
            log.exception("ending a request failed", extra={"fields": {"request_id": self.request_id}})

    def _fit(self, response: bytes, more_bytes: int = 0) -> bytes:
        """The response as this client must get it: HEAD, HTTP/1.0, another origin, or the last one here."""
        if response[9] < ord("4") and access.log_all():
            access.note(self, int(response[9:12]), len(response) + more_bytes)
        line = reply.CLOSE if self.closes else reply.KEEP_ALIVE if self.head.version == b"1.0" else b""
        return reply.adapt(response, line + self.head.answer_headers, self.head.method != "HEAD")
