"""The sections in the order in which they are measured; peers first, so that ours can be held against them."""

from __future__ import annotations

from bench import (
    checkpoint,
    clients,
    console,
    delivery,
    growth,
    metrics,
    nats,
    queues,
    reads,
    redis,
    restart,
    spark,
    sustained,
    writes,
)

SECTIONS = {
    module.__name__.removeprefix("bench."): module
    for module in (
        redis,
        nats,
        writes,
        reads,
        growth,
        checkpoint,
        restart,
        sustained,
        delivery,
        queues,
        console,
        clients,
        metrics,
        spark,
    )
}
