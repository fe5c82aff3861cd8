"""A real server on damaged files: it starts, says what is lost, exactly, and serves the rest.

Known records of class `fsync` are written, the server is killed, one byte of its files is flipped at a named place, and
it is started again (DURABLE-17). Over HTTP, the affected write appears as one tombstone with exactly its
range, `topics_corruption_total` counts the damage, and every other record is there as it was written.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topics.storage.disk import RealDisk
from topics.storage.snapshot import snapshot
from topics.storage.wal import file as walfile
from topics.storage.wal import frame, scan
from topics.storage.wal.file import read_used
from topics.testing import ServerProcess

# Writes of these many records each; the first forty records are sealed, and the next ones in the checkpoint.
SEALED, TAIL, LOGGED = (20, 20), (3,), (1, 4, 2, 5)
SEALED_S = 30.0
RECORDS = sum((*SEALED, *TAIL, *LOGGED))
Place = tuple[Path, int]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a server that was stopped, went on, and was killed."""
    directory = tmp_path_factory.mktemp("killed") / "data"
    settings: dict[str, Any] = {"data_dir": directory, "segment_max_events": 40}
    with ServerProcess(**settings) as server:
        server.request("PUT", "/v0/topics/t", json={"durability": "fsync"})
        number = write(server, 1, SEALED)
        # A seal takes what is there when it begins.
        ends = time.monotonic() + SEALED_S
        while not list(directory.glob("segments/*.idx")):
            assert time.monotonic() < ends, "nothing was sealed"
            time.sleep(0.01)
        number = write(server, number, TAIL)
    with ServerProcess(**settings) as server:
        server.request("PUT", "/v0/topics/late", json={"durability": "fsync", "ttl_ms": 12345})
        assert write(server, number, LOGGED) == RECORDS + 1
        server.kill()
    assert len(list(directory.glob("segments/*.data"))) == 1
    return directory


def write(server: ServerProcess, number: int, sizes: tuple[int, ...]) -> int:
    for n in sizes:
        records = [{"data": f"record {number + i}", "tag": "t"} for i in range(n)]
        answer = server.request("POST", "/v0/topics/t", json={"records": records})
        assert answer.json["first_seq"] == number
        number += n
    return number


def wal(directory: Path) -> Path:
    """The WAL file that holds the last writes."""
    return max(path for path in directory.glob("wal/*.wal") if len(used(path)) > walfile.HEADER_BYTES)


def used(path: Path) -> bytes:
    disk = RealDisk()
    handle = disk.open(str(path))
    try:
        data, upto, _ = read_used(disk, handle)
    finally:
        disk.close(handle)
    return data[:upto].rstrip(b"\0")


def entries(path: Path, header_bytes: int, kind: int) -> list[scan.Entry]:
    """The frames of a kind in a file."""
    data = used(path)
    data += bytes(-len(data) % 8)
    found = scan.walk(data + bytes(4096), header_bytes, len(data), torn_allowed=False)
    return [entry for entry in found if isinstance(entry, scan.Entry) and entry.kind == kind]


def append_frame(index: int, offset: Callable[[scan.Entry], int]) -> Callable[[Path], Place]:
    """A place in an APPEND frame; `offset` is counted from the payload."""

    def place(directory: Path) -> Place:
        entry = entries(wal(directory), walfile.HEADER_BYTES, frame.APPEND)[index]
        return wal(directory), entry.at + offset(entry)

    return place


def create_frame(directory: Path) -> Place:
    return wal(directory), entries(wal(directory), walfile.HEADER_BYTES, frame.CREATE)[0].at + 5


def snapshot_file(directory: Path) -> Path:
    return max(directory.glob("snapshots/*.snap"))


def snapshot_block(directory: Path) -> Place:
    path = snapshot_file(directory)
    return path, entries(path, snapshot.HEADER_BYTES, snapshot.BLOCK)[0].at + 60


def snapshot_topic(directory: Path) -> Place:
    path = snapshot_file(directory)
    return path, entries(path, snapshot.HEADER_BYTES, snapshot.TOPIC)[0].at + 9


def checksum(entry: scan.Entry) -> int:
    return (entry.length + 7 & -8) + 2


