"""Stands between a transport and the protocol that took a connection over.

The transport calls the new protocol directly, without a detour per read; only the end of the connection passes through
here, so that the set of live connections stays true whatever the protocol does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from topics.server.http.connection import Connection
    from topics.server.http.exchange import Upgraded


class Relay:
    """The callbacks of an upgraded connection."""

    __slots__ = ("_connection", "_protocol", "data_received", "eof_received", "pause_writing", "resume_writing")

    def __init__(self, connection: Connection, protocol: Upgraded) -> None:
        self._connection = connection
        self._protocol = protocol
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
            self._connection.connection_lost(exc)
