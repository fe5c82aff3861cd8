"""Blocks become Arrow columns: the same records that the codec itself reads."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.spark import SCHEMA, encode
from topics.spark import columns
from topics.spark.errors import SourceError
from topics.spark.prune import Prune
from topics.storage.flags import DELETED

pytestmark = pytest.mark.spark

TEXTS = st.one_of(st.none(), st.text(max_size=5).map(str.encode))
METAS = st.one_of(st.none(), st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2))
RECORDS = st.tuples(st.integers(0, 5), TEXTS, TEXTS, METAS, st.integers() | st.text(max_size=8), st.booleans())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(RECORDS, min_size=1, max_size=6), st.integers(0, 3)), min_size=1, max_size=5), st.data()
)
def test_columns_hold_what_the_codec_reads(groups: list[Any], data: Any) -> None:
    """Several Blocks with gaps between them, with and without each optional column, cut to a range of seqs."""
    seq, ts = 1, 1_700_000_000_000
    body = b""
    expected = []
    made = []
    for rows, hole in groups:
        block, ts = encode(seq, ts, rows)
        made.append(block)
        body += block.encoded()
        seq = block.last_seq + 1 + hole
    lo = data.draw(st.integers(1, seq))
    hi = data.draw(st.integers(lo, seq))
    for block in made:
        for i in range(block.n):
            here = block.first_seq + i
            if lo <= here <= hi and not (block.flags and block.flags[i] == DELETED):
                node, tag, meta = block.node(i), block.tag(i), block.meta(i)
                expected.append(
                    {
                        "topic": "t",
                        "seq": here,
                        "ts": block.ts_at(i),
                        "node": None if node is None else node.decode(),
                        "tag": None if tag is None else tag.decode(),
                        "meta": None if meta is None else json.loads(meta),
                        "data": block.data(i).decode(),
                    }
                )
    found = []
    views = ((view, lo, hi) for view in columns.walk(memoryview(body)))
    for batch in columns.batches("t", views, SCHEMA, Prune()):
        batch.validate(full=True)
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            found.append({**row, "ts": int(row["ts"].timestamp() * 1000 + 0.5)})
    assert found == expected


def test_a_block_that_is_damaged_or_cut_off_is_refused() -> None:
    block, _ = encode(1, 1, [(0, b"n", b"t", {"k": "v"}, "data", False)])
    body = bytearray(block.encoded())
    for cut in (10, 60, len(body) - 1):
        with pytest.raises(SourceError, match="cut off"):
            list(columns.walk(memoryview(body[:cut])))
    body[60] ^= 1
    with pytest.raises(SourceError, match="checksum"):
        list(columns.walk(memoryview(body)))


WITHOUT_PANDAS = """
import sys
import pyarrow as pa
from tests.harness.spark import SCHEMA, encode
from topics.spark import columns, reader
from topics.spark.client import Gap
from topics.spark.prune import Prune
block, _ = encode(1, 1, [(0, b"n", b"t", {"k": "v"}, "data", False), (0, None, None, None, "data", True)])
found = [(view, 1, 9) for view in columns.walk(memoryview(block.encoded()))]
(batch,) = columns.batches("t", found, SCHEMA, Prune())
assert batch["meta"].to_pylist() == [[("k", "v")]]
assert columns.gap_batch("t", Gap(1, 2, "cap"), SCHEMA).num_rows == 1
print("pandas" in sys.modules)
"""


def test_a_worker_that_reads_does_not_pay_for_pandas() -> None:
    """Importing it takes longer than a small batch; `pa.array` does so silently."""
    ran = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "False", ran.stderr + ran.stdout


SETTLED = """
import gc, sys
from importlib.machinery import ModuleSpec
from pyspark.sql.types import LongType, StructType
from topics.spark import reader, stream
from topics.spark.options import ReadOptions
from topics.spark.scan import Range
sys.modules["__main__"].__spec__ = ModuleSpec("pyspark.daemon", None)
before = len(gc.get_objects())
streaming = sys.argv[1] == "stream"
options = ReadOptions({"url": "http://127.0.0.1:1", "topic": "t"}, streaming=streaming)
kind = stream.TopicsStreamReader if streaming else reader.TopicsReader
kind(options, StructType().add("seq", LongType())).read(reader.RangePartition(Range("t", 1, 0, 1)))
gc.collect()
print(len(gc.get_objects()) < before / 10)
"""


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_the_collection_after_a_task_passes_over_what_the_worker_has_loaded(kind: str) -> None:
    """A worker collects its garbage after every task, and the next task waits for that."""
    ran = subprocess.run([sys.executable, "-c", SETTLED, kind], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "True", ran.stderr + ran.stdout
