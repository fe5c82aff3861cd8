"""Sessions: the watch sessions of one server (WATCH-1 to WATCH-4).

A session is a subscription with a name that cannot be guessed, the key it belongs to, and the position of its last
stream in every topic. It lives as long as it has a stream, and `ttl_ms` beyond that. Overdue sessions are looked for
whenever one is made or opened; those without a stream are kept in the order in which they lost it, so that looking
costs nothing where there is nothing to do. How many there may be has a cap, and so has what all of them take.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Final

from msgspec import Struct, field

from topics.errors import NotFound
from topics.server.api.principal import Principal
from topics.server.delivery.composite import Layout, Position
from topics.server.delivery.sse import SseStream
from topics.server.delivery.view import View
from topics.server.flow.slots import Cap, Slot

WID_BYTES: Final = 16
SESSION_BYTES: Final = 1024
TOPIC_BYTES: Final = 320
"""About what a session, and each topic of it, takes in memory besides names."""


class Session(Struct, eq=False):
    """One subscription: which topics, how, for whom, and how far."""

    principal: Principal
    layout: Layout
    views: list[View]
    heartbeat_ms: int
    epochs: list[int]
    """The epochs with which the session began: an id that names none means these."""
    positions: list[Position]
    """Where the next stream begins, per topic of the layout, if its client does not say."""
    flushed: list[Position]
    """How far the last stream was written: no id can be further than that."""
    wid: str = field(default_factory=lambda: "wid_" + secrets.token_urlsafe(WID_BYTES))
    stream: SseStream | None = None
    idle_since_ms: int = 0

    def rewound(self, id: bytes) -> list[Position]:
        """The positions of the session, moved back, never forward, to those of `id` (WATCH-17)."""
        named = self.layout.decode(id)
        positions = list(self.flushed)
        for i, name in enumerate(self.layout.names):
            position = named.get(name)
            if position is None:
                continue
            epoch = self.epochs[i] if position.epoch is None else position.epoch
            if epoch != positions[i].epoch or position.seq < positions[i].seq:
                positions[i] = Position(position.seq, epoch)
        return positions


class Sessions:
    """Every session there is."""

    def __init__(self, cap: Cap, cap_bytes: Cap, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self._cap = cap
        self._cap_bytes = cap_bytes
        self._by_wid: dict[str, tuple[Session, tuple[Slot, Slot]]] = {}
        self._idle: OrderedDict[Session, None] = OrderedDict()

    def add(self, session: Session, tick_ms: int) -> None:
        """Take a session that has no stream yet; raises Throttled where there are too many. `collect` first."""
        layout = session.layout
        # Where ids name the topics, each name is kept once more as they spell it.
        spelled_bytes = sum(map(len, layout.names)) if layout.named else 0
        size = SESSION_BYTES + TOPIC_BYTES * len(layout.names) + spelled_bytes
        slots = self._cap.take(), self._cap_bytes.take(size)
        self._by_wid[session.wid] = (session, slots)
        self.rest(session, tick_ms)

    def find(self, wid: str, tick_ms: int) -> Session:
        """The session of this name; raises NotFound."""
        self.collect(tick_ms)
        found = self._by_wid.get(wid)
        if found is None:
            raise NotFound("the watch session is unknown or has expired; POST /v0/watch again")
        return found[0]

    def use(self, session: Session) -> None:
        """The session has a stream: it is not reclaimed."""
        self._idle.pop(session, None)

    def rest(self, session: Session, tick_ms: int) -> None:
        """The session has no stream: its time runs from now on."""
        session.idle_since_ms = tick_ms
        self._idle[session] = None
        self._idle.move_to_end(session)

    def collect(self, tick_ms: int) -> None:
        """Reclaim the sessions that have been without a stream for too long."""
        while self._idle:
            session = next(iter(self._idle))
            if tick_ms - session.idle_since_ms <= self.ttl_ms:
                return
            del self._idle[session]
            for slot in self._by_wid.pop(session.wid)[1]:
                slot.free()
