"""Upgraded: a protocol that takes a connection over from HTTP/1.1, and the relay that keeps the connection counted.

The transport calls the new protocol directly, without a detour per read. Only the end of the connection passes through
`Relay`, so that the set of live connections stays true whatever the protocol does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Upgraded(Protocol):
    """The callbacks of `asyncio.Protocol` for a transport that is already there, and how the protocol is stopped."""

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""

    def eof_received(self) -> bool | None:
        """The peer closed its sending side; a true result keeps the transport open."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""

    def pause_writing(self) -> None:
        """The peer does not read what was written."""

    def resume_writing(self) -> None:
        """The peer has caught up."""

    def shut_down(self) -> None:
        """The server stops: say goodbye and close the transport."""

    def expire(self, now: float) -> None:
        """A deadline that this protocol set on its connection has passed."""


Upgrade = Callable[[asyncio.Transport], Upgraded]
"""Makes the protocol that takes a transport over; whatever was already received follows as `data_received`."""


class Relay:
    """The callbacks of an upgraded connection."""

    __slots__ = ("_on_lost", "_protocol", "data_received", "eof_received", "pause_writing", "resume_writing")

    def __init__(self, protocol: Upgraded, on_lost: Callable[[Exception | None], None]) -> None:
        self._protocol = protocol
        self._on_lost = on_lost
        self.data_received = protocol.data_received
        self.eof_received = protocol.eof_received
        self.pause_writing = protocol.pause_writing
        self.resume_writing = protocol.resume_writing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Never called: the transport was made before it was handed over."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        try:
            self._protocol.connection_lost(exc)
        finally:
            self._on_lost(exc)
