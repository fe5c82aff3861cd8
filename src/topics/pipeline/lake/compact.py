"""Compact: the many small files of an archive merged into few of the target size, while it may go on running.

A merge is one commit of the table that removes files and adds others with the same rows, marked as no change of data:
it carries no offsets and no app transaction, and a reader that follows the table sees nothing. An archive only adds
files, which no merge removes, so the two do not disturb each other. Two merges at once do: the second fails and changes
nothing. The files that were merged stay in place for readers of an older version, until they are vacuumed.

A merged file has many row groups, because that is what a scan is divided by: one file with two of them would keep two
cores busy at most, and make every query slower than the files that it came from. For the same reason a small partition
becomes several files: Spark counts 4 MiB for opening a file when it divides a scan, and cuts a single file of 8 MiB
into 6 and 2 for two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from topics.pipeline.errors import PipelineError
from topics.spark.place import Place

ROW_GROUP_ROWS: Final = 64_000
"""About 8 MiB of records of 150 bytes."""
FILE_BYTES_MIN: Final = 4 << 20
FILES_MIN: Final = 4
"""Into so many files a partition is merged at least, if none of them is smaller than that."""


class Merged(NamedTuple):
    """How many files of one table were merged into how many."""

    table: str
    removed: int
    added: int


def compact(root: Place, file_bytes: int) -> Iterator[Merged]:
    """Merge the files of each table of an archive to about this size."""
    from deltalake import DeltaTable, WriterProperties

    found = root.tables()
    if not found:
        raise PipelineError(f"there is no Delta table in {root.shown}")
    for name in found:
        table = DeltaTable(str(root / name))
        written = WriterProperties(compression="ZSTD", compression_level=3, max_row_group_size=ROW_GROUP_ROWS)
        size = min(file_bytes, max(FILE_BYTES_MIN, _largest(table) // FILES_MIN))
        done = table.optimize.compact(target_size=size, writer_properties=written)
        yield Merged(name, done["numFilesRemoved"], done["numFilesAdded"])


def _largest(table: Any) -> int:
    """The bytes of the largest partition of a table."""
    import pyarrow as pa

    files = pa.table(table.get_add_actions())
    sizes: dict[str, int] = {}
    for path, size in zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True):
        partition = path.rpartition("/")[0]
        sizes[partition] = sizes.get(partition, 0) + size
    return max(sizes.values(), default=0)
