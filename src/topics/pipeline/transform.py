"""Transform: streaming SQL over topics; its rows become records of another topic.

Each source topic is a view of its own name, with the characters that SQL does not take in a name as underscores. Event
time is `ts`, with a watermark, so that windows close. A result with a column `data` is written as it is (with `tag`,
`node`, `meta` and `topic` if it has them); any other result becomes one JSON object per row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topics.pipeline.checkpoint import query_id
from topics.pipeline.errors import PipelineError, reason
from topics.pipeline.query import start, stream

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")


@dataclass
class Transform:
    """One transform pipeline."""

    source: dict[str, str]
    topics: list[str]
    sql: str
    target: str
    checkpoint: Path
    watermark: str = "10 seconds"
    mode: str = "append"
    offsets_max: int | None = None
    error_topic: str | None = None
    staging: str | None = None
    """Where records are staged, if executors cannot write to the checkpoint."""

    def start(self, spark: Any, once: bool, interval: str, pause_file: Path) -> Any:
        """The running query."""
        views: dict[str, str] = {}
        for topic in self.topics:
            view = _UNSAFE.sub("_", topic)
            if view in views:
                raise PipelineError(f'topics "{views[view]}" and "{topic}" would both be the view {view}')
            views[view] = topic
            rows = stream(spark, {**self.source, "topic": topic}, self.offsets_max, pause_file)
            rows.withWatermark("ts", self.watermark).createOrReplaceTempView(view)
        try:
            result = spark.sql(self.sql.strip().rstrip(";"))
        except Exception as failure:
            raise PipelineError(f"the SQL cannot be used: {reason(failure)}") from None
        if not result.isStreaming:
            raise PipelineError(f"the SQL reads none of the topics; their views are: {', '.join(views)}")
        if "data" not in result.columns:
            result = result.selectExpr("to_json(struct(*)) AS data")
        sink = {key: value for key, value in self.source.items() if key in ("url", "token", "retryTimeoutMs")}
        if self.error_topic is not None:
            sink["errorTopic"] = self.error_topic
        if self.staging is not None:
            sink["stagingDir"] = self.staging
        sink["topic"] = self.target
        query = result.writeStream.outputMode(self.mode)
        query = (
            query.format("topics").options(**sink) if self.mode == "append" else query.foreachBatch(self._save(sink))
        )
        return start(query, f"transform to {self.target}", self.checkpoint, once, interval)

    def _save(self, sink: dict[str, str]) -> Callable[[Any, int], None]:
        """Spark has no update mode for Python sinks: each batch is a write of its own, exactly-once by its number."""

        def save(frame: Any, batch_id: int) -> None:
            once = {"txnId": query_id(self.checkpoint), "txnVersion": str(batch_id)}
            staging = {"stagingDir": str(self.checkpoint / "topics-staging")}
            frame.write.format("topics").mode("append").options(**{**staging, **sink, **once}).save()

        return save
