"""WebSocket frames without a socket: what is held of a message counts, and has to move."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.harness.connection import FakeTransport
from tests.harness.loop import ManualLoop
from topics.server.delivery.frame_link import FrameLink
from topics.server.http.account import Account
from topics.server.http.traffic import Traffic
from topics.server.http.turns import Turns
from topics.settings import Settings
from topics.testing import ManualClock

BEGIN = b"\x81\xff" + (6 << 20).to_bytes(8) + b"\0\0\0\0"


class Socket:
    """One FrameLink, and what its owner was given."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.loop = ManualLoop(clock)
        self.account = Account()
        self.transport = FakeTransport()
        self.received: list[bytes] = []
        owner = SimpleNamespace(full=False, receive=self.received.append, over=lambda: None)
        loop = cast("Any", self.loop)
        turns = Turns(loop, clock.elapsed_ns)
        self.link = FrameLink(cast("Any", owner), loop, turns, self.account, self.transport, Settings(), Traffic())

    def take(self, data: bytes) -> None:
        self.link.data_received(data)
        self.loop.run_until_idle()


def test_what_has_arrived_of_a_message_counts_until_it_is_whole() -> None:
    """FAIR-3."""
    socket = Socket()
    socket.take(b"\x81\xff" + (200_000).to_bytes(8) + b"\0\0\0\0" + b" " * 150_000)
    assert socket.account.bodies_bytes > 150_000
    socket.take(b" " * 50_000)
    assert len(socket.received) == 1
    assert socket.account.total_bytes == 0


def test_a_large_message_that_stands_still_ends_the_connection() -> None:
    """FAIR-5: it may not hold its place for ever, even if the client answers pings."""
    socket = Socket()
    socket.take(BEGIN + b" " * 500_000)
    socket.link.give_up_message()
    socket.take(b" " * 500_000)
    socket.link.give_up_message()
    assert not socket.transport.eof_sent
    socket.link.give_up_message()
    assert socket.transport.eof_sent
    assert b"too slowly" in socket.transport.sent
    assert socket.account.total_bytes == 0


def test_what_a_closed_connection_still_sends_is_thrown_away_and_bounded() -> None:
    socket = Socket()
    socket.take(b"\x82\x81\0\0\0\0x")
    assert socket.transport.eof_sent
    socket.take(b" " * 1_000_000)
    assert not socket.transport.aborted
    socket.take(b" " * 4_000_000)
    assert socket.transport.aborted
