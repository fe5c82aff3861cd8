"""Which versions of PySpark the source runs on: 4.1 to 4.3."""

from __future__ import annotations

from typing import Final

from topics.spark.errors import SourceError

OLDEST: Final = (4, 1)


def running() -> tuple[int, int]:
    """The version of PySpark in this process."""
    import pyspark

    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def check() -> None:
    """Refuse a PySpark that is too old, by one line."""
    if running() < OLDEST:
        import pyspark

        oldest = ".".join(map(str, OLDEST))
        raise SourceError(f"topics needs PySpark {oldest} or later, and this is PySpark {pyspark.__version__}")
