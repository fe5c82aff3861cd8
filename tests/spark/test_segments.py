"""Sealed segments read straight from the data directory."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Raw, structs

from tests.harness.api import Api, until
from tests.harness.machine import Machine
from topics.engine import Delete, Write
from topics.engine.requests import RecordIn
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.server.api.blocks import _segment as plan_of
from topics.spark.client import Client, SealedFile
from topics.spark.errors import DataLoss
from topics.spark.segments import blocks as sealed_blocks
from topics.storage.block import HEADER_BYTES as BLOCK_HEADER_BYTES
from topics.storage.block import encode
from topics.storage.flags import DELETED
from topics.storage.segment.format import ALL_LIVE, DATA_MAGIC, HEADER_BYTES, SegmentName, encode_header
from topics.storage.splice import Spans, walk
from topics.testing import ServerProcess

pytestmark = pytest.mark.spark

RECORDS = 1050
EPOCH = 7
FIRST_SEQ_AT = 24
"""Where a Block has its first seq."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose topic "events" has sealed segments of 250 records and a tail: it takes seconds."""
    directory = tmp_path_factory.mktemp("filled") / "data"
    with ServerProcess(data_dir=directory, segment_max_events=250) as server:
        api = Api(server.host, server.port)
        fill(api)
        until(lambda: len(segments(api)) == 4, "the segments are sealed", 60)
        api.close()
        server.stop()
    return directory


@pytest.fixture
def sealed(start_server: Any, filled: Path, tmp_path: Path) -> Iterator[tuple[ServerProcess, Api]]:
    """A server of its own over a copy of that."""
    directory = shutil.copytree(filled, tmp_path / "served")
    server: ServerProcess = start_server(data_dir=directory, segment_max_events=250)
    api = Api(server.host, server.port)
    yield server, api
    api.close()


def fill(api: Api) -> None:
    for first in range(1, RECORDS, 50):
        api.write("events", *({"data": n, "tag": f"t{n % 10}"} for n in range(first, first + 50)))


