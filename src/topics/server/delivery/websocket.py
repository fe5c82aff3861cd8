"""WebSocket: one connection on `/v0/ws`, JSON text messages both ways (API §7.7).

The protocol itself (handshake, frames, masks, fragments, pings, closing) is the sans-IO protocol of `websockets`. What
is ours: commands in, frames out, and bounds on both.

Out: the queue is the transport's, as for every subscriber. Records are rendered only while there is room. Answers to
commands need room too, so while the client does not read, its commands are not read either.

In: what was received is looked at in small pieces and for at most `TURN_NS` per turn of the loop, so that a flood of
tiny frames costs its sender and nobody else. A message is at most `max_body_bytes`, like the body of a request, however
it is fragmented. At most `PUBLISHES_MAX` publishes wait for their ack; beyond that nothing more is read.

Every command is authorised on its own: `subscribe` needs `read`, `publish` needs `write` and with `config` also
`admin`, and every topic must lie within the key's prefixes.

A client that sends nothing at all for a while is pinged, and given up if it does not answer that either.
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from topics.errors import Forbidden, InvalidRequest, TopicNotFound, TopicsError
from topics.names import check_topic_name
from topics.server.auth import ADMIN, READ, WRITE
from topics.server.delivery import commands
from topics.server.delivery.part import Part, text_frame
from topics.server.delivery.sse import tune
from topics.server.delivery.subscriber import Feed, Subscriber
from topics.server.delivery.watch import Watched, check_names, cursor_for, view_for

if TYPE_CHECKING:
    from topics.engine import Engine
    from topics.engine.write.ticket import Ticket
    from topics.server.auth import Principal
    from topics.server.delivery.delivery import Delivery
    from topics.server.flow.admission import Admission
    from topics.server.http.exchange import Exchange
    from topics.server.limits import Limits, Slot
    from topics.settings import Settings

log = logging.getLogger("topics.websocket")
# The library tells of every connection; what goes wrong in one is told to its client.
_quiet = logging.getLogger("topics.websocket.protocol")
_quiet.setLevel(logging.CRITICAL)

PING_AFTER_MS: Final = 30_000
PUBLISHES_MAX: Final = 256
OUTBOX_BYTES_MAX: Final = 16 * 1024
TURN_NS: Final = 1_000_000
PIECE_BYTES: Final = 1024
PIECE_BYTES_MAX: Final = 256 * 1024

_encode: Final = msgspec.json.Encoder().encode


class Publishing:
    """One publish on its way."""

    __slots__ = ("command", "socket", "started_ns", "throttled_ns")

    def __init__(self, socket: WebSocket, command: commands.Publish) -> None:
        self.socket = socket
        self.command = command
        self.started_ns = perf_counter_ns()
        self.throttled_ns = 0

    def fail(self, error: TopicsError) -> None:
        """Answer with an error."""
        self.socket.published()
        self.socket.refuse(error, self.command.request_id)


class WebSocket(Subscriber):
    """One client on `/v0/ws`."""

    __slots__ = (
        "_admission",
        "_buffer",
        "_closing",
        "_engine",
        "_feeds",
        "_fragments",
        "_heard",
        "_loop",
        "_outbox",
        "_outbox_bytes",
        "_pinged",
        "_principal",
        "_protocol",
        "_publishing",
        "_reading",
        "_response",
        "_settings",
        "_slots",
        "_turn_due",
        "transport",
        "write_paused",
    )

    transport: asyncio.Transport

    def __init__(
        self,
        engine: Engine,
        delivery: Delivery,
        admission: Admission,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        principal: Principal,
    ) -> None:
        super().__init__(delivery)
        self.link = self
        self.write_paused = False
        self._engine = engine
        self._admission = admission
        self._settings = settings
        self._loop = loop
        self._principal = principal
        self._protocol = ServerProtocol(state=State.OPEN, max_size=settings.max_body_bytes, logger=_quiet)
        self._response = b""
        self._slots: list[Slot] = []
        self._feeds: dict[str, Feed] = {}
        self._buffer = bytearray()
        self._fragments: bytearray | None = None
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._publishing = 0
        self._reading = True
        self._turn_due = False
        self._heard = True
        self._pinged = False
        self._closing: asyncio.TimerHandle | None = None

    # Opening

    def accept(self, exchange: Exchange) -> None:
        """Check the handshake; raises InvalidRequest or Forbidden where it cannot be accepted."""
        head = exchange.head
        if head.upgrade != b"websocket":
            raise InvalidRequest("this address speaks WebSocket: send Upgrade: websocket and Connection: Upgrade")
        headers = Headers()
        for name, value in head.headers.items():
            headers[name.decode("latin-1")] = value.decode("latin-1")
        origin = head.headers.get(b"origin")
        if self._principal.key_id is None and origin is not None:
            # Without keys any web page that a person opens could otherwise read and write through their browser.
            host = origin.partition(b"://")[2]
            if host.lower() != head.headers.get(b"host", b"").lower():
                raise Forbidden("without keys, only pages of this server itself may open a WebSocket")
        response = ServerProtocol(logger=_quiet).accept(Request(head.target.decode("latin-1"), headers))
        if response.status_code != 101:
            reason = (response.body or b"").decode("utf-8", "replace").strip().splitlines()
            raise InvalidRequest(reason[0] if reason else "the WebSocket handshake is malformed")
        self._response = response.serialize()

    def hold(self, slots: list[Slot]) -> None:
        """Keep these until the connection ends."""
        self._slots = slots

    def connected(self, transport: asyncio.Transport) -> WebSocket:
        """The transport is ours: answer the handshake."""
        self.transport = transport
        tune(transport)
        transport.write(self._response)
        self.delivery.enrol(self, self.last_ms + PING_AFTER_MS)
        return self

    # Reading

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        self._heard = True
        self._buffer += data
        if not self._turn_due:
            self._take()

    def _take(self) -> None:
        """Look at what was received, piece by piece, until it ends, has to wait, or this turn's time is up."""
        self._turn_due = False
        deadline_ns = perf_counter_ns() + TURN_NS
        size = PIECE_BYTES
        buffer = self._buffer
        at = 0
        while at < len(buffer) and not self._full and not self.closed:
            if perf_counter_ns() > deadline_ns:
                self._turn_due = True
                self._loop.call_soon(self._take)
                break
            piece = bytes(buffer[at : at + size])
            at += len(piece)
            self._protocol.receive_data(piece)
            events = self._protocol.events_received()
            self._flush()
            for frame in events:
                self._receive(cast("Frame", frame))
            # Within a large message there is nothing to do per piece, so the pieces may grow.
            size = PIECE_BYTES if events else min(2 * size, PIECE_BYTES_MAX)
        del buffer[:at]
        self._set_reading()

    @property
    def _full(self) -> bool:
        return self.write_paused or self._publishing >= PUBLISHES_MAX

    def _set_reading(self) -> None:
        """Read from the socket while what is read has somewhere to go, and go on with what was read before."""
        if self.closed:
            return
        reading = not (self._full or self._turn_due or self._buffer)
        if reading != self._reading and not self.transport.is_closing():
            self._reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()
        if self._buffer and not self._full and not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._take)

    def _receive(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT or frame.opcode is Opcode.CONT:
            if frame.fin and self._fragments is None:
                self._message(bytes(frame.data))
                return
            if self._fragments is None:
                self._fragments = bytearray()
            self._fragments += frame.data
            if frame.fin:
                whole, self._fragments = bytes(self._fragments), None
                self._message(whole)
        elif frame.opcode is Opcode.BINARY:
            self._close(CloseCode.UNSUPPORTED_DATA, "messages must be text")

    def _message(self, text: bytes) -> None:
        if self._protocol.state is not State.OPEN:
            return
        try:
            if not text.isascii():
                text.decode()
        except UnicodeDecodeError:
            self._close(CloseCode.INVALID_DATA, "the message is not UTF-8")
            return
        self.delivery.refresh()
        request_id: commands.RequestId = None
        try:
            command = commands.decode(text)
            request_id = command.request_id
            if isinstance(command, commands.Publish):
                self._publish(command)
            elif isinstance(command, commands.Subscribe):
                self._subscribe(command)
            elif isinstance(command, commands.Unsubscribe):
                self._unsubscribe(command)
            else:
                self._say({"op": "pong"}, request_id)
        except TopicsError as error:
            self.refuse(error, request_id if request_id is not None else commands.request_id_of(text))
        except Exception:
            log.exception("a command failed")
            self._close(CloseCode.INTERNAL_ERROR, "")

    # Commands

    def _subscribe(self, command: commands.Subscribe) -> None:
        principal = self._principal
        principal.require_scopes(READ)
        named = command.named()
        if not named:
            raise InvalidRequest("topics must name at least one topic", field="topics")
        topics_max = self._settings.max_watch_topics
        check_names(named, principal, topics_max - len(self._feeds.keys() - named.keys()))
        topics = {}
        for name in named:
            topic = self._engine.topics.get(name)
            if topic is None:
                raise TopicNotFound(f'topic "{name}" does not exist', topic=name)
            topics[name] = topic
        views = {name: view_for(command, asked, self._settings.max_limit) for name, asked in named.items()}
        feeds = {}
        watched = {}
        for name, asked in named.items():
            topic = topics[name]
            topic.expire(self.delivery.now_ms)
            feeds[name] = Feed(self, 0, cursor_for(asked, topic), views[name])
            watched[name] = Watched(feeds[name].cursor, topic.log.head, topic.log.start)
        self._say({"op": "subscribed", "topics": watched}, command.request_id)
        for name, feed in feeds.items():
            self._drop(name)
            self._feeds[name] = feed
            self.delivery.follow(feed, topics[name])

    def _unsubscribe(self, command: commands.Unsubscribe) -> None:
        if (command.topic is None) == (command.topics is None):
            raise InvalidRequest("unsubscribe takes either topic or topics", field="topic")
        names = [command.topic] if command.topic is not None else command.topics or []
        for name in names:
            check_topic_name(name)
            self._principal.require_name(name)
        for name in names:
            self._drop(name)
        named = {"topic": command.topic} if command.topic is not None else {"topics": names}
        self._say({"op": "unsubscribed", **named}, command.request_id)

    def _drop(self, name: str) -> None:
        feed = self._feeds.pop(name, None)
        if feed is not None and feed.channel is not None:
            feed.channel.detach(feed)

    def _publish(self, command: commands.Publish) -> None:
        principal = self._principal
        principal.require_scopes(WRITE | ADMIN if command.config is not None else WRITE)
        check_topic_name(command.topic)
        principal.require_name(command.topic)
        principal.require_config(command.config)
        self._publishing += 1
        try:
            self._admission.write(command.topic, command, _published, Publishing(self, command))
        except BaseException:
            self._publishing -= 1
            raise

    def published(self) -> None:
        """A publish is answered: there is room for another."""
        self._publishing -= 1
        if self._publishing == PUBLISHES_MAX - 1:
            self._set_reading()

    def acknowledge(self, publishing: Publishing, ticket: Ticket) -> None:
        """Answer a publish that is committed."""
        command = publishing.command
        ack: dict[str, Any] = {
            "op": "ack",
            "topic": command.topic,
            "first_seq": ticket.first_seq,
            "last_seq": ticket.last_seq,
            "head_seq": ticket.head_seq,
            "count": ticket.count,
            "created": ticket.created,
            "deduped": ticket.deduped,
        }
        if command.return_seqs:
            ack["seqs"] = [*range(ticket.first_seq, ticket.last_seq + 1)]
        ack["performance"] = {
            "server_total_ms": round((perf_counter_ns() - publishing.started_ns) / 1e6, 3),
            "wal_append_ms": round(ticket.write_ns / 1e6, 3),
            "fsync_ms": round(ticket.sync_ns / 1e6, 3) if ticket.topic.config.durable else 0.0,
            "throttle_wait_ms": round(publishing.throttled_ns / 1e6, 3),
        }
        self._say(ack, command.request_id)

    def refuse(self, error: TopicsError, request_id: commands.RequestId) -> None:
        """Answer a command with an error."""
        frame: dict[str, Any] = {"op": "error", "code": error.code, "message": error.message}
        detail = dict(error.detail)
        if error.retry_after_ms is not None:
            detail["retry_after_ms"] = error.retry_after_ms
        if detail:
            frame["detail"] = detail
        self._say(frame, request_id)

    def _say(self, frame: dict[str, Any], request_id: commands.RequestId) -> None:
        if request_id is not None:
            frame["request_id"] = request_id
        self._send(text_frame(_encode(frame)))

    def _send(self, message: bytes) -> None:
        """Send with everything else of this turn of the loop: an ack and the records behind it leave in one write."""
        if self._protocol.state is not State.OPEN or self.closed:
            return
        self.last_ms = self.delivery.tick_ms
        if not self._outbox:
            self.delivery.flush_soon(self)
        self._outbox.append(message)
        self._outbox_bytes += len(message)
        if self._outbox_bytes >= OUTBOX_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered."""
        outbox, self._outbox, self._outbox_bytes = self._outbox, [], 0
        if outbox and not self.closed and not self.transport.is_closing():
            self.transport.write(outbox[0] if len(outbox) == 1 else b"".join(outbox))

    # Being told

    def feeds(self) -> list[Feed]:
        """The feeds of this connection."""
        return list(self._feeds.values())

    def send(self, feed: Feed, part: Part) -> None:
        """Send the part as a message."""
        feed.cursor = part.cursor
        self._send(part.message)

    def ended(self, feed: Feed) -> None:
        """The topic is gone: a later subscribe starts anew."""
        for name in [name for name, each in self._feeds.items() if each is feed]:
            del self._feeds[name]

    def unreadable(self, feed: Feed, error: TopicsError) -> None:
        """End the subscription; the others go on."""
        self.refuse(error, None)
        if feed.channel is not None:
            feed.channel.detach(feed)
        self.ended(feed)

    def beat(self, tick_ms: int) -> int:
        """Ping a client that was silent, and give up one that did not answer the last ping."""
        if self._heard:
            self._heard = self._pinged = False
        elif not self._pinged:
            self._pinged = True
            if not self.write_paused:
                self._protocol.send_ping(b"")
                self._flush()
        else:
            self.transport.abort()
        return tick_ms + PING_AFTER_MS

    def warn(self, retry_after_ms: int, topics: list[str]) -> None:
        """Say that topics are paced; the connection stays open."""
        text = "watch throttled under CPU pressure"
        detail = {"retry_after_ms": retry_after_ms, "topics": topics}
        self._say({"op": "error", "code": "throttled", "message": text, "detail": detail}, None)

    def give_up(self) -> None:
        """The client does not read: a last word, and the end."""
        message = "the client has not read from this connection for too long; reconnect to resume"
        self._say({"op": "error", "code": "slow_consumer", "message": message}, None)
        self._close(CloseCode.POLICY_VIOLATION, "slow consumer")

    # Ending

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that the client has not taken."""
        return 0 if self.closed else self._outbox_bytes + self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        """The client does not read: neither send to it nor read from it."""
        self.write_paused = True
        self._set_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self.write_paused = False
        self.drained()
        self._set_reading()

    def eof_received(self) -> bool:
        """The client has closed its sending side without a closing handshake, or after one."""
        self._protocol.receive_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: nothing of it stays."""
        self._end()
        if self._closing is not None:
            self._closing.cancel()

    def _end(self) -> None:
        """Neither send nor read any more, and give back what was held."""
        for slot in self._slots:
            slot.free()
        self.delivery.leave(self)
        self._feeds.clear()
        self._buffer.clear()

    def shut_down(self) -> None:
        """The server stops."""
        self._close(CloseCode.GOING_AWAY, "the server is shutting down")

    def expire(self, now: float) -> None:
        """No deadline is set on the connection."""

    def _close(self, code: CloseCode, reason: str) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.fail(code, reason)
            self._flush()

    def _flush(self) -> None:
        """Send what the protocol wants to send; its end of file closes the connection, in time or by force."""
        writes = self._protocol.data_to_send()
        if writes:
            self.flush()
        for data in writes:
            if self.closed or self.transport.is_closing():
                return
            if data:
                self.transport.write(data)
            else:
                self._end()
                self.transport.close()
                self._closing = self._loop.call_later(self._settings.write_timeout_ms / 1000, self.transport.abort)


def _published(ticket: Ticket) -> None:
    publishing: Publishing = ticket.context
    if ticket.error is not None:
        publishing.fail(ticket.error)
    else:
        publishing.socket.published()
        publishing.socket.acknowledge(publishing, ticket)


class WebSockets:
    """Answers `GET /v0/ws`."""

    def __init__(
        self,
        engine: Engine,
        delivery: Delivery,
        admission: Admission,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
    ) -> None:
        self._engine = engine
        self._delivery = delivery
        self._admission = admission
        self._settings = settings
        self._loop = loop
        self._limits = limits

    def open_websocket(self, exchange: Exchange) -> None:
        """`GET /v0/ws`."""
        principal: Principal = exchange.head.route.principal
        self._delivery.refresh()
        opened = WebSocket(self._engine, self._delivery, self._admission, self._settings, self._loop, principal)
        opened.accept(exchange)
        opened.hold(self._limits.take_stream(principal))
        exchange.upgrade(opened.connected)
