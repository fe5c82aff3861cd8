"""Http2Sender: the sending side of one HTTP/2 connection, which its streams share.

Answers are sent in turns of one frame per stream, so that a long one does not hold up the others, as far as the flow
control of h2 and the transport allow. After some frames other connections have their turn (`Turns`). What is left waits
in the streams; the sender knows how much that is, and how much the streams hold of unfinished bodies (`Hold`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from topics.server.http.account import Hold
from topics.server.http.credit import ANSWER_EARNS, FRAME_SENT_EARNS, PIECE_FRAMES, Credit
from topics.server.http.http2_stream import Http2Stream
from topics.server.http.turns import Place, Turns

STREAMS_MAX: Final = 100
WINDOW_BYTES: Final = 1024 * 1024
"""How much of one request's body, and of all bodies together, may be on the way before it is read."""
UNSENT_MAX_BYTES: Final = 1024 * 1024
CLOSED_STREAMS_MAX: Final = 1024
"""How many ended streams h2 remembers, for frames that arrive late."""


class _Protocol(H2Connection):
    MAX_CLOSED_STREAMS = CLOSED_STREAMS_MAX


def protocol(max_header_bytes: int) -> H2Connection:
    """A connection of h2 that has sent its settings."""
    h2 = _Protocol(H2Configuration(client_side=False, header_encoding=None))
    # Initial values, so that the first SETTINGS frame carries them and they hold from the first byte on.
    h2.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
            SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
            SettingCodes.MAX_HEADER_LIST_SIZE: max_header_bytes,
        },
    )
    h2.decoder.max_header_list_size = max_header_bytes
    h2.initiate_connection()
    h2.increment_flow_control_window(WINDOW_BYTES)
    return h2


class Http2Sender:
    """What the streams of one connection share, see the module."""

    __slots__ = (
        "_credit",
        "_ended",
        "_h2",
        "_hold",
        "_line",
        "_on_pumped",
        "_place",
        "_pumping",
        "_transport",
        "in_turn",
        "paused",
        "sent_bytes",
        "streams",
        "unsent_bytes",
    )  # fmt: skip

    def __init__(
        self,
        h2: H2Connection,
        transport: asyncio.Transport,
        credit: Credit,
        hold: Hold,
        turns: Turns,
        place: Place,
        on_pumped: Callable[[], None],
    ) -> None:
        """The connection that waits at `place` pumps when its turn comes; `on_pumped` is called after each time."""
        self._h2 = h2
        self._transport = transport
        self._credit = credit
        self._hold = hold
        self._place = place
        self.in_turn = turns.in_turn
        self._on_pumped = on_pumped
        self._line: deque[Http2Stream] = deque()
        self._pumping = False
        self._ended = False
        self.streams: dict[int, Http2Stream] = {}
        self.paused = False
        """Whether the transport takes nothing more for now."""
        self.sent_bytes = 0
        self.unsent_bytes = 0
        """What waits in the streams."""

    @property
    def clogged(self) -> bool:
        """Whether the client leaves so much unread that further answers would only wait in memory."""
        return self.paused or self.unsent_bytes > UNSENT_MAX_BYTES

    @property
    def held_bytes(self) -> int:
        """What the streams hold of unfinished bodies."""
        return self._hold.bodies_bytes

    def count_unsent(self, added_bytes: int) -> None:
        """What waits for the client has grown by this much."""
        self.unsent_bytes += added_bytes
        self._hold.set_answers(self.unsent_bytes)

    def count_held(self, added_bytes: int) -> None:
        """What is held of unfinished bodies has grown by this much."""
        self._hold.set_bodies(self._hold.bodies_bytes + added_bytes)

    def flush(self) -> None:
        """Give the transport what h2 wants to send."""
        if self._ended:
            return
        data = self._h2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def send_head(self, stream: Http2Stream, fields: list[tuple[bytes, bytes]], *, ends: bool) -> None:
        """Send the head of an answer, which may be all of it."""
        try:
            self._h2.send_headers(stream.id, fields, end_stream=ends)
        except ProtocolError:
            self.drop(stream)
            return
        if ends:
            self._finish(stream)
        self.flush()

    def pump(self, stream: Http2Stream | None = None) -> None:
        """Send what the flow control allows, a frame per stream and turn. `stream` is one with something to send."""
        line = self._line
        if stream is not None and stream not in line:
            line.append(stream)
        if self._pumping or self._ended:
            return
        self._pumping = True
        blocked: list[Http2Stream] = []
        frames = 0
        # No window of a stream helps where that of the connection is used up.
        while line and not self.paused and self._has_window:
            stream = line.popleft()
            if stream.over:
                continue
            try:
                if not self._send_frame(stream):
                    blocked.append(stream)
                elif stream.unsent_bytes:
                    line.append(stream)
            except ProtocolError:
                self.drop(stream)
            stream.drained()
            self.flush()
            frames += 1
            if frames >= PIECE_FRAMES and line and self._place.give_way():
                break
        line.extend(blocked)
        self._pumping = False
        self.flush()
        self._on_pumped()

    @property
    def _has_window(self) -> bool:
        """Whether the flow control of the connection lets any stream send."""
        return self._h2.outbound_flow_control_window > 0

    def _send_frame(self, stream: Http2Stream) -> bool:
        """Send one frame of the stream; False if its flow control allows none."""
        if stream.unsent_bytes:
            room = min(self._h2.local_flow_control_window(stream.id), self._h2.max_outbound_frame_size)
            if room <= 0:
                return False
            part = stream.next_part(room)
            ends = stream.ending and not stream.unsent_bytes
            self._h2.send_data(stream.id, part, end_stream=ends)
            self.sent_bytes += len(part)
            self._credit.earn(FRAME_SENT_EARNS)
        else:
            ends = stream.ending
            if ends:
                self._h2.end_stream(stream.id)
        if ends:
            self._finish(stream)
        return True

    def _finish(self, stream: Http2Stream) -> None:
        """The answer is complete. A body that still arrives is not wanted."""
        self._credit.earn(ANSWER_EARNS)
        if stream.receiving:
            self._h2.reset_stream(stream.id, ErrorCodes.NO_ERROR)
        self.drop(stream)

    def drop(self, stream: Http2Stream) -> None:
        """The stream is over."""
        if self.streams.pop(stream.id, None) is not None:
            stream.end()

    def end(self) -> None:
        """The connection is gone, and every stream with it: from here on nothing is sent, and nobody is called."""
        self._ended = True
        self._on_pumped = _nothing
        self._line.clear()
        streams = list(self.streams.values())
        self.streams.clear()
        for stream in streams:
            stream.end()


def _nothing() -> None:
    """What follows when a connection that is gone has sent what it can."""
