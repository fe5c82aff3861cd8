"""Traffic: what requests and connections are counted in, in plain numbers that the metrics read (PROBE-14).

Counting is on the path of every request, so it is a few additions to preallocated numbers and nothing else. There is
one `Tally` for each route, and one for what led to no route; the label of a series is therefore the template of a path
and never a path that a client chose.

A latency is the time from the first byte of a request to its answer, without the time for which the client asked to
wait (`wait_ms`): a long-poll that found something after 20 seconds is not slow.
"""

from __future__ import annotations

from typing import Final

LATENCY_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
LATENCY_BOUNDS_NS: Final = tuple(round(bound * 1e9) for bound in LATENCY_BOUNDS_S)
NO_ROUTE: Final = "none"


class Tally:
    """The requests of one route. `Exchange.respond_raw` adds to it without a call, so its fields are public."""

    __slots__ = ("buckets", "method", "other_statuses", "route", "sent_bytes", "total_ns")

    def __init__(self, method: str, route: str) -> None:
        self.method = method
        self.route = route
        self.buckets = [0] * (len(LATENCY_BOUNDS_NS) + 1)
        """Answers by latency: the n-th took at most the n-th bound, the last one longer than all of them."""
        self.total_ns = 0
        self.sent_bytes = 0
        self.other_statuses: dict[int, int] = {}
        """Answers whose status is not 200, by status: a route has a handful of them."""

    def count_status(self, status: int) -> None:
        """An answer whose status is not 200; it is counted in `buckets` too."""
        self.other_statuses[status] = self.other_statuses.get(status, 0) + 1

    def statuses(self) -> dict[int, int]:
        """Answers by status."""
        ok = sum(self.buckets) - sum(self.other_statuses.values())
        return ({200: ok} if ok else {}) | self.other_statuses


UNROUTED: Final = Tally("none", NO_ROUTE)
"""The requests of this process that led to no route: malformed ones, and those for which there is nothing."""


class Traffic:
    """What the clients of one server send and are sent."""

    __slots__ = (
        "accepted_total", "http1_bytes", "http2", "http2_bytes", "refused_total", "tallies", "websocket_bytes",
        "websockets",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tallies: list[Tally] = [UNROUTED]
        self.accepted_total = 0
        self.refused_total = 0
        """Connections, and those among them that were over `max_connections`."""
        self.http1_bytes = self.http2_bytes = self.websocket_bytes = 0
        """Received, by what the connection speaks."""
        self.http2 = self.websockets = 0
        """Open connections that speak something else than HTTP/1.1."""

    def tally(self, method: str, route: str) -> Tally:
        """The tally of a route; called once for each when the server is built."""
        made = Tally(method, route)
        self.tallies.append(made)
        return made
