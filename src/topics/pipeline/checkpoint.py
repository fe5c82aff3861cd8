"""Checkpoint: what Spark writes down about a query, read back: its id, and how far its batches go in each topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def query_id(checkpoint: Path) -> str:
    """The id of the query that this checkpoint belongs to; it stays the same over restarts."""
    found: str = json.loads((checkpoint / "metadata").read_text())["id"]
    return found


def batch_offsets(checkpoint: Path, batch_id: int) -> dict[str, Any]:
    """The offsets at the end of a batch, which Spark writes down before the batch runs."""
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def forget_torn_start(checkpoint: Path) -> None:
    """Remove the half-written file of a driver that was killed while it wrote down its first batch.

    Spark begins no query where anything is in the way of its first batch. A batch counts from the moment at which its
    offsets have their name, so where none has, nothing is forgotten.
    """
    files = [path for kind in ("offsets", "commits") for path in (checkpoint / kind).glob(".*")]
    if files and not any((checkpoint / "offsets").glob("[0-9]*")):
        for path in files:
            path.unlink(missing_ok=True)


def cursors_of(checkpoint: Path) -> dict[str, int]:
    """How far the last batch that was committed in a checkpoint goes in each topic; nothing before the first."""
    try:
        done = max((int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit()), default=None)
        lines = [] if done is None else (checkpoint / "offsets" / str(done)).read_text().splitlines()
        sources = [json.loads(line) for line in lines if line.startswith("{")]
    except (OSError, ValueError):
        return {}
    return {
        topic: int(at["seq"])
        for source in sources
        for topic, at in source.items()
        if isinstance(at, dict) and isinstance(at.get("seq"), int)
    }
