"""How much a micro-batch reads, in Spark's own words; Spark 4.1 has none of them.

There, a limit is kept by the reader itself, see `spark41`.
"""

from __future__ import annotations

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ModuleNotFoundError:
    from dataclasses import dataclass

    class ReadLimit:  # type: ignore[no-redef]
        """A limit."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """No limit."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most so many rows."""

        max_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Spark tells such a reader when it is to end where the topics end now."""


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]
