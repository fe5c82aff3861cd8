"""SseStream: one open `GET /v0/watch/:wid` (the WATCH rules).

Every event carries an `id` with the stream's position in every watched topic. The stream owns those positions while it
is open and hands them to its session when it ends: as far as they were written or, where the client was slow to read,
as far as its socket is known to have taken them. So a client that comes back without a `Last-Event-ID` finds nothing
skipped that was still waiting here to be sent. A heartbeat has no id and moves no cursor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from topics.errors import TopicsError
from topics.server.api.principal import Principal
from topics.server.delivery.composite import Layout, Position
from topics.server.delivery.delivery import Delivery
from topics.server.delivery.event_stream import RETRY, EventStream
from topics.server.delivery.notice import Notice
from topics.server.delivery.subscriber import Feed
from topics.server.http.account import Share
from topics.server.http.stream import Stream

_UNDO_MAX: Final = 2 * 8
"""How much of what was sent, two numbers each, is remembered before a look whether the socket has taken all of it."""


OnEnd = Callable[["SseStream"], None]


class SseStream(EventStream):
    """One open stream of a watch session."""

    kind = "watch"
    __slots__ = ("_alone", "_feeds", "_left", "_on_end", "_undo", "epochs", "layout")

    def __init__(
        self,
        delivery: Delivery,
        stream: Stream,
        layout: Layout,
        epochs: dict[int, int],
        principal: Principal,
        heartbeat_ms: int,
        on_end: OnEnd,
    ) -> None:
        super().__init__(delivery, stream, principal, heartbeat_ms, "watch")
        self.layout = layout
        self.epochs = epochs
        """The epochs of topics, by index, that are not those the session began with."""
        self._left: dict[int, int] = {}
        self._on_end = on_end
        self._alone = len(layout.names) == 1
        self._feeds: list[Feed] = []
        # Index and cursor before each send, in turn: a tuple for each would be work for the garbage collector.
        self._undo: list[int] = []
        stream.can_wait = True

    def open(self, feeds: list[Feed]) -> None:
        """Begin: these are the feeds, one per topic of the layout, in its order."""
        self._feeds = feeds
        self.greet(RETRY)

    def enter(self, index: int, epoch: int, began: int) -> None:
        """The next thing sent about a topic is from this epoch of it; the session began in the epoch `began`."""
        left = self.epochs.get(index, began)
        if left == epoch:
            return
        self._left[index] = left
        if epoch == began:
            del self.epochs[index]
        else:
            self.epochs[index] = epoch

    def feeds(self) -> list[Feed]:
        """The feeds of this stream."""
        return self._feeds

    def send(self, feed: Feed, notice: Notice) -> None:
        """Write the notice as an event with the id of the position after it."""
        undo = self._undo
        if len(undo) >= _UNDO_MAX and not self.stream.buffered:
            undo.clear()
            self._left.clear()
        undo.append(feed.index)
        undo.append(feed.cursor)
        feed.cursor = notice.cursor
        self.last_ms = self.delivery.tick_ms
        if self._alone and not self.epochs:
            frame = notice.alone
            if frame is None:
                id = self.layout.encode((notice.cursor,), self.epochs)
                frame = notice.alone = b"id: %b\n%b" % (id, notice.event)
        else:
            id = self.layout.encode([each.cursor for each in self._feeds], self.epochs)
            if notice.shared is None:
                notice.shared = {}
            frame = notice.shared.get(id)
            if frame is None:
                frame = notice.shared[id] = b"id: %b\n%b" % (id, notice.event)
        self.stream.write(frame)
        if self.link.write_paused:
            self._hold(notice, frame)

    def _hold(self, notice: Notice, frame: bytes) -> None:
        """Account for a frame that the transport has not taken; those of one notice that are the same count once."""
        share = notice.alone_share if frame is notice.alone else None
        if share is None:
            share = Share(self.delivery.account, len(frame))
            if frame is notice.alone:
                notice.alone_share = share
        self.keep(share)

    def unreadable(self, feed: Feed, error: TopicsError) -> None:
        """End the stream; the session's position is before what could not be read."""
        self.finish(error.status, error.message)

    def received(self, began: list[int]) -> list[Position]:
        """How far the client's socket is known to have come in every topic; `began` are the epochs of the session."""
        cursors = [feed.cursor for feed in self._feeds]
        epochs = self.epochs
        if self.stream.untaken:
            for at in range(len(self._undo) - 2, -1, -2):
                index, cursor = self._undo[at : at + 2]
                cursors[index] = cursor
            # A seq means something in its own epoch only, so both are taken back together.
            epochs = epochs | self._left
        return [Position(cursor, epochs.get(i, began[i])) for i, cursor in enumerate(cursors)]

    def _closed(self) -> None:
        self._on_end(self)
        super()._closed()
        # Feeds know their stream: the two would keep each other until the garbage collector finds them.
        self._feeds, self._undo = [], []
