"""Damage sweep: one byte is wrong, at every offset in turn, and the loss is reported exactly.

No crash is involved: the medium returns other bytes than were written. For a byte anywhere in the WAL, recovery must
give back every record whose frame is whole, and name every record that it does not give back (DURABLE-17).
"""

from __future__ import annotations

import contextlib
import random

import pytest

from tests.harness.storage import DIRECTORY, Mini, Writer, open_store, recover, resolve
from topics.storage import block
from topics.storage.damage import Corrupt, Unusable
from topics.storage.segment import format as segment
from topics.storage.wal import frame, scan
from topics.storage.wal.file import read_used
from topics.testing.fake_disk import FakeDisk


def written() -> tuple[FakeDisk, Writer]:
    disk = FakeDisk()
    store, _ = open_store(disk, wal_file_bytes=1024, shards=1)
    writer = Writer(store)
    writer.control(frame.CREATE, 1, frame.Create("one", b'{"cap_records":5}', 1))
    for i in range(12):
        writer.append(1 + i % 3, [b'"%d-%d"' % (i, k) for k in range(1 + i % 4)], gated=True, extra=b"key" * (i % 2))
        writer.turn()
    store.run_until_idle()
    return disk, writer


def flip(disk: FakeDisk, path: str, offset: int, mask: int) -> FakeDisk:
    twin = disk.clone()
    twin.damage(path, offset, bytes([twin.files()[path][offset] ^ mask]))
    return twin


@pytest.mark.parametrize("mask", [0x01, 0xFF])
def test_a_wrong_byte_anywhere_in_the_wal_loses_only_what_is_named(mask: int) -> None:
    disk, writer = written()
    disk.crash("kill", random.Random(1))
    everything = set(writer.tried)
    whole = recover(disk.clone())
    assert whole.damaged == []
    wal = [path for path in disk.files() if path.endswith(".wal")]
    assert len(wal) >= 2
    for path in wal:
        for offset in range(len(disk.files()[path])):
            damaged = flip(disk, path, offset, mask)
            found = recover(damaged)
            there = {(topic_id, seq) for topic_id, records in found.records.items() for seq in records}
            where = f"{path} {offset}"
            assert found.damaged, f"the damage at {where} went unnoticed"
            assert there.isdisjoint(found.lost), f"named lost and there: {where}"
            assert there | found.lost == everything, f"silent loss at {where}"
            assert len(found.lost) <= 4, "no whole frame is dropped with a damaged one"
            assert all(event.reason == "corrupt" and event.quarantined for event in found.damaged), where
            again = recover(damaged)
            assert [event._replace(quarantined="") for event in again.damaged] == [
                event._replace(quarantined="") for event in found.damaged
            ], f"a second start judges {where} otherwise"
            assert again.records == found.records


