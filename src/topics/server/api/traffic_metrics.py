"""The metrics of requests, connections and streams, read from `Traffic` (PROBE-14, PROBE-15).

A route without a request has no series yet. Labels are routes as the table of routes names them, methods, statuses and
kinds: how many series there are depends on this program and not on what clients send.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from topics.server.http.traffic import LATENCY_BOUNDS_S, Histogram, Pushes, Tally, Traffic

STREAM_KINDS = ("watch", "work", "websocket")
_ROUTE = ("route", "method")


def traffic_metrics(traffic: Traffic) -> Iterator[Metric]:
    """What clients have sent and were sent."""
    yield from _requests([tally for tally in traffic.tallies if tally.requests or tally.other_statuses])
    connections = GaugeMetricFamily("topics_connections", "Open connections, by protocol.", labels=["protocol"])
    connections.add_metric(["http1"], traffic.connections - traffic.http2 - traffic.websockets)
    connections.add_metric(["http2"], traffic.http2)
    connections.add_metric(["websocket"], traffic.websockets)
    yield connections
    for name, help, value in (
        ("topics_connections_accepted", "Connections that were accepted.", traffic.accepted_total),
        ("topics_connections_refused", "Connections over max_connections.", traffic.refused_total),
        ("topics_websocket_received_bytes", "Bytes received on WebSockets.", traffic.websocket_bytes),
    ):
        yield CounterMetricFamily(name, help, value=value)
    yield from _pushes(traffic.pushes)


def _requests(tallies: list[Tally]) -> Iterator[Metric]:
    requests = CounterMetricFamily("topics_http_requests", "Answered requests.", labels=[*_ROUTE, "status"])
    help = "Seconds from the first byte of a request to its answer, without the wait that it asked for."
    latency = HistogramMetricFamily("topics_http_request_duration_seconds", help, labels=_ROUTE)
    received = CounterMetricFamily("topics_http_received_bytes", "Bytes of requests.", labels=_ROUTE)
    sent = CounterMetricFamily("topics_http_sent_bytes", "Bytes of answers, without streams.", labels=_ROUTE)
    for tally in tallies:
        labels = [tally.route, tally.method]
        for status, count in sorted(tally.statuses().items()):
            requests.add_metric([*labels, str(status)], count)
        buckets, total = _buckets(tally.latency)
        latency.add_metric(labels, buckets, total)
        received.add_metric(labels, tally.received_bytes)
        sent.add_metric(labels, tally.sent_bytes)
    yield from (requests, latency, received, sent)


def _pushes(pushes: Pushes) -> Iterator[Metric]:
    streams = GaugeMetricFamily("topics_streams", "Open streams, by kind.", labels=["kind"])
    for kind in STREAM_KINDS:
        streams.add_metric([kind], pushes.open.get(kind, 0))
    yield streams
    frames = CounterMetricFamily("topics_delivery_frames", "Frames that were sent to streams.", labels=["kind"])
    frames.add_metric(["records"], pushes.frames_total)
    frames.add_metric(["jobs"], pushes.jobs_total)
    yield frames
    help = "Bytes of records and tombstones that were sent to streams, before framing."
    yield CounterMetricFamily("topics_delivery_sent_bytes", help, value=pushes.sent_bytes)
    help = "Seconds from the publish of a record until the streams of its topic that read were written to."
    buckets, total = _buckets(pushes.lag)
    yield HistogramMetricFamily("topics_delivery_lag_seconds", help, buckets=buckets, sum_value=total)
    yield GaugeMetricFamily("topics_delivery_stalled_streams", "Streams that do not read.", pushes.stalled)
    help = "Streams that were closed because their clients did not read."
    yield CounterMetricFamily("topics_delivery_slow_streams_closed", help, value=pushes.slow_total)


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    bounds = [*map(str, LATENCY_BOUNDS_S), "+Inf"]
    return list(zip(bounds, accumulate(histogram.buckets), strict=True)), histogram.total_ns / 1e9
