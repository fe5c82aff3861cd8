"""`topics verify` and `topics dump` on a directory with everything in it (CLI-10)."""

from __future__ import annotations

import json
import random

import pytest

from tests.harness.storage import DIRECTORY, Mini
from topics.storage.disk import RealDisk
from topics.storage.inspect.dump import dump
from topics.storage.inspect.verify import verify
from topics.storage.segment import format as segment
from topics.storage.wal import frame
from topics.testing.fake_disk import FakeDisk


def furnished() -> FakeDisk:
    """A directory with WAL, snapshot, a hot and a cold segment, deletes, and a tail."""
    disk = FakeDisk()
    mini = Mini(disk, wal_file_bytes=1024)
    mini.store.shard_of(1).submit(
        frame.control(frame.CREATE, mini.store.next_lsn(), 1, frame.Create("jobs", b'{"ttl_ms":0}', 5)), False
    )
    for _ in range(2):
        mini.append(1, [b'{"a":1}', b"[2]"], [b"x", None])
        mini.append(1, [b"3"])
        mini.turn()
        mini.seal(1)
    mini.delete(1, 2, 2)
    mini.relocate(1)
    mini.append(2, [b'"tail"'])
    mini.turn()
    mini.checkpoint()
    mini.checkpoint()
    mini.append(1, [b'"wal"'])
    mini.delete(1, 3, 3)
    mini.turn()
    mini.store.close()
    disk.crash("kill", random.Random(1))
    return disk


def run(disk: FakeDisk, directory: str = DIRECTORY) -> tuple[int, list[str]]:
    report: list[str] = []
    return verify(directory, report.append, disk=disk, cold_directory="/cold"), report


def test_verify_finds_nothing_wrong_with_a_sound_directory_and_changes_nothing() -> None:
    disk = furnished()
    before = disk.files()
    code, report = run(disk)
    assert code == 0, report
    assert report[-1].endswith("all is well")
    assert disk.files() == before


def test_verify_sees_every_wrong_byte() -> None:
    """CLI-10. Delete flags alone have no checksum, being flipped in place."""
    disk = furnished()
    flags: set[tuple[str, int]] = set()
    for path, data in disk.files().items():
        if path.endswith(".data"):
            for place in segment.scan_blocks(data):
                flags |= {(path, place.offset + place.length + i) for i in range(place.n)}
            flags |= {(path, len(data) - 8 + i) for i in range(8)}
        if path.endswith(".flags"):
            flags |= {(path, i) for i in range(64, len(data))}
    for path, data in disk.files().items():
        if path.endswith(("LOCK", "LAYOUT")):
            continue
        for offset in range(0, len(data), 3):
            if (path, offset) in flags:
                continue
            twin = disk.clone()
            twin.damage(path, offset, bytes([data[offset] ^ 0xFF]))
            code, report = run(twin)
            assert code == 1, f"{path} {offset}: {report}"
            assert any(line.startswith("DAMAGE") for line in report)


def test_verify_names_what_is_lost() -> None:
    disk = furnished()
    path = next(path for path, data in disk.files().items() if path.endswith(".wal") and b'"wal"' in data)
    disk.damage(path, disk.files()[path].index(b'"wal"'), b"\0")
    _, report = run(disk)
    assert any("lost: topic 1 seq 7-7" in line for line in report), report


def test_verify_reports_a_missing_segment() -> None:
    disk = furnished()
    disk.unlink("/cold/0000000000000001-0000000000000001.data")
    code, report = run(disk)
    assert code == 1
    assert any("missing, with 3 records" in line for line in report)


def test_verify_refuses_what_is_no_data_directory_of_its_version() -> None:
    disk = furnished()
    assert run(disk, "/elsewhere")[0] == 2
    disk.damage(f"{DIRECTORY}/LAYOUT", 30, b"8")
    code, report = run(disk)
    assert code == 2
    assert "unknown format" in report[-1]


def test_dump_shows_every_record_as_it_was_sent() -> None:
    disk = furnished()
    out: list[str] = []
    assert dump(DIRECTORY, out.append, disk=disk) == 0
    lines = [json.loads(line) for line in out]
    kinds = {line["kind"] for line in lines}
    assert {"topic", "block", "end", "append", "delete"} <= kinds
    by_seq = {
        (line["topic_id"], record["seq"]): record for line in lines if "records" in line for record in line["records"]
    }
    assert by_seq[1, 4]["data"] == {"a": 1}
    assert by_seq[1, 4]["tag"] == "x"
    assert by_seq[2, 1]["data"] == "tail"
    assert by_seq[1, 7]["data"] == "wal"
    states = {line["topic_id"]: line["state"] for line in lines if line["kind"] == "topic"}
    assert states[1]["name"] == "t1"
    (delete,) = (line for line in lines if line["kind"] == "delete" and line["payload"]["ranges"] == [[3, 3]])
    assert delete["file"].startswith("wal/")


def test_dump_goes_on_after_damage() -> None:
    disk = furnished()
    path = next(path for path, data in disk.files().items() if path.endswith(".wal") and b'"wal"' in data)
    disk.damage(path, disk.files()[path].index(b'"wal"'), b"\0")
    out: list[str] = []
    assert dump(DIRECTORY, out.append, disk=disk) == 1
    lines = [json.loads(line) for line in out]
    (damage,) = (line for line in lines if "damage" in line)
    assert damage["lost"] == [{"topic_id": 1, "first_seq": 7, "n": 1}]
    assert any(line.get("kind") == "delete" and line["offset"] > damage["offset"] for line in lines)


def test_tools_work_on_a_real_directory(tmp_path: object) -> None:
    from topics.clock import SystemClock
    from topics.storage.store import Store

    store = Store(str(tmp_path), disk=RealDisk(), clock=SystemClock(), wal_file_bytes=1 << 20)
    store.open()
    assert list(store.recover())
    store.start()
    store.shard_of(1).submit(frame.control(frame.DROP, store.next_lsn(), 1, frame.Drop(1)), False)
    store.run_until_idle()
    store.close()
    report: list[str] = []
    assert verify(str(tmp_path), report.append) == 0, report
    out: list[str] = []
    assert dump(str(tmp_path), out.append) == 0
    assert [json.loads(line)["kind"] for line in out] == ["drop"]


def test_verify_says_when_a_file_number_is_missing() -> None:
    disk = FakeDisk()
    mini = Mini(disk, wal_file_bytes=1024)
    for _ in range(30):
        mini.append(1, [b'"%s"' % (b"x" * 100)])
        mini.turn()
    mini.store.close()
    files = [path for path in disk.files() if path.endswith(".wal")]
    assert len(files) > 3
    disk.unlink(files[1])
    code, report = run(disk)
    assert code == 1
    assert any("file number 2 of this shard is missing" in line for line in report)


@pytest.mark.parametrize("tool", [verify, dump])
def test_an_empty_directory_is_an_answer_not_a_traceback(tool: object) -> None:
    assert callable(tool)
    assert tool("/nowhere", lambda line: None, disk=FakeDisk()) == 2