def segments(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get("/v0/topics/events/plan?segments=true").ok()["segments"]
    return found


class Reads:
    """Reads "events" without Spark and counts what was asked of the server."""

    def __init__(self, server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.asked: list[tuple[int, int]] = []
        fetch = Client.blocks

        def counted(client: Client, topic: str, from_seq: int, to_seq: int) -> Any:
            self.asked.append((from_seq, to_seq))
            return fetch(client, topic, from_seq, to_seq)

        monkeypatch.setattr(Client, "blocks", counted)

    def seqs(self, **given: str) -> list[int]:
        import pyarrow as pa

        from topics.spark import columns, scan
        from topics.spark.options import ReadOptions
        from topics.spark.servers import Servers

        self.asked.clear()
        chosen = {"url": self.server.url, "topic": "events", "minPartitions": "3", **given}
        options = ReadOptions(chosen, streaming=False)
        found = []
        with closing(Servers(options.addresses)) as client:
            plan = client.plan("events")
            pieces = scan.split(scan.ranges(client, plan, 0, plan.head_seq, options), {"events": plan}, 3)
        schema = pa.schema([(name, columns.TYPES[name]) for name in ("seq", "data")])
        for piece in pieces:
            for batch in scan.RangeReader(options, schema).read(piece):
                assert batch["seq"].cast(pa.string()).equals(batch["data"])
                found += batch["seq"].to_pylist()
        return sorted(found)


def test_sealed_files_are_read_directly_and_the_tail_from_the_server(
    sealed: tuple[ServerProcess, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = sealed
    reads = Reads(server, monkeypatch)
    assert reads.seqs(dataDir=str(server.data_dir)) == list(range(1, RECORDS + 1))
    assert reads.asked, "the tail is not on disk yet"
    assert min(first for first, _ in reads.asked) >= 900
    assert reads.seqs(dataDir=f"file://{server.data_dir}") == list(range(1, RECORDS + 1))
    assert min(first for first, _ in reads.asked) >= 900


def test_deleted_records_stay_deleted_in_direct_reads(
    sealed: tuple[ServerProcess, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flags on disk may be older; the plan says what was deleted."""
    server, api = sealed
    api.erase("events", match="t3")
    api.erase("events", before_seq=41)
    expected = [n for n in range(41, RECORDS + 1) if n % 10 != 3]
    reads = Reads(server, monkeypatch)
    assert reads.seqs() == expected
    assert reads.seqs(dataDir=str(server.data_dir)) == expected


def test_evicted_records_are_loss_in_direct_reads_too(
    sealed: tuple[ServerProcess, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, api = sealed
    api.put("events", cap_records=330)
    reads = Reads(server, monkeypatch)
    with pytest.raises(DataLoss, match="1 to 720"):
        reads.seqs(dataDir=str(server.data_dir))
    assert reads.seqs(dataDir=str(server.data_dir), failOnDataLoss="false") == list(range(721, RECORDS + 1))


@pytest.mark.parametrize("harm", ["nowhere", "truncated", "vanished", "other topic"])
def test_what_does_not_fit_is_read_from_the_server(
    sealed: tuple[ServerProcess, Api], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, harm: str
) -> None:
    """An executor may not see the directory, or a file may have gone since the plan was made."""
    server, api = sealed
    copied = tmp_path / "data" / "segments"
    copied.mkdir(parents=True)
    for file in (server.data_dir / "segments").glob("*.data"):
        (copied / file.name).write_bytes(file.read_bytes())
    chosen = copied / segments(api)[2]["file"]
    if harm == "truncated":
        chosen.write_bytes(chosen.read_bytes()[:-40])
    elif harm == "vanished":
        chosen.unlink()
    elif harm == "other topic":
        api.fill("other", 300)
        chosen.write_bytes((copied / segments(api)[1]["file"]).read_bytes())
    reads = Reads(server, monkeypatch)
    directory = tmp_path / "missing" if harm == "nowhere" else tmp_path / "data"
    assert reads.seqs(dataDir=str(directory)) == list(range(1, RECORDS + 1))
    first = segments(api)[2]["first_seq"] - 1
    assert any(a <= first < b for a, b in reads.asked)


@pytest.fixture
def shared(tmp_path: Path) -> tuple[SealedFile, Path, Any]:
    """A file of four Blocks with ten records each, which several tasks read; its path, and the options to read it."""
    made = [encode(EPOCH, first, 5, [b"%d" % n for n in range(first, first + 10)]) for first in (1, 11, 21, 31)]
    content = b"".join(block.encoded() for block in made)
    name = SegmentName(EPOCH, 1)
    (tmp_path / "segments").mkdir()
    path = tmp_path / "segments" / name.data_file
    content += ALL_LIVE
    path.write_bytes(encode_header(DATA_MAGIC, name, 4, 40, HEADER_BYTES + len(content)) + content)
    options: Any = SimpleNamespace(data_dir=tmp_path, cold_dir=None)
    return SealedFile(1, 40, name.data_file, False, path.stat().st_size, []), path, options


def harm(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)


def blocks_of(path: Path) -> list[Spans]:
    """The Blocks of a file, which has the mark that all are live after them."""
    return list(walk(memoryview(path.read_bytes())[: -len(ALL_LIVE)], HEADER_BYTES))


def test_a_task_looks_only_at_its_own_blocks_of_a_file(shared: tuple[SealedFile, Path, Any]) -> None:
    """A file that several tasks share is not read by each of them as a whole."""
    file, path, options = shared
    *_, last = blocks_of(path)
    harm(path, last.data[0])
    found = sealed_blocks(file, EPOCH, options, 5, 25)
    assert found is not None
    assert [block.first_seq for block in found] == [1, 11, 21]
    assert sealed_blocks(file, EPOCH, options, 25, 31) is None


@pytest.mark.parametrize("block", range(4))
def test_a_block_that_claims_other_seqs_is_left_out_by_no_task(
    shared: tuple[SealedFile, Path, Any], block: int
) -> None:
    """SPARK-12: where a Block begins is damaged: no task may take it for one that belongs to another."""
    file, path, options = shared
    spans = blocks_of(path)
    harm(path, spans[block].ts - BLOCK_HEADER_BYTES + FIRST_SEQ_AT)
    assert sealed_blocks(file, EPOCH, options, spans[block].first_seq, spans[block].first_seq + 9) is None


def test_relocated_segments_are_read_from_the_cold_directory(
    start_server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`coldDir`: what the server has moved there is read there, deletes included, and without the option over HTTP."""
    cold = tmp_path / "cold"
    server: ServerProcess = start_server(segment_max_events=250, hot_retain_segments=1, cold_dir=cold)
    api = Api(server.host, server.port)
    fill(api)
    until(lambda: [file["cold"] for file in segments(api)] == [True, True, True, False], "three are moved", 60)
    reads = Reads(server, monkeypatch)
    everything = list(range(1, RECORDS + 1))
    assert reads.seqs(dataDir=str(server.data_dir), coldDir=str(cold)) == everything
    assert min(first for first, _ in reads.asked) >= 1000, "only the tail is asked for"
    assert reads.seqs(coldDir=str(cold)) == everything
    assert reads.asked
    assert all(first >= 750 for first, _ in reads.asked), "the hot segment and the tail are asked for"
    assert reads.seqs(dataDir=str(server.data_dir)) == everything
    assert min(first for first, _ in reads.asked) == 0
    api.erase("events", match="t3")
    left = [n for n in everything if n % 10 != 3]
    assert reads.seqs(dataDir=str(server.data_dir), coldDir=str(cold)) == left
    assert min(first for first, _ in reads.asked) >= 1000
    assert reads.seqs() == left
    api.close()


def test_a_damaged_block_is_never_read_and_never_silent(
    sealed: tuple[ServerProcess, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPARK-12: where the server finds it damaged too, it becomes a lost range with its reason."""
    server, api = sealed
    api.fill("push", 1)
    chosen = segments(api)[1]
    server.stop()
    path = server.data_dir / "segments" / chosen["file"]
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF
    path.write_bytes(content)
    server.start()
    reads = Reads(server, monkeypatch)
    with pytest.raises(DataLoss, match=r"reason: corruption"):
        reads.seqs(dataDir=str(server.data_dir))
    left = reads.seqs(dataDir=str(server.data_dir), failOnDataLoss="false")
    gone = set(range(1, RECORDS + 1)) - set(left)
    assert gone
    assert gone <= set(range(chosen["first_seq"], chosen["last_seq"] + 1))


def test_a_table_over_the_data_directory(spark: Any, sealed: tuple[ServerProcess, Api]) -> None:
    server, _ = sealed
    options = {"url": server.url, "topic": "events", "dataDir": str(server.data_dir), "minPartitions": "4"}
    frame = spark.read.format("topics").options(**options).load()
    assert frame.groupBy("tag").count().orderBy("tag").collect()[0] == ("t0", RECORDS // 10)


def test_a_merged_file_with_erased_records_is_read_directly(tmp_path: Path) -> None:
    """SPACE-1, SPACE-5: Spark finds the live records of a segment that was rewritten, and nothing of the others."""
    settings = UpkeepSettings(segment_max_events=10, segment_max_age_ms=1 << 40, erase_after_ms=10_000)
    machine = Machine(settings)
    for i in range(12):
        machine.engine.write("t", Write([RecordIn(Raw(b"%d" % (10 * i + k)), tag=f"t{k % 4}") for k in range(10)]))
        machine.run_until_idle()
    machine.engine.delete("t", Delete(match="t1"))
    for _ in range(8):
        machine.clock.advance(3_000)
        machine.run_until_idle()
    (tmp_path / "segments").mkdir()
    for path, content in machine.disk.files().items():
        if path.endswith(".data"):
            (tmp_path / "segments" / path.rpartition("/")[2]).write_bytes(content)
    topic = machine.engine.topics["t"]
    assert any(sealed.erased for segment in topic.archive.segments for sealed in segment.blocks)
    found: dict[int, bytes] = {}
    options: Any = SimpleNamespace(data_dir=tmp_path, cold_dir=None)
    for segment in topic.archive.segments:
        listed = plan_of(segment)
        assert listed is not None
        spans = sealed_blocks(SealedFile(**structs.asdict(listed)), topic.id, options, 1, topic.next_seq)
        assert spans is not None
        for span in spans:
            lengths = struct.unpack_from(f"<{span.n}I", span.buffer, span.data_lengths)
            at = span.data[0]
            for i, length in enumerate(lengths):
                if span.flags[i] != DELETED:
                    found[span.first_seq + i] = bytes(span.buffer[at : at + length])
                at += length
    assert found == {seq: record[1] for seq, record in machine.visible("t").items()}
