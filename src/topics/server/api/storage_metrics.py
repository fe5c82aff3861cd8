"""The metrics of the data directory: the log, the cache of sealed Blocks, checkpoints and seals (PROBE-9, PROBE-16)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from topics.engine import Engine
from topics.engine.upkeep.timing import Timing
from topics.engine.upkeep.upkeep import Upkeep
from topics.storage.memory import MemoryShard
from topics.storage.segment.cache import BlockCache
from topics.storage.store import Store
from topics.storage.wal.shard import LATENCY_BOUNDS_US, Shard

_WAL_COUNTERS: Final = (
    ("frames", "Frames written to the WAL."),
    ("batches", "Writes to the WAL, each of all the frames of a turn."),
    ("fsyncs", "Syncs of the WAL."),
    ("bytes_written", "Bytes written to the WAL."),
    ("rotations", "WAL files that were full."),
    ("submit_full", "Writes refused because a shard's queue was full."),
)


def storage_metrics(engine: Engine, cache: BlockCache | None, upkeep: Upkeep | None) -> Iterator[Metric]:
    """What the storage of an engine does; without a data directory it has no cache and no upkeep."""
    totals = engine.totals
    help = "Damaged places found in the data directory."
    yield CounterMetricFamily("topics_corruption", help, value=totals.corruption_total)
    for name, help, by_reason, reasons in (
        ("topics_evicted_records", "Records that a cap or a TTL took.", totals.evicted_total, ("cap", "ttl")),
        (
            "topics_lost_records",
            "Seqs that became unreadable, found since the start or at it.",
            totals.lost_total,
            ("corruption", "crash", "restart", "source_trim"),
        ),
    ):
        family = CounterMetricFamily(name, help, labels=["reason"])
        for reason in {**dict.fromkeys(reasons), **by_reason}:
            family.add_metric([reason], by_reason.get(reason, 0))
        yield family
    yield from _wal(engine.store.shards)
    if isinstance(engine.store, Store):
        yield GaugeMetricFamily("topics_wal_bytes", "Bytes of the WAL's files.", engine.store.wal_bytes)
        help = "Free bytes on the disk of the data directory, as last seen; 0 before the first look."
        yield GaugeMetricFamily("topics_disk_free_bytes", help, engine.store.free_bytes)
        help = "1 while writes are refused because the disk is nearly full."
        yield GaugeMetricFamily("topics_disk_full", help, int(engine.store.is_full))
    if cache is not None:
        yield from _block_cache(cache)
    if upkeep is not None:
        yield from _timed("checkpoint", "checkpoints", upkeep.checkpoints)
        yield from _timed("seal", "jobs that write segments", upkeep.seals)
        last_ns = upkeep.checkpoints.last_ns
        age_s = (engine.clock.elapsed_ns() - last_ns) / 1e9 if last_ns is not None else -1.0
        help = "Seconds since the last checkpoint of this run ended; -1 before the first."
        yield GaugeMetricFamily("topics_checkpoint_age_seconds", help, age_s)


def _timed(name: str, things: str, timing: Timing) -> Iterator[Metric]:
    yield SummaryMetricFamily(
        f"topics_{name}_duration_seconds",
        f"Seconds that {things} took.",
        count_value=timing.succeeded_total,
        sum_value=timing.total_ns / 1e9,
    )
    yield CounterMetricFamily(f"topics_{name}_failures", f"Failed {things}.", value=timing.failed_total)


def _wal(shards: Sequence[Shard | MemoryShard]) -> Iterator[Metric]:
    for name, help in _WAL_COUNTERS:
        total = sum(getattr(shard, f"{name}_total") for shard in shards)
        yield CounterMetricFamily(f"topics_wal_{name}", help, value=total)
    yield GaugeMetricFamily("topics_wal_queue_depth", "Frames that wait.", sum(s.queue_depth for s in shards))
    yield GaugeMetricFamily(
        "topics_wal_queue_depth_peak", "Most frames that waited.", max((s.queue_depth_peak for s in shards), default=0)
    )
    read_only = any(shard.read_only is not None for shard in shards)
    yield GaugeMetricFamily("topics_wal_read_only", "1 after a failed write or sync, until a restart.", int(read_only))
    counts = [sum(column) for column in zip(*(shard.fsync_us_buckets for shard in shards), strict=True)]
    buckets = list(zip((*map(str, LATENCY_BOUNDS_US), "+Inf"), accumulate(counts), strict=True))
    yield HistogramMetricFamily(
        "topics_wal_fsync_latency_us",
        "Microseconds that a sync took.",
        buckets=buckets,
        sum_value=sum(shard.fsync_us_sum for shard in shards),
    )


def _block_cache(cache: BlockCache) -> Iterator[Metric]:
    yield CounterMetricFamily("topics_block_cache_hits", "Sealed Blocks found in memory.", value=cache.hits_total)
    yield CounterMetricFamily("topics_block_cache_misses", "Sealed Blocks read from disk.", value=cache.misses_total)
    yield GaugeMetricFamily("topics_block_cache_bytes", "Bytes of sealed Blocks that are kept in memory.", cache.bytes)
