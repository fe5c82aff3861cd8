"""The watch endpoints: `POST /v0/watch` makes a session, `GET /v0/watch/:wid` streams it (the WATCH rules).

A stream begins at the session's position, moved back, never forward, to the `Last-Event-ID` that the client sends. A
session that never had a stream is where it began.

A session has one stream at a time, and the newest GET has it. A client often comes back before the server has noticed
that its old connection is dead. Then what was written to the old stream may never have arrived: without a
`Last-Event-ID` the new stream begins where the old one did, so that nothing is skipped. If the client had closed the
old connection, and the server just had not processed that yet, the session's position counts as usual.
"""

from __future__ import annotations

import os
import socket
from typing import Annotated, Final

from msgspec import Meta, Struct

from topics.engine import Engine
from topics.engine.requests import U64
from topics.engine.topic import Topic
from topics.errors import InvalidRequest, TopicNotFound, Unauthorized
from topics.names import printable_name
from topics.server.api.answers import answer
from topics.server.api.bodies import Body
from topics.server.api.route import Route
from topics.server.delivery import notice as notices
from topics.server.delivery.composite import Layout, Position
from topics.server.delivery.delivery import Delivery
from topics.server.delivery.event_stream import CONTENT_TYPE, HEADERS, HEARTBEAT_MS_DEFAULT, require_event_stream
from topics.server.delivery.sessions import Session, Sessions
from topics.server.delivery.sse import SseStream
from topics.server.delivery.subscriber import Feed
from topics.server.delivery.subscription import TopicWatch, Watched, check_count, check_names, check_numbers, cursor_for
from topics.server.delivery.view import WatchOptions, view_of
from topics.server.flow.slots import Slot, Slots
from topics.server.http.exchange import Exchange
from topics.server.http.stream import Stream
from topics.settings import Settings

HEARTBEAT_MS_MIN: Final = 1_000
HEARTBEAT_MS_MAX: Final = 60_000


class WatchRequest(WatchOptions, kw_only=True):
    """The body of `POST /v0/watch`."""

    topics: Annotated[dict[str, TopicWatch], Meta(min_length=1)]
    heartbeat_ms: U64 = HEARTBEAT_MS_DEFAULT
    cursor: str | None = None


class WatchCreated(Struct, frozen=True):
    """A session over these topics, for one stream at a time."""

    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, Watched]


class WatchBody(Body[WatchRequest]):
    """Decodes `POST /v0/watch`."""

    __slots__ = ("_topics_max",)

    def __init__(self, topics_max: int) -> None:
        super().__init__(WatchRequest)
        self._topics_max = topics_max

    def check(self, body: bytes, decoded: WatchRequest) -> None:
        """As for others; too many topics are refused before any of them is looked at."""
        check_count(decoded.topics, self._topics_max)
        super().check(body, decoded)

    def check_range(self, decoded: WatchRequest, within: str = "") -> None:
        """Raise InvalidRequest where a number is no u64, also in the options of a topic."""
        super().check_range(decoded, within)
        check_numbers(decoded.topics)

    def _may_repeat(self, body: bytes, decoded: WatchRequest) -> bool:
        """Always worth a closer look: the same topic may be named twice."""
        return True


def _cursor_of(request: WatchRequest, layout: Layout) -> dict[str, Position]:
    """The positions that `cursor` names; it may come from a time when topics that are gone now still existed."""
    assert request.cursor is not None
    try:
        return layout.decode(request.cursor)
    except InvalidRequest as error:
        try:
            found = Layout(list(request.topics)).decode(request.cursor)
        except InvalidRequest:
            error.detail["field"] = "cursor"
            raise error from None
    return {name: position for name, position in found.items() if name in layout.names}


