"""Traffic: what requests and connections are counted in, in plain numbers that the metrics read (PROBE-14).

There is one `Tally` for each route, and one for what led to no route; the label of a series is therefore the template
of a path and never a path that a client chose.

Counting is on the path of every request. Requests are counted one by one, which is a single subtraction; their latency
and their bytes are looked at for every request as long as a route has up to `BUSY_REQUESTS` in a second, and beyond
that for every `STRIDE`th, which then stands for `STRIDE` of them. So a busy server spends less than 0.1 us on a
request, and the figures of one that is not are exact.

A latency is the time from the first byte of a request to its answer, without the time for which the client asked to
wait (`wait_ms`): a long-poll that found something after 20 seconds is not slow.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

LATENCY_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
LATENCY_BOUNDS_NS: Final = tuple(round(bound * 1e9) for bound in LATENCY_BOUNDS_S)
BUSY_REQUESTS: Final = 1_000
STRIDE: Final = 16
NO_ROUTE: Final = "none"


class Histogram:
    """How often something took how long."""

    __slots__ = ("buckets", "total_ns")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BOUNDS_NS) + 1)
        """By time: the n-th took at most the n-th bound, the last one longer than all of them."""
        self.total_ns = 0

    def add(self, took_ns: int, times: int = 1) -> None:
        """It took this long, so many times."""
        self.buckets[bisect_left(LATENCY_BOUNDS_NS, took_ns)] += times
        self.total_ns += took_ns * times


class Tally:
    """The requests of one route. `Exchange.respond_raw` subtracts from `unseen` itself, without a call."""

    __slots__ = (
        "_before", "_seen", "_stride", "latency", "method", "other_statuses", "received_bytes", "route", "sent_bytes",
        "unseen",
    )  # fmt: skip

    def __init__(self, method: str, route: str) -> None:
        self.method = method
        self.route = route
        self.unseen = 0
        """How many of the next requests are not looked at: the last one that was stands for them too."""
        self.latency = Histogram()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.other_statuses: dict[int, int] = {}
        """Answers whose status is not 200, by status: a route has a handful of them."""
        self._seen = 0
        self._stride = 1
        self._before = 0

    def look(self, took_ns: int, received_bytes: int, sent_bytes: int) -> None:
        """Count an answered request, and with it those that are not looked at."""
        stride = self._stride
        self._seen += stride
        self.unseen = stride - 1
        if self._seen - self._before > BUSY_REQUESTS:
            # At once: one that is busy every other second must not pay for it in each of them.
            self._stride = STRIDE
        self.latency.add(took_ns, stride)
        self.received_bytes += received_bytes * stride
        self.sent_bytes += sent_bytes * stride

    def count_status(self, status: int) -> None:
        """An answer whose status is not 200; it is counted as a request too."""
        self.other_statuses[status] = self.other_statuses.get(status, 0) + 1

    @property
    def requests(self) -> int:
        """How many were answered."""
        return self._seen - self.unseen

    def statuses(self) -> dict[int, int]:
        """Answers by status."""
        ok = self.requests - sum(self.other_statuses.values())
        return ({200: ok} if ok > 0 else {}) | self.other_statuses

    def adapt(self) -> None:
        """A second has passed: look at fewer requests where there were many, and else at all of them."""
        now = self.requests
        self._stride = STRIDE if now - self._before > BUSY_REQUESTS else 1
        self._before = now


UNROUTED: Final = Tally("none", NO_ROUTE)
"""The requests of this process that led to no route: malformed ones, and those for which there is nothing."""


class Pushes:
    """What is pushed to streams. The delivery loop counts in it, some frames at a time."""

    __slots__ = ("frames_total", "jobs_total", "lag", "open", "sent_bytes", "slow_total", "stalled")

    def __init__(self) -> None:
        self.open: dict[str, int] = {}
        """Open streams by kind."""
        self.frames_total = 0
        self.jobs_total = 0
        self.sent_bytes = 0
        """JSON of records and tombstones, once for each stream that got it."""
        self.lag = Histogram()
        """From the publish of a record until every stream of its topic that reads was written to."""
        self.stalled = 0
        self.slow_total = 0
        """Streams that do not read right now, and those that were closed for it."""

    def count(self, frames: int, sent_bytes: int) -> None:
        """So much was sent."""
        self.frames_total += frames
        self.sent_bytes += sent_bytes


class Traffic:
    """What the clients of one server send and are sent."""

    __slots__ = (
        "accepted_total", "connections", "http2", "pushes", "refused_total", "tallies", "websocket_bytes", "websockets",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tallies: list[Tally] = [UNROUTED]
        self.pushes = Pushes()
        self.connections = 0
        self.accepted_total = 0
        self.refused_total = 0
        """Open connections; those that came, and those among them that were over `max_connections`."""
        self.http2 = self.websockets = 0
        """Open connections that speak something else than HTTP/1.1."""
        self.websocket_bytes = 0
        """Received on WebSockets, after their handshakes."""

    def tally(self, method: str, route: str) -> Tally:
        """The tally of a route; called once for each when the server is built."""
        made = Tally(method, route)
        self.tallies.append(made)
        return made

    def adapt(self) -> None:
        """Called every second."""
        for tally in self.tallies:
            tally.adapt()
