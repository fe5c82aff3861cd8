"""Merged files are few, and enough of them for the cores that scan them."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from topics.pipeline.lake import compact
from topics.spark.place import Place

pytestmark = pytest.mark.spark

FILES, ROWS = 16, 500


def archive(root: Path) -> DeltaTable:
    """A lake with one partition of many files, of text that does not compress."""
    dice = random.Random(7)
    for file in range(FILES):
        seqs = range(file * ROWS, (file + 1) * ROWS)
        rows = {"topic": ["t"] * ROWS, "seq": list(seqs), "data": [dice.randbytes(50).hex() for _ in seqs]}
        write_deltalake(str(root / "events"), pa.table(rows), mode="append", partition_by=["topic"])
    return DeltaTable(str(root / "events"))


def test_a_partition_becomes_as_many_files_as_can_be_scanned_evenly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = archive(tmp_path)
    before = table.to_pyarrow_table().sort_by("seq")
    monkeypatch.setattr(compact, "FILE_BYTES_MIN", 1 << 10)
    assert len(list(compact.compact(Place(tmp_path), 128 << 20))) == 1
    table = DeltaTable(str(tmp_path / "events"))
    sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
    assert compact.FILES_MIN <= len(sizes) < 2 * compact.FILES_MIN < FILES
    assert max(sizes) <= 1.1 * sum(sizes) / compact.FILES_MIN
    assert table.to_pyarrow_table().sort_by("seq").equals(before)


def test_a_partition_too_small_to_be_divided_becomes_one_file(tmp_path: Path) -> None:
    archive(tmp_path)
    assert [one.added for one in compact.compact(Place(tmp_path), 128 << 20)] == [1]