def test_damage_sweep_catches_a_scan_that_stops_at_the_first_bad_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: everything after a bad frame is cut off as if it were a torn end."""
    monkeypatch.setattr(scan, "_next_whole", lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_wrong_byte_anywhere_in_the_wal_loses_only_what_is_named(0xFF)


def test_a_wrong_byte_anywhere_in_the_snapshot_loses_only_what_is_named() -> None:
    """DURABLE-17: topics are written twice, so no single damaged place takes a name or a config."""
    disk, writer = written()
    writer.checkpoint()
    disk.crash("kill", random.Random(1))
    (path,) = (path for path in disk.files() if path.endswith(".snap"))
    everything = set(writer.tried)
    for offset in range(len(disk.files()[path])):
        damaged = flip(disk, path, offset, 0xFF)
        # The WAL is what the checkpoint replaces: without it the snapshot has to speak for itself.
        for name in [name for name in damaged.files() if name.endswith(".wal")]:
            damaged.unlink(name)
        found = recover(damaged)
        there = {(topic_id, seq) for topic_id, records in found.records.items() for seq in records}
        assert found.damaged, f"the damage at {offset} went unnoticed"
        assert set(found.topics) == {1, 2, 3}, f"a topic was lost at {offset}"
        assert there | found.lost == everything, f"silent loss at {offset}"
        assert found.started is not None
        assert found.started.header is not None
        assert found.started.header.next_topic_id == 9


@pytest.mark.parametrize("length", [512, 4096])
def test_a_destroyed_sector_shows_as_a_jump_or_is_named(length: int) -> None:
    """Where no header is left to name the loss, it is reported as incomplete, and the frames after it are kept."""
    disk = FakeDisk()
    store, _ = open_store(disk, wal_file_bytes=32768)
    writer = Writer(store)
    for _ in range(100):
        writer.append(1, [b'"%s"' % (b"x" * 100)])
        writer.turn()
    store.run_until_idle()
    disk.crash("kill", random.Random(1))
    (path, *_) = (path for path in disk.files() if path.endswith(".wal"))
    for at in range(512, 16384, 512):
        damaged = disk.clone()
        damaged.damage(path, at, bytes(length))
        found = recover(damaged)
        missing = {seq for _, seq in writer.tried} - set(found.records[1])
        gaps = {seq for _, low, high in found.gaps for seq in range(low, high + 1)}
        assert missing == gaps | {seq for _, seq in found.lost}
        assert len(missing) <= length // 200 + 2


def test_a_missing_wal_file_is_reported() -> None:
    disk, _ = written()
    disk.crash("kill", random.Random(1))
    files = [path for path in disk.files() if path.endswith(".wal")]
    disk.unlink(files[1])
    names = [path for path in disk.files() if path.endswith(".wal")]
    assert len(names) >= 2
    found = recover(disk)
    assert found.gaps, "records before the next one that is there show as a jump"
    assert any(event.path == files[1] for event in found.damaged)


def test_log_without_its_beginning_and_without_a_checkpoint_is_refused() -> None:
    """DURABLE-22: the names of topics are gone with it, and a start would throw away what only they explain."""
    disk, _ = written()
    disk.crash("kill", random.Random(1))
    disk.unlink(next(path for path in disk.files() if path.endswith(".wal")))
    before = disk.files()
    with pytest.raises(Unusable, match="from a copy"):
        recover(disk)
    assert {path: content for path, content in disk.files().items() if "LOCK" not in path} == {
        path: content for path, content in before.items() if "LOCK" not in path
    }


def test_read_used_keeps_what_follows_zeros() -> None:
    disk = FakeDisk()
    disk.make_dir(DIRECTORY)
    handle = disk.create(f"{DIRECTORY}/x")
    disk.write(handle, 9 << 20, b"end")
    data, used, size = read_used(disk, handle)
    assert used == size == (9 << 20) + 3
    assert data[9 << 20 :].startswith(b"end")
    assert data[: 9 << 20] == bytes(9 << 20)


def sealed() -> tuple[FakeDisk, dict[tuple[int, int], bytes]]:
    disk = FakeDisk()
    mini = Mini(disk)
    for k in range(3):
        tags: list[bytes | None] = [b"a", None, b"b/%d" % k]
        mini.append(5, [b'"%d-%d"' % (k, i) for i in range(3)], tags)
        mini.turn()
    mini.seal(5)
    mini.delete(5, 5, 5)
    mini.turn()
    mini.checkpoint()
    everything = mini.records()
    disk.crash("kill", random.Random(1))
    return disk, everything


@pytest.mark.parametrize("suffix", [".data", ".idx"])
def test_a_wrong_byte_anywhere_in_a_segment_loses_only_what_is_named(suffix: str) -> None:
    """DURABLE-17: exact, explicit, never a valid Block dropped; a damaged index costs nothing at all."""
    disk, everything = sealed()
    (path,) = (path for path in disk.files() if path.endswith(suffix))
    flags: set[int] = set()
    for place in segment.scan_blocks(disk.files()[path]) if suffix == ".data" else []:
        flags |= set(range(place.offset + place.length, place.offset + place.length + place.n))
    size = len(disk.files()[path])
    if suffix == ".data":
        # That some are deleted says the end of the file, which no checksum covers either.
        flags |= set(range(size - 8, size))
    for offset in range(size):
        damaged = flip(disk, path, offset, 0xFF)
        mini = Mini(damaged)
        there = mini.records()
        if offset in flags:
            # No checksum covers a flag: a wrong one brings back the deleted record, and never takes a live one.
            assert set(there) - set(everything) <= {(5, 5)}
            assert set(everything) <= set(there)
            continue
        assert there.keys() | mini.lost >= everything.keys(), f"silent loss at {offset}"
        assert there.keys().isdisjoint(mini.lost)
        assert all(everything[key] == data for key, data in there.items())
        assert len(mini.lost) in ({0, 3} if suffix == ".data" else {0})
        with contextlib.suppress(Corrupt):
            resolve(mini.segments[5][0].tags)
        assert mini.damage or mini.store.segments.tiers.corrupt_total, f"the damage at {offset} went unnoticed"
        again = Mini(_killed(damaged))
        assert again.records() == there, f"a second start reads {offset} otherwise"


def _killed(disk: FakeDisk) -> FakeDisk:
    disk.crash("kill", random.Random(1))
    return disk


def test_damage_sweep_catches_a_block_read_without_its_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the Block's checksum is not looked at."""
    monkeypatch.setattr(block, "xxh3_64_intdigest", _Anything)
    with pytest.raises(AssertionError):
        test_a_wrong_byte_anywhere_in_a_segment_loses_only_what_is_named(".data")


class _Anything(int):
    """A checksum that equals every other."""

    def __new__(cls, data: object) -> _Anything:
        return super().__new__(cls, 0)

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__
