"""Parquet files of a lake: how those of a batch become visible, all at once and once.

Executors write into a directory that readers skip. The driver writes the list of the batch's files first (the first
list wins) and then moves them into place, which can be repeated as often as needed.
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

from topics.pipeline.lake.files import Written
from topics.pipeline.lake.losses import LOSS_SCHEMA, loss_of
from topics.pipeline.lake.offsets import Offsets
from topics.spark.archived import LISTED
from topics.spark.depot import write_once
from topics.spark.place import Place


class ParquetLake:
    """Plain Parquet files by topic and date, and losses as lines of JSON."""

    prefix = "_staging/"
    hive = True
    named = False

    def __init__(self, root: Place) -> None:
        # What is decided is moved into place, which only a file system can do.
        assert root.path is not None
        self.root = root.path / "events"
        self._losses = root.path / "losses"
        self._batches = root.path / "_batches"
        for directory in (self.root, self._losses, self._batches):
            directory.mkdir(parents=True, exist_ok=True)

    def _list_of(self, app_id: str, batch_id: int) -> Path:
        return self._batches / f"{app_id}-{batch_id:08d}.json"

    def has(self, app_id: str, batch_id: int) -> bool:
        """Whether the batch is already decided."""
        return self._list_of(app_id, batch_id).exists()

    def commit(
        self, app_id: str, batch_id: int, written: list[Written], offsets: Offsets, begun: Offsets | None = None
    ) -> None:
        """Decide the files of a batch, then move them into place."""
        batch = {"offsets": offsets, "ts": time.time_ns() // 1_000_000, LISTED: [list(one) for one in written]}
        write_once(self._list_of(app_id, batch_id), json.dumps(batch))
        self.finish(app_id, batch_id)

    def finish(self, app_id: str, batch_id: int) -> None:
        """Move the files of a decided batch into place, unless they are there already."""
        decided = json.loads(self._list_of(app_id, batch_id).read_text())
        written = [Written(*one) for one in decided[LISTED]]
        for file in written:
            if file.path is None:
                continue
            source, target = self.root / file.path, self.root / file.path.removeprefix(self.prefix)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.exists():
                source.replace(target)
        gaps = [loss_of(one) for one in written if one.path is None]
        if gaps:
            rows = ((*gap[:5], batch_id, decided["ts"], gap[5]) for gap in gaps)
            lines = [dict(zip(LOSS_SCHEMA.names, row, strict=True)) for row in rows]
            temporary = self._losses / f".{uuid.uuid4().hex}"
            temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
            temporary.replace(self._losses / f"{app_id}-{batch_id:08d}.json")

    def offsets(self) -> Offsets | None:
        """The offsets of the newest batch."""
        lists = sorted(self._batches.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        if not lists:
            return None
        found: Offsets = json.loads(lists[-1].read_text())["offsets"]
        return found