class WatchHandlers:
    """Answers the watch routes."""

    def __init__(self, engine: Engine, delivery: Delivery, slots: Slots, settings: Settings) -> None:
        self._engine = engine
        self._delivery = delivery
        self._slots = slots
        self._body = WatchBody(settings.max_watch_topics)
        self._topics_max = settings.max_watch_topics
        self._limit_max = settings.max_limit
        self.sessions = Sessions(slots.watch_sessions, slots.subscription_bytes, settings.session_ttl_ms)

    def create(self, exchange: Exchange) -> None:
        """`POST /v0/watch`."""
        route: Route = exchange.head.route
        request = self._body(exchange.body)
        check_names(request.topics, route.principal, self._topics_max)
        lenient = route.query.flag("lenient", False)
        topics = {name: self._engine.topics.get(name) for name in request.topics}
        for name, topic in topics.items():
            if topic is None and not lenient:
                raise TopicNotFound(f'topic "{printable_name(name)}" does not exist', topic=printable_name(name))
        found = {name: topic for name, topic in topics.items() if topic is not None}
        # The names that the topics have already, not once more as this request spelled them.
        layout = Layout([topic.name for topic in found.values()])
        self._delivery.refresh()
        # Before anything is made: where a Block has to be read for it, the request is handled from the start again.
        for topic in found.values():
            topic.expire(self._delivery.now_ms)
        # First, because the filters of sessions that are over may hold the room that these need.
        self.sessions.collect(self._delivery.tick_ms)
        cap = self._slots.subscription_bytes
        # Those of topics that are skipped too: what they ask for must be valid.
        views = {name: view_of(request, self._limit_max, asked.match, cap) for name, asked in request.topics.items()}
        positions = [Position(cursor_for(request.topics[name], found[name]), None) for name in layout.names]
        if request.cursor is not None:
            for name, position in _cursor_of(request, layout).items():
                positions[layout.names.index(name)] = position
        epochs = [found[name].id for name in layout.names]
        heartbeat_ms = max(HEARTBEAT_MS_MIN, min(HEARTBEAT_MS_MAX, request.heartbeat_ms))
        began = [
            Position(position.seq, epoch if position.epoch is None else position.epoch)
            for position, epoch in zip(positions, epochs, strict=True)
        ]
        session = Session(
            route.principal, layout, [views[name] for name in layout.names], heartbeat_ms, epochs, began, began
        )
        self.sessions.add(session, self._delivery.tick_ms)
        self._answer_created(exchange, session, found)

    def _answer_created(self, exchange: Exchange, session: Session, found: dict[str, Topic]) -> None:
        where = dict(zip(session.layout.names, session.positions, strict=True))
        watched = {}
        for name, topic in found.items():
            watched[name] = Watched(where[name].seq, topic.log.head, topic.log.start)
        created = WatchCreated(session.wid, f"/v0/watch/{session.wid}", self.sessions.ttl_ms, watched)
        answer(exchange, 200, created)

    def open(self, exchange: Exchange) -> None:
        """`GET /v0/watch/:wid`."""
        route: Route = exchange.head.route
        self._delivery.refresh()
        session = self.sessions.find(route.name, self._delivery.tick_ms)
        if session.principal is not route.principal:
            raise Unauthorized("this watch session belongs to another key: present the one that created it")
        require_event_stream(exchange)
        id = exchange.head.headers.get(b"last-event-id", b"").strip()
        rewound = session.rewound(id) if id else None
        if exchange.head.method == "HEAD":
            exchange.respond(200, b"", CONTENT_TYPE)
            return
        old = session.stream
        if old is not None:
            # The old stream ends here, and its position is the session's unless that cannot be trusted.
            began = session.positions
            gone = _closed_by_client(old)
            old.finish(410, "the session was taken over by a newer stream")
            session.stream = None
            if rewound is not None:
                rewound = session.rewound(id)
            elif not gone:
                session.positions = began
        slot = self._slots.take_stream(session.principal)
        positions = session.positions if rewound is None else rewound
        stream = exchange.stream(200, HEADERS)
        if stream.closed:
            slot.free()
        else:
            self._begin(session, stream, positions, slot)

    def _begin(self, session: Session, stream: Stream, positions: list[Position], slot: Slot) -> None:
        def on_end(ended: SseStream) -> None:
            slot.free()
            if session.stream is ended:
                self._ended(session, ended)

        epochs = {
            i: epoch for i, (_, epoch) in enumerate(positions) if epoch is not None and epoch != session.epochs[i]
        }
        opened = SseStream(
            self._delivery, stream, session.layout, epochs, session.principal, session.heartbeat_ms, on_end
        )
        feeds = [
            Feed(opened, i, position.seq, view)
            for i, (position, view) in enumerate(zip(positions, session.views, strict=True))
        ]
        session.stream = opened
        session.positions = positions
        self.sessions.use(session)
        opened.open(feeds)
        for feed, name, position in zip(feeds, session.layout.names, positions, strict=True):
            topic = self._engine.topics.get(name)
            if topic is None:
                opened.send(feed, notices.topic_deleted(name.encode(), feed.cursor))
                continue
            opened.enter(feed.index, topic.id, session.epochs[feed.index])
            self._delivery.follow(feed, topic, position.epoch)

    def _ended(self, session: Session, stream: SseStream) -> None:
        """A stream is over: the session's position is what the client's socket is known to have taken."""
        session.stream = None
        epochs = [stream.epochs.get(i, epoch) for i, epoch in enumerate(session.epochs)]
        session.positions = stream.received(session.epochs)
        session.flushed = [Position(feed.cursor, epoch) for feed, epoch in zip(stream.feeds(), epochs, strict=True)]
        self._delivery.refresh()
        self.sessions.rest(session, self._delivery.tick_ms)


def _closed_by_client(stream: SseStream) -> bool:
    """Whether the client has closed the stream's connection, and the server has just not come to that yet."""
    if stream.stream.lost:
        return True
    transport = stream.stream.sink.transport
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is None:
        return False
    try:
        with socket.socket(fileno=os.dup(sock.fileno())) as peeked:
            return peeked.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
