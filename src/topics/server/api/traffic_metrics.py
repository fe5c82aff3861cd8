"""The metrics of requests, connections and streams, read from `Traffic` (PROBE-14, PROBE-15).

A route without a request has no series yet. Labels are routes as the table of routes names them, methods, statuses and
kinds: how many series there are depends on this program and not on what clients send.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from topics.server.api.exposition import Buckets, Counter, Family, Gauge
from topics.server.http.traffic import LATENCY_BOUNDS_S, Histogram, Pushes, Tally, Traffic

STREAM_KINDS = ("watch", "work", "websocket")
_ROUTE = ("route", "method")


def traffic_metrics(traffic: Traffic) -> Iterator[Family]:
    """What clients have sent and were sent."""
    yield from _requests([tally for tally in traffic.tallies if tally.requests or tally.other_statuses])
    connections = Gauge("topics_connections", "Open connections, by protocol.", labels=["protocol"])
    connections.add(["http1"], traffic.connections - traffic.http2 - traffic.websockets)
    connections.add(["http2"], traffic.http2)
    connections.add(["websocket"], traffic.websockets)
    yield connections
    for name, help, value in (
        ("topics_connections_accepted", "Connections that were accepted.", traffic.accepted_total),
        ("topics_connections_refused", "Connections over max_connections.", traffic.refused_total),
        ("topics_websocket_received_bytes", "Bytes received on WebSockets.", traffic.websocket_bytes),
    ):
        yield Counter(name, help, value)
    yield from _pushes(traffic.pushes)


def _requests(tallies: list[Tally]) -> Iterator[Family]:
    requests = Counter("topics_http_requests", "Answered requests.", labels=[*_ROUTE, "status"])
    help = "Seconds from the first byte of a request to its answer, without the wait that it asked for."
    latency = Buckets("topics_http_request_duration_seconds", help, labels=_ROUTE)
    received = Counter("topics_http_received_bytes", "Bytes of requests.", labels=_ROUTE)
    sent = Counter("topics_http_sent_bytes", "Bytes of answers, without streams.", labels=_ROUTE)
    for tally in tallies:
        labels = [tally.route, tally.method]
        for status, count in sorted(tally.statuses().items()):
            requests.add([*labels, str(status)], count)
        latency.add_buckets(labels, *_buckets(tally.latency))
        received.add(labels, tally.received_bytes)
        sent.add(labels, tally.sent_bytes)
    yield from (requests, latency, received, sent)


def _pushes(pushes: Pushes) -> Iterator[Family]:
    streams = Gauge("topics_streams", "Open streams, by kind.", labels=["kind"])
    for kind in STREAM_KINDS:
        streams.add([kind], pushes.open.get(kind, 0))
    yield streams
    frames = Counter("topics_delivery_frames", "Frames that were sent to streams.", labels=["kind"])
    frames.add(["records"], pushes.frames_total)
    frames.add(["jobs"], pushes.jobs_total)
    yield frames
    help = "Bytes of records and tombstones that were sent to streams, before framing."
    yield Counter("topics_delivery_sent_bytes", help, pushes.sent_bytes)
    help = "Seconds from the publish of a record until the streams of its topic that read were written to."
    lag = Buckets("topics_delivery_lag_seconds", help)
    lag.add_buckets((), *_buckets(pushes.lag))
    yield lag
    yield Gauge("topics_delivery_stalled_streams", "Streams that do not read.", pushes.stalled)
    help = "Streams that were closed because their clients did not read."
    yield Counter("topics_delivery_slow_streams_closed", help, pushes.slow_total)


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    bounds = [*map(str, LATENCY_BOUNDS_S), "+Inf"]
    return list(zip(bounds, accumulate(histogram.buckets), strict=True)), histogram.total_ns / 1e9
