"""Counters: what a shard has done since the start, as the metrics report it."""

from __future__ import annotations

import bisect
from typing import Final

LATENCY_BOUNDS_US: Final = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 500_000)


class Counters:
    """Totals of one shard; they only grow."""

    def __init__(self) -> None:
        self.frames_total = 0
        self.batches_total = 0
        self.fsyncs_total = 0
        self.bytes_written_total = 0
        self.submit_full_total = 0
        self.queue_depth_peak = 0
        self.fsync_us_buckets = [0] * (len(LATENCY_BOUNDS_US) + 1)
        self.fsync_us_sum = 0

    def count_sync(self, took_ns: int) -> None:
        """A sync took this long."""
        latency_us = took_ns // 1000
        self.fsyncs_total += 1
        self.fsync_us_buckets[bisect.bisect_left(LATENCY_BOUNDS_US, latency_us)] += 1
        self.fsync_us_sum += latency_us
