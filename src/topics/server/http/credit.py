"""Credit: what an HTTP/2 or WebSocket client may ask of the server beyond requests, and how much of that it has left.

Most frames cost the server more than the client: a reset, a SETTINGS to acknowledge, a PING to answer, a frame with
nothing in it. A client needs a few of them for each request, and a few now and then. So each such frame has a price,
requests that are answered and frames of answers that are sent earn credit, time earns some, and a client without credit
is one that only makes work: its connection is closed with ENHANCE_YOUR_CALM.

The credit is bounded by `CREDIT_MAX`, with which a connection begins. `FrameMeter` reads nothing of a frame but its
head, so a frame is paid for before anything is done with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

CREDIT_MAX: Final = 2_000
EARNED_PER_S: Final = 200
ANSWER_EARNS: Final = 12
FRAME_SENT_EARNS: Final = 2
"""For the two window updates with which a client may acknowledge a frame of an answer."""
SMALL_DATA_BYTES: Final = 32
PIECE_FRAMES: Final = 16
"""How many frames are looked at in one go: about a third of a millisecond."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, _, PING, _, WINDOW_UPDATE, CONTINUATION = range(10)
_END_STREAM: Final = 1
_HEAD_BYTES: Final = 9
_PREFACE_BYTES: Final = 24
RESET_COSTS: Final = 22
LIVE_RESET_EARNS: Final = 12
"""Back, where the request was not answered yet. Without it, a reset costs what its answer has earned as well."""
_PRICES: Final = {RST_STREAM: RESET_COSTS, SETTINGS: 4}


class Overdrawn(Exception):
    """The client has no credit left."""


class Credit:
    """The credit of one connection."""

    __slots__ = ("_at_ns", "_clock_ns", "left")

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._at_ns = clock_ns()
        self.left = CREDIT_MAX

    def spend(self, price: int) -> None:
        """Pay for something; raises Overdrawn."""
        self.left -= price
        if self.left < 0:
            # Looked at only here, so that time costs nothing as long as there is credit.
            now_ns = self._clock_ns()
            earned = (now_ns - self._at_ns) * EARNED_PER_S // 1_000_000_000
            if earned:
                self._at_ns = now_ns
                self.earn(earned)
            if self.left < 0:
                raise Overdrawn

    def earn(self, amount: int) -> None:
        """Gain credit, up to the most there can be."""
        self.left = min(CREDIT_MAX, self.left + amount)


class FrameMeter:
    """Finds the frames in the bytes of a connection, and has them paid for."""

    __slots__ = ("_block_bytes", "_block_max_bytes", "_credit", "_head", "_left")

    def __init__(self, credit: Credit, block_max_bytes: int) -> None:
        """A block of header fields may have `block_max_bytes`, before they are decoded."""
        self._credit = credit
        self._block_max_bytes = block_max_bytes
        self._block_bytes = 0
        self._head = b""
        # The preface, which has no head, is still to come.
        self._left = _PREFACE_BYTES

    def piece(self, data: bytes, position: int) -> int:
        """The end of a piece of `data` that holds few enough frames, all paid for. Raises Overdrawn."""
        size = len(data)
        frames = 0
        while position < size:
            if self._left:
                step = min(self._left, size - position)
                self._left -= step
                position += step
                continue
            if frames == PIECE_FRAMES:
                break
            part = data[position : position + _HEAD_BYTES - len(self._head)]
            self._head += part
            position += len(part)
            if len(self._head) == _HEAD_BYTES:
                head, self._head = self._head, b""
                self._left = int.from_bytes(head[:3])
                self._pay(head[3], head[4], self._left)
                frames += 1
        return position

    def _pay(self, kind: int, flags: int, length: int) -> None:
        if kind == DATA:
            if length >= SMALL_DATA_BYTES or flags & _END_STREAM:
                return
        elif kind == HEADERS:
            self._block_bytes = length
        elif kind == CONTINUATION:
            self._block_bytes += length
        if self._block_bytes > self._block_max_bytes:
            raise Overdrawn
        self._credit.spend(_PRICES.get(kind, 1))
