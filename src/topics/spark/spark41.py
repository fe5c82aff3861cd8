"""A stream on Spark 4.1, which asks how far it could read without saying from where, nor whether it will ask again.

For `availableNow` Spark 4.1 asks once, and the answer is the end of the query; otherwise it asks before each batch. The
two cannot be told apart, so the answer is always everything there is: one that kept to a limit would end the first kind
of query early and leave records unread without an error. Therefore `maxOffsetsPerTrigger` is refused.
"""

from __future__ import annotations

from typing import Any

from topics.spark.errors import BadOption, plainly
from topics.spark.limits import ReadAllAvailable
from topics.spark.options import ReadOptions
from topics.spark.reader import RangePartition
from topics.spark.stream import TopicsStreamReader


class StreamReader41(TopicsStreamReader):
    """A stream that keeps its place, as far as Spark names one."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        if options.offsets_max is not None:
            reason = "it needs Spark 4.2 or later; on Spark 4.1 a batch reads everything there is: leave it out"
            raise BadOption("maxOffsetsPerTrigger", options.offsets_max, reason)
        super().__init__(options, schema)
        self._place: dict[str, Any] | None = None
        """Where the next batch starts; None until Spark has named a place."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint starts."""
        self._place = super().initialOffset()
        return self._place

    @plainly
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name
        """How far the next batch reads, or `availableNow` as a whole."""
        if self._place is None:
            return self._render(self._heads())
        return super().latestOffset(self._place, ReadAllAvailable())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        """The ranges of one batch. After a restart Spark first names the end of the last batch as both ends."""
        self._place = end
        return super().partitions(start, end)
