"""The watch endpoints: `POST /v0/watch` makes a session, `GET /v0/watch/:wid` streams it (API §7).

Where a stream begins, in this order: where the session stands; moved back, never forward, to the `Last-Event-ID` that
the client sends; and where the session began if no stream was ever opened.

A session has one stream at a time, and the newest GET has it. A client often comes back before the server has noticed
that its old connection is dead. Then what was written to the old stream may never have arrived: without a
`Last-Event-ID` the new stream begins where the old one did, so that nothing is skipped. If the old connection was
closed by the client, and only its end was not looked at yet, that is the ordinary case, and the session's position
counts.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from topics.engine.requests import U32, U64
from topics.errors import InvalidRequest, NotAcceptable, TopicNotFound, Unauthorized
from topics.names import check_topic_name, printable_name
from topics.server.api.bodies import Body
from topics.server.api.handlers import answer
from topics.server.delivery import part as parts
from topics.server.delivery.composite import Layout, Position
from topics.server.delivery.sessions import Session, Sessions
from topics.server.delivery.sse import HEADERS, SseStream
from topics.server.delivery.subscriber import Feed
from topics.server.delivery.view import BATCH_BYTES_DEFAULT, View, view_of

if TYPE_CHECKING:
    from topics.engine import Engine
    from topics.engine.topic import Topic
    from topics.server.app import Route
    from topics.server.auth import Principal
    from topics.server.delivery.delivery import Delivery
    from topics.server.http.exchange import Exchange
    from topics.server.limits import Limits, Slot
    from topics.settings import Settings

HEARTBEAT_MS_DEFAULT: Final = 15_000
HEARTBEAT_MS_MIN: Final = 1_000
HEARTBEAT_MS_MAX: Final = 60_000


class TopicWatch(Struct):
    """How one topic is watched."""

    from_seq: U64 = 0
    tail: bool = False
    from_ts: U64 | None = None
    match: Any = None


class Options(Struct):
    """What applies to every topic of a subscription, on SSE and WebSocket alike."""

    node: str | list[str] | None = None
    limit: U32 = 0
    max_batch_bytes: U64 = BATCH_BYTES_DEFAULT
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    consistency: Literal["eventual", "strong"] = "eventual"


class WatchRequest(Options, kw_only=True):
    """The body of `POST /v0/watch`."""

    topics: Annotated[dict[str, TopicWatch], Meta(min_length=1)]
    heartbeat_ms: U64 = HEARTBEAT_MS_DEFAULT
    cursor: str | None = None


class Watched(Struct):
    """What the answer says of one topic."""

    from_seq: int
    head_seq: int
    earliest_seq: int


_topic_watch: Final = Body(TopicWatch)


def check_topics(topics: dict[str, TopicWatch]) -> None:
    """Raise InvalidRequest where a number of a topic's options is no u64."""
    for name, asked in topics.items():
        _topic_watch.check_range(asked, f"topics.{printable_name(name)}.")


class WatchBody(Body[WatchRequest]):
    """Decodes `POST /v0/watch`."""

    __slots__ = ()

    def check_range(self, decoded: WatchRequest, within: str = "") -> None:
        """Raise InvalidRequest where a number is no u64, also of a topic."""
        super().check_range(decoded, within)
        check_topics(decoded.topics)

    def _may_repeat(self, body: bytes, decoded: WatchRequest) -> bool:
        """Always worth a closer look: the same topic may be named twice."""
        return True


_body: Final = WatchBody(WatchRequest)


def check_names(names: dict[str, TopicWatch], principal: Principal, topics_max: int) -> None:
    """Refuse too many topics, bad names, and names outside the key's prefixes."""
    if len(names) > topics_max:
        raise InvalidRequest(
            f"{len(names)} topics are too many for one subscription; at most {topics_max}",
            field="topics",
            limit="max_watch_topics",
            max=topics_max,
        )
    for name in names:
        check_topic_name(name)
        principal.require_name(name)


def view_for(options: Options, topic: TopicWatch, limit_max: int) -> View:
    """The view that these options ask for."""
    return view_of(
        limit=options.limit,
        limit_max=limit_max,
        max_batch_bytes=options.max_batch_bytes,
        node=options.node,
        include_data=options.include_data,
        include_tags=options.include_tags,
        include_meta=options.include_meta,
        strong=options.consistency == "strong",
        match=topic.match,
    )


def cursor_for(asked: TopicWatch, topic: Topic) -> int:
    """Where a subscription to this topic begins."""
    if asked.tail:
        return topic.log.head
    if asked.from_ts is not None:
        return max(asked.from_seq, topic.log.cursor_at_ts(asked.from_ts))
    return asked.from_seq


def _cursor_of(request: WatchRequest, layout: Layout) -> dict[str, Position]:
    """The positions that `cursor` names; it may have been given out when topics that are gone now were still there."""
    assert request.cursor is not None
    try:
        return layout.decode(request.cursor)
    except InvalidRequest:
        if len(layout.names) == len(request.topics):
            raise
    found = Layout(list(request.topics)).decode(request.cursor)
    return {name: position for name, position in found.items() if name in layout.names}


