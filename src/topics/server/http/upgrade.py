"""Upgraded: a protocol that takes a connection over from HTTP/1.1, and the relay that keeps the connection counted.

The transport calls the new protocol as directly as it can. The end of the connection passes through `Relay`, so that
the set of live connections stays true whatever the protocol does. So does every read, which has its bound there: one
turn of the loop may find something to read on every connection, and a read takes time before anybody can say that it
has to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from topics.errors import TopicsError
from topics.server.http.head import Head

READ_MAX_BYTES: Final = 32 * 1024
_buffer: Final = memoryview(bytearray(READ_MAX_BYTES))
"""What is read goes through here, for all connections: the loop has one thread, and nothing is left here."""


class Upgraded(asyncio.Protocol):
    """A protocol for a transport that is already there; `connection_made` is not called."""

    __slots__ = ()

    def shut_down(self) -> None:
        """The server stops: say goodbye and close the transport."""
        raise NotImplementedError

    def revoke(self, is_revoked: Callable[[Head], bool], error: TopicsError) -> None:
        """Keys have changed: end the requests whose head is revoked. What is no request is ended by its owner."""
        return

    def expire(self, now: float) -> None:
        """A deadline that this protocol set on its connection has passed."""


Upgrade = Callable[[asyncio.Transport], Upgraded]
"""Makes the protocol that takes a transport over; whatever was already received follows as `data_received`."""


class Relay:
    """The callbacks of an upgraded connection."""

    __slots__ = ("_depart", "_on_lost", "_protocol", "data_received", "pause_writing", "resume_writing")

    def __init__(
        self, protocol: Upgraded, on_lost: Callable[[Exception | None], None], depart: Callable[[], None]
    ) -> None:
        """`depart` closes the connection when it is its turn."""
        self._protocol = protocol
        self._on_lost = on_lost
        self._depart = depart
        self.data_received = protocol.data_received
        self.pause_writing = protocol.pause_writing
        self.resume_writing = protocol.resume_writing

    def get_buffer(self, _: int) -> memoryview:
        """Where the transport is to put what it reads."""
        return _buffer

    def buffer_updated(self, count: int) -> None:
        """So many bytes arrived."""
        self.data_received(bytes(_buffer[:count]))

    def eof_received(self) -> bool:
        """The client sends nothing more."""
        if not self._protocol.eof_received():
            self._depart()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        try:
            self._protocol.connection_lost(exc)
        finally:
            self._on_lost(exc)
