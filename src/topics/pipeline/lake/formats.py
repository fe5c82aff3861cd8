"""The formats of an archive, and what each of them cannot do: found out before a JVM is started, in one line.

Only Delta tables can be changed afterwards (typed tables, compaction, erasure). Iceberg tables only grow: what owns
their catalog also compacts and expires them. Parquet files have no log, so only a file system can decide about them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from topics.spark.place import Place

FORMATS: Final = ("delta", "iceberg", "parquet")


def unsuitable(format: str, root: Place, catalog: str | None, changes: dict[str, bool]) -> Iterator[tuple[str, str]]:
    """Each option that does not go with the format, and why; `changes` are those that change tables afterwards."""
    if format == "parquet" and root.path is None:
        yield "format", "parquet needs a directory: in an object store, archive keeps Delta or Iceberg tables"
    for name in (name for name, value in changes.items() if value and format != "delta"):
        yield name, "needs the format delta: an archive of another format only adds records"
    if catalog is not None and format != "iceberg":
        yield "catalog", f"needs the format iceberg; {format} has none"


def refusal(format: str, root: Place, catalog: str | None, changes: dict[str, bool]) -> str | None:
    """Why an archive of this format cannot be kept in this place, or with the options that are set; None if it can."""
    from topics.pipeline.lake import iceberg
    from topics.pipeline.lake.contents import exists

    if format not in FORMATS:
        return f'--format is "{format}"; it must be {", ".join(FORMATS[:-1])} or {FORMATS[-1]}'
    for name, why in unsuitable(format, root, catalog, changes):
        return f"--{name.replace('_', '-')} {why}"
    if format == "iceberg":
        if find_spec("pyiceberg") is None:
            return (
                "pyiceberg not installed: --format iceberg needs the extra `iceberg` "
                "(make setup in a checkout, or pip install 'topics-engine[spark,iceberg]')"
            )
        if (trouble := iceberg.refusal(root, catalog)) is not None:
            return trouble
    if exists(root) and root.is_iceberg() != (format == "iceberg"):
        return f"--to {root.shown} holds an archive of another format than {format}"
    return None


def unreadable(root: Place) -> str | None:
    """Why only an archive can work on this lake, or None where other commands can too."""
    if not root.is_iceberg():
        return None
    return (
        f"{root.shown} has Iceberg tables, to which topics only adds: read them by their catalog, with pyiceberg, "
        "Polars, DuckDB or Spark, and compact and erase there"
    )
