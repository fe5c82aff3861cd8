"""The metrics of the data directory: the log, the cache of sealed Blocks, checkpoints and seals (PROBE-9, PROBE-16)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from topics.engine import Engine
from topics.engine.upkeep.timing import Timing
from topics.engine.upkeep.upkeep import Upkeep
from topics.server.api.exposition import Buckets, Counter, Family, Gauge, Summary
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


def storage_metrics(engine: Engine, cache: BlockCache | None, upkeep: Upkeep | None) -> Iterator[Family]:
    """What the storage of an engine does; without a data directory it has no cache and no upkeep."""
    totals = engine.totals
    help = "Damaged places found in the data directory."
    yield Counter("topics_corruption", help, totals.corruption_total)
    for name, help, by_reason, reasons in (
        ("topics_evicted_records", "Records that a cap or a TTL took.", totals.evicted_total, ("cap", "ttl")),
        (
            "topics_lost_records",
            "Seqs that became unreadable, found since the start or at it.",
            totals.lost_total,
            ("corruption", "crash", "restart", "source_trim"),
        ),
    ):
        family = Counter(name, help, labels=["reason"])
        for reason in {**dict.fromkeys(reasons), **by_reason}:
            family.add([reason], by_reason.get(reason, 0))
        yield family
    yield from _wal(engine.store.shards)
    if isinstance(engine.store, Store):
        yield Gauge("topics_wal_bytes", "Bytes of the WAL's files.", engine.store.wal_bytes)
        help = "Free bytes on the disk of the data directory, as last seen; 0 before the first look."
        yield Gauge("topics_disk_free_bytes", help, engine.store.free_bytes)
        help = "1 while writes are refused because the disk is nearly full."
        yield Gauge("topics_disk_full", help, int(engine.store.is_full))
    if cache is not None:
        yield from _block_cache(cache)
    if upkeep is not None:
        yield from _timed("checkpoint", "checkpoints", upkeep.checkpoints)
        yield from _timed("seal", "jobs that write segments", upkeep.seals)
        last_ns = upkeep.checkpoints.last_ns
        age_s = (engine.clock.elapsed_ns() - last_ns) / 1e9 if last_ns is not None else -1.0
        help = "Seconds since the last checkpoint of this run ended; -1 before the first."
        yield Gauge("topics_checkpoint_age_seconds", help, age_s)


def _timed(name: str, things: str, timing: Timing) -> Iterator[Family]:
    yield Summary(
        f"topics_{name}_duration_seconds",
        f"Seconds that {things} took.",
        timing.succeeded_total,
        timing.total_ns / 1e9,
    )
    yield Counter(f"topics_{name}_failures", f"Failed {things}.", timing.failed_total)


def _wal(shards: Sequence[Shard | MemoryShard]) -> Iterator[Family]:
    for name, help in _WAL_COUNTERS:
        total = sum(getattr(shard, f"{name}_total") for shard in shards)
        yield Counter(f"topics_wal_{name}", help, total)
    yield Gauge("topics_wal_queue_depth", "Frames that wait.", sum(s.queue_depth for s in shards))
    yield Gauge(
        "topics_wal_queue_depth_peak", "Most frames that waited.", max((s.queue_depth_peak for s in shards), default=0)
    )
    read_only = any(shard.read_only is not None for shard in shards)
    yield Gauge("topics_wal_read_only", "1 after a failed write or sync, until a restart.", int(read_only))
    counts = [sum(column) for column in zip(*(shard.fsync_us_buckets for shard in shards), strict=True)]
    buckets = list(zip((*map(str, LATENCY_BOUNDS_US), "+Inf"), accumulate(counts), strict=True))
    latency = Buckets("topics_wal_fsync_latency_us", "Microseconds that a sync took.")
    latency.add_buckets((), buckets, sum(shard.fsync_us_sum for shard in shards))
    yield latency


def _block_cache(cache: BlockCache) -> Iterator[Family]:
    yield Counter("topics_block_cache_hits", "Sealed Blocks found in memory.", cache.hits_total)
    yield Counter("topics_block_cache_misses", "Sealed Blocks read from disk.", cache.misses_total)
    yield Gauge("topics_block_cache_bytes", "Bytes of sealed Blocks that are kept in memory.", cache.bytes)
