"""WebSocket: one client on `/v0/ws`, JSON text messages both ways (the WS rules).

A client sends commands and is sent answers and notices; `FrameLink` carries both. At most `PUBLISHES_MAX` publishes
wait for their ack; beyond that nothing more is read, nor while a large publish is taken (api/large_writes.py).

Every command is authorised on its own: `subscribe` needs `read`, `publish` needs `write` and with `config` also
`admin`, and every topic must be within the key's prefixes.

A client that sends nothing at all for a while is pinged, and given up if it does not answer that either.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Final, assert_never

import msgspec
from msgspec import Struct, field
from websockets.datastructures import Headers
from websockets.frames import CloseCode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from topics.engine import Engine
from topics.engine.journal import Ticket
from topics.engine.requests import Write
from topics.errors import InvalidRequest, TopicNotFound, TopicsError, Unauthorized
from topics.names import check_topic_name
from topics.server.api.large_writes import LargeWrites
from topics.server.api.principal import ADMIN, READ, REVOKED, WRITE, Principal
from topics.server.delivery import commands
from topics.server.delivery.delivery import Delivery
from topics.server.delivery.event_stream import tune
from topics.server.delivery.frame_link import FrameLink, quiet, untie
from topics.server.delivery.notice import Notice, text_frame
from topics.server.delivery.subscriber import Feed, Subscriber
from topics.server.delivery.subscription import Watched, check_names, cursor_for
from topics.server.delivery.view import view_of
from topics.server.flow.admission import Admission
from topics.server.flow.slots import Slot, Slots
from topics.server.http.account import Account, Share
from topics.server.http.body import WHOLE_MAX_BYTES, Gathered, Plain
from topics.server.http.exchange import Exchange
from topics.server.http.head import Head
from topics.server.http.traffic import Traffic
from topics.server.http.turns import Turns
from topics.settings import Settings
from topics.storage.job import Miss

log = logging.getLogger("topics.websocket")

PING_AFTER_MS: Final = 30_000
PUBLISHES_MAX: Final = 256
SUBPROTOCOL: Final = Subprotocol("topics")

_encode: Final = msgspec.json.Encoder().encode


class WebSockets:
    """Answers `GET /v0/ws`."""

    def __init__(
        self,
        engine: Engine,
        delivery: Delivery,
        admission: Admission,
        slots: Slots,
        settings: Settings,
        turns: Turns,
        account: Account,
        traffic: Traffic,
        loop: asyncio.AbstractEventLoop,
        large: LargeWrites,
    ) -> None:
        self.engine = engine
        self.traffic = traffic
        self.large = large
        self.delivery = delivery
        self.admission = admission
        self.settings = settings
        self.turns = turns
        self.account = account
        self.loop = loop
        self.slots = slots

    def open(self, exchange: Exchange) -> None:
        """`GET /v0/ws`."""
        principal: Principal = exchange.head.route.principal
        self.delivery.refresh()
        response = _handshake(exchange.head)
        slot = self.slots.take_stream(principal)

        def upgrade(transport: asyncio.Transport) -> FrameLink:
            tune(transport)
            transport.write(response)
            return WebSocket(self, principal, transport, slot).frames

        exchange.upgrade(upgrade)


def _select(_: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """The subprotocol that is answered: a browser gives up where it offered some and none is."""
    return SUBPROTOCOL if SUBPROTOCOL in offered else None


def _handshake(head: Head) -> bytes:
    """The answer to a handshake; raises InvalidRequest where it cannot be accepted."""
    if head.upgrade != b"websocket":
        raise InvalidRequest("this address speaks WebSocket: send Upgrade: websocket and Connection: Upgrade")
    headers = Headers()
    for name, value in head.headers.items():
        headers[name.decode("latin-1")] = value.decode("latin-1")
    protocol = ServerProtocol(logger=quiet, select_subprotocol=_select)
    response = protocol.accept(Request(head.target.decode("latin-1"), headers))
    untie(protocol)
    if response.status_code != 101:
        reason = (response.body or b"").decode("utf-8", "replace").strip().splitlines()
        raise InvalidRequest(reason[0] if reason else "the WebSocket handshake is malformed")
    return response.serialize()


class Publishing(Struct, eq=False):
    """One publish on its way."""

    socket: WebSocket
    command: commands.Publish
    unknown: list[str]
    """The fields that the server does not know."""
    started_ns: int = field(default_factory=perf_counter_ns)
    throttled_ns: int = 0

    def fail(self, error: TopicsError) -> None:
        """Answer with an error."""
        self.socket.published()
        self.socket.refuse(error, self.command.request_id)


class WebSocket(Subscriber):
    """One client on `/v0/ws`."""

    kind = "websocket"
    __slots__ = ("_feeds", "_later", "_pinged", "_publishing", "_service", "_slot", "frames")

    def __init__(self, service: WebSockets, principal: Principal, transport: asyncio.Transport, slot: Slot) -> None:
        """The handshake is answered; `slot` is freed when the connection ends."""
        self.frames = FrameLink(
            self, service.loop, service.turns, service.account, transport, service.settings, service.traffic
        )
        super().__init__(service.delivery, self.frames, principal)
        self._service = service
        self._slot = slot
        self._feeds: dict[str, Feed] = {}
        self._publishing = 0
        # While a large publish is taken or a Block is read: what is executed after that, at most a piece of the link.
        self._later: deque[bytes] | None = None
        self._pinged = False
        self.delivery.enrol(self, self.last_ms + PING_AFTER_MS)

    # Commands

    @property
    def full(self) -> bool:
        """Whether too many publishes wait for their ack, or what is under way has to come first."""
        return self._publishing >= PUBLISHES_MAX or self._later is not None

    def receive(self, text: bytes) -> None:
        """Execute the command in a message."""
        if self._later is not None:
            self._later.append(text)
            return
        if commands.is_large_publish(text):
            self._take_large(text)
            return
        self._service.delivery.refresh()
        request_id: commands.RequestId = None
        try:
            if len(text) > WHOLE_MAX_BYTES:
                commands.check_size(text, self._service.settings.max_command_bytes)
            command = commands.decode(text, self._service.settings.max_watch_topics)
            request_id = command.request_id
            if isinstance(command, commands.Publish):
                loose = type(command) is commands.Publish
                self._publish(command, command, commands.publish.unknown(text) if loose else [])
            elif isinstance(command, commands.Subscribe):
                self._subscribe(command)
            elif isinstance(command, commands.Unsubscribe):
                self._unsubscribe(command)
            elif isinstance(command, commands.Ping):
                self._answer({"op": "pong"}, request_id)
            else:
                assert_never(command)
        except Miss as miss:
            self._read_then(miss, text)
        except TopicsError as error:
            self.refuse(error, request_id if request_id is not None else commands.request_id_of(text))
        except Exception:
            log.exception("a command failed")
            self.frames.close(CloseCode.INTERNAL_ERROR, "")

    def _take_large(self, text: bytes) -> None:
        """Take a large publish in turns with others; what comes after it on this connection waits."""

        def taken(command: commands.Publish, write: Write, unknown: list[str]) -> None:
            try:
                self._publish(command, write, unknown)
            except TopicsError as error:
                self.refuse(error, command.request_id)
            self._catch_up()

        def failed(error: TopicsError) -> None:
            self.refuse(error, commands.request_id_of(text))
            self._catch_up()

        self._later = deque()
        body = Gathered()
        body.add(text)
        self._service.large.take("", (b"", Plain(body)), commands.publish_envelope, taken, failed)

    def _read_then(self, miss: Miss, text: bytes) -> None:
        """Execute a command again once what it needs is in memory; what comes after it on this connection waits."""
        self._later = deque((text,))
        self.delivery.run_then(miss.job, self._catch_up)

    def _catch_up(self) -> None:
        """Execute what had to wait for a large publish or for a read, up to the next command that others wait for."""
        later, self._later = self._later or deque(), None
        while later:
            self.receive(later.popleft())
            again = self._waiting_after()
            if again is not None:
                again.extend(later)
                return
        self.frames.set_reading()

    def _waiting_after(self) -> deque[bytes] | None:
        return self._later

    def _subscribe(self, command: commands.Subscribe) -> None:
        if self.closed:
            # The connection ended while this waited.
            return
        principal, settings = self.principal, self._service.settings
        principal.require_scopes(READ)
        named = command.named()
        if not named:
            raise InvalidRequest("topics must name at least one topic", field="topics")
        check_names(named, principal, settings.max_watch_topics - len(self._feeds.keys() - named.keys()))
        if self._service.admission.gathered:
            self._service.admission.flush()
        topics = {}
        for name in named:
            topic = self._service.engine.topics.get(name)
            if topic is None:
                raise TopicNotFound(f'topic "{name}" does not exist', topic=name)
            topics[name] = topic
        cap = self._service.slots.subscription_bytes
        views = {name: view_of(command, settings.max_limit, asked.match, cap) for name, asked in named.items()}
        feeds = {}
        watched = {}
        for name, asked in named.items():
            topic = topics[name]
            topic.expire(self.delivery.now_ms)
            feeds[name] = Feed(self, 0, cursor_for(asked, topic), views[name])
            watched[name] = Watched(feeds[name].cursor, topic.log.head, topic.log.start)
        self._answer({"op": "subscribed", "topics": watched}, command.request_id)
        for name, feed in feeds.items():
            self._drop(name)
            self._feeds[name] = feed
            self._service.delivery.follow(feed, topics[name])

    def _unsubscribe(self, command: commands.Unsubscribe) -> None:
        if (command.topic is None) == (command.topics is None):
            raise InvalidRequest("unsubscribe takes either topic or topics", field="topic")
        names = [command.topic] if command.topic is not None else command.topics or []
        for name in names:
            check_topic_name(name)
            self.principal.require_name(name)
        for name in names:
            self._drop(name)
        named = {"topic": command.topic} if command.topic is not None else {"topics": names}
        self._answer({"op": "unsubscribed", **named}, command.request_id)

    def _drop(self, name: str) -> None:
        feed = self._feeds.pop(name, None)
        if feed is not None and feed.channel is not None:
            feed.channel.detach(feed)

    def _publish(self, command: commands.Publish, write: Write, unknown: list[str]) -> None:
        principal = self.principal
        principal.require_scopes(WRITE | ADMIN if command.config is not None else WRITE)
        check_topic_name(command.topic)
        principal.require_name(command.topic)
        principal.require_config(command.config)
        self._publishing += 1
        publishing = Publishing(self, command, unknown)
        try:
            self._service.admission.write(command.topic, write, _published, publishing)
        except BaseException:
            self._publishing -= 1
            raise

    def published(self) -> None:
        """A publish is answered: there is room for another."""
        self._publishing -= 1
        if self._publishing == PUBLISHES_MAX - 1:
            self.frames.set_reading()

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
        if ticket.key_reused:
            ack["key_reused"] = True
        if command.return_seqs:
            ack["seqs"] = [*range(ticket.first_seq, ticket.last_seq + 1)]
        if publishing.unknown:
            ack["unknown_fields"] = publishing.unknown
        ack["performance"] = {
            "server_total_ms": round((perf_counter_ns() - publishing.started_ns) / 1e6, 3),
            "wal_append_ms": round(ticket.write_ns / 1e6, 3),
            "fsync_ms": round(ticket.sync_ns / 1e6, 3) if ticket.topic.config.durable else 0.0,
            "throttle_wait_ms": round(publishing.throttled_ns / 1e6, 3),
        }
        self._answer(ack, command.request_id)

    def refuse(self, error: TopicsError, request_id: commands.RequestId) -> None:
        """Answer a command with an error."""
        frame: dict[str, Any] = {"op": "error", "code": error.code, "message": error.message}
        detail = dict(error.detail)
        if error.retry_after_ms is not None:
            detail["retry_after_ms"] = error.retry_after_ms
        if detail:
            frame["detail"] = detail
        self._answer(frame, request_id)

    def _answer(self, frame: dict[str, Any], request_id: commands.RequestId) -> None:
        if request_id is not None:
            frame["request_id"] = request_id
        self._send(text_frame(_encode(frame)))

    def _send(self, message: bytes) -> None:
        """Send with everything else of this turn of the loop: an ack and the records after it leave in one write."""
        self.last_ms = self.delivery.tick_ms
        if self.frames.send(message):
            self.delivery.flush_soon(self)

    def flush(self) -> None:
        """Write what has gathered."""
        self.frames.flush()

    # Notices

    def feeds(self) -> list[Feed]:
        """The feeds of this connection."""
        return list(self._feeds.values())

    def send(self, feed: Feed, notice: Notice) -> None:
        """Send the notice as a message."""
        feed.cursor = notice.cursor
        self._send(notice.message)
        if self.frames.write_paused:
            if notice.message_share is None:
                notice.message_share = Share(self._service.account, len(notice.message))
            self.keep(notice.message_share)

    def ended(self, feed: Feed) -> None:
        """The topic is gone: a later subscribe starts from the beginning."""
        for name in [name for name, each in self._feeds.items() if each is feed]:
            del self._feeds[name]

    def unreadable(self, feed: Feed, error: TopicsError) -> None:
        """End the subscription; the others go on."""
        self.refuse(error, None)
        if feed.channel is not None:
            feed.channel.detach(feed)
        self.ended(feed)

    def beat(self, tick_ms: int) -> int:
        """Ping a client that was silent, and give up one that did not answer the last ping or end its message."""
        self.frames.give_up_message()
        if self.frames.heard:
            self.frames.heard = self._pinged = False
        elif not self._pinged:
            self._pinged = True
            if not self.frames.write_paused:
                self.frames.ping()
        else:
            self.frames.abort()
        return tick_ms + PING_AFTER_MS

    def warn(self, retry_after_ms: int, topics: list[str]) -> None:
        """Report that topics are paced; the connection stays open."""
        text = "watch throttled under CPU pressure"
        detail = {"retry_after_ms": retry_after_ms, "topics": topics}
        self._answer({"op": "error", "code": "throttled", "message": text, "detail": detail}, None)

    def revoke(self) -> None:
        """The key was removed or changed: send a last error, and end."""
        self.refuse(Unauthorized(REVOKED), None)
        self.frames.close(CloseCode.POLICY_VIOLATION, "the key is not valid any more")

    def give_up(self) -> None:
        """The client does not read: send a last error, and end."""
        message = "the client has not read from this connection for too long; reconnect to resume"
        self._answer({"op": "error", "code": "slow_consumer", "message": message}, None)
        self.frames.close(CloseCode.POLICY_VIOLATION, "slow consumer")

    def over(self) -> None:
        """The connection is gone: give back what was held."""
        self._slot.free()
        self.delivery.leave(self)
        self._feeds.clear()


def _published(ticket: Ticket) -> None:
    publishing: Publishing = ticket.context
    if ticket.error is not None:
        publishing.fail(ticket.error)
    else:
        publishing.socket.published()
        publishing.socket.acknowledge(publishing, ticket)
