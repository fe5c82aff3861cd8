"""The limits that the engine enforces, apart from how a server is configured (WRITE-11, LIMIT-2). 0 disables a cap."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True):
    """Bounds on one write, one read and the whole instance."""

    max_topics: int = 100_000
    max_routers: int = 10_000
    max_total_bytes: int = 0
    max_producers_per_topic: int = 10_000
    max_dedupe_bytes: int = 256 << 20
    max_unsealed_bytes: int = 200 << 20
    max_batch_records: int = 10_000
    max_record_bytes: int = 1 << 20
    max_meta_bytes: int = 16 << 10
    max_tag_bytes: int = 256
    max_node_bytes: int = 128
    max_limit: int = 1000
    max_claim: int = 1000
