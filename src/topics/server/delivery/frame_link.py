"""FrameLink: WebSocket frames over one transport. Whole text messages in, framed messages out, and bounds on both.

The protocol itself (frames, masks, fragments, pings, closing) is the sans-IO protocol of `websockets`.

Out: the queue is the transport's, as for every subscriber. Messages of one turn of the loop leave in one write.

In: what was received is looked at in small pieces, which share a turn of the loop with every other connection
(`Turns`), so that a flood of tiny frames costs only its sender; one that goes on ends the connection (`Credit`). The
size of a message is bounded, however it is fragmented (`message_bytes_max`). While something waits, the client does not
read, or its owner is full, nothing more is read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from topics.errors import TopicsError
from topics.server.http.account import LIMIT, SMALL_BYTES, Account, Hold
from topics.server.http.connection import LINGER_MAX_BYTES
from topics.server.http.credit import ANSWER_EARNS, Credit, Overdrawn
from topics.server.http.traffic import Traffic
from topics.server.http.turns import LIGHT_MAX_BYTES, Place, Turns
from topics.server.http.upgrade import Upgraded
from topics.settings import Settings

if TYPE_CHECKING:
    from topics.server.delivery.websocket import WebSocket

# The library logs every connection; what goes wrong in one is reported to its client.
quiet: Final = logging.getLogger("topics.websocket.protocol")
quiet.setLevel(logging.CRITICAL)

OUTBOX_BYTES_MAX: Final = 16 * 1024
PIECE_BYTES: Final = 256
"""Some 40 of the smallest frames."""
PIECE_BYTES_MAX: Final = 256 * 1024
MESSAGE_BYTES_MAX: Final = 8 << 20


def message_bytes_max(settings: Settings) -> int:
    """The largest message: it is unmasked and joined in one go, so it may not be as large as the body of a request."""
    wanted = max(MESSAGE_BYTES_MAX, settings.max_record_bytes + settings.max_command_bytes)
    return min(settings.max_body_bytes, wanted)


class _Gone:
    """Stands in for the WebSocket of a connection that is lost: nothing keeps it in memory."""

    full: Final = False

    def receive(self, text: bytes) -> None:
        """A message arrived."""

    def refuse(self, error: TopicsError, request_id: object) -> None:
        """Report an error."""

    def drained(self) -> None:
        """The client reads again."""

    def over(self) -> None:
        """The connection is gone."""


GONE: Final = _Gone()


def untie(protocol: ServerProtocol) -> None:
    """End a protocol that is not needed any more: it knows itself, and would wait for the garbage collector."""
    protocol.parser.close()
    vars(protocol).clear()


class FrameLink(Upgraded):
    """The frames of one client, see the module."""

    __slots__ = (
        "_account", "_buffer", "_close_timeout_s", "_closing", "_credit", "_fragments", "_hold", "_linger_left",
        "_loop", "_outbox", "_outbox_bytes", "_owner", "_partial_bytes", "_place", "_protocol", "_reading",
        "_stopping", "_traffic", "_transport", "closed", "heard", "write_paused",
    )  # fmt: skip

    def __init__(
        self,
        owner: WebSocket,
        loop: asyncio.AbstractEventLoop,
        turns: Turns,
        account: Account,
        transport: asyncio.Transport,
        settings: Settings,
        traffic: Traffic,
    ) -> None:
        self.closed = False
        self.write_paused = False
        self.heard = True
        """Whether anything arrived since the owner last cleared this."""
        self._owner: WebSocket | _Gone = owner
        self._loop = loop
        self._place = Place(turns, self._take)
        self._account = account
        self._credit = Credit(turns.clock_ns)
        self._hold = Hold(account)
        # What has arrived of a frame that is not complete.
        self._partial_bytes = 0
        self._transport = transport
        self._close_timeout_s = settings.write_timeout_ms / 1000
        self._protocol = ServerProtocol(state=State.OPEN, max_size=message_bytes_max(settings), logger=quiet)
        self._buffer = bytearray()
        self._fragments: bytearray | None = None
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._reading = True
        self._closing: asyncio.TimerHandle | None = None
        self._linger_left = LINGER_MAX_BYTES
        self._stopping = False
        self._traffic = traffic
        traffic.websockets += 1

    # In

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        self._traffic.websocket_bytes += len(data)
        if self.closed:
            self._linger_left -= len(data)
            if self._linger_left < 0:
                self._transport.abort()
            return
        self.heard = True
        self._buffer += data
        if self._partial_bytes + len(data) > LIGHT_MAX_BYTES:
            self._place.may_begin()
        if not self._place.waits:
            self._take()
        else:
            self._count_held()
            self.set_reading()

    def _take(self) -> None:
        """Look at what was received, piece by piece, until it ends, has to wait, or this turn's time is up."""
        size = PIECE_BYTES
        buffer = self._buffer
        at = 0
        while at < len(buffer) and not self._full and not self.closed:
            if at and self._place.give_way():
                break
            piece = bytes(buffer[at : at + size])
            at += len(piece)
            self._protocol.receive_data(piece)
            events = self._protocol.events_received()
            self._send_protocol()
            for frame in events:
                self._receive(cast("Frame", frame))
            # Within a large message there is nothing to do per piece, so the pieces may grow.
            size = PIECE_BYTES if events else min(2 * size, PIECE_BYTES_MAX)
            self._partial_bytes = 0 if events else self._partial_bytes + len(piece)
        del buffer[:at]
        self.set_reading()
        self._count_held()

    def _count_held(self) -> None:
        """Account for what has arrived of a message; one that there is no room for ends the connection."""
        held = self._partial_bytes + len(self._fragments or b"") + len(self._buffer)
        if held > SMALL_BYTES or self._hold.bodies_bytes:
            self._hold.set_bodies(held if held > SMALL_BYTES and not self.closed else 0)
            if self._account.full and self._hold.bodies_bytes:
                error = self._account.refusal()
                self._owner.refuse(error, None)
                self.close(CloseCode.TRY_AGAIN_LATER, LIMIT)

    @property
    def _full(self) -> bool:
        return self.write_paused or self._owner.full

    def set_reading(self) -> None:
        """Read from the socket while what is read has somewhere to go, and go on with what was read before."""
        if self.closed:
            return
        reading = not (self._full or self._place.waits or self._buffer)
        if reading != self._reading and not self._transport.is_closing():
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        if self._buffer and not self._full:
            self._place.wait()

    def _receive(self, frame: Frame) -> None:
        if frame.opcode is Opcode.PING or frame.opcode is Opcode.PONG or not frame.data:
            try:
                self._credit.spend(1)
            except Overdrawn:
                self.close(CloseCode.POLICY_VIOLATION, "too many pings or empty frames")
                return
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
            self.close(CloseCode.UNSUPPORTED_DATA, "messages must be text")

    def _message(self, text: bytes) -> None:
        if self.closed or self._protocol.state is not State.OPEN:
            return
        try:
            if not text.isascii():
                text.decode()
        except UnicodeDecodeError:
            self.close(CloseCode.INVALID_DATA, "the message is not UTF-8")
            return
        self._credit.earn(ANSWER_EARNS)
        self._owner.receive(text)

    def give_up_message(self) -> None:
        """Called now and then: a large message that has hardly moved since the last time ends the connection."""
        if self._hold.mark() and self._hold.bodies_bytes:
            self.close(CloseCode.POLICY_VIOLATION, "the message arrived too slowly")

    # Out

    def send(self, message: bytes) -> bool:
        """Send a framed message with the next `flush`; whether that has to be asked for."""
        if self.closed or self._protocol.state is not State.OPEN:
            return False
        if len(message) >= OUTBOX_BYTES_MAX:
            # By itself, as it is: copied into one write with others, it would not be shared with other clients.
            self.flush()
            self._transport.write(message)
            return False
        outbox = self._outbox
        outbox.append(message)
        self._outbox_bytes += len(message)
        if self._outbox_bytes >= OUTBOX_BYTES_MAX:
            self.flush()
        return len(outbox) == 1

    def flush(self) -> None:
        """Write what has gathered."""
        outbox, self._outbox, self._outbox_bytes = self._outbox, [], 0
        if outbox and not self.closed and not self._transport.is_closing():
            self._transport.write(outbox[0] if len(outbox) == 1 else b"".join(outbox))

    def ping(self) -> None:
        """Send a ping."""
        if not self.closed:
            self._protocol.send_ping(b"")
            self._send_protocol()

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that the client has not taken."""
        return 0 if self.closed else self._outbox_bytes + self._transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        """The client does not read: neither send to it nor read from it."""
        self.write_paused = True
        self.set_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self.write_paused = False
        self._owner.drained()
        self.set_reading()

    # The end

    def eof_received(self) -> bool:
        """The client has closed its sending side without a closing handshake, or after one."""
        self._protocol.receive_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: nothing of it stays."""
        self._traffic.websockets -= 1
        self._end()
        self._place.leave()
        self._owner = GONE
        untie(self._protocol)
        if self._closing is not None:
            self._closing.cancel()

    def _end(self) -> None:
        self.closed = True
        self._buffer.clear()
        self._fragments = None
        self._hold.release()
        self._owner.over()

    def shut_down(self) -> None:
        """The server stops."""
        self._stopping = True
        self.close(CloseCode.GOING_AWAY, "the server is shutting down")

    def close(self, code: CloseCode, reason: str) -> None:
        """Begin the closing handshake."""
        if not self.closed and self._protocol.state is State.OPEN:
            self._protocol.fail(code, reason)
            self._send_protocol()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def _send_protocol(self) -> None:
        """Send what the protocol wants to send; its end of file closes the connection, in time or by force."""
        writes = self._protocol.data_to_send()
        if writes:
            self.flush()
        for data in writes:
            if self.closed or self._transport.is_closing():
                return
            if data:
                self._transport.write(data)
            else:
                self._end()
                self._linger()

    def _linger(self) -> None:
        """Close once the client has read why: what it still sends is thrown away, for a while (rule 3 of HTTP/1.1)."""
        if self._stopping:
            self._transport.close()
        else:
            self._transport.write_eof()
            if not self._reading:
                self._reading = True
                self._transport.resume_reading()
        self._closing = self._loop.call_later(self._close_timeout_s, self._transport.abort)