FIRST, LAST = RECORDS - sum(LOGGED) + 1, RECORDS
PLACES: dict[str, tuple[Callable[[Path], Place], tuple[int, int] | None]] = {
    "the header of a WAL file": (lambda directory: (wal(directory), 20), None),
    "the first copy of a CREATE frame": (create_frame, None),
    "the magic of a frame": (append_frame(0, lambda entry: -48), (FIRST, FIRST)),
    "the length of a frame": (append_frame(1, lambda entry: -40), (FIRST + 1, FIRST + 4)),
    "the count of a frame": (append_frame(1, lambda entry: -36), (FIRST + 1, FIRST + 4)),
    "the first seq of a frame": (append_frame(1, lambda entry: -15), (FIRST + 1, FIRST + 4)),
    "the check of a frame's header": (append_frame(1, lambda entry: -3), (FIRST + 1, FIRST + 4)),
    "the header of a Block": (append_frame(1, lambda entry: 17), (FIRST + 1, FIRST + 4)),
    "a record's data": (append_frame(2, lambda entry: entry.length - 20), (FIRST + 5, FIRST + 6)),
    "the checksum of a frame": (append_frame(2, checksum), (FIRST + 5, FIRST + 6)),
    "the last frame": (append_frame(3, lambda entry: 70), (LAST - 4, LAST)),
    "a sealed Block": (lambda directory: (next(directory.glob("segments/*.data")), 300), (1, 40)),
    "the header of a sealed file": (lambda directory: (next(directory.glob("segments/*.data")), 9), None),
    "the index of a sealed file": (lambda directory: (next(directory.glob("segments/*.idx")), 90), None),
    "the tags of a sealed file": (lambda directory: (next(directory.glob("segments/*.idx")), 150), None),
    "the header of the snapshot": (lambda directory: (snapshot_file(directory), 30), None),
    "a topic in the snapshot": (snapshot_topic, None),
    "a Block in the snapshot": (snapshot_block, (41, 43)),
}


@pytest.mark.parametrize("name", PLACES)
def test_flipped_byte_is_one_tombstone_with_exactly_the_range_it_hit(killed: Path, tmp_path: Path, name: str) -> None:
    """DURABLE-17: counted, reported with the exact range, and everything else is there."""
    directory = tmp_path / "data"
    shutil.copytree(killed, directory)
    find, lost = PLACES[name]
    path, at = find(directory)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x20
    path.write_bytes(data)
    with ServerProcess(data_dir=directory, segment_max_events=40) as server:
        # A delete by a tag that no record has looks into every index.
        server.request("POST", "/v0/topics/t/delete", json={"match": "nobody"})
        records, gaps = read(server)
        assert gaps == ([] if lost is None else [lost])
        gone = set() if lost is None else set(range(lost[0], lost[1] + 1))
        assert records == {seq: f"record {seq}" for seq in range(1, RECORDS + 1) if seq not in gone}
        metrics = server.request("GET", "/v0/metrics", headers={"Accept": "application/json"}).json
        assert metrics["topics_corruption_total"] >= 1
        assert "topics_corruption_total" in server.request("GET", "/v0/metrics").body.decode()
        assert list(directory.glob("quarantine/*.bin"))
        assert server.request("GET", "/v0/topics/late").json["config"]["ttl_ms"] == 12345
        assert write(server, RECORDS + 1, (2,)) == RECORDS + 3


def read(server: ServerProcess) -> tuple[dict[int, str], list[tuple[int, int]]]:
    records: dict[int, str] = {}
    gaps: list[tuple[int, int]] = []
    cursor = 0
    while True:
        got = server.request("POST", "/v0/topics/t/diff", json={"from_seq": cursor, "limit": 1000}).json
        if got["tombstone"] is not None:
            gaps.append((got["tombstone"]["gap_from"], got["tombstone"]["gap_to"]))
        records |= {record["$seq"]: record["data"] for record in got["records"]}
        cursor = got["next_from_seq"]
        if got["caught_up"]:
            return records, gaps


def test_server_without_its_checkpoint_says_in_one_line_what_to_do(killed: Path, tmp_path: Path) -> None:
    """DURABLE-22: only the checkpoint has the names of sealed records; a start without it would lose them all."""
    directory = tmp_path / "data"
    shutil.copytree(killed, directory)
    for path in (*directory.glob("wal/00000001-*"), *directory.glob("snapshots/*")):
        path.unlink()
    server = ServerProcess(data_dir=directory)
    with pytest.raises(AssertionError):
        server.start()
    errors = [line for line in server.log().splitlines() if "cannot use the data directory" in line]
    assert len(errors) == 1
    assert "from a copy" in errors[0]
    assert "Traceback" not in server.log()
    assert list(directory.glob("segments/*.data"))
    server.close()