class Watch:
    """Answers the watch routes."""

    def __init__(self, engine: Engine, delivery: Delivery, limits: Limits, settings: Settings) -> None:
        self._engine = engine
        self._delivery = delivery
        self._limits = limits
        self._settings = settings
        self.sessions = Sessions(limits.watch_sessions, settings.session_ttl_ms)

    def create_watch(self, exchange: Exchange) -> None:
        """`POST /v0/watch`."""
        route: Route = exchange.head.route
        request = _body(exchange.body)
        check_names(request.topics, route.principal, self._settings.max_watch_topics)
        lenient = route.query.flag("lenient", False)
        topics = {name: self._engine.topics.get(name) for name in request.topics}
        for name, topic in topics.items():
            if topic is None and not lenient:
                raise TopicNotFound(f'topic "{printable_name(name)}" does not exist', topic=printable_name(name))
        found = {name: topic for name, topic in topics.items() if topic is not None}
        layout = Layout(list(found))
        limit_max = self._settings.max_limit
        views = [view_for(request, request.topics[name], limit_max) for name in layout.names]
        positions = [Position(cursor_for(request.topics[name], found[name]), None) for name in layout.names]
        if request.cursor is not None:
            for name, position in _cursor_of(request, layout).items():
                positions[layout.names.index(name)] = position
        heartbeat_ms = max(HEARTBEAT_MS_MIN, min(HEARTBEAT_MS_MAX, request.heartbeat_ms))
        self._delivery.refresh()
        session = self.sessions.create(route.principal, layout, views, heartbeat_ms, self._delivery.tick_ms)
        session.epochs = [found[name].id for name in layout.names]
        session.positions = [
            Position(position.seq, found[name].id if position.epoch is None else position.epoch)
            for name, position in zip(layout.names, positions, strict=True)
        ]
        session.flushed = session.positions
        self._answer_created(exchange, session, found)

    def _answer_created(self, exchange: Exchange, session: Session, found: dict[str, Topic]) -> None:
        where = dict(zip(session.layout.names, session.positions, strict=True))
        watched = {}
        for name, topic in found.items():
            topic.expire(self._delivery.now_ms)
            watched[name] = Watched(where[name].seq, topic.log.head, topic.log.start)
        body = {
            "wid": session.wid,
            "stream_url": f"/v0/watch/{session.wid}",
            "session_ttl_ms": self.sessions.ttl_ms,
            "topics": watched,
        }
        answer(exchange, 200, body)

    def open_watch(self, exchange: Exchange) -> None:
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
            exchange.respond(200, b"", b"text/event-stream; charset=utf-8")
            return
        old = session.stream
        if old is not None:
            # The old stream ends here, and where it stood is the session's position unless that cannot be trusted.
            began = session.positions
            gone = _closed_by_client(old)
            old.finish(410, "the session was taken over by a newer stream")
            session.stream = None
            if rewound is not None:
                rewound = session.rewound(id)
            elif not gone:
                session.positions = began
        slots = self._limits.take_stream(session.principal)
        positions = session.positions if rewound is None else rewound
        stream = exchange.stream(200, HEADERS)
        if stream.closed:
            for slot in slots:
                slot.free()
            return
        self._begin(session, stream, positions, slots)

    def _begin(self, session: Session, stream: Any, positions: list[Position], slots: list[Slot]) -> None:
        def on_end(ended: SseStream) -> None:
            for slot in slots:
                slot.free()
            if session.stream is ended:
                self._ended(session, ended)

        names = session.layout.names
        opened = SseStream(self._delivery, stream, session.layout, session.heartbeat_ms, on_end)
        opened.epochs = {
            i: epoch for i, (_, epoch) in enumerate(positions) if epoch is not None and epoch != session.epochs[i]
        }
        feeds = [
            Feed(opened, i, position.seq, view)
            for i, (position, view) in enumerate(zip(positions, session.views, strict=True))
        ]
        session.stream = opened
        session.positions = positions
        self.sessions.use(session)
        opened.open(feeds)
        for feed, name, position in zip(feeds, names, positions, strict=True):
            topic = self._engine.topics.get(name)
            if topic is None:
                opened.send(feed, parts.topic_deleted(name.encode(), feed.cursor))
                continue
            opened.enter(feed.index, topic.id, session.epochs[feed.index])
            self._delivery.follow(feed, topic, position.epoch)

    def _ended(self, session: Session, stream: SseStream) -> None:
        """A stream is over: the session stands where the client's socket is known to have come."""
        session.stream = None
        epochs = [stream.epochs.get(i, epoch) for i, epoch in enumerate(session.epochs)]
        session.positions = stream.settled(session.epochs)
        session.flushed = [Position(feed.cursor, epoch) for feed, epoch in zip(stream.feeds(), epochs, strict=True)]
        self._delivery.refresh()
        self.sessions.rest(session, self._delivery.tick_ms)


def require_event_stream(exchange: Exchange) -> None:
    """Refuse a client that says it takes something else than text/event-stream (API §7.6)."""
    accept = exchange.head.headers.get(b"accept")
    if accept is None or not accept.strip():
        return
    for item in accept.lower().split(b","):
        kind, *parameters = (each.strip() for each in item.split(b";"))
        refused = any(each.replace(b" ", b"") in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000") for each in parameters)
        if kind in (b"text/event-stream", b"text/*", b"*/*") and not refused:
            return
    raise NotAcceptable(
        "this address streams text/event-stream; say so in Accept", accept=accept[:200].decode("latin-1")
    )


def _closed_by_client(stream: SseStream) -> bool:
    """Whether the client has closed the stream's connection and only the loop has not come to it yet."""
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
