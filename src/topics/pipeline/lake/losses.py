"""Losses: the gaps of a batch as a commit carries them, and as rows of the table of losses."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from topics.pipeline.lake.files import Written

LOSSES: Final = "topics.losses"
LOSS_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("gap_from", pa.int64()),
        ("gap_to", pa.int64()),
        ("reason", pa.string()),
        ("missed_estimate", pa.int64()),
        ("batch", pa.int64()),
        ("seen_ts", pa.timestamp("us", "UTC")),
        ("epoch", pa.int64()),
    ]
)


def loss_of(gap: Written) -> list[Any]:
    """A gap as a commit carries it."""
    return [gap.topic, gap.seq_min, gap.seq_max, gap.reason, gap.records, gap.epoch]


def loss_rows(losses: list[list[Any]], batch_id: int, seen_ms: int) -> Any:
    """The rows of the table of losses for what one commit carries, of which there must be some."""
    # A commit of an older release does not name the epoch.
    rows = ((*loss[:5], batch_id, seen_ms * 1000, *(loss[5:] or [None])) for loss in losses)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, LOSS_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=LOSS_SCHEMA)
