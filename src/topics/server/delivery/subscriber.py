"""Feed and Subscriber: which stream gets the notices of which topic.

A `Feed` is one subscription of one stream to one topic: its position and what it wants to see. A `Subscriber` is the
stream: an SSE response or a WebSocket. It has a bounded outbound queue, which is the transport's own: nothing is
rendered for a stream while its transport is above the high-water mark, so at most that mark and one batch per topic are
ever queued, and what a slow reader misses meanwhile gathers in the log and leaves in larger batches.

The life of a stream that cannot take more (WATCH-29 to WATCH-31):

| state | until | then |
|---|---|---|
| flowing | its transport pauses | stalled |
| stalled | the transport drains | flowing, every feed goes on from its position |
| stalled for `buffer_grace_ms` | the transport drains | flowing; what a cap or TTL took is `from_seq_too_old` |
| stalled for `slow_consumer_timeout_ms` without progress | at once | a last error frame, and the stream is closed |

No state drops a record: what was not sent is still in the topic, as long as the topic itself keeps it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from topics.errors import TopicsError
from topics.server.api.principal import Principal
from topics.server.delivery.notice import Notice
from topics.server.delivery.view import View

if TYPE_CHECKING:
    from topics.server.delivery.channel import Channel
    from topics.server.delivery.delivery import Delivery
    from topics.server.http.account import Share

PROGRESS_BYTES: Final = 4096
"""How much a stalled stream must take to count as one that still reads."""


class FlowControl(Protocol):
    """The way to a client, as far as its flow control is concerned."""

    @property
    def write_paused(self) -> bool:
        """Whether the client is slow to read."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that the client has not taken."""


class Feed:
    """One subscription of one stream to one topic."""

    __slots__ = ("channel", "cursor", "index", "lagging", "subscriber", "view")

    def __init__(self, subscriber: Subscriber, index: int, cursor: int, view: View) -> None:
        self.subscriber = subscriber
        self.index = index
        self.cursor = cursor
        self.view = view
        self.channel: Channel | None = None
        # A feed owes its stream a `caught-up` from its start, and again whenever one batch was not enough.
        self.lagging = True


class Subscriber(ABC):
    """One stream and its feeds."""

    __slots__ = (
        "_kept", "_mark", "_progress_ms", "aged", "beat_ms", "closed", "delivery", "last_ms", "link", "paced",
        "principal", "stalled_ms",
    )  # fmt: skip

    kind: ClassVar[str]
    """What the stream is called in the metrics."""

    def __init__(self, delivery: Delivery, link: FlowControl, principal: Principal) -> None:
        self.delivery = delivery
        self.link = link
        self.principal = principal
        self.closed = False
        self.last_ms = delivery.tick_ms
        self.beat_ms = 0
        """When the wheel will look at this stream next."""
        self.stalled_ms: int | None = None
        """Since when something has waited for the client to read."""
        self.aged = False
        self.paced = False
        """Whether the client was warned that its topics are paced."""
        self._mark = 0
        self._progress_ms = 0
        self._kept: list[Share] = []
        delivery.join(self)

    def keep(self, share: Share) -> None:
        """A frame was written that the transport has not taken: it counts until the client reads."""
        share.keep()
        self._kept.append(share)

    def release(self) -> None:
        """Nothing that was written waits any more, or it will never be sent."""
        if self._kept:
            kept, self._kept = self._kept, []
            for share in kept:
                share.release()

    def feeds(self) -> Iterable[Feed]:
        """The feeds of this stream. A work stream has none, and what follows here is never called on it."""
        return ()

    def send(self, feed: Feed, notice: Notice) -> None:
        """Send the notice, and move the feed past it."""
        raise NotImplementedError

    def ended(self, feed: Feed) -> None:
        """The feed's topic is gone, and the notice of that is sent."""
        return

    def unreadable(self, feed: Feed, error: TopicsError) -> None:
        """What follows the feed's cursor cannot be read: report that to the client, which may try again later."""
        raise NotImplementedError

    @abstractmethod
    def beat(self, tick_ms: int) -> int:
        """The wheel's turn: send what keeps the stream alive if it was idle; when to come back."""

    @abstractmethod
    def warn(self, retry_after_ms: int, topics: list[str]) -> None:
        """Warn the client that these topics are paced under pressure."""

    @abstractmethod
    def revoke(self) -> None:
        """The key of the client is not valid any more: report that and close."""

    @abstractmethod
    def give_up(self) -> None:
        """The client has not read for too long: report that and close."""

    def flush(self) -> None:
        """Write what was gathered, called after `flush_soon`; most streams gather nothing."""
        return

    def stall(self) -> None:
        """Something is there for the client, and its transport is full."""
        if self.stalled_ms is None:
            self.stalled_ms = self._progress_ms = self.delivery.tick_ms
            self._mark = self.link.unsent_bytes
            self.delivery.stalled[self] = None

    def drained(self) -> None:
        """The client reads again: every feed that was passed over goes on."""
        self.release()
        if self.stalled_ms is None or self.closed:
            return
        self.recovered()
        aged, self.aged = self.aged, False
        for feed in list(self.feeds()):
            channel = feed.channel
            if channel is not None:
                if aged:
                    channel.welcome(feed)
                channel.resume(feed)

    def recovered(self) -> None:
        """Count as flowing again."""
        self.stalled_ms = None
        self.delivery.stalled.pop(self, None)

    def watch_stall(self, tick_ms: int, grace_ms: int, timeout_ms: int) -> None:
        """Look at a stalled stream: is it past its grace, does it move at all, is it past its time."""
        if self.stalled_ms is None:
            return
        if tick_ms - self.stalled_ms >= grace_ms:
            self.aged = True
        unsent = self.link.unsent_bytes
        if unsent <= self._mark - PROGRESS_BYTES:
            self._mark = unsent
            self._progress_ms = tick_ms
        elif tick_ms - self._progress_ms >= timeout_ms:
            self.recovered()
            self.delivery.pushes.slow_total += 1
            self.give_up()
